"""The verdicts of some of the cases of somebody's own kernel."""

from __future__ import annotations

from collections.abc import Callable

from spark_prof.kernels.candidate import Builder, Candidate
from spark_prof.kernels.check.own_cases import own_cases
from spark_prof.kernels.check.runner import run_cases
from spark_prof.kernels.check.verdict import Verdict


def some(
    slot: str, builder: Builder, wanted: Callable[[str], bool], device: str = "cpu"
) -> list[Verdict]:
    """The verdicts of those cases alone whose label is wanted."""
    cases = (
        (label, run)
        for label, run in own_cases(Candidate("k", slot, builder), device)
        if wanted(label)
    )
    found = list(run_cases("k", cases, device, own=True))
    assert found
    return found
