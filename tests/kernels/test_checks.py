"""Every kernel passes the cases that `spark-prof kernels check` runs, here and on a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from spark_prof.kernels.check.runner import CHECKS, run_checks

PASSES = ("norm_quantize", "activation_quantize", "expand_quantize")
"""Long on the CPU; their own tests compare them bit by bit."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in PASSES else n for n in CHECKS]
)
def test_every_case_passes(name: str, device: str) -> None:
    verdicts = list(run_checks([name], device))
    labels = {verdict.case for verdict in verdicts}
    assert len(labels) == len(verdicts) > 20, "every case has a name of its own"
    assert [f"{v.case}: {v.detail}" for v in verdicts if v.status != "passed"] == []
    assert {(v.kernel, v.device) for v in verdicts} == {(name, device)}
    assert all(v.used is None or 0 <= v.used <= 1 for v in verdicts)
