"""Real orders of kernels, as captured on an H200 from stock vLLM 0.26, two layers each.

The names and the tensors that each kernel's arguments hold are those of the captured graphs; the
packed arguments of cuBLAS's kernels and the activations stand for what such kernels are given.
"""

from __future__ import annotations

from pathlib import Path

from tests.analyzers.attribution.memory import (
    PACKED,
    STRUCT,
    Line,
    Memory,
    placed_lines,
)

NVJET = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
"""One name for kv_a_proj, o_proj and the shared experts' first product."""
SPLIT = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
REDUCE = "_ZN8cublasLt19splitKreduce_kernelILi32ELi16Eif13__nv_bfloat16S2_EEvv"
FLASH = "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90EEEEEvv"
COMBINE = "_ZN7cutlass13device_kernelIN5flash19FlashAttnFwdCombineIN4cute5tupleEEEEEvv"
TOP_K = "_ZN2at6native6sbtopk10gatherTopKIN3c108BFloat16EjLi1ELb0EEEvv"
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIiEESt5arrayEEvv"
ACT = "_ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162EEvv"
SUM = "_ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16EiLi6ELb0EEEvv"
WRITE = "_ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_EEvv"
VECTOR = {"shape": "64", "size": 128}
EXPERTS = "mlp.experts.routed_experts"


def scale(name: str) -> dict[str, object]:
    return {"kind": "buffer", "name": name, "shape": "", "size": 4}


def deepseek_memory(layers: int) -> Memory:
    memory = Memory().add("model.embed_tokens", size=1 << 19).add("model.norm", **VECTOR)
    table = {"kind": "buffer", "name": "cos_sin_cache", "layer": -1}
    memory.add("model.layers.0.self_attn.rotary_emb", **table)
    for n in range(layers + 1):
        at, mlp = f"model.layers.{n}.self_attn", f"model.layers.{n}.mlp"
        memory.add(f"model.layers.{n}.input_layernorm", **VECTOR)
        memory.add(f"model.layers.{n}.post_attention_layernorm", **VECTOR)
        memory.add(f"{at}.kv_a_layernorm", **VECTOR)
        for product in ("q_proj", "kv_a_proj_with_mqa", "o_proj"):
            memory.add(f"{at}.{product}")
        memory.add(f"{at}.kv_b_proj", name="W_UK_T").add(f"{at}.kv_b_proj", name="W_UV")
        memory.add(f"{at}.mla_attn.mla_attn", kind="kv", name="kv_cache")
        memory.add(f"{at}.mla_attn.mla_attn", **scale("_k_scale"))
        if n == 0:
            memory.add(f"{mlp}.gate_up_proj").add(f"{mlp}.down_proj")
            continue
        memory.add(f"{mlp}.gate")
        memory.add(f"{mlp}.shared_experts.gate_up_proj").add(f"{mlp}.shared_experts.down_proj")
        for name in ("w13_weight", "w2_weight"):
            memory.add(f"model.layers.{n}.{EXPERTS}", name=name, shape="64x64x32")
    return memory


