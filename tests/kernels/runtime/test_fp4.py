"""FP4 on the tensor cores: what platform.cuh promises, against formats.py and float64.

The operands are laid out by the strides that CUTLASS gives for this instruction
(`cute/atom/mma_traits_sm120.hpp`); the emulator follows the formulas of the PTX ISA. Both have to
mean the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.formats import (  # noqa: E402
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
)
from spark_prof.kernels.operands import architecture  # noqa: E402
from spark_prof.kernels.runtime.code import KernelCode  # noqa: E402
from spark_prof.kernels.runtime.compiler import FP4_PRODUCTS  # noqa: E402
from spark_prof.kernels.runtime.launch import launch  # noqa: E402
from tests.rows import each_row  # noqa: E402

SOURCE = str(Path(__file__).with_name("fp4.cu"))
NAN_CODE = 0x7F

Modes = list[tuple[int, int]]


@pytest.fixture(autouse=True)
def _has_instructions(device: str) -> None:
    if architecture(torch.device(device)) not in ("cpu", *FP4_PRODUCTS):
        pytest.skip("this GPU has no FP4 products by mma.sync")


def run(entry: str, grid: int, block: int, *arguments: object) -> None:
    launch(KernelCode(SOURCE, entry), (grid, 1, 1), block, arguments)


def test_floats_become_the_nearest_codes(device: str) -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 432.0, 464.0, 0.0, 2.0**-10])
    near = torch.cat([ties, ties * (1 + 2.0**-23), ties * (1 - 2.0**-24)])
    wild = torch.tensor([torch.inf, torch.nan, 448.0, 1e30, 2.0**-9, 2.0**-7, 1.5 * 2.0**-9])
    random = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(1))
    scaled = torch.randn(20_000, generator=torch.Generator().manual_seed(2)) * 3
    values = torch.cat([near, wild, random.to(torch.int32).view(torch.float32), scaled])
    values = torch.cat([values, -values])
    e2m1, e4m3 = (torch.zeros(len(values), dtype=torch.int32, device=device) for _ in "24")
    run("codes", -(-len(values) // 256), 256, values.to(device), e2m1, e4m3, len(values))
    pairs = e2m1_encode(values).int() | e2m1_encode(-values).int() << 4
    assert torch.equal(e2m1.cpu(), pairs)
    assert torch.equal(e4m3.cpu(), e4m3_encode(values).view(torch.uint8).int())


def flat(coordinate: int, shape: list[int], strides: list[int]) -> int:
    """What a CuTe layout makes of a coordinate: its modes, the first one fastest, by strides."""
    index = 0
    for size, stride in zip(shape, strides, strict=True):
        index += coordinate % size * stride
        coordinate //= size
    return index


def words(matrix: torch.Tensor, lane: tuple[Modes, Modes]) -> torch.Tensor:
    """Codes [rows, 64] as every lane's words, by a layout of (lane, value) to row + rows * k."""
    threads, values = ([list(column) for column in zip(*modes, strict=True)] for modes in lane)
    rows, codes = len(matrix), []
    count = matrix.numel() // 32
    for thread in range(32):
        places = [flat(thread, *threads) + flat(value, *values) for value in range(count)]
        codes.append([int(matrix[place % rows, place // rows]) for place in places])
    eights = torch.tensor(codes).reshape(32, -1, 8)
    return (eights << 4 * torch.arange(8)).sum(-1)


A_LAYOUT: tuple[Modes, Modes] = ([(4, 128), (8, 1)], [(8, 16), (2, 8), (2, 512)])
B_LAYOUT: tuple[Modes, Modes] = ([(4, 64), (8, 1)], [(8, 8), (2, 256)])
"""(size, stride) of each mode: those of lanes, then those of a lane's values."""


def scale_words(scales: torch.Tensor, threads: Modes, lanes: list[int]) -> torch.Tensor:
    """Scale bytes [rows, 4] in the lanes of each group that are read; NaN in all others."""
    found = torch.full((32,), NAN_CODE * 0x01010101, dtype=torch.int64)
    for lane in range(32):
        if lane % 4 in lanes:
            row = flat(lane, *map(list, zip(*threads, strict=True)))
            found[lane] = int((scales[row].long() << 8 * torch.arange(4)).sum())
    return found


def to_int32(values: torch.Tensor, device: str) -> torch.Tensor:
    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32).to(device)


@each_row(("a_lanes", "b_lane"), [(0, 0), (1, 1), (0, 3), (1, 2)])
def test_a_product_with_block_scales(a_lanes: int, b_lane: int, device: str) -> None:
    seeded = torch.Generator().manual_seed(10 * a_lanes + b_lane)

    def codes(*shape: int, most: int) -> torch.Tensor:
        return torch.randint(0, most, shape, generator=seeded).to(torch.uint8)

    a, b = codes(16, 64, most=16), codes(8, 64, most=16)
    a_scales, b_scales = codes(16, 4, most=NAN_CODE), codes(8, 4, most=NAN_CODE)
    a_words = words(a, A_LAYOUT)
    b_words = words(b, B_LAYOUT)
    # Lane 2 a_lanes of a group has row g, the next one row g + 8.
    own = scale_words(a_scales, [(2, 8), (2, 0), (8, 1)], [2 * a_lanes, 2 * a_lanes + 1])
    other = scale_words(b_scales, [(4, 0), (8, 1)], [b_lane])
    before = torch.randn(16, 8, generator=seeded) * 100
    group, member = torch.arange(32) // 4, torch.arange(32) % 4
    rows = torch.stack([group, group, group + 8, group + 8], 1)
    columns = torch.stack([2 * member, 2 * member + 1] * 2, 1)
    d = before[rows, columns].contiguous().to(device)
    operands = (to_int32(each, device).contiguous() for each in (a_words, b_words, own, other))
    run("product", 1, 32, *operands, d, a_lanes, b_lane)

    def decoded(matrix: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        factors = e4m3_decode(scales.view(torch.float8_e4m3fn)).repeat_interleave(16, 1)
        return e2m1_decode(matrix) * factors

    left, right = decoded(a, a_scales), decoded(b, b_scales)
    exact = before.double() + left @ right.T
    bound = before.double().abs() + left.abs() @ right.abs().T
    off = (d.cpu().double() - exact[rows, columns]).abs()
    assert (off <= 64 * 2.0**-23 * bound[rows, columns]).all()
    if device == "cpu":  # the order that its header states
        for block in range(4):
            part = slice(16 * block, 16 * block + 16)
            before = (before.double() + left[:, part] @ right[:, part].T).float()
        assert torch.equal(d, before[rows, columns])
