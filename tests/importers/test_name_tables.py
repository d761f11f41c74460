"""Every row of the tables of names is tested by its own examples."""

from spark_prof.importers import imported_steps, modules
from spark_prof.importers.imported_steps import batch_of, rule_of
from spark_prof.importers.modules import module_name, names_module
from spark_prof.rules.components import CLASS_RULES, component_of_class, is_layer_class
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row


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


def test_a_dictionary_of_any_length_is_read():
    name = "{'Module': 'top.model.layers.3.mlp', 'Inputs': [" + "[1, 4096], " * 5000 + "]}"
    assert module_name(name).path == "model.layers.3.mlp"


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


def test_every_component_is_in_the_vocabulary():
    assert {rule.component for rule in CLASS_RULES} <= {*COMPONENTS, ""}


def test_layer_classes():
    names = ("TransformerBlock", "LlamaDecoderLayer", "Linear", "MLPBlock")
    assert [is_layer_class(name) for name in names] == [True, True, False, False]


@each_row(
    ("rule", "name", "batch"),
    [(i, *example) for i, rule in enumerate(imported_steps.RULES) for example in rule.examples],
)
def test_names_of_steps(rule, name, batch):
    assert rule_of(name) == rule
    assert batch_of(name, rule) == batch


def test_what_is_no_step():
    for name in ("", "aten::mm", "mod:model.layers.0", "forward", "step", "decoder", "decode",
                 "prefill", "x" * 100_000, "step[]"):  # fmt: skip
        assert rule_of(name) == -1, name[:50]


def test_a_number_that_no_engine_counts_to_is_bounded():
    name = f"execute_context_0(0)_generation_1({'9' * 40})"
    assert batch_of(name, rule_of(name)).decode_tokens == (1 << 31) - 1
