"""Running the checks: every case has a name of its own, and what it showed is told."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels import dense
from spark_prof.kernels.check.runner import CHECKS, run_checks
from spark_prof.kernels.errors import KernelError
from tests.rows import each_row


@each_row("name", CHECKS)
def test_cases_of_a_check_have_names_of_their_own(name: str) -> None:
    labels = [label for label, _ in CHECKS[name]("cpu")]
    assert len(set(labels)) == len(labels) > 20


def test_a_passed_case(device: str) -> None:
    (verdict,) = islice(run_checks(["fp8"], device), 1)
    assert (verdict.kernel, verdict.case) == ("fp8", "fp8, 1 tokens, 48 x 448, bias")
    assert (verdict.device, verdict.status, verdict.detail) == (device, "passed", "")
    assert verdict.used is not None
    assert 0 <= verdict.used <= 1


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KernelError("it does not compile"), "failed", "it does not compile"),
        (torch.OutOfMemoryError("1 GB"), "skipped", "memory"),
        (RuntimeError("CUDA error:\nan illegal access"), "failed", "an illegal access"),
    ],
)
def test_a_case_that_cannot_run_does_not_end_the_others(
    error: Exception, status: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_arguments: Any, **_named: Any) -> None:
        raise error

    monkeypatch.setattr(dense, "launch", failing)
    verdicts = list(islice(run_checks(["w4a16"], "cpu"), 3))
    assert [verdict.status for verdict in verdicts] == [status] * 3
    assert all(said in verdict.detail for verdict in verdicts)
