"""Bit for bit what compressed-tensors makes of the same numbers; each difference has its test."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from spark_prof.kernels.formats import (
    GlobalScale,
    NvFp4,
    e2m1_decode,
    e8m0_decode,
    quantize_fp8_rows,
    quantize_mxfp4,
    quantize_nvfp4,
    unpack_nibbles,
)

from .values import every_byte, same_bits, wild_blocks

if find_spec("compressed_tensors") is None:
    pytest.skip("compressed-tensors is not installed", allow_module_level=True)

E4M3 = torch.float8_e4m3fn
MIXED = wild_blocks(64, 256)


def peer() -> Any:
    """Imported when a test runs: all that is collected would wait for it."""
    return importlib.import_module("tests.kernels.formats.peer")


@pytest.fixture(autouse=True, scope="module")
def _eager() -> Iterator[None]:
    """Their rounding is compiled otherwise, which takes a minute and changes nothing."""
    with torch.compiler.set_stance("force_eager"):
        yield


def theirs(
    values: torch.Tensor, args: Any, global_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Their elements, as floats, and their scales, as floats."""
    blocks = values.unflatten(-1, (-1, args.group_size or values.shape[-1]))
    scales, _ = peer().calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale)
    return peer().quantize(values, scales, None, args, global_scale=global_scale), scales


def positive_zeros(codes: torch.Tensor) -> torch.Tensor:
    """They write -0 as 0, since `torch.sign(-0.0)` is 0."""
    return torch.where(codes == 8, 0, codes)


def test_all_bytes_unpack_to_the_same() -> None:
    packed = every_byte().reshape(16, 16)
    found = e2m1_decode(unpack_nibbles(packed), torch.bfloat16)
    assert same_bits(found, peer().unpack_fp4_from_uint8(packed, 16, 32))


def test_nvfp4() -> None:
    values = MIXED.to(torch.float32)
    weight = quantize_nvfp4(values)
    global_scale = peer().generate_gparam(values.amin(), values.amax())
    assert global_scale.item() == weight.global_scale.value.item()
    elements, scales = theirs(values, peer().NVFP4, global_scale)
    codes = unpack_nibbles(peer().pack_fp4_to_uint8(elements))
    assert torch.equal(positive_zeros(codes), positive_zeros(unpack_nibbles(weight.packed)))
    # Where the scale rounds to zero they store the type's epsilon, 0.125: all codes are 0 anyway.
    found = weight.scales.to(torch.float32)
    assert bool((found == 0).any())
    assert torch.equal(torch.where(found == 0, 0.125, found), scales)


def test_a_global_scale_beyond_float32() -> None:
    """They fall back to 1, with which every code would be 0; here it is the largest number."""
    values = torch.full((1, 16), 1e-36)
    assert peer().generate_gparam(values.amin(), values.amax()).item() == 1.0
    weight = quantize_nvfp4(values)
    assert weight.global_scale.value.item() == torch.finfo(torch.float32).max
    assert (weight.decode() / values.to(torch.float64) - 1).abs().max().item() < 0.07


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4(dtype: torch.dtype) -> None:
    values = MIXED.to(dtype)
    elements, scales = theirs(values, peer().MXFP4)
    weight = quantize_mxfp4(values)
    codes = unpack_nibbles(peer().pack_fp4_to_uint8(elements))
    assert torch.equal(positive_zeros(codes), positive_zeros(unpack_nibbles(weight.packed)))
    assert torch.equal(weight.scales, peer().compress_mx_scale(scales, torch.uint8))


def test_all_scales_but_nan() -> None:
    """They read 255 as infinity: 2 ^ 128."""
    found, expected = (
        e8m0_decode(every_byte(), torch.bfloat16),
        peer().decompress_mx_scale(every_byte()),
    )
    assert same_bits(found[:255], expected[:255])
    assert math.isnan(found[255].item())
    assert math.isinf(expected[255].item())


def test_fp8_rows() -> None:
    values = MIXED.to(torch.float32)
    elements, scales = theirs(values, peer().FP8_ROWS)
    weight = quantize_fp8_rows(values)
    assert same_bits(weight.values, elements.to(E4M3))
    # A row of zeros has their epsilon as its scale.
    zeros = (values == 0).all(dim=1)
    epsilon = torch.finfo(torch.float32).eps
    assert torch.equal(torch.where(zeros, epsilon, weight.scales), scales.flatten())


def test_both_conventions_of_a_global_scale() -> None:
    """ModelOpt's tensors, and what their converter makes of those: both are what they decode."""
    stored = {
        "layer.weight": every_byte().reshape(8, 32),
        "layer.weight_scale": torch.linspace(0.5, 448, 32).reshape(8, 4).to(E4M3),
        "layer.weight_scale_2": torch.tensor(2.0**-9),
    }
    multiplied = NvFp4(
        stored["layer.weight"],
        stored["layer.weight_scale"],
        GlobalScale(stored["layer.weight_scale_2"], "multiplies"),
    )
    converted = peer().ModelOptNvfp4Converter(targets=["re:.*layer"]).process(dict(stored))
    divided = NvFp4(
        converted["layer.weight_packed"],
        converted["layer.weight_scale"],
        GlobalScale(converted["layer.weight_global_scale"], "divides"),
    )
    expected = peer().dequantize(
        peer().unpack_fp4_from_uint8(divided.packed, 8, 64, torch.float32),
        divided.scales.to(torch.float32),
        args=peer().NVFP4,
        global_scale=divided.global_scale.value,
    )
    assert same_bits(divided.decode(torch.float32), expected)
    assert same_bits(multiplied.decode(torch.float32), expected)
