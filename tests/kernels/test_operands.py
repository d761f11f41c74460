"""What operands are refused that have the right type and shape, and which odd ones are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import Activation
from spark_prof.kernels.check.inputs import Sizes, make_activations, make_layer
from spark_prof.kernels.check.verdict import same_bits
from spark_prof.kernels.dense import linear
from spark_prof.kernels.formats import MxFp4, quantize_mxfp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import moe, pack_experts
from spark_prof.kernels.operands import check_apart
from spark_prof.kernels.pack import PackedLinear, pack_linear
from spark_prof.kernels.routing import route
from spark_prof.kernels.runtime.launch import RUNNERS
from tests.rows import each_row

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


@each_row(("begin", "apart"), [(0, True), (1, False), (5, False), (6, True)])
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


def _spread(device: str) -> dict[str, tuple[Callable[..., object], dict[str, torch.Tensor]]]:
    """Every kernel of several operands, with right ones on a device."""

    def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    weight = pack_linear(WEIGHT)
    weights, scales, row_scale = (part.to(device) for part in weight.tensors)
    moved = replace(weight, weights=weights, scales=scales, row_scale=row_scale)
    layer = make_layer("mxfp4", Sizes(4, 2, 64, 64), "swiglu", "cpu")
    assert isinstance(layer.gate_up, MxFp4)
    assert isinstance(layer.down, MxFp4)
    experts = pack_experts(layer.gate_up, layer.down, None, None, Activation("swiglu"))
    gate_up = replace(experts.gate_up, weights=experts.gate_up.weights.to(device))
    experts = replace(experts, gate_up=gate_up)
    x, out = tensor(3, 64), tensor(3, 64)
    return {
        "linear": (
            lambda **given: linear(weight=moved, **given),
            {"x": x, "out": out, "bias": tensor(64)},
        ),
        "moe": (
            lambda **given: moe(experts=experts, router=layer.router, **given),
            {"x": x, "out": out, "logits": tensor(3, 4)},
        ),
        "route": (
            lambda **given: route(top_k=2, scoring="sigmoid", **given),
            {"logits": tensor(3, 4), "correction": tensor(4, dtype=torch.float32)},
        ),
    }


@pytest.mark.parametrize(("home", "other"), [("meta", "cpu"), ("cpu", "meta")])
def test_each_operand_lies_where_the_others_do_or_nothing_runs(
    home: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `meta` for a GPU: what is on the CPU by mistake could run there, and must not."""
    ran: list[str] = []
    monkeypatch.setitem(RUNNERS, "cpu", lambda *_: ran.append("it"))
    for kernel, (compute, operands) in _spread(home).items():
        for name, operand in operands.items():
            with pytest.raises(KernelError, match=rf"(?s)(?=.*\b{home}\b)(?=.*\b{other}\b)"):
                compute(**operands | {name: torch.ones_like(operand, device=other)})
            assert not ran, f"{kernel} ran with its {name} on {other}"
