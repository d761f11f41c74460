"""Names of tensors of published checkpoints say what they are for."""

from spark_prof.rules.tensor_names import RULES, WeightUse, place_of, split_name
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

NAMES = {
    # gpt-oss
    "model.layers.0.mlp.experts.gate_up_proj_blocks": "experts",
    "model.layers.0.mlp.experts.gate_up_proj_scales": "experts",
    "model.layers.0.mlp.experts.down_proj_bias": "experts",
    "model.layers.0.mlp.router.bias": "router",
    "model.layers.0.self_attn.sinks": "attention",
    # Qwen3 with experts, Qwen3-Next, Qwen3-VL
    "model.layers.7.mlp.experts.101.down_proj.weight_scale_2": "experts",
    "model.layers.7.mlp.gate.weight": "router",
    "model.layers.7.mlp.shared_expert.up_proj.weight": "shared_experts",
    "model.layers.7.mlp.shared_expert_gate.weight": "shared_experts",
    "model.layers.7.linear_attn.in_proj_qkvz.weight": "ssm",
    "model.layers.7.linear_attn.norm.weight": "norm",
    "model.language_model.layers.3.mlp.experts.gate_up_proj": "experts",
    # DeepSeek and GLM
    "model.layers.4.self_attn.q_a_proj.weight_scale_inv": "qkv",
    "model.layers.4.self_attn.kv_a_proj_with_mqa.weight": "qkv",
    "model.layers.4.self_attn.kv_b_proj.weight": "qkv",
    "model.layers.4.self_attn.q_a_layernorm.weight": "norm",
    "model.layers.4.mlp.gate.e_score_correction_bias": "router",
    "model.layers.4.mlp.shared_experts.gate_proj.weight": "shared_experts",
    "model.layers.0.mlp.gate_proj.weight": "mlp",
    # Granite
    "model.layers.1.block_sparse_moe.input_linear.weight": "experts",
    "model.layers.1.block_sparse_moe.router.layer.weight": "router",
    "model.layers.1.shared_mlp.output_linear.weight": "shared_experts",
    "model.layers.1.mamba.in_proj.weight": "ssm",
    # Nemotron-H
    "backbone.layers.0.mixer.in_proj.weight": "ssm",
    "backbone.layers.0.mixer.conv1d.bias": "ssm",
    "backbone.layers.5.mixer.q_proj.weight": "qkv",
    "backbone.layers.5.mixer.o_proj.weight": "o_proj",
    "backbone.layers.5.mixer.k_proj.k_scale": "qkv",
    "backbone.embeddings.weight": "embedding",
    "backbone.norm_f.weight": "norm",
    # Llama 4, Gemma, Phi-3, InternLM2, Falcon, GPT-NeoX, GPT-2, OPT
    "model.layers.9.self_attn.qkv_proj.weight": "qkv",
    "model.layers.9.attention.wqkv.weight": "qkv",
    "model.layers.9.attention.wo.weight": "o_proj",
    "model.layers.9.feed_forward.w1.weight": "mlp",
    "model.tok_embeddings.weight": "embedding",
    "output.weight": "lm_head",
    "transformer.h.3.self_attention.query_key_value.weight": "qkv",
    "transformer.h.3.self_attention.dense.weight": "o_proj",
    "gpt_neox.layers.2.attention.dense.weight": "o_proj",
    "embed_out.weight": "lm_head",
    "h.1.attn.c_attn.weight": "qkv",
    "h.1.attn.c_proj.weight": "o_proj",
    "h.1.ln_1.weight": "norm",
    "wte.weight": "embedding",
    "model.decoder.layers.0.fc1.weight": "mlp",
    "model.layers.0.block_sparse_moe.e_score_correction_bias": "router",
    # Mistral's own names
    "layers.0.attention.wq.weight": "qkv",
    "tok_embeddings.weight": "embedding",
    # LFM2
    "model.layers.0.conv.in_proj.weight": "ssm",
    # bitsandbytes and GPTQ
    "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4": "mlp",
    "model.layers.0.self_attn.o_proj.g_idx": "o_proj",
    "lm_head.weight": "lm_head",
    "something.else": "other",
}

DRAFTERS = (
    "mtp.layers.0.mlp.experts.3.up_proj.weight",
    "model.mtp.0.fc.weight",
    "model.layers.61.eh_proj.weight",
    "model.layers.61.mlp.experts.0.down_proj.weight",
)
ENCODERS = (
    "visual.blocks.3.attn.qkv.weight",
    "model.visual.merger.mlp.0.weight",
    "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight",
    "multi_modal_projector.linear_1.weight",
    "audio_tower.layers.0.fc1.weight",
    "model.vision_embed_tokens.img_projection.0.weight",
)


def place(name: str, layers: int = 61) -> WeightUse:
    return place_of(split_name(name)[0], layers)


@each_row("rule", RULES)
def test_every_rule_has_examples_that_it_finds_first(rule) -> None:
    assert rule.place.component in COMPONENTS
    assert rule.examples
    for example in rule.examples:
        assert place_of(example, 0) == rule.place


@each_row(("name", "component"), NAMES.items())
def test_what_a_tensor_is_for(name: str, component: str) -> None:
    assert place(name) == WeightUse(component)


def test_what_drafts_tokens_and_what_sees_or_hears() -> None:
    assert [name for name in DRAFTERS if place(name).role != "drafter"] == []
    assert [name for name in ENCODERS if place(name).role != "encoder"] == []


def test_experts_of_a_layer_are_one_module() -> None:
    names = [f"model.layers.3.mlp.experts.{expert}.up_proj.weight" for expert in (0, 7, 511)]
    assert {split_name(name) for name in names} == {
        ("model.layers.3.mlp.experts.*.up_proj", "weight")
    }


@each_row("name", ["", ".", "weight", ".weight", "x" * 100_000, "a.." * 1000])
def test_any_name_is_split(name: str) -> None:
    module, part = split_name(name)
    assert len(module) <= len(name)
    assert part
    assert place_of(module, 3).component in COMPONENTS
