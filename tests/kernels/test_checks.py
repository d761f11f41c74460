"""Every kernel passes the cases that `spark-prof kernels check` runs, here and on a GPU."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels import dense
from spark_prof.kernels.check.runner import check
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.registry import by_check

from .refusals import all_refusals


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
    verdicts = list(islice(check(by_check()["w4a16"].candidate(), "cpu"), 3))
    assert [verdict.status for verdict in verdicts] == [status] * 3
    assert all(said in verdict.detail for verdict in verdicts)


LONG = ("attention", "moe", "moe-fp8", "moe-w16a16", "normed", "normed-experts", "normed-mlp")
"""Of which each compiled and ran for 13 to 59 s on a core that it shared."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in by_check()],
)
def test_every_case_passes(name: str, device: str) -> None:
    verdicts = list(check(by_check()[name].candidate(), device))
    labels = {verdict.case for verdict in verdicts}
    assert len(labels) == len(verdicts) > 20, "every case has a name of its own"
    assert [f"{v.case}: {v.detail}" for v in verdicts if v.status != "passed"] == []
    assert {(v.kernel, v.device) for v in verdicts} == {(name, device)}
    assert all(v.used is None or 0 <= v.used <= 1 for v in verdicts)


@pytest.mark.parametrize("name", by_check())
def test_operands_that_do_not_fit_are_refused(name: str, device: str) -> None:
    tried = dict(all_refusals(by_check()[name].candidate(), device))
    assert len(tried) > 8
    assert {label: wrong for label, run in tried.items() if (wrong := run())} == {}