def deepseek_attention(n: int) -> list[Line]:
    at = f"model.layers.{n}.self_attn"
    cache = f"{at}.mla_attn.mla_attn"
    stale = f"model.layers.1.{EXPERTS}:w13_weight"
    return [
        Line("nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN", (f"{at}.q_proj",), "x q",
             ("qkv", n, "weight", "self_attn.q_proj"), PACKED),
        Line(NVJET, (f"{at}.kv_a_proj_with_mqa",), "x kv",
             ("qkv", n, "weight", "self_attn.kv_a_proj_with_mqa"), PACKED),
        Line(f"triton_poi_fused_{n + 1}",
             ("model.layers.0.self_attn.rotary_emb:cos_sin_cache",), "q kv",
             ("rope", n, "flow", "self_attn.rotary_emb")),
        Line(f"triton_per_fused_{n + 2}", (f"{at}.kv_a_layernorm",), "kv c",
             ("norm", n, "weight", "self_attn.kv_a_layernorm")),
        Line("_ZN4vllm27concat_and_cache_mla_kernelI13__nv_bfloat16S1_EEvv",
             (f"{cache}:kv_cache", f"{cache}:_k_scale"), "c",
             ("kv_write", n, "kv", "self_attn.mla_attn")),
        Line("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_NNT", (f"{at}.kv_b_proj:W_UK_T",), "q l",
             ("qkv", n, "weight", "self_attn.kv_b_proj.absorb_k"), PACKED),
        Line(FLASH, (f"{cache}:kv_cache",), "l p",
             ("attention", n, "kv", "self_attn.mla_attn"), STRUCT),
        Line(COMBINE, (stale,), "p a",
             ("attention", n, "flow", "self_attn.mla_attn"), STRUCT),
        Line("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", (f"{at}.kv_b_proj:W_UV",), "a v",
             ("qkv", n, "weight", "self_attn.kv_b_proj.absorb_v"), PACKED),
        Line(NVJET, (f"{at}.o_proj",), "v o", ("o_proj", n, "weight", "self_attn.o_proj"), PACKED),
        Line("triton_red_fused_fused_add_rms_norm_0",
             (f"model.layers.{n}.post_attention_layernorm",), "o r x",
             ("norm", n, "weight", "post_attention_layernorm")),
    ]  # fmt: skip


def deepseek_dense() -> list[Line]:
    mlp = "model.layers.0.mlp"
    return [
        Line("nvjet_sm90_tst_256x8_64x6_4x1_v_bz_TNT", (f"{mlp}.gate_up_proj",), "x g",
             ("mlp", 0, "weight", "mlp.gate_up_proj"), PACKED),
        Line("triton_poi_fused_mul_silu_slice_1", (), "g s",
             ("mlp", 0, "flow", "mlp.gate_up_proj")),
        Line(SPLIT, (f"{mlp}.down_proj",), "s w", ("mlp", 0, "weight", "mlp.down_proj"), PACKED),
        Line(REDUCE, (), "w o", ("mlp", 0, "flow", "mlp.down_proj")),
    ]  # fmt: skip


def deepseek_moe(n: int) -> list[Line]:
    mlp, shared = f"model.layers.{n}.mlp", f"model.layers.{n}.mlp.shared_experts"
    routed = f"model.layers.{n}.{EXPERTS}"
    router = ("router", n, "flow", "mlp.gate")
    return [
        Line("nvjet_sm90_tst_64x8_64x16_1x1_h_bz_TNT", (f"{mlp}.gate",), "x t",
             ("router", n, "weight", "mlp.gate"), PACKED),
        Line("triton_red_fused__softmax_exp_max_prepare_softmax_online_sub", (), "t m", router),
        Line(TOP_K, (), "t i", router),
        Line("triton_poi_fused__softmax__to_copy_arange_bitwise_not_eq_exp", (), "m i b", router),
        Line(TOP_K, (), "b j", router),
        # A conversion works for what reads its result.
        Line("triton_poi_fused__to_copy_2", (), "j k", ("experts", n, "flow", "mlp.experts")),
        Line(FILL, (), "z", ("experts", n, "flow", "mlp.experts")),
        Line("fused_moe_kernel", (f"{routed}:w13_weight",), "x k z u",
             ("experts", n, "weight", "mlp.experts.w13")),
        Line(ACT, (), "u y", ("experts", n, "flow", "mlp.experts")),
        Line("fused_moe_kernel", (f"{routed}:w2_weight",), "y k e",
             ("experts", n, "weight", "mlp.experts.w2")),
        Line(SUM, (), "e f", ("experts", n, "flow", "mlp.experts")),
        Line(NVJET, (f"{shared}.gate_up_proj",), "x g",
             ("shared_experts", n, "weight", "mlp.shared_experts.gate_up_proj"), PACKED),
        Line("triton_poi_fused_mul_silu_slice_0", (), "g s",
             ("shared_experts", n, "flow", "mlp.shared_experts.gate_up_proj")),
        Line(SPLIT, (f"{shared}.down_proj",), "s w",
             ("shared_experts", n, "weight", "mlp.shared_experts.down_proj"), PACKED),
        Line(REDUCE, (), "w h", ("shared_experts", n, "flow", "mlp.shared_experts.down_proj")),
    ]  # fmt: skip


