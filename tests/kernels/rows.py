"""Inputs and comparisons for the passes that end in quantized rows."""

from __future__ import annotations

import math

import torch

from spark_prof.kernels.formats import GlobalScale, MxFp8, NvFp4, swizzle_128x4
from spark_prof.kernels.quantized_rows import QuantizedRows, RowFormat, empty_rows


def rows(count: int, columns: int, device: str, seed: int = 0, spread: float = 8.0) -> torch.Tensor:
    """Random bfloat16 rows whose blocks differ in size by up to 2^spread either way."""
    random = torch.Generator().manual_seed(seed)
    powers = (torch.rand(count, columns // 16, 1, generator=random) - 0.5) * 2 * spread
    values = torch.randn(count, columns // 16, 16, generator=random) * torch.exp2(powers)
    return values.flatten(1).to(torch.bfloat16).to(device)


def odd_rows(device: str) -> torch.Tensor:
    """Rows of 64 whose blocks are all zeros, ties, close to a power of two, infinite or NaN."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(8)
    sizes = torch.linspace(1.5, 2.0, 64)  # both recipes of a scale turn within
    one_infinite, one_nan = torch.ones(64), torch.linspace(-3, 3, 64)
    one_infinite[40], one_infinite[41] = math.inf, -math.inf
    one_nan[3], one_nan[35] = math.nan, -math.nan
    zeros = torch.zeros(64)
    zeros[1::2] = -0.0
    half_zeros = torch.cat([zeros[:32], torch.full((32,), 448.0)])
    nothing_but_nan = torch.cat([torch.full((32,), math.nan), torch.ones(32)])
    tiny, huge = torch.full((64,), 1e-39), torch.full((64,), 3.3e38)
    blocks = [ties, -ties, sizes, -sizes, sizes * 2.0**-120, one_infinite, one_nan, zeros]
    blocks += [half_zeros, nothing_but_nan, tiny, huge]
    return torch.stack(blocks).to(torch.bfloat16).to(device)


def some_rows(row_format: RowFormat, device: str) -> list[torch.Tensor]:
    """Few shapes that differ in what they leave of slices, warps and tiles of scales."""
    shapes = [(1, 2880), (5, 2048), (2, 64), (130, 32)]
    shapes += [(3, 1856 + 16)] if row_format == "nvfp4" else [(3, 1856)]
    return [rows(count, columns, device, seed) for seed, (count, columns) in enumerate(shapes)]


def scale_for(row_format: RowFormat, values: torch.Tensor) -> GlobalScale | None:
    """The global scale of NVFP4 for the finite ones of some values."""
    if row_format == "mxfp8":
        return None
    return GlobalScale.of_amax(values.float().nan_to_num(0.0, 0.0, 0.0).abs().amax())


def poisoned(
    x: torch.Tensor,
    row_format: RowFormat,
    swizzled: bool,
    count: int | None = None,
    scale_rows: int | None = None,
) -> QuantizedRows:
    """Where to write the quantized rows of x, full of what no kernel here writes as a padding."""
    shape = (len(x) if count is None else count, x.shape[1])
    out = empty_rows(*shape, row_format, swizzled, x.device, scale_rows=scale_rows)
    out.codes.view(torch.uint8).fill_(0xA5)
    out.scales.view(torch.uint8).fill_(0xA5)
    return out


def assert_quantized(out: QuantizedRows, expected: NvFp4 | MxFp8) -> None:
    """Codes, scales and the zeros that scales are padded with are right to the last bit."""
    codes = expected.packed if isinstance(expected, NvFp4) else expected.values
    scales = swizzle_128x4(expected.scales) if out.swizzled else expected.scales
    assert torch.equal(out.codes.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(out.scales.view(torch.uint8), scales.view(torch.uint8))
