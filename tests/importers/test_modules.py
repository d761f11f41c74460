"""Scopes become modules: paths, layers, components by class; every rule by its own examples."""

from spark_prof.importers import imported_steps, modules
from spark_prof.importers.imported_steps import batch_of, rule_of
from spark_prof.importers.modules import model_of, module_name, modules_of, names_module
from spark_prof.rules.components import CLASS_RULES, component_of_class
from spark_prof.traces.scopes import Scopes
from tests.rows import each_row


def tree(*paths):
    """Scopes of these paths of classes such as A_0/B_1."""
    scopes = Scopes()
    for path in paths:
        parent = -1
        for part in path.split("/"):
            parent = scopes.child(parent, f"nn.Module: {part}")
    return scopes


def found(scopes):
    frame = modules_of(scopes).frame
    return {row.path.rsplit(".", 1)[-1]: (row.layer, row.component) for row in frame.itertuples()}


def test_vllm_classes():
    modules = found(
        tree(
            "GptOssForCausalLM_0/VocabParallelEmbedding_0",
            *(
                f"GptOssForCausalLM_0/TransformerBlock_{i}/{part}"
                for i in (0, 1)
                for part in (
                    f"RMSNorm_{2 * i}",
                    f"OAIAttention_{i}/QKVParallelLinear_{i}",
                    f"OAIAttention_{i}/Attention_{i}/QuantFP8_{i}",
                    f"OAIAttention_{i}/RowParallelLinear_{i}",
                    f"MLPBlock_{i}/Linear_{i}",
                    f"MLPBlock_{i}/FusedMoE_{i}",
                )
            ),
            "GptOssForCausalLM_0/RMSNorm_4",
            "LogitsProcessor_0",
        )
    )
    assert modules["VocabParallelEmbedding_0"] == (-1, "embedding")
    assert modules["TransformerBlock_1"] == (1, "")
    assert modules["RMSNorm_2"] == (1, "norm")
    assert modules["RMSNorm_4"] == (-1, "norm")
    assert modules["QKVParallelLinear_1"] == (1, "qkv")
    assert modules["QuantFP8_0"] == (0, "attention")
    assert modules["RowParallelLinear_0"] == (0, "o_proj")
    assert modules["Linear_1"] == (1, "router")
    assert modules["FusedMoE_1"] == (1, "experts")
    assert modules["LogitsProcessor_0"] == (-1, "lm_head")


def test_hugging_face_attention_has_plain_linear_modules():
    layer = "Qwen2ForCausalLM_0/Qwen2Model_0/Qwen2DecoderLayer_0"
    modules = found(
        tree(
            *(f"{layer}/Qwen2SdpaAttention_0/Linear_{i}" for i in (0, 1, 2, 3)),
            *(f"{layer}/Qwen2MLP_0/Linear_{i}" for i in (4, 5, 6)),
            "Qwen2ForCausalLM_0/Linear_7",
        )
    )
    assert [modules[f"Linear_{i}"] for i in range(8)] == [
        *[(0, "qkv")] * 3,
        (0, "o_proj"),
        *[(0, "mlp")] * 3,
        (-1, "lm_head"),
    ]


def test_paths_say_their_layer_themselves_and_a_block_with_experts_is_known_by_its_paths():
    scopes = Scopes()
    layer = scopes.child(-1, "mod:model.layers.7")
    block = scopes.child(layer, "mod:model.layers.7.mlp")
    scopes.child(block, "mod:model.layers.7.mlp.experts")
    scopes.child(block, "mod:model.layers.7.mlp.router")
    frame = modules_of(scopes).frame
    assert frame["layer"].tolist() == [7] * 4
    assert frame["component"].tolist() == ["", "experts", "experts", "router"]


def test_a_shared_module_counts_to_the_layer_of_its_caller():
    scopes = Scopes()
    for layer in (3, 4):
        caller = scopes.child(-1, f"mod:model.layers.{layer}.attn")
        scopes.child(caller, "mod:model.rotary")
    modules = modules_of(scopes)
    assert modules.layer_of_scope.tolist() == [3, 3, 4, 4, -1]
    assert modules.of_scope[1] == modules.of_scope[3]


def layers(scopes):
    """The layer of each block, by class and number."""
    frame = modules_of(scopes).frame
    names = frame["path"].str.rsplit(".", n=1).str[-1]
    blocks = names.str.contains(r"Layer_|Block_")
    return dict(zip(names[blocks], frame["layer"][blocks], strict=True))


def test_towers_beside_each_other_have_no_decoder_layers():
    """OWLv2: an encoder for pictures, one for texts."""
    encoder = (
        "Owlv2Model_0/Owlv2{0}Transformer_0/Owlv2Encoder_{1}/Owlv2EncoderLayer_{2}/Attention_{2}"
    )
    paths = [encoder.format("Vision", 0, n) for n in range(4)]
    assert set(layers(tree(*paths)).values()) == {0, 1, 2, 3}
    texts = [encoder.format("Text", 1, 4 + n) for n in range(2)]
    assert set(layers(tree(*paths, *texts)).values()) == {-1}


