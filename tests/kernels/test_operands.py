"""What operands are refused that have the right type and shape, and which odd ones are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.check.activations import make_activations
from spark_prof.kernels.check.verdict import same_bits
from spark_prof.kernels.dense import linear
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import quantize_mxfp4
from spark_prof.kernels.operands import check_apart, check_operand, token_tiles
from spark_prof.kernels.pack import PackedLinear, pack_linear
from spark_prof.kernels.quantize import quantize_rows
from spark_prof.kernels.routing import route

WEIGHT = quantize_mxfp4(torch.randn(64, 64, generator=torch.Generator().manual_seed(1)))


@pytest.fixture
def weight(device: str) -> PackedLinear:
    return pack_linear(type(WEIGHT)(WEIGHT.packed.to(device), WEIGHT.scales.to(device)))


@pytest.fixture
def x(device: str) -> torch.Tensor:
    return make_activations("plain", 3, 64, 2, device)


def test_what_wants_a_gradient_is_refused_unless_none_is_taken(
    weight: PackedLinear, x: torch.Tensor
) -> None:
    wanting = x.clone().requires_grad_()
    calls: list[Callable[[], object]] = [
        lambda: linear(wanting, weight),
        lambda: linear(x, weight, bias=x.new_zeros(64).requires_grad_()),
        lambda: quantize_rows(wanting, "mxfp8"),
        lambda: route(wanting, 4),
    ]
    for call in calls:
        with pytest.raises(KernelError, match="wants a gradient"):
            call()
    with torch.no_grad():
        assert same_bits(linear(wanting, weight), linear(x, weight))


def test_a_result_where_activations_lie_is_refused(weight: PackedLinear, x: torch.Tensor) -> None:
    memory = torch.zeros(6, 64, dtype=torch.bfloat16, device=x.device)
    for first in range(1, 3):
        with pytest.raises(KernelError, match="share memory"):
            linear(memory[:3], weight, out=memory[first : first + 3])
    memory[:3] = x
    linear(memory[:3], weight, out=memory[3:])
    assert same_bits(memory[3:], linear(x, weight))


@pytest.mark.parametrize(("begin", "apart"), [(0, True), (1, False), (5, False), (6, True)])
def test_rows_that_lie_apart_end_with_the_last_of_them(begin: int, apart: bool) -> None:
    """Of rows of two elements, four apart, the last one ends six elements behind the first."""
    memory = torch.zeros(32, dtype=torch.bfloat16)
    x = memory[2:].as_strided((2, 2), (4, 1))
    out = memory[begin + 2 : begin + 4] if begin else memory[:2]
    if apart:
        check_apart(out, x)
    else:
        with pytest.raises(KernelError):
            check_apart(out, x)


def test_one_row_for_all_tokens_is_taken(weight: PackedLinear, x: torch.Tensor) -> None:
    assert same_bits(linear(x[:1].expand(5, 64), weight), linear(x[:1].repeat(5, 1), weight))


def test_a_device_that_is_not_the_weights_is_told(weight: PackedLinear, x: torch.Tensor) -> None:
    with pytest.raises(KernelError, match=f"x is on meta, the weights are on {x.device}"):
        linear(x.to("meta"), weight)


def test_the_message_names_the_operand_and_what_helps() -> None:
    with pytest.raises(KernelError, match=r"bias is not contiguous; pass bias\.contiguous\(\)"):
        check_operand("bias", torch.zeros(8).bfloat16()[::2], (4,), torch.device("cpu"))


def test_tiles_hold_eight_tokens() -> None:
    assert [token_tiles(tokens) for tokens in (1, 8, 9, 16)] == [1, 1, 2, 2]
