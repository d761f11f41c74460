"""NVFP4: decoding by hand in fractions, quantizing within half a step, NaN and infinity, shards."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
import torch

from spark_prof.kernels.formats import (
    Convention,
    GlobalScale,
    NvFp4,
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    quantize_nvfp4,
    unpack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError
from tests.rows import each_row

from .values import same_bits, wild_blocks

CONVENTIONS = get_args(Convention)


def one(value: float, convention: Convention = "divides") -> GlobalScale:
    return GlobalScale(torch.tensor(value), convention)


def random_bytes(*shape: int, scale: GlobalScale) -> NvFp4:
    """Any codes and any finite scales."""
    random = torch.Generator().manual_seed(1)
    *rows, columns = shape
    packed = torch.randint(0, 256, (*rows, columns // 2), generator=random).to(torch.uint8)
    scales = torch.randint(0, 0x7F, (*rows, columns // 16), generator=random).to(torch.uint8)
    return NvFp4(packed, scales.view(torch.float8_e4m3fn), scale)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_decoding_is_exact_but_for_one_division(convention: Convention) -> None:
    weight = random_bytes(4, 64, scale=one(1234.567, convention))
    decoded = weight.decode()
    assert weight.shape == decoded.shape == (4, 64)
    codes = e2m1_decode(unpack_nibbles(weight.packed)).tolist()
    scales = e4m3_decode(weight.scales).tolist()
    size = Fraction(float(torch.tensor(1234.567)))
    for row in range(4):
        for column in range(64):
            scaled = Fraction(codes[row][column]) * Fraction(scales[row][column // 16])
            exact = scaled / size if convention == "divides" else scaled * size
            assert decoded[row, column].item() == float(exact)


@each_row("convention", CONVENTIONS)
def test_what_was_quantized_is_within_half_a_step(convention: Convention) -> None:
    values = wild_blocks(16, 128)
    scale = GlobalScale.of_amax(values.abs().amax(), convention)
    weight = quantize_nvfp4(values, scale)
    steps = (e4m3_decode(weight.scales) * scale.multiplier()).repeat_interleave(16, dim=1)
    error = (weight.decode() - values.to(torch.float64)).abs()
    # Half the widest step, 4 to 6; what the block scale lost by rounding down saturates.
    lost = (values.abs().to(torch.float64) - 6 * steps).clamp(min=0)
    assert bool((error <= (steps + lost) * (1 + 1e-6)).all())


def test_zeros_keep_their_signs_and_get_a_scale_of_zero() -> None:
    values = torch.tensor([[0.0, -0.0] * 8 + [1e-30, -1e-30] * 8 + [448.0 * 6] * 16])
    weight = quantize_nvfp4(values, one(1.0))
    assert weight.scales.view(torch.uint8).tolist() == [[0, 0, 0x7E]]
    assert unpack_nibbles(weight.packed).tolist() == [[0, 8] * 16 + [7] * 16]
    assert bool((quantize_nvfp4(torch.zeros(2, 32)).decode() == 0).all())


def test_nan_takes_no_neighbour_along() -> None:
    values = torch.full((3, 16), 3.0)
    values[0, 5] = float("nan")
    values[1, 5] = -float("inf")
    values[2] = float("nan")
    weight = quantize_nvfp4(values, one(1.0))
    assert e4m3_decode(weight.scales[:2]).tolist() == [[0.5], [448.0]]
    assert weight.scales.view(torch.uint8)[2].item() == 0x7F
    codes = unpack_nibbles(weight.packed).tolist()
    assert codes[0] == [7] * 16
    assert codes[1] == [0] * 5 + [15] + [0] * 10
    assert codes[2] == [7] * 16


def test_shards_keep_their_own_global_scales() -> None:
    parts = [quantize_nvfp4(wild_blocks(rows, 64, seed=rows)) for rows in (8, 2, 3)]
    values = torch.stack([part.global_scale.value for part in parts])
    joined = NvFp4(
        torch.cat([part.packed for part in parts]),
        torch.cat([part.scales.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn),
        GlobalScale.of_shards(values, [8, 2, 3], "divides"),
    )
    assert same_bits(joined.decode(), torch.cat([part.decode() for part in parts]))


def test_experts_have_a_global_scale_each() -> None:
    scale = GlobalScale(torch.tensor([1.0, 3.0]).reshape(2, 1, 1), "multiplies")
    weight = random_bytes(2, 4, 32, scale=scale)
    alone = NvFp4(weight.packed[1], weight.scales[1], one(3.0, "multiplies"))
    assert same_bits(weight.decode()[1], alone.decode())


PACKED = torch.zeros(2, 16, dtype=torch.uint8)
SCALES = torch.zeros(2, 2, dtype=torch.float8_e4m3fn)
REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "bytes as scales": ("scales are torch.uint8", lambda: NvFp4(PACKED, PACKED, one(1.0))),
    "scales of other blocks": ("do not go", lambda: NvFp4(PACKED, SCALES[:, :1], one(1.0))),
    "a scale an expert, flat": (
        "does not say what each is for",
        lambda: GlobalScale(torch.ones(2), "divides"),
    ),
    "scales of other rows": (
        "does not fit",
        lambda: NvFp4(PACKED, SCALES, GlobalScale(torch.ones(3, 1), "divides")),
    ),
    "too few shards": (
        "not one for each",
        lambda: GlobalScale.of_shards(torch.ones(2), [1, 2, 3], "divides"),
    ),
    "half a block": ("blocks of 16", lambda: quantize_nvfp4(torch.ones(2, 24))),
    "doubles": (
        "cannot quantize torch.float64",
        lambda: quantize_nvfp4(torch.ones(2, 16).double()),
    ),
}


@each_row("what", REFUSED)
def test_what_does_not_belong_together_is_refused(what: str) -> None:
    message, attempt = REFUSED[what]
    with pytest.raises(KernelError, match=message):
        attempt()


def test_division_rounds_each_quotient_once() -> None:
    """NumPy's float32 as the second opinion, on blocks whose magnitudes fill their mantissas."""
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(5))
    weight = quantize_nvfp4(values, one(1000.0))
    blocks = values.numpy().reshape(64, 4, 16)
    largest = np.abs(blocks).max(-1) / np.float32(6)
    # Older versions of torch turn what is beyond 448 into NaN.
    wanted = torch.from_numpy(np.float32(1000) * largest).clamp(max=448)
    scales = wanted.to(torch.float8_e4m3fn)
    assert same_bits(weight.scales, scales)
    steps = scales.to(torch.float32).numpy() / np.float32(1000)
    codes = e2m1_encode(torch.from_numpy(blocks / steps[..., None]))
    assert torch.equal(unpack_nibbles(weight.packed), codes.flatten(-2))