def deepseek() -> list[Line]:
    return [
        Line("triton_red_fused__to_copy_embedding_rms_norm_0",
             ("model.embed_tokens", "model.layers.0.input_layernorm"), "r x",
             ("norm", 0, "weight", "input_layernorm")),
        *deepseek_attention(0),
        *deepseek_dense(),
        Line("triton_red_fused_fused_add_rms_norm_2", ("model.layers.1.input_layernorm",), "o r x",
             ("norm", 1, "weight", "input_layernorm")),
        *deepseek_attention(1),
        *deepseek_moe(1),
        Line("triton_red_fused_add_fused_add_rms_norm_1", ("model.layers.2.input_layernorm",),
             "f h r x", ("norm", 2, "weight", "input_layernorm")),
        *deepseek_attention(2),
        *deepseek_moe(2),
        Line("triton_red_fused_add_fused_add_rms_norm_1", ("model.norm",), "f h r x",
             ("norm", -1, "weight", "norm")),
    ]  # fmt: skip


def wrong(lines: list[Line], found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [
        (number, line.name[:40], line.place, place)
        for number, (line, place) in enumerate(zip(lines, found, strict=True))
        if line.place != place
    ]


def test_deepseek_v2_lite(tmp_path: Path) -> None:
    """MLA: its products share names, and the combine's struct holds a stale word."""
    lines = deepseek()
    found = placed_lines(tmp_path, deepseek_memory(2), lines)
    assert wrong(lines, found) == []


def gpt_oss_memory() -> Memory:
    memory = Memory().add("model.embedding", size=1 << 19).add("model.norm", **VECTOR)
    table = {"kind": "buffer", "name": "cos_sin_cache", "layer": -1}
    memory.add("model.layers.0.attn.rotary_emb", **table)
    memory.add("model.layers.0.attn.attn", kind="kv", name="kv_cache")
    memory.add("model.layers.1.attn.attn", kind="kv", name="kv_cache",
               at="model.layers.0.attn.attn:kv_cache")  # fmt: skip
    for n in range(2):
        at, mlp = f"model.layers.{n}.attn", f"model.layers.{n}.mlp"
        memory.add(f"model.layers.{n}.input_layernorm", **VECTOR)
        memory.add(f"model.layers.{n}.post_attention_layernorm", **VECTOR)
        memory.add(f"{at}.attn", **scale("_k_scale")).add(f"{at}.attn", **scale("_v_scale"))
        memory.add(at, name="sinks", **VECTOR)
        for product in (f"{at}.qkv", f"{at}.o_proj", f"{mlp}.router"):
            memory.add(product).add(product, name="bias", **VECTOR)
        for name in ("w13_weight", "w2_weight"):
            memory.add(f"model.layers.{n}.{EXPERTS}", name=name, shape="64x64x32")
            memory.add(f"model.layers.{n}.{EXPERTS}", name=name[:-6] + "bias", size=1024)
    return memory


def gpt_oss_layer(n: int) -> list[Line]:
    """One buffer holds the KV caches of both layers, as vLLM's hybrid cache manager allots it."""
    at, mlp, routed = (f"model.layers.{n}.{name}" for name in ("attn", "mlp", EXPERTS))
    kv = "model.layers.0.attn.attn:kv_cache"
    router = ("router", n, "flow", "mlp.router")
    split = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_bias_TNT"
    return [
        Line("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT", (f"{at}.qkv", f"{at}.qkv:bias"),
             "x q", ("qkv", n, "weight", "attn.qkv"), PACKED),
        Line(f"triton_poi_fused_{n + 1}", ("model.layers.0.attn.rotary_emb:cos_sin_cache",), "q k",
             ("rope", n, "flow", "attn.rotary_emb")),
        Line(WRITE, (kv, f"{at}.attn:_k_scale", f"{at}.attn:_v_scale"), "k",
             ("kv_write", n, "kv", "attn.attn")),
        Line(FLASH, (kv, f"{at}:sinks"), "k p", ("attention", n, "weight", "attn"), STRUCT),
        # The buffer of both layers proves attention, and what it combines tells the layer.
        Line(COMBINE, (kv,), "p a", ("attention", n, "flow", "attn.attn"), STRUCT),
        Line(split, (f"{at}.o_proj",), "a w", ("o_proj", n, "weight", "attn.o_proj"), PACKED),
        Line(REDUCE, (f"{at}.o_proj:bias",), "w o", ("o_proj", n, "weight", "attn.o_proj")),
        Line("triton_red_fused_fused_add_rms_norm_0",
             (f"model.layers.{n}.post_attention_layernorm",), "o r x",
             ("norm", n, "weight", "post_attention_layernorm")),
        Line("nvjet_sm90_tst_64x8_64x16_1x1_h_bz_splitK_bias_TNT", (f"{mlp}.router",), "x w",
             ("router", n, "weight", "mlp.router"), PACKED),
        Line(REDUCE, (f"{mlp}.router:bias",), "w t", ("router", n, "weight", "mlp.router")),
        Line("_topk_forward", (), "t i b", router),
        Line("_sum_bitmatrix_rows", (), "b c", router),
        Line("_combined_routing_memset", (), "c d", router),
        Line("_combined_routing_compute_pow2", (), "i c d e", router),
        Line("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu",
             (f"{routed}:w13_weight", f"{routed}:w13_bias"), "x e u",
             ("experts", n, "weight", "mlp.experts.w13")),
        Line("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1",
             (f"{routed}:w2_weight", f"{routed}:w2_bias"), "u e y",
             ("experts", n, "weight", "mlp.experts.w2")),
        Line("_reduce_grouped", (), "y o", ("experts", n, "flow", "mlp.experts")),
    ]  # fmt: skip


def test_gpt_oss(tmp_path: Path) -> None:
    lines = [
        Line("triton_red_fused__to_copy_embedding_rms_norm_0",
             ("model.embedding", "model.layers.0.input_layernorm"), "r x",
             ("norm", 0, "weight", "input_layernorm")),
        *gpt_oss_layer(0),
        Line("triton_red_fused_fused_add_rms_norm_1", ("model.layers.1.input_layernorm",), "o r x",
             ("norm", 1, "weight", "input_layernorm")),
        *gpt_oss_layer(1),
        Line("triton_red_fused_fused_add_rms_norm_1", ("model.norm",), "o r x",
             ("norm", -1, "weight", "norm")),
    ]  # fmt: skip
    assert wrong(lines, placed_lines(tmp_path, gpt_oss_memory(), lines)) == []


def qwen3_memory() -> Memory:
    memory = Memory().add("model.embed_tokens", size=1 << 19).add("model.norm", **VECTOR)
    table = {"kind": "buffer", "name": "cos_sin_cache", "layer": -1}
    memory.add("model.layers.0.self_attn.rotary_emb", **table)
    for n in range(2):
        at = f"model.layers.{n}.self_attn"
        for norm in ("input_layernorm", "post_attention_layernorm",
                     "self_attn.q_norm", "self_attn.k_norm"):  # fmt: skip
            memory.add(f"model.layers.{n}.{norm}", **VECTOR)
        for product in ("qkv_proj", "o_proj"):
            memory.add(f"{at}.{product}").add(f"{at}.{product}", name="weight_scale", size=512)
        memory.add(f"{at}.attn", kind="kv", name="kv_cache")
        memory.add(f"{at}.attn", **scale("_k_scale")).add(f"model.layers.{n}.mlp.gate")
        for name in ("w13_weight", "w2_weight"):
            memory.add(f"model.layers.{n}.{EXPERTS}", name=name, shape="64x64x32")
    return memory


def qwen3_layer(n: int) -> list[Line]:
    at, routed = f"model.layers.{n}.self_attn", f"model.layers.{n}.{EXPERTS}"
    marlin = "_ZN6marlin6MarlinILl1125899906909960ELl562949953487106EEEvv"
    moe = "_ZN16marlin_moe_wna166MarlinILl1125899906909960ELl562949953487106EEEvv"
    stale = f"model.layers.1.{EXPERTS}:w13_weight"
    router = ("router", n, "flow", "mlp.gate")
    return [
        Line(marlin, (f"{at}.qkv_proj", f"{at}.qkv_proj:weight_scale"), "x q locks",
             ("qkv", n, "weight", "self_attn.qkv_proj")),
        Line(f"triton_red_fused_{n + 1}", (), "q m", ("qkv", n, "flow", "self_attn.qkv_proj")),
        Line(f"triton_poi_fused_{n + 2}",
             (f"{at}.k_norm", "model.layers.0.self_attn.rotary_emb:cos_sin_cache", f"{at}.q_norm"),
             "q m k", ("norm", n, "weight", "self_attn.k_norm")),
        Line(WRITE, (f"{at}.attn:kv_cache", f"{at}.attn:_k_scale"), "k",
             ("kv_write", n, "kv", "self_attn.attn")),
        Line(FLASH, (f"{at}.attn:kv_cache",), "k p", ("attention", n, "kv", "self_attn.attn"),
             STRUCT),
        Line(COMBINE, (stale,), "p a", ("attention", n, "flow", "self_attn.attn"), STRUCT),
        Line(marlin, (f"{at}.o_proj", f"{at}.o_proj:weight_scale"), "a o locks",
             ("o_proj", n, "weight", "self_attn.o_proj")),
        Line("triton_red_fused_fused_add_rms_norm_moe_forward_0",
             (f"model.layers.{n}.post_attention_layernorm",), "o r x",
             ("norm", n, "weight", "post_attention_layernorm")),
        Line("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", (f"model.layers.{n}.mlp.gate",), "x t",
             ("router", n, "weight", "mlp.gate"), PACKED),
        Line("_ZN4vllm3moe10topkGatingILi8ELi128ELi4EEEvv", (), "t i", router),
        Line("_ZN4vllm3moe27moe_align_block_size_kernelIiEEvPKT_", (), "i b", router),
        Line("_ZN4vllm3moe35count_and_sort_expert_tokens_kernelIiEEvPKT_", (), "i b", router),
        Line(FILL, (), "z", ("experts", n, "flow", "mlp.experts")),
        Line(moe, (f"{routed}:w13_weight",), "x b z u",
             ("experts", n, "weight", "mlp.experts.w13")),
        Line(ACT, (), "u y", ("experts", n, "flow", "mlp.experts")),
        Line(moe, (f"{routed}:w2_weight",), "y b z e", ("experts", n, "weight", "mlp.experts.w2")),
        Line(SUM, (), "e o", ("experts", n, "flow", "mlp.experts")),
    ]  # fmt: skip


def test_qwen3_nvfp4(tmp_path: Path) -> None:
    lines = [
        Line("triton_red_fused__to_copy_embedding_marlin_gemm_rms_norm_0",
             ("model.embed_tokens", "model.layers.0.input_layernorm"), "r x",
             ("norm", 0, "weight", "input_layernorm")),
        *qwen3_layer(0),
        Line("triton_red_fused_fused_add_rms_norm_marlin_gemm_1",
             ("model.layers.1.input_layernorm",), "o r x",
             ("norm", 1, "weight", "input_layernorm")),
        *qwen3_layer(1),
        Line("triton_red_fused_fused_add_rms_norm_1", ("model.norm",), "o r x",
             ("norm", -1, "weight", "norm")),
    ]  # fmt: skip
    assert wrong(lines, placed_lines(tmp_path, qwen3_memory(), lines)) == []
