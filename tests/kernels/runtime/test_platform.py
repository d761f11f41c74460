"""What platform.cuh promises holds on every device, against plain arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.runtime.code import KernelCode  # noqa: E402
from spark_prof.kernels.runtime.launch import launch  # noqa: E402
from tests.rows import each_row  # noqa: E402

SOURCE = str(Path(__file__).with_name("primitives.cu"))
ALL_BF16 = torch.arange(-32768, 32768).to(torch.int16)
EDGES = [0.0, 1.0, 1.5, 3.0, 255.0, 2.0**-126, 2.0**-127, 2.0**-133, 3.0 * 2.0**-133, 2.0**-64,
         2.0**127, 1.9921875 * 2.0**127, float("inf"), float("nan")]  # fmt: skip


def run(entry: str, block: int, *arguments: object, grid: int = 1) -> None:
    launch(KernelCode(SOURCE, entry), (grid, 1, 1), block, arguments)


def each(entry: str, *tensors: torch.Tensor) -> None:
    """One thread an element."""
    count = tensors[0].numel()
    run(entry, 256, *tensors, count, grid=-(-count // 256))


def random_bits(count: int, device: str) -> torch.Tensor:
    seeded = torch.Generator().manual_seed(count)
    bits = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64, generator=seeded)
    return bits.to(torch.int32).to(device)


def nearest_bf16(exact: torch.Tensor) -> torch.Tensor:
    """Rounds float64 to bf16 once, to nearest even; torch rounds to float32 in between."""
    exponent = torch.frexp(exact).exponent.clamp(min=-125) - 8
    unit = torch.ldexp(torch.ones_like(exact), exponent)
    rounded = torch.where(exact.isfinite(), (exact / unit).round() * unit, exact)
    return rounded.float().bfloat16()


def assert_same_bf16(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit, and the one NaN that a GPU makes for every NaN."""
    bits = expected.view(torch.int16).to(torch.int32) & 0xFFFF
    bits[expected.isnan()] = 0x7FFF
    assert torch.equal(got.cpu().view(torch.int16).to(torch.int32) & 0xFFFF, bits)


def test_floats_become_the_nearest_bf16(device: str) -> None:
    edges = torch.tensor([*EDGES, 1.00390625, 1.01171875, 3.4e38, 1e-45])
    values = torch.cat([random_bits(20_000, "cpu").view(torch.float32), edges, -edges]).to(device)
    got = torch.zeros(values.numel(), dtype=torch.int16, device=device)
    pairs = torch.zeros(values.numel(), dtype=torch.int32, device=device)
    each("to_bf16", values, got, pairs)
    assert_same_bf16(got, nearest_bf16(values.cpu().double()))
    low, high = pairs.view(torch.int16).view(-1, 2).unbind(1)
    assert_same_bf16(low.contiguous(), nearest_bf16(values.cpu().double()))
    assert_same_bf16(high.contiguous(), nearest_bf16(-values.cpu().double()))


def test_powers_of_two(device: str) -> None:
    exponents = torch.cat([torch.linspace(-125, 60, 5001), torch.tensor([0.0, -150.0, -torch.inf])])
    got = torch.full_like(exponents, torch.nan).to(device)
    each("powers", exponents.to(device), got)
    expected = exponents.double().exp2()
    assert ((got.cpu() - expected).abs() <= 2.0**-22 * expected + 2.0**-126).all()
    assert got[-3:].tolist() == [1.0, 0.0, 0.0]


def test_loads_that_are_not_wanted_give_zeros(device: str) -> None:
    given = [random_bits(size * 99, device).view(99, size) for size in (4, 2)]
    got = [torch.full_like(each, -1) for each in given]
    run("load_every_second", 128, given[0], got[0], given[1], got[1], 99)
    for loaded, there in zip(got, given, strict=True):
        assert torch.equal(loaded[::2], there[::2])
        assert not loaded[1::2].any()


