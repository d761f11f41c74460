"""The verdicts of some of the cases of somebody's own kernel."""

from __future__ import annotations

from collections.abc import Callable

from spark_prof.kernels.candidate import Builder, Candidate
from spark_prof.kernels.check.runner import check
from spark_prof.kernels.check.verdict import Verdict


def some(
    slot: str, builder: Builder, wanted: Callable[[str], bool], device: str = "cpu"
) -> list[Verdict]:
    """The verdicts of those cases alone whose label is wanted."""
    found = list(check(Candidate("k", slot, builder), device, wanted))
    assert found
    return found
