"""Dense layers against exact results: every format, number of tokens, edge and configuration."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import Format, Layer, Replacement
from spark_prof.kernels.check.cases import DenseCase
from spark_prof.kernels.check.inputs import make_activations, make_weight
from spark_prof.kernels.check.oracles import linear_oracle
from spark_prof.kernels.check.verdict import judge, same_bits
from spark_prof.kernels.dense import LinearConfig, build, linear
from spark_prof.kernels.formats import GlobalScale, MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.pack import pack_linear
from tests.kernels.check.plain import kept, said
from tests.rows import each_row

CASES = [
    DenseCase("nvfp4", (32, 2880), 8),
    DenseCase("nvfp4", (7, 80), 1, bias=True),
    DenseCase("mxfp4", (40, 1856), 16, bias=True),
    DenseCase("mxfp4", (7, 96), 2),
    DenseCase("fp8", (16, 2688), 3),
    DenseCase("bf16", (32, 2880), 1, bias=True),
    DenseCase("bf16", (128, 512), 16),
    DenseCase("bf16", (48, 80), 9, bias=True),
]
"""Shapes beside those of `check`, which `test_checks.py` runs."""
CONFIGURED: list[tuple[LinearConfig, Format, int]] = [
    (LinearConfig(warps=1, split=1, depth=1, x_ahead=0, min_blocks=1), "nvfp4", 3),
    (LinearConfig(warps=4, split=2, depth=3, x_ahead=1, min_blocks=1), "mxfp4", 11),
    (LinearConfig(warps=8, split=8, depth=1, x_ahead=1, min_blocks=2), "fp8", 16),
    (LinearConfig(warps=4, split=1, depth=2, x_ahead=1, min_blocks=2, blocks=1), "nvfp4", 9),
    (LinearConfig(warps=4, split=4, depth=4, x_ahead=0, min_blocks=1, blocks=1), "mxfp4", 8),
    (LinearConfig(warps=4, split=1, depth=1, x_ahead=1, min_blocks=1, blocks=1), "bf16", 5),
    (LinearConfig(warps=4, split=4, depth=1, x_ahead=0, min_blocks=1, blocks=1), "fp8_blocks", 5),
    (LinearConfig(warps=4, split=2, depth=2, x_ahead=1, min_blocks=1, blocks=1), "int4", 11),
    (LinearConfig(warps=8, split=4, depth=3, x_ahead=0, min_blocks=1), "bf16", 12),
    (LinearConfig(warps=4, split=4, depth=3, x_ahead=2, min_blocks=1), "mxfp4", 1),
    (LinearConfig(warps=4, split=2, depth=1, x_ahead=2, min_blocks=1, blocks=1), "fp8", 7),
    (LinearConfig(warps=2, split=1, depth=1, x_ahead=2, min_blocks=1, blocks=1), "bf16", 4),
    (LinearConfig(warps=2, split=1, depth=1, x_ahead=2, min_blocks=1), "nvfp4", 9),
]
"""Splits with and without work for each warp, loads beyond the last unit, blocks of many rounds,
activations in shared memory; 9 tokens of them have no room."""


@each_row("case", CASES)
def test_a_case(case: DenseCase, device: str) -> None:
    assert said(case, build, device) == ""


@pytest.mark.slow
@each_row(("config", "kind", "tokens"), CONFIGURED)
def test_a_configuration(config: LinearConfig, kind: Format, tokens: int, device: str) -> None:
    def configured(layer: Layer) -> Replacement:
        run = build(layer).run
        return kept(lambda x, bias, out: run(x, bias, out, config))

    for columns in (448, 576):  # of five units one warp may have two, the others one
        case = DenseCase(kind, (144, columns), tokens, bias=True)
        assert said(case, configured, device) == ""


def test_a_result_of_its_own(device: str) -> None:
    packed = pack_linear(make_weight("nvfp4", "plain", (48, 448), 1, device))
    x = make_activations("plain", 3, 448, 2, device)
    out = torch.empty(3, 48, dtype=torch.bfloat16, device=device)
    assert linear(x, packed, out=out) is out
    assert same_bits(linear(x, packed), out)


def test_scales_too_far_apart_for_bfloat16_are_refused(device: str) -> None:
    scales = torch.tensor([[1, 127]], dtype=torch.uint8, device=device)
    codes = torch.full((1, 32), 0x22, dtype=torch.uint8, device=device)
    with pytest.raises(KernelError, match="apart"):
        pack_linear(MxFp4(codes, scales))


@each_row("power", [-109, -125, 107, 108])
def test_a_global_scale_is_kept_or_refused(power: int, device: str) -> None:
    """The kernels keep 2^20 times what it multiplies by, in float32."""
    plain = make_weight("nvfp4", "plain", (16, 64), 1, device)
    assert isinstance(plain, NvFp4)
    scale = GlobalScale(torch.tensor(2.0**power), "divides" if power < 0 else "multiplies")
    weight = NvFp4(plain.packed, plain.scales, scale)
    if abs(power) > 107:
        with pytest.raises(KernelError, match=r"up to 2\^108"):
            pack_linear(weight)
        return
    x = make_activations("plain", 2, 64, 2, device) * 2.0**-20
    judgement = judge(linear(x, pack_linear(weight)), linear_oracle(x, weight.decode(), None))
    assert judgement.detail == ""


@each_row("warps", [(4, 3), (4, 8), (0, 1), (4, 0), (40, 4), (-4, -4)])
def test_a_configuration_that_shares_nothing_out_is_refused(warps: tuple[int, int]) -> None:
    packed = pack_linear(make_weight("nvfp4", "plain", (48, 448), 1, "cpu"))
    x = make_activations("plain", 1, 448, 2, "cpu")
    with pytest.raises(KernelError, match="a divisor of them"):
        linear(x, packed, config=LinearConfig(*warps, depth=1, x_ahead=0, min_blocks=1))


IN_PLACE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "rows": (lambda w: w[:40], "40 x 80: N and K must be multiples of 16"),
    "columns": (lambda w: w[:, :72].contiguous(), "48 x 72: N and K must be multiples of 16"),
    "columns apart": (lambda w: w[:, ::2], "no contiguous bfloat16 matrix"),
    "float32": (lambda w: w.float(), "torch.float32.* no contiguous bfloat16 matrix"),
    "one dimension": (lambda w: w[0], r"shape \(80,\) is no matrix of \[N, K\]"),
    "address": (
        lambda w: torch.cat([w.flatten(), w[0]])[1 : 1 + w.numel()].view(w.shape),
        "begin at a multiple of 16 bytes",
    ),
}
"""What is done to a bfloat16 matrix of 48 x 80, and what is said of it."""


@each_row("what", IN_PLACE)
def test_a_matrix_that_cannot_be_read_in_place_is_refused(what: str) -> None:
    change, said = IN_PLACE[what]
    with pytest.raises(KernelError, match=said):
        pack_linear(change(torch.ones(48, 80, dtype=torch.bfloat16)))


def test_a_bfloat16_weight_is_read_where_it_is(device: str) -> None:
    """A model that loads other weights into the same memory computes with those."""
    weight = torch.nn.Parameter(torch.ones(32, 64, dtype=torch.bfloat16, device=device))
    packed = pack_linear(weight)
    assert packed.weights.data_ptr() == weight.data_ptr()
    assert packed.bytes == weight.nbytes
    x = make_activations("plain", 2, 64, 2, device)
    before = linear(x, packed)
    with torch.no_grad():
        weight.mul_(2)
    assert same_bits(linear(x, packed), before * 2)


def test_infinity_in_a_bfloat16_weight_stays_in_its_row(device: str) -> None:
    weight = torch.ones(32, 64, dtype=torch.bfloat16, device=device)
    weight[3, 60] = torch.inf
    x = make_activations("plain", 9, 64, 2, device).abs() + 1
    y = linear(x, pack_linear(weight))
    rows = torch.arange(32, device=device) == 3
    assert torch.equal(y.isinf(), rows.expand(9, 32))
