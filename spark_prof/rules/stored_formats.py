"""What the stored bits of a live tensor mean, by its storage type and the classes that made it.

Kernel libraries keep four-bit weights as bytes, and Marlin any quantized weight as 32-bit words:
the storage type alone says nothing of them. One table, first match wins; each row carries examples
that are its tests. It runs inside vLLM's workers too and needs only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache

SCALE = "scale"  # the format of scales and zero points, whatever they are stored as

_BYTES = ("uint8", "int8", "float4_e2m1fn_x2")
_WORDS = ("int32", "int64", "uint32")
_FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


@dataclass(frozen=True)
class FormatRow:
    """Tensors of these storage types have the format, where the names match."""

    format: str  # {bits} stands for how many bits a weight has, by the quantization's configuration
    dtypes: tuple[str, ...]  # storage types as torch names them
    # Searched in the class names of the quantization method, its scheme, its configuration and the
    # chosen kernel; of a KV cache in its configured type.
    classes: str
    examples: tuple[tuple[str, str], ...]  # pairs of a storage type and class names
    # Storage types, one of which the scales beside it in the module have; any if empty.
    scales: tuple[str, ...] = ()


FORMATS: tuple[FormatRow, ...] = (
    FormatRow("bf16", ("bfloat16",), "", (("bfloat16", "UnquantizedLinearMethod"),)),
    FormatRow("fp16", ("float16",), "", (("float16", ""),)),
    FormatRow("fp32", ("float32",), "", (("float32", ""),)),
    # Four-bit integers, with activations of eight bits or with scales of FP8.
    FormatRow("int4", (*_BYTES, *_WORDS), r"W4A8_?(Fp8|FP8|Int)|W4A16_?Int4",
        (("int32", "CompressedTensorsLinearMethod CompressedTensorsW4A8Fp8"),
        ("int32", "QuarkLinearMethod QuarkW4A16Int4"))),
    FormatRow("int{bits}", (*_BYTES, *_WORDS), r"(?i)awq|gptq|wna\d|wna16",
        (("int32", "AutoAWQMarlinLinearMethod AutoAWQConfig"),
        ("int32", "GPTQMarlinLinearMethod GPTQMarlinConfig"),
        ("int32", "CompressedTensorsLinearMethod CompressedTensorsWNA16"),
        ("uint8", "MoeWNA16Method"))),
    # 0.32 has one class for all of ModelOpt's formats: its kernel tells.
    FormatRow("nvfp4", (*_BYTES, *_WORDS), r"(?i)nv_?fp4|W4A(4|16)_?Fp4",
        (("uint8", "ModelOptNvFp4LinearMethod ModelOptNvFp4Config"),
        ("int32", "ModelOptLinearMethod ModelOptMixedPrecisionConfig MarlinNvFp4LinearKernel"),
        ("uint8", "CompressedTensorsLinearMethod CompressedTensorsW4A4Fp4"),
        ("int64", "CompressedTensorsW4A4Nvfp4MoEMethod"), ("uint8", "nvfp4"))),
    FormatRow("mxfp4", (*_BYTES, *_WORDS), r"(?i)mxfp4", (("uint8", "Mxfp4MoEMethod Mxfp4Config"),
        ("int32", "GptOssMxfp4MoEMethod Mxfp4Backend.MARLIN"),
        ("int32", "CompressedTensorsW4A4Mxfp4MoEMethod"), ("uint8", "QuarkW4A8_MXFP4_FP8"))),
    FormatRow("mxfp8", (*_FP8, "uint8", *_WORDS), r"(?i)mxfp8",
        (("float8_e4m3fn", "ModelOptMxFp8FusedMoE"),
        ("int32", "CompressedTensorsW8A8Mxfp8 MarlinMxfp8LinearKernel"))),
    FormatRow("fp8", ("uint8", *_WORDS), r"(?i)fp8", (("int32", "Fp8LinearMethod Fp8Config"),
        ("int32", "CompressedTensorsLinearMethod CompressedTensorsW8A16Fp8"),
        ("uint8", "fp8_e4m3"))),
    FormatRow("fp8", _FP8, "", (("float8_e4m3fn", "ModelOptLinearMethod"),)),
    FormatRow("nf4", ("uint8",), r"(?i)bitsandbytes|bnb", (("uint8", "BitsAndBytesLinearMethod"),)),
    FormatRow("int8", ("int8", *_WORDS), r"(?i)int8|W8A8|bitsandbytes",
        (("int8", "CompressedTensorsLinearMethod CompressedTensorsW8A8Int8"),
        ("int8", "BitsAndBytesLinearMethod"))),
    # Where no class tells: four-bit weights by the type of their scales.
    FormatRow("nvfp4", ("uint8", "float4_e2m1fn_x2", *_WORDS), "",
        (("uint8", "ModelOptLinearMethod"), ("int32", "ModelOptLinearMethod")), ("float8_e4m3fn",)),
    FormatRow("mxfp4", ("uint8", "float4_e2m1fn_x2", *_WORDS), r"^(?!.*(?i:fp6|ocp_mx))",
        (("uint8", "OnlineMethod"), ("int32", "OnlineMethod")), ("float8_e8m0fnu",)),
    FormatRow("int8", ("int8",), "", (("int8", ""),)),
)  # fmt: skip

_SCALES = re.compile(
    r"\w[._]?scale|scales|qzeros|zero_?point|absmax|(^|[._])g?\d?_?alphas?($|[._])"
)
_WEIGHT = re.compile(r"weight|(^|[._])w\d+([._]|$)|blocks|cache|W_U?[KV]")
_NO_WEIGHT = re.compile(r"shape|g_idx|perm|sort|map|workspace|cos_sin")
_ANY = ("bfloat16", "float16", "float32")
_COMPILED = tuple((row, re.compile(row.classes)) for row in FORMATS)


@lru_cache(maxsize=65536)
def stored_format(
    name: str, dtype: str, classes: str = "", scales: Set[str] = frozenset(), bits: int = 0
) -> str:
    """The format of a tensor of that storage type, empty where nothing tells.

    Classes and scales are as in `FormatRow`, bits those of a packed integer by the quantization's
    configuration, 0 where unknown: `stored_format("weight", "int32", "Fp8LinearMethod")` is `fp8`,
    for Marlin's 32-bit words.
    """
    if _SCALES.search(name) or dtype == "float8_e8m0fnu":
        return SCALE
    if dtype not in _ANY and (_NO_WEIGHT.search(name) or not _WEIGHT.search(name)):
        return ""
    for row, pattern in _COMPILED:
        if dtype not in row.dtypes or not pattern.search(classes):
            continue
        if row.scales and scales.isdisjoint(row.scales):
            continue
        if "{bits}" in row.format and not bits:
            return ""
        return row.format.format(bits=bits)
    return ""
