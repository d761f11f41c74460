"""What a tune of another GPU costs, from what was timed on this one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from benchmarks.tuning_transfer import lines, mean_of, transfers
from spark_prof.kernels.bench.results import (
    OURS,
    BenchCell,
    BenchMachine,
    BenchReport,
    ImplementationResult,
    MachineCeilings,
    TimeSpread,
)
from spark_prof.kernels.tuning import Tuned, TunedShape, TuningRun

WORK = TunedShape("dense", "nvfp4", 4096, 4096, 1)


def at(us: float) -> TimeSpread:
    return TimeSpread(us, us, us, 5)


def cell(tokens: int, ours: float, before: float | None, other: float | None) -> BenchCell:
    results = [ImplementationResult(OURS, at(ours), 0.0)]
    results += [ImplementationResult("Marlin", at(other), 0.0)] if other else []
    work = replace(WORK, tokens=tokens)
    return BenchCell("dense", work, "a layer", 1, 1, False, tuple(results), before_us=before)


def report(*cells: BenchCell) -> BenchReport:
    machine = BenchMachine("H200", "sm_90a", "", "", 1, "2026-01-01", {})
    return BenchReport(machine, MachineCeilings(at(1), at(1), at(1), "", "", ""), list(cells))


def tuned(tokens: int, us: float) -> Tuned:
    return Tuned(replace(WORK, tokens=tokens), {"warps": 8}, us, "Marlin", 10.0)


RUNS = (TuningRun("sm_90a", "H100", "2026-01-01", "", {}, (tuned(1, 5.0), tuned(2, 12.0))),)


def test_what_the_dispatcher_chooses_is_held_against_the_best_found_here() -> None:
    kernel, fallback = transfers(report(cell(1, 4.0, 5.0, 8.0), cell(2, 4.0, 5.0, 8.0)), RUNS)
    assert (kernel.chosen, kernel.us, kernel.best, kernel.best_us) == (OURS, 5.0, OURS, 4.0)
    assert kernel.loss == 1.25
    # It was slower on the other GPU, and so is left here.
    assert (fallback.chosen, fallback.loss) == ("Marlin", 2.0)
    text = list(lines([kernel, fallback]))
    assert text[0].endswith("100.0 %")
    assert text[-1].startswith("2 pieces of work: 58.1 % lost on the geometric mean, 100.0 % at")


def test_the_other_kernel_may_be_the_best() -> None:
    (found,) = transfers(report(cell(1, 9.0, 10.0, 8.0)), RUNS)
    assert (found.chosen, found.best, found.loss) == (OURS, "Marlin", 1.25)


def test_what_was_not_searched_or_has_no_peer_says_nothing() -> None:
    found = list(transfers(report(cell(1, 4.0, None, 8.0), cell(2, 4.0, 5.0, None)), RUNS))
    assert found == []
    assert list(lines(found)) == []
    assert math.isnan(mean_of(found))
