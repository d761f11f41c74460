"""A small recording on an H100: a layer's qkv, attention and experts, and the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_prof.traces.bundle import Bundle
from tests.support import (
    ATTENTION,
    EXPERTS,
    FINISH,
    QKV,
    Piece,
    Recorded,
    call,
    kernel,
    kineto,
    layer_row,
    step,
)

GPU = {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}
CONFIG = {
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_hidden_layers": 1,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
HEAD = "nvjet_sm90_tst_512x8_64x3_2x1_v_bz_TNT"
FLASH = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<X>>>(P)"
FIRST = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu"
SECOND = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1"

_RAN = ((GEMM, QKV), (FLASH, ATTENTION), (FIRST, EXPERTS), (SECOND, EXPERTS), (HEAD, FINISH))
_EXPERTS = (
    "w13_weight:uint8:128x1536x1024 w2_weight:uint8:128x2048x384 "
    "w13_weight_scale:uint8:128x1536x64 w2_weight_scale:uint8:128x2048x24"
)

QKV_BYTES = 2 * 5120 * 2048
W13_BYTES = 128 * 1536 * (1024 + 64)
W2_BYTES = 128 * 2048 * (384 + 24)
HEAD_BYTES = 2 * 151936 * 2048

LAYERS: tuple[Mapping[str, Any], ...] = (
    layer_row("model.layers.0.qkv_proj", 0, "qkv", bytes=QKV_BYTES,
              parameters="weight:bfloat16:5120x2048"),
    layer_row("model.layers.0.mlp.experts", 0, "experts", bytes=W13_BYTES + W2_BYTES,
              weight_dtype="uint8", quant_method="GptOssMxfp4MoEMethod", parameters=_EXPERTS),
    layer_row("lm_head", -1, "lm_head", bytes=HEAD_BYTES,
              parameters="weight:bfloat16:151936x2048"),
)  # fmt: skip


def bundle(
    folder: Path,
    us: Sequence[float] = (8.0, 3.0, 6.0, 4.0, 210.0),
    tokens: Sequence[int] = (1, 1, 1),
    phase: str = "decode",
    layers: Sequence[Mapping[str, Any]] = LAYERS,
    **facts: Any,
) -> Bundle:
    """Steps in which qkv, attention, both products of the experts and the head run once.

    Args:
        us: how long each of these kernels takes.
        tokens: of each step, and as many requests.
    """
    steps, calls, kernels = [], [], []
    whole = 1000 * len(_RAN) + round(1000 * sum(us))
    for number, count in enumerate(tokens):
        begin = number * (whole + 5000)
        kind = "prefill" if phase == "prefill" else "decode"
        counts = {f"{kind}_tokens": count, f"{kind}_requests": 1 if kind == "prefill" else count,
                  "context_tokens": 100 * count}  # fmt: skip
        steps.append(step(number, begin, begin + whole + 4000, phase, **counts))
        at, previous = begin + 1000, -1
        for place, ((name, module), took) in enumerate(zip(_RAN, us, strict=True)):
            launched = begin + 100 * place + 10
            if module != previous:
                calls += call(module, begin + 100 * place, begin + 100 * place + 190)
            if module == previous:
                launched = begin + 100 * place - 50
            end = at + round(1000 * took)
            kernels += kernel(name, at, end, 100 * number + place + 1, launched)
            at, previous = end + 500, module
    usual = {"gpu": GPU, "model_config": CONFIG, "dtype": "bfloat16"}
    piece = Piece(steps, calls, kineto(*kernels))
    return Recorded({0: [piece]}, facts=usual | facts, layers=layers).assemble(folder)