def test_of_a_tower_and_a_decoder_only_the_decoder_has_layers():
    tower = [f"VlModel_0/VisionTower_0/VisionBlock_{n}/Attention_{n}" for n in range(5)]
    decoder = [f"VlModel_0/LlamaModel_0/DecoderLayer_{n}/Attention_{5 + n}" for n in range(3)]
    draft = ["VlModel_0/DraftModel_0/DecoderLayer_3/Attention_8"]
    found = layers(tree(*tower, *decoder, *draft))
    assert [found[f"DecoderLayer_{n}"] for n in range(4)] == [0, 1, 2, -1]
    assert {found[f"VisionBlock_{n}"] for n in range(5)} == {-1}


def test_a_diffusion_transformer_has_no_decoder_layers():
    blocks = [f"FluxTransformer2DModel_0/FluxTransformerBlock_{n}/Attention_{n}" for n in range(4)]
    blocks += [f"FluxTransformer2DModel_0/FluxSingleBlock_{n}/Attention_{4 + n}" for n in range(9)]
    assert set(layers(tree(*blocks)).values()) == {-1}


def test_layers_of_several_classes_are_counted_together():
    """Nemotron-H: a layer is Mamba, attention or experts by turns."""
    kinds = ["Mamba", "Moe", "Mamba", "Attention", "Moe"]
    part = {"Mamba": "MambaMixer2", "Moe": "FusedMoE", "Attention": "NemotronHAttention"}
    numbers = [0, 0, 1, 0, 1]
    paths = [
        f"NemotronHModel_0/NemotronH{kind}DecoderLayer_{n}/{part[kind]}_{n}"
        for kind, n in zip(kinds, numbers, strict=True)
    ]
    one_more = [f"NemotronHModel_0/NemotronHAttentionDecoderLayer_1/{part['Attention']}_1"]
    found = layers(tree(*paths, *one_more))
    assert list(found.values()) == [0, 1, 2, 3, 4, 5]


@each_row(("name", "found"), [row for rule in modules.RULES for row in rule.examples])
def test_names_of_modules(name, found):
    assert module_name(name) == found


@each_row(
    "name",
    [
        "", "aten::mm", "model", "nn.Module: ", "nn.Module: Linear", "ProfilerStep#6",
        "execute_context_1(64)_generation_0(0)", "torch/nn/modules/module.py(1779): _call_impl",
        "## Call CompiledFxGraph abc ##", "nccl:all_reduce", "mod:", "mod:a b", "ncclAllReduce",
    ],
)  # fmt: skip
def test_what_names_no_module(name):
    assert not names_module(name)


@each_row(
    ("component", "name", "around"),
    [
        *((rule.component, *example) for rule in CLASS_RULES for example in rule.examples),
        # A model may have experts in its name.
        ("attention", "Qwen3MoeAttention", "Qwen3MoeDecoderLayer"),
        ("mlp", "Qwen3MoeMLP", "Qwen3MoeDecoderLayer"),
        ("norm", "Qwen3MoeRMSNorm", "Qwen3MoeDecoderLayer"),
        *(("", name, "") for name in (
            "Dropout", "SiLU", "ModuleList", "GptOssForCausalLM", "QuantFP8", "Qwen3MoeForCausalLM",
            "Qwen3MoeModel", "Qwen3MoeDecoderLayer",
        )),
    ],
)  # fmt: skip
def test_components_of_classes(component, name, around):
    assert component_of_class(name, around) == component


@each_row(
    ("rule", "name", "batch"),
    [(i, *example) for i, rule in enumerate(imported_steps.RULES) for example in rule.examples],
)
def test_names_of_steps(rule, name, batch):
    assert rule_of(name) == rule
    assert batch_of(name, rule) == batch


def test_what_is_no_step():
    for name in ("", "aten::mm", "mod:model.layers.0", "forward", "step", "decoder", "decode",
                 "prefill", "x" * 100_000, "step[]",
                 "Optimizer.zero_grad#AdamW.zero_grad"):  # fmt: skip
        assert rule_of(name) == -1, name[:50]


@each_row(
    ("types", "model"),
    [
        (["T5EncoderModel", "CLIPTextModel", "FluxTransformer2DModel"], "FluxTransformer2DModel"),
        (["CLIPTextModel", "UNet2DConditionModel", "AutoencoderKL"], "UNet2DConditionModel"),
        (["GptOssForCausalLM", "GptOssModel"], "GptOssForCausalLM"),
        (["Linear", "RMSNorm"], ""),
    ],
)
def test_the_model_of_a_pipeline_is_what_draws(types: list[str], model: str) -> None:
    assert model_of(types) == model
