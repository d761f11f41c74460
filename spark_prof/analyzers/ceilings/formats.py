"""Which format a module's weights are in, by the types of its tensors, and what formats take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BYTES: Mapping[str, float] = MappingProxyType(
    {
        "fp32": 4.0,
        "bf16": 2.0,
        "fp16": 2.0,
        "fp8": 1.0,
        "int8": 1.0,
        # A scale of one byte for 32 elements.
        "mxfp8": 1.0 + 1 / 32,
        "mxfp4": 0.5 + 1 / 32,
        # A scale of one byte for 16 elements.
        "nvfp4": 0.5 + 1 / 16,
        # A scale of two bytes and a zero point of four bits for 128 elements, as AWQ has it.
        "int4": 0.5 + 2.5 / 128,
        # A scale for 64 elements, itself quantized to a byte, as bitsandbytes has it.
        "nf4": 0.5 + 1 / 64,
    }
)
"""Bytes of one weight in each format, scales included."""

_PLAIN = {
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "F8_E4M3FNUZ": "fp8",
    "F8_E5M2FNUZ": "fp8",
    "I8": "int8",
    "U8": "int8",
}
_PACKED_WORDS = ("I32", "U32", "I64")
_POWERS_OF_TWO = ("U8", "F8_E8M0")


def format_of(
    dtype: str, part: str, elements: int, scales: Mapping[str, int], bits: int
) -> tuple[str, int]:
    """The format of weights, and how many there are unpacked.

    Args:
        dtype: of the stored weights.
        part: weight, weight_packed, qweight or blocks.
        elements: how many are stored.
        scales: by type of their block scales, how many of those are stored.
        bits: of an integer weight that is packed into words, as the configuration has it.
    """
    if dtype in _PACKED_WORDS and part in ("qweight", "weight_packed"):
        word = 64 if dtype == "I64" else 32
        return f"int{bits}", elements * word // bits
    packed = dtype in ("U8", "I8") and _is_packed(elements, scales)
    if packed or dtype == "F4":
        weights = elements * 2 if packed else elements
        if "absmax" in scales:
            return "nf4", weights
        return ("nvfp4" if "F8_E4M3" in scales else "mxfp4"), weights
    if dtype in ("F8_E4M3", "F8_E5M2") and any(kind in scales for kind in _POWERS_OF_TWO):
        return "mxfp8", elements
    return _PLAIN.get(dtype, dtype.lower()), elements


def _is_packed(elements: int, scales: Mapping[str, int]) -> bool:
    """Whether each byte holds two weights.

    NVFP4's scales are FP8; MXFP4's are powers of two, one for 32 weights: were the bytes MXFP8,
    there would be half as many.
    """
    if "absmax" in scales or "F8_E4M3" in scales:
        return True
    blocks = sum(scales.get(kind, 0) for kind in _POWERS_OF_TWO)
    return blocks > 0 and elements * 2 / blocks < 48
