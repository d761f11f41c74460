"""The dense cases: right arithmetic passes each of them, and each kind of wrong one is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import Format
from spark_prof.kernels.check.cases import DenseCase, dense_cases, run_dense_case
from spark_prof.kernels.errors import KernelError
from tests.kernels.check.plain import plain_linear
from tests.rows import each_row

FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8", "bf16")
CASES = [case for kind in FORMATS for case in dense_cases(kind)]
CASES += [DenseCase(kind, (64, 2880), 8) for kind in FORMATS]
USUAL = DenseCase("nvfp4", (48, 448), 3, bias=True)

Change = Callable[[torch.Tensor], torch.Tensor]


@each_row("case", CASES)
def test_right_arithmetic_passes(case: DenseCase) -> None:
    assert run_dense_case(case, plain_linear(), "cpu").detail == ""


def test_labels_tell_cases_apart() -> None:
    assert len({case.label for case in CASES}) == len(CASES)


def changed(edit: Callable[[torch.Tensor], object]) -> Change:
    """A copy of the decoded weight with something done to it."""

    def change(decoded: torch.Tensor) -> torch.Tensor:
        copy = decoded.clone()
        edit(copy)
        return copy

    return change


WRONG_WEIGHTS: dict[str, Change] = {
    "all doubled": lambda w: w * 2,
    "one block doubled": changed(lambda w: w[5, 16:32].mul_(2)),
    "one element lost": changed(lambda w: w[47, 447].zero_()),
    "neighbours swapped": lambda w: w.unflatten(-1, (-1, 2)).flip(-1).flatten(-2),
    "two rows swapped": lambda w: w[[1, 0, *range(2, 48)]],
    "a block further": lambda w: w.roll(16, dims=-1),
    "last half unit lost": changed(lambda w: w[:, 384:].zero_()),
    "sign lost": torch.abs,
}


@each_row("what", WRONG_WEIGHTS)
def test_wrong_weights_are_seen(what: str) -> None:
    assert "wrong" in run_dense_case(USUAL, plain_linear(WRONG_WEIGHTS[what]), "cpu").detail


WRONG_RESULTS: dict[str, Change] = {
    "tokens rotated": lambda y: y.roll(1, dims=0),
    "one element off by 1 %": changed(lambda y: y[2, 3].mul_(1.01)),
    "NaN in one token": changed(lambda y: y[1, 0].fill_(torch.nan)),
}


@pytest.mark.parametrize("what", WRONG_RESULTS)
def test_wrong_results_are_seen(what: str) -> None:
    linear = plain_linear(after=WRONG_RESULTS[what])
    assert "wrong" in run_dense_case(USUAL, linear, "cpu").detail


def test_a_dropped_bias_is_seen() -> None:
    assert "wrong" in run_dense_case(USUAL, plain_linear(biased=False), "cpu").detail


def test_leaked_nan_is_seen() -> None:
    case = DenseCase("mxfp4", (48, 448), 9, x="NaN and infinity")
    linear = plain_linear(after=lambda y: y + 0 * y.sum())
    assert "wrong" in run_dense_case(case, linear, "cpu").detail


def test_writing_beside_the_result_is_seen() -> None:
    def beyond(weight: object) -> Callable[..., object]:
        right = plain_linear()(weight)  # type: ignore[arg-type]

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            right(x, bias, out)
            return out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()

        return compute

    assert "1 elements written outside" in run_dense_case(USUAL, beyond, "cpu").detail


def test_what_is_not_written_is_seen() -> None:
    def partly(weight: object) -> Callable[..., object]:
        right = plain_linear()(weight)  # type: ignore[arg-type]

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            return right(x[:2], bias, out[:2])

        return compute

    assert run_dense_case(USUAL, partly, "cpu").detail == "48 of 144 elements not written"


def test_results_that_change_are_seen() -> None:
    def drifting(weight: object) -> Callable[..., object]:
        right = plain_linear()(weight)  # type: ignore[arg-type]
        calls = []

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            calls.append(1)
            right(x, bias, out)
            return out.view(torch.int16)[0, 0].add_(len(calls) - 1)

        return compute

    assert run_dense_case(USUAL, drifting, "cpu").detail == "a second run gives other bits"


def test_a_refusal_passes_only_where_it_is_an_answer() -> None:
    def refusing(weight: object) -> Callable[..., object]:
        raise KernelError("not this one")

    assert run_dense_case(USUAL, refusing, "cpu").detail == "refused: not this one"
    case = DenseCase("nvfp4", (48, 448), 3, "NaN scales", may_refuse=True)
    assert run_dense_case(case, refusing, "cpu").detail == ""
