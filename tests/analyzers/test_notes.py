"""What a reader is told, and that he is told nothing without a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.breakdown import Coverage
from spark_prof.analyzers.step_accounting import Books, Steps
from spark_prof.analyzers.summary import notes_of
from spark_prof.traces.bundle import Bundle
from tests.support import Recorded, eager_decode

STEPS = Steps(40, 0, 40, 0, 40, 40, 0, None, None, None, None, None)
COVERAGE = Coverage(1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
BOOKS = Books("all", 40, 1000.0, 890.0, 890.0, 10.0, 0.0, 100.0, 0.0, 1000.0)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")


def _with(bundle: Bundle, execution: str = "eager", **changes: Any) -> Bundle:
    bundle.meta = replace(bundle.meta, facts={"rank0": {"execution": execution}}, **changes)
    return bundle


def test_a_good_recording_needs_no_note(bundle: Bundle) -> None:
    assert notes_of(_with(bundle), 0, STEPS, COVERAGE, (BOOKS,)) == ()


GRAPHS = {"execution": "eager, CUDA graphs (FULL)"}


@pytest.mark.parametrize(
    ("changes", "steps", "coverage", "books", "says"),
    [
        ({"lost": ("rank1: gone",)}, {}, {}, {}, "lost: rank1: gone"),
        ({"state": "interrupted"}, {}, {}, {}, "ended early"),
        ({"state": "salvaged"}, {}, {}, {}, "died"),
        ({"settings": {"steps": 40}}, {}, {}, {}, "after 40 steps"),
        ({}, {"decode": 15}, {}, {}, "Only 15 decode steps"),
        ({}, {}, {}, {"residual_us": 11.0}, "off by 1.1 %"),
        ({}, {}, {}, {"residual_us": -20.0}, "off by -2.0 %"),
        ({}, {}, {}, {"engine_us": None}, "scheduler's own record"),
        (GRAPHS, {}, {"placed": 0.9}, {}, "capture was not seen"),
        ({}, {}, {"guessed": 0.5}, {}, "50.0 % of the kernel time was placed by a guess"),
        ({"settings": {"steps": 41}}, {}, {}, {}, ""),
        ({"settings": {"steps": 0}}, {"count": 0}, {}, {}, ""),
        ({}, {"decode": 0}, {}, {}, ""),
        ({}, {}, {}, {"residual_us": 10.0}, ""),
        (GRAPHS, {}, {"layer": 0.96}, {}, ""),
        ({"backend": "imported: kineto"}, {}, {}, {"engine_us": None}, ""),
    ],
)
def test_each_note_has_its_reason_and_none_is_without(
    bundle: Bundle, changes: dict[str, Any], steps: dict[str, Any], coverage: dict[str, Any],
    books: dict[str, Any], says: str,
) -> None:  # fmt: skip
    notes = notes_of(
        _with(bundle, **changes), 0, replace(STEPS, **steps), replace(COVERAGE, **coverage),
        (replace(BOOKS, **books),),
    )  # fmt: skip
    assert len(notes) == bool(says)
    assert says in " ".join(notes)


def test_what_was_lost_comes_first(bundle: Bundle) -> None:
    changed = _with(bundle, lost=("a", "b"), state="salvaged")
    notes = notes_of(changed, 0, STEPS, COVERAGE, (BOOKS,))
    assert notes[:2] == ("lost: a", "lost: b")
    assert len(notes) == 3


def test_sums_without_times_are_said_to_be_that(bundle: Bundle) -> None:
    changed = _with(bundle, backend="imported: nsys stats", settings={"summed": True})
    [note] = notes_of(changed, 0, STEPS, COVERAGE, ())
    assert "no times of steps, no gaps" in note
