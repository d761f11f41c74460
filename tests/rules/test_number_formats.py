"""Formats as names write them: ids of vLLM, instructions of CUTLASS, operands and outputs."""

from __future__ import annotations

from spark_prof.rules.number_formats import (
    BITS,
    arithmetic_in,
    formats_in,
    scalar_type,
    stored_in,
)
from tests.rows import each_row

IEEE = 1
"""vllm::ScalarType::NAN_IEEE_754"""
EXTENDED = 2
"""vllm::ScalarType::NAN_EXTD_RANGE_MAX_MIN"""


def scalar_type_id(
    exponent: int, mantissa: int, signed: bool, *, bias: int = 0, finite: bool = False, nan: int
) -> int:
    """The id as vLLM's csrc/core/scalar_type.hpp packs it."""
    return exponent | mantissa << 8 | signed << 16 | bias << 17 | int(finite) << 49 | nan << 50


@each_row(
    ("number", "name"),
    [
        (scalar_type_id(8, 7, True, nan=IEEE), "bf16"),
        (scalar_type_id(5, 10, True, nan=IEEE), "fp16"),
        (scalar_type_id(4, 3, True, finite=True, nan=EXTENDED), "fp8"),
        (scalar_type_id(5, 2, True, nan=IEEE), "fp8"),
        (scalar_type_id(2, 1, True, finite=True, nan=0), "fp4"),
        (scalar_type_id(0, 4, False, nan=IEEE), "int4"),
        (scalar_type_id(0, 4, False, bias=8, nan=IEEE), "int4"),
        (scalar_type_id(0, 3, True, nan=IEEE), "int4"),
        (scalar_type_id(0, 8, False, bias=128, nan=IEEE), "int8"),
        (scalar_type_id(0, 7, True, nan=IEEE), "int8"),
        (scalar_type_id(8, 0, False, finite=True, nan=EXTENDED), None),
        (scalar_type_id(11, 52, True, nan=IEEE), None),
        (0, None),
        (1 << 58, None),
        ((1 << 64) - 1, None),
    ],
)
def test_ids_of_vllm(number: int, name: str | None) -> None:
    assert scalar_type(number) == name


def test_the_ids_in_the_names_of_the_wheel() -> None:
    """What vLLM 0.26.0's kernels are called: bf16, uint4b8 and uint8b128."""
    assert scalar_type_id(8, 7, True, nan=IEEE) == 1125899906909960
    assert scalar_type_id(0, 4, False, bias=8, nan=IEEE) == 1125899907892224
    assert scalar_type_id(0, 8, False, bias=128, nan=IEEE) == 1125899923621888


@each_row(
    ("spelling", "name"),
    [
        ("cutlass::float_e4m3_t", "fp8"),
        ("__nv_fp8_e5m2", "fp8"),
        ("c10::Float8_e4m3fn", "fp8"),
        ("cutlass::float_e2m1_t", "fp4"),
        ("__nv_fp4_e2m1", "fp4"),
        ("cutlass::float_e3m2_t", "fp6"),
        ("__nv_bfloat16", "bf16"),
        ("c10::BFloat16", "bf16"),
        ("(c10::ScalarType)15", "bf16"),
        ("__half", "fp16"),
        ("cutlass::half_t", "fp16"),
        ("c10::Half", "fp16"),
        ("(c10::ScalarType)5", "fp16"),
        ("cutlass::tfloat32_t", "tf32"),
        ("float", "fp32"),
        ("signed char", "int8"),
        ("cutlass::integer_subbyte<4, true>", "int4"),
        ("cutlass::integer_subbyte<(int)4, (bool)1>", "int4"),
        ("cutlass::vllm_biased_integer_subbyte<8, 128, false>", "int8"),
        ("cutlass::vllm_uint4b8_t", "int4"),
    ],
)
def test_spellings_of_types(spelling: str, name: str) -> None:
    assert formats_in(spelling)[:1] == [name]


@each_row("spelling", ["cutlass::float_ue4m3_t", "float_ue8m0_t", "halfway", "int"])
def test_scales_and_other_words_are_no_formats(spelling: str) -> None:
    assert formats_in(spelling) == []


@each_row(
    ("text", "precision"),
    [
        ("GMMA::MMA_64x16x32_F32E4M3E4M3_RS_TN, integer_subbyte<4, true>", "fp8"),
        ("float, SM90_64x128x8_F32TF32TF32_SS_TN", "tf32"),
        ("float_e2m1_t, float_e2m1_t, SM100_MMA_MXF8F6F4_SS", "fp8"),
        ("float_e2m1_t, float_ue4m3_t, SM100_MMA_MXF4_SS", "fp4"),
        ("float_e2m1_t, SM120_16x8x64_TN_VS<float_e2m1_t>", "fp4"),
        ("float_e2m1_t, SM120_16x8x32_TN<float_e2m1_t>", "fp8"),
        ("SM80_16x8x32_S32S8S8S32_TN", "int8"),
        ("SM100_MMA_F16BF16_SS<bfloat16_t, bfloat16_t, float>", "bf16"),
        ("float_e4m3_t, float_e2m1_t", "fp8"),
        ("float_e2m1_t, float_e4m3_t", None),
        ("float, bfloat16_t", None),
        ("", None),
    ],
)
def test_the_instruction_goes_before_the_operands(text: str, precision: str | None) -> None:
    assert arithmetic_in(text, "tensor-core") == precision


@each_row(
    ("text", "precision"),
    [
        ("float, float, 128", "fp32"),
        ("__half, 8, 4", "fp16"),
        ("int, int, __nv_bfloat16, __nv_bfloat16, float", None),
    ],
)
def test_cuda_cores_may_widen_what_they_read(text: str, precision: str | None) -> None:
    assert arithmetic_in(text, "cuda-core") == precision


@each_row("precision", BITS)
@each_row("stored", BITS)
def test_weights_are_named_only_where_they_are_narrow(stored: str, precision: str) -> None:
    spelled = {"int4": "uint4b8", "int8": "uint8b128", "fp4": "e2m1", "fp8": "e4m3"}.get(stored)
    if spelled is None:
        return
    narrower = BITS[stored] < min(BITS[precision], 16)
    assert stored_in(f"bfloat16_t, {spelled}", precision) == (stored if narrower else None)


def test_an_output_is_no_weight() -> None:
    assert stored_in("bfloat16_t, bfloat16_t, CollectiveEpilogue<float_e2m1_t>", "bf16") is None
