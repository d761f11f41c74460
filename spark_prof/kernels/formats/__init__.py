"""The number formats of FP4 and FP8 weights in plain PyTorch: what every kernel is checked against.

Written to be read and to be right, not to be fast: every table and rule names its source, and what
is decoded to float64 is exact.
"""

from __future__ import annotations

from spark_prof.kernels.formats.block_scales import (
    MxRecipe,
    e8m0_decode,
    e8m0_scales,
    swizzle_128x4,
    unswizzle_128x4,
)
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
    MxFp8,
    blocks_of_mxfp4,
    deinterleave_gate_up,
    deinterleave_rows,
    interleave_gate_up,
    interleave_rows,
    mxfp4_of_blocks,
    quantize_mxfp4,
    quantize_mxfp8,
)
from spark_prof.kernels.formats.nvfp4 import (
    Convention,
    GlobalScale,
    NvFp4,
    NvFp4Recipe,
    join_nvfp4,
    quantize_nvfp4,
)

__all__ = [
    "E2M1_VALUES",
    "Convention",
    "Fp8Rows",
    "GlobalScale",
    "MxFp4",
    "MxFp8",
    "MxRecipe",
    "NvFp4",
    "NvFp4Recipe",
    "blocks_of_mxfp4",
    "deinterleave_gate_up",
    "deinterleave_rows",
    "e2m1_decode",
    "e2m1_encode",
    "e4m3_decode",
    "e4m3_encode",
    "e8m0_decode",
    "e8m0_scales",
    "interleave_gate_up",
    "interleave_rows",
    "join_nvfp4",
    "mxfp4_of_blocks",
    "pack_nibbles",
    "quantize_fp8_rows",
    "quantize_mxfp4",
    "quantize_mxfp8",
    "quantize_nvfp4",
    "swizzle_128x4",
    "unpack_nibbles",
    "unswizzle_128x4",
]
