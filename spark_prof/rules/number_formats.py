"""Number formats as kernel names write them: what a product runs in, and how its weights are kept.

C++, Triton, CUTLASS, cuBLAS and llama.cpp have spellings of their own, and vLLM's Marlin kernels
write a type as one integer, `vllm::ScalarType::id` (vLLM, csrc/core/scalar_type.hpp). CUTLASS 3
and CuTe name the instruction itself, which goes before any operand: E2M1 operands of an F8F6F4
instruction are multiplied at the rate of FP8.
"""

from __future__ import annotations

import re

from spark_prof.vocabulary import PRECISIONS

BITS = {
    "int2": 2, "int3": 3, "int4": 4, "int5": 5, "int6": 6, "int8": 8,
    "fp4": 4, "fp6": 6, "fp8": 8, "bf16": 16, "fp16": 16, "tf32": 32, "fp32": 32,
}  # fmt: skip
"""Bits of a value in each format, without its scale."""

_SUBBYTE = r"integer_subbyte(?:<(?:\(int\))?| )"
_SPELLINGS = {
    "fp8": r"(?<![uU])e[45]m[32]|Float8|fp8",
    "fp6": r"e[23]m[32]",
    "fp4": r"e2m1|fp4|ggml_type\)(?:39|40)\b",
    "bf16": r"bf16|bfloat16|BFloat16|ScalarType\)15\b",
    "tf32": r"tf32|tfloat32|s1688(?:gemm|fprop|dgrad|wgrad)_\d",
    "fp16": r"fp16|(?<![A-Za-z0-9])f16|f16f16|__half\b|\bhalf\b|half_t\b|::Half\b|ScalarType\)5\b"
    r"|(?<![a-z])h(?:884|1688|16816|161616)gemm",
    "int4": _SUBBYTE + r"4\b|uint4b8|int4b?_t|(?<!\d)4bit|block_q4|ggml_type\)(?:2|3|12)\b",
    "int8": _SUBBYTE + r"8\b|(?<!u)int8|uint8b128|i8i8|i8i32|s8s8|(?:un)?signed char|(?<!\d)8bit"
    r"|block_q8|(?<![a-z])i(?:8816|16832)gemm",
    "int2": r"(?<!\d)2bit|block_q2",
    "int3": r"(?<!\d)3bit|block_q3",
    "int5": r"block_q5",
    "int6": r"block_q6",
    "fp32": r"\bfloat\b",
}
_FORMAT = re.compile(
    "|".join(f"(?P<{word}>{spelling})" for word, spelling in _SPELLINGS.items())
    + r"|\b(?P<id>\d{15,18})[lL]?\b"
)
# Hopper's wgmma, Blackwell's tcgen05 and mma.sync, as CUTLASS's MMA atoms are called.
_INSTRUCTION = re.compile(
    r"MMA_\d+x\d+x\d+_(?:F32|F16|S32)(?P<operand>BF16|F16|TF32|E[45]M[23]|S8|U8)"
    r"|SM[7-9]\d_\d+x\d+x\d+_(?:F32|F16|S32)(?P<older>BF16|F16|TF32|E[45]M[23]|S8|U8)"
    r"|SM10\d_MMA_(?P<kind>MXF4|MXF8F6F4|F8F6F4|TF32|S8)"
    r"|SM12\d_16x8x(?P<depth>32|64)_TN"
)
_INSTRUCTION_FORMATS = {
    "BF16": "bf16", "F16": "fp16", "TF32": "tf32", "S8": "int8", "U8": "int8",
    "E4M3": "fp8", "E5M2": "fp8", "MXF8F6F4": "fp8", "F8F6F4": "fp8", "MXF4": "fp4",
    "32": "fp8", "64": "fp4",
}  # fmt: skip
_FLOATS = {(8, 7): "bf16", (5, 10): "fp16", (4, 3): "fp8", (5, 2): "fp8", (2, 1): "fp4"}


def formats_in(text: str) -> list[str]:
    """The formats that the text mentions, in its order, each as often as it does."""
    formats = (
        scalar_type(int(match["id"])) if match["id"] else match.lastgroup
        for match in _FORMAT.finditer(text)
    )
    return [name for name in formats if name]


def scalar_type(number: int) -> str | None:
    """The format behind an id of vLLM; None for a scale's or an unknown one.

    From the lowest bit: 8 bits of exponent, 8 of mantissa, 1 of sign, 32 of bias, 1 that only
    finite values exist, 8 of how NaN is written. An integer has no exponent.
    """
    exponent, mantissa, signed = number & 0xFF, number >> 8 & 0xFF, number >> 16 & 1
    if number >> 58:
        return None
    if exponent:
        return _FLOATS.get((exponent, mantissa)) if signed else None
    name = f"int{mantissa + signed}"
    return name if name in BITS else None


def arithmetic_in(text: str, engine: str) -> str | None:
    """What the arithmetic ran in: the instruction, else the first type that leaves no doubt."""
    if instruction := _INSTRUCTION.search(text):
        return _INSTRUCTION_FORMATS[next(filter(None, instruction.groups()))]
    precisions = [name for name in formats_in(text) if name in PRECISIONS]
    if not precisions:
        return None
    # What an FP8 type behind FP4 is, operand or output, decides at which rate they are multiplied.
    if precisions[0] == "fp4" and "fp8" in precisions:
        return None
    if engine == "cuda-core":
        # A narrow operand beside float may be widened before it is multiplied.
        return precisions[0] if "fp32" not in precisions or set(precisions) == {"fp32"} else None
    return precisions[0] if precisions[0] != "fp32" else None


def stored_in(text: str, precision: str | None) -> str | None:
    """The narrowest operand, where it is narrower than the arithmetic; else None.

    What CUTLASS writes behind the word epilogue is the product's output, not an operand.
    """
    operands = formats_in(text.partition("pilogue")[0])
    narrowest = min(operands, key=BITS.__getitem__, default=None)
    if precision is None or narrowest is None or BITS[narrowest] >= min(BITS[precision], 16):
        return None
    return narrowest