@each_row("factor", EDGES)
def test_products_of_bf16_are_rounded_once(device: str, factor: float) -> None:
    other = torch.tensor([factor, -factor]).bfloat16().view(torch.int32).expand(65536)
    pairs = torch.stack([ALL_BF16, ALL_BF16.flip(0)], 1).contiguous().view(torch.int32)[:, 0]
    got = torch.zeros(65536, dtype=torch.int32, device=device)
    each("multiply_pairs", pairs.to(device), other.contiguous().to(device), got)
    a = ALL_BF16.view(torch.bfloat16).double()
    b = torch.tensor(factor).bfloat16().double()
    low, high = got.cpu().view(torch.int16).view(-1, 2).unbind(1)
    assert_same_bf16(low.contiguous(), nearest_bf16(a * b))
    assert_same_bf16(high.contiguous(), nearest_bf16(a.flip(0) * -b))


@each_row("spread", [0, 10, 60])
def test_a_product_is_near_the_exact_one(device: str, spread: int) -> None:
    seeded = torch.Generator().manual_seed(spread)

    def numbers(*shape: int) -> torch.Tensor:
        exponents = torch.randint(-spread, spread + 1, shape, generator=seeded)
        return torch.ldexp(torch.randn(shape, generator=seeded), exponents)

    a, b, d = numbers(16, 16).bfloat16(), numbers(16, 8).bfloat16(), numbers(16, 8)
    got = d.clone().to(device)
    run("product", 32, a.to(device), b.to(device), got)
    exact = d.double() + a.double() @ b.double()
    bound = d.double().abs() + a.double().abs() @ b.double().abs()
    assert ((got.cpu().double() - exact).abs() <= bound * 2.0**-20).all()
    if device == "cpu":
        for k in range(16):
            d = d + a[:, k : k + 1].float() * b[k].float()
        assert torch.equal(got, d)


@each_row("block", [32, 256, 1024])
def test_lanes_of_a_warp_exchange(device: str, block: int) -> None:
    given = random_bits(block, "cpu")
    got = torch.zeros(block, 6, dtype=torch.int32, device=device)
    run("exchange", block, given.to(device), got)
    warps, lane = given.view(-1, 32), torch.arange(32)
    unsigned = warps.long() & 0xFFFFFFFF
    bits = (unsigned.unsqueeze(-1) >> lane & 1).sum(-1)
    expected = [
        warps[:, lane ^ 5],
        warps[:, (lane * 7 + 3) % 32],
        warps[:, lane ^ 16],
        warps[:, 31:].expand(-1, 32),
        bits.to(torch.int32),
        unsigned.amax(1, keepdim=True).expand(-1, 32).to(torch.int32),
    ]
    assert torch.equal(got.cpu(), torch.stack(expected, -1).view(block, 6))


@each_row("block", [32, 64, 480, 1024])
def test_warps_meet_at_barriers(device: str, block: int) -> None:
    given = torch.arange(block, dtype=torch.int32)
    got = torch.zeros(block, dtype=torch.int32, device=device)
    run("sum_of_block", block, given.to(device), got, grid=3)
    assert (got == given.sum().item()).all()


@each_row(("block", "staying"), [(64, 40), (40, 40), (256, 1), (1, 1), (1024, 999)])
def test_a_barrier_waits_for_who_has_not_left(device: str, block: int, staying: int) -> None:
    got = torch.full((block,), -1, dtype=torch.int32, device=device)
    run("leave_early", block, got, staying)
    assert torch.equal(got[:staying].cpu(), torch.arange(staying, dtype=torch.int32).flip(0))
    assert (got[staying:] == -1).all()


def test_atomics_of_many_threads(device: str) -> None:
    changed = [
        torch.zeros(1, dtype=dtype, device=device)
        for dtype in (torch.int32, torch.float32, torch.int32)
    ]
    run("change_together", 64, *changed, grid=4)
    assert [tensor.item() for tensor in changed] == [255 * 128, 0.25 * 255 * 128, -1]


def test_threads_of_many_blocks_are_numbered(device: str) -> None:
    count, places = (torch.zeros(n, dtype=torch.int32, device=device) for n in (1, 256))
    run("number", 64, count, places, grid=4)
    assert count.item() == 256
    assert torch.equal(places.sort().values.cpu(), torch.arange(256, dtype=torch.int32))
