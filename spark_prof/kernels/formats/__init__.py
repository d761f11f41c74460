"""The number formats of FP4 and FP8 weights in plain PyTorch: what every kernel is checked against.

Written to be read and to be right, not to be fast: every table and rule names its source, and what
is decoded to float64 is exact.
"""

from __future__ import annotations

from spark_prof.kernels.formats.elements import (
    E2M1_VALUES,
    Fp8Rows,
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
    pack_nibbles,
    quantize_fp8_rows,
    unpack_nibbles,
)
from spark_prof.kernels.formats.mx import (
    MxFp4,
    deinterleave_gate_up,
    deinterleave_rows,
    e8m0_decode,
    interleave_gate_up,
    interleave_rows,
    mxfp4_scales,
    quantize_mxfp4,
)
from spark_prof.kernels.formats.nvfp4 import Convention, GlobalScale, NvFp4, quantize_nvfp4

__all__ = [
    "E2M1_VALUES",
    "Convention",
    "Fp8Rows",
    "GlobalScale",
    "MxFp4",
    "NvFp4",
    "deinterleave_gate_up",
    "deinterleave_rows",
    "e2m1_decode",
    "e2m1_encode",
    "e4m3_decode",
    "e4m3_encode",
    "e8m0_decode",
    "interleave_gate_up",
    "interleave_rows",
    "mxfp4_scales",
    "pack_nibbles",
    "quantize_fp8_rows",
    "quantize_mxfp4",
    "quantize_nvfp4",
    "unpack_nibbles",
]
