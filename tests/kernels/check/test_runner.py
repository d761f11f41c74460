"""Running the checks: every case has a name of its own, and what it showed is told."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels import dense
from spark_prof.kernels.check.runner import run_checks
from spark_prof.kernels.errors import KernelError


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
