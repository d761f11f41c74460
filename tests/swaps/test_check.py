"""The check of somebody's own kernel: a right one passes, each fault is found and named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_prof.kernels.candidate import KernelCandidate, WrongResult
from spark_prof.kernels.check import runner
from spark_prof.kernels.check.cases import NormCase
from spark_prof.kernels.check.oracles import Expected
from spark_prof.kernels.check.runner import check, run_replacement
from spark_prof.kernels.check.verdict import CheckVerdict, judge_changed
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.builder_loading import load_builder
from spark_prof.swaps.layers import Layer, NormLayer, Replacement
from tests.kernels.check import plain
from tests.rows import each_row

KERNELS = Path(__file__).parent / "kernels" / "faulty.py"
RIGHT = load_builder(f"{KERNELS}:right")

FAULTS = {
    "throws_at_build": "RuntimeError: made to fail when it is built",
    "throws_at_call": "RuntimeError: made to fail when it is called",
    "allocates_at_build": "RuntimeError: ",
    "allocates_at_call": "RuntimeError: ",
    "keeps_memory": "4 calls keep ",
    "doubled_scale": "elements wrong, worst at",
    "wrong_shape": "it must return",
    "wrong_dtype": "it returns torch.float64",
    "returns_nan": "nan, expected",
}
"""What is said of each kernel."""


def verdicts(kernel: str, slot: str) -> list[CheckVerdict]:
    builder = load_builder(f"{KERNELS}:{kernel}")
    return list(check(KernelCandidate(kernel, slot, builder), "cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("slot", ["norm", "router"])
def test_a_right_kernel_passes(slot: str) -> None:
    found = verdicts("right", slot)
    assert len(found) > 30
    assert {verdict.status for verdict in found} == {"passed"}


@pytest.mark.slow
@each_row("slot", ["norm", "router"])
@each_row("kernel", FAULTS)
def test_a_fault_is_found(kernel: str, slot: str) -> None:
    failed = [verdict for verdict in verdicts(kernel, slot) if verdict.status == "failed"]
    assert failed
    assert any(FAULTS[kernel] in verdict.detail for verdict in failed)
    assert all("\n" not in verdict.detail for verdict in failed)


def test_a_swapped_expert_is_found() -> None:
    failed = [v for v in verdicts("swapped_expert", "router") if v.status == "failed"]
    assert any("expected [" in verdict.detail for verdict in failed)
    # Where nobody takes expert 0 or 1 nothing is wrong.
    assert len(failed) < 33


def some(
    slot: str, builder: Callable[[Layer], Replacement | None], words: str
) -> list[CheckVerdict]:
    """The verdicts of those cases alone whose label has all of these words."""
    return plain.some(slot, builder, lambda case: all(w in case for w in words.split("|")))


@each_row("kind", ["nvfp4", "mxfp4", "fp8", "bf16"])
def test_a_right_matrix_passes_in_every_format(kind: str) -> None:
    found = some("qkv", RIGHT, f"{kind}|48 x 448")
    assert {verdict.status for verdict in found} == {"passed"}
    assert sum("tokens" in verdict.case for verdict in found) >= 18


def wrapped(around: Callable[[Callable[..., Any]], Callable[..., Any]], **fields: Any) -> Any:
    """A builder of right kernels with something around their calls."""

    def build(layer: Layer) -> Replacement | None:
        right = RIGHT(layer)
        assert right is not None
        return replace(right, run=around(right.run), **fields)

    return build


def changed(change: Callable[[torch.Tensor], torch.Tensor], **fields: Any) -> Any:
    """A right kernel with another result."""
    return wrapped(lambda run: lambda *given: change(run(*given)), **fields)


@each_row("at_build", [True, False])
def test_a_kernel_that_ends_the_program_fails(at_build: bool) -> None:
    def leave(*_: Any) -> Any:
        sys.exit(0)

    builder = leave if at_build else wrapped(lambda _: leave)
    (verdict,) = some("norm", builder, "3 tokens|2880 columns|residual")
    assert (verdict.status, verdict.detail) == ("failed", "SystemExit: 0")


def test_a_kernel_that_quantizes_is_held_against_its_own_error() -> None:
    def off(by: float, line: str = "loses a lot") -> CheckVerdict:
        builder = changed(lambda y: (y * (1 + by)).to(y.dtype), bits="changed", line=line)
        (verdict,) = some("o", builder, "bf16|2 tokens|48 x 448")[:1]
        return verdict

    assert off(0.1).status == "passed"
    assert off(0.1).used == pytest.approx(0.4, abs=0.02)
    assert "100% off" in off(1.0).detail
    assert "must state what is lost" in off(0.1, line="").detail


def test_a_kernel_that_remembers_its_first_result_is_found() -> None:
    def around(run: Callable[..., Any]) -> Callable[..., Any]:
        kept: dict[int, torch.Tensor] = {}
        return lambda x, bias: kept.setdefault(x.data_ptr(), run(x, bias)).clone()

    (verdict,) = some("mlp", wrapped(around), "bf16|the same tensor with other values")
    assert verdict.detail == "it does not compute with the activations of the moment"


NORM = NormLayer("model.norm", torch.ones(8, dtype=torch.bfloat16), 1e-5)
KIND = ((2, 8), torch.bfloat16)


@each_row(
    ("run", "said"),
    [
        (lambda x, _: x, "lies in the memory of an argument"),
        (lambda x, _: x.view(2, 8), "lies in the memory of an argument"),
        (lambda x, _: x.add_(1).clone(), "writes to its arguments"),
        (lambda x, _: (x.clone(), x.clone()), "returns 2 results; it must return 1"),
        (lambda x, _: None, "returns a NoneType, not a tensor"),
        (lambda x, _: x[:1].clone(), r"torch.bfloat16 \(1, 8\) on cpu; it must"),
    ],
)
def test_what_is_no_result(run: Callable[..., Any], said: str) -> None:
    x = torch.ones(2, 8, dtype=torch.bfloat16)
    with pytest.raises(WrongResult, match=said):
        run_replacement(Replacement(run, 0, "kept"), (x, None), [KIND])


def test_rounding_between_the_kernels_of_experts_is_allowed_and_more_is_not() -> None:
    """As vLLM's Marlin, which rounds gate and up and each expert's result to bfloat16."""
    from spark_prof.kernels.check.cases import SMALL_EXPERTS, MoeCase
    from spark_prof.kernels.check.inputs import decode
    from spark_prof.kernels.check.oracles import routing_oracle
    from tests.kernels.check.plain import kept, said

    case = MoeCase("nvfp4", SMALL_EXPERTS, 5, "swiglu")

    def rounding(keep: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        def build(layer: Any) -> Replacement:
            gate_up_weight, down_weight = decode(layer.gate_up), decode(layer.down)
            assert layer.gate_up_bias is not None

            def compute(
                x: torch.Tensor, logits: torch.Tensor, out: torch.Tensor | None = None
            ) -> torch.Tensor:
                out = torch.empty_like(x) if out is None else out
                chosen, weights = routing_oracle(logits, layer.router)
                for token, its in enumerate(chosen.tolist()):
                    total = torch.zeros(x.shape[1], dtype=torch.float64)
                    for expert, weight in zip(its, weights.value[token], strict=True):
                        both = gate_up_weight[expert] @ x[token].double()
                        gate, up = keep(both + layer.gate_up_bias[expert]).chunk(2)
                        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
                        inner = keep(gate * torch.sigmoid(1.702 * gate) * (up + 1))
                        result = keep(down_weight[expert] @ inner + layer.down_bias[expert])
                        total += keep(weight) * result
                    out[token] = total.bfloat16()
                return out

            return kept(compute)

        return build

    def bf16(values: torch.Tensor) -> torch.Tensor:
        return values.bfloat16().double()

    assert said(case, rounding(bf16), own=True) == ""
    assert "wrong" in said(case, rounding(bf16))
    fp8 = rounding(lambda values: values.to(torch.float8_e4m3fn).double())
    assert "wrong" in said(case, fp8, own=True)


def test_the_judge_of_changed_bits_looks_at_nan() -> None:
    exact = torch.tensor([[1.0, torch.nan], [0.0, 0.0]], dtype=torch.float64)
    expected = Expected(exact, torch.zeros_like(exact))
    assert judge_changed(exact.bfloat16(), expected).detail == ""
    assert "NaN" in judge_changed(exact.nan_to_num().bfloat16(), expected).detail
    assert "inf" in judge_changed(exact.bfloat16() + 1, expected).detail


def test_a_kernel_error_of_the_builder_is_an_abstention() -> None:
    def build(layer: Layer) -> Replacement | None:
        raise KernelError("not for me")

    assert {v.detail for v in check(KernelCandidate("k", "router", build), "cpu")} == {"not for me"}


def faulty(fault: Callable[..., Any]) -> Any:
    """A right kernel whose result and arguments something is done to."""

    def around(run: Callable[..., Any]) -> Callable[..., Any]:
        def spoiled(*given: Any) -> Any:
            result = run(*given)
            fault(result[0] if isinstance(result, tuple) else result, *given)
            return result

        return spoiled

    return wrapped(around)


COUNTS = (*range(1, 17), 17, 130)


def not_found(slot: str, fault: Callable[..., Any], words: str, counts: Sequence[int]) -> list[int]:
    """The numbers of rows at which a fault is planted, one at a time, and not found."""

    def at(count: int) -> Callable[..., Any]:
        return lambda y, x, *others: fault(y, x, *others) if len(x) == count else None

    return [
        count
        for count in counts
        if not any(
            verdict.status == "failed"
            for verdict in some(slot, faulty(at(count)), words.format(count))
        )
    ]


@pytest.mark.slow
@each_row("slot", ["norm", "router", "qkv", "lm_head"])
def test_a_fault_at_one_number_of_rows_is_found(slot: str) -> None:
    words = "{} tokens" if slot in ("norm", "router") else "bf16|{} tokens"
    assert not_found(slot, lambda y, *_: y[-1].mul_(1.1), words, COUNTS) == []


@each_row("slot", ["norm", "qkv"])
def test_rows_of_zeros_are_tried_with_each_number_of_rows(slot: str) -> None:
    words = "{} tokens|zeros" + ("|bf16" if slot == "qkv" else "")
    fault = lambda y, x, *_: y.add_(0.1 * (x == 0).all(-1, keepdim=True))  # noqa: E731
    assert not_found(slot, fault, words, range(1, 17)) == []


@pytest.mark.parametrize("slot", ["norm", "qkv"])
def test_what_is_written_behind_the_rows_is_found(slot: str) -> None:
    def fault(_: torch.Tensor, x: torch.Tensor, *__: Any) -> None:
        if len(x) == 6:
            torch.as_strided(x, (1,), (1,), x.storage_offset() + x.numel()).fill_(0.5)

    words = "6 tokens" if slot == "norm" else "bf16, 6 tokens, 48"
    said = [verdict.detail for verdict in some(slot, faulty(fault), words)]
    assert "it writes beside its arguments" in said


@each_row("kind", ["norm", "router"])
def test_what_is_kept_of_a_number_of_rows_is_found(kind: str) -> None:
    def around(run: Callable[..., Any]) -> Callable[..., Any]:
        kept: list[Any] = []

        def again(*given: Any) -> Any:
            if len(given[0]) != 11:
                return run(*given)
            kept.append(run(*given))
            return kept[0]

        return again

    (verdict,) = some(kind, wrapped(around), "11 tokens, other values in the same memory")
    assert verdict.status == "failed"


def test_a_kernel_of_ones_own_needs_no_compiler_of_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: Any) -> None:
        raise KernelError("NVRTC, the compiler of CUDA C++, is missing")

    monkeypatch.setattr(runner, "late_rows", missing)
    custom = KernelCandidate("right", "norm", RIGHT)
    posed = NormCase(3, 64).pose(custom, "cpu")
    assert runner._late_rows(custom, posed) == []
    with pytest.raises(KernelError, match="NVRTC"):
        runner._late_rows(replace(custom, is_custom=False), posed)
