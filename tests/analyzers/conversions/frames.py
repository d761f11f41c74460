"""Kernels by hand, as analyzers.placement.place_kernels returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from spark_prof.vocabulary import COMPONENTS

QUANTIZE = "void vllm::scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(int)"
CAST = "triton_poi_fused__to_copy_0"
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
NORM = "void vllm::rms_norm_kernel<c10::BFloat16>(float)"
ATTENTION = "void flash::flash_fwd_kernel<int>(int)"
ACTIVATION = "void vllm::act_and_mul_kernel<c10::BFloat16, vllm::silu_kernel>(int)"
REPACK = "void marlin::gptq_marlin_repack_kernel<256, 4, false, false>(unsigned int const*)"
FUSED = "void vllm::silu_mul_cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int)"
COPY = "Memcpy DtoH (Device -> Pinned)"


@dataclass(frozen=True)
class K:
    """One kernel; each lasts 10 ns unless said otherwise, and starts as the one before ends."""

    name: str
    component: str = "other"
    step: int = 0
    stream: int = 7
    layer: int = -1
    ns: int = 10
    kind: str = "kernel"


def placed(kernels: Sequence[K]) -> pd.DataFrame:
    """The kernels, one after another."""
    start, rows = 1_800_000_000_000_000_001, []
    for kernel in kernels:
        rows.append((kernel.name, kernel.kind, start, start + kernel.ns, 0, kernel.step,
                     kernel.stream, kernel.layer, kernel.component))  # fmt: skip
        start += kernel.ns
    names = ["name", "kind", "start_ns", "end_ns", "part", "step", "stream", "layer", "component"]
    numbers = ["start_ns", "end_ns", "part", "step", "stream", "layer"]
    frame = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(numbers, "int64"))
    return frame.assign(
        name=frame["name"].astype("category"),
        kind=frame["kind"].astype("category"),
        component=pd.Categorical(frame["component"], categories=COMPONENTS),
    )
