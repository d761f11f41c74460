"""What a reader is told, and that he is told nothing without a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_prof.analyzers.breakdown import Coverage
from spark_prof.analyzers.report_notes import notes_of
from spark_prof.analyzers.step_accounting import Steps
from spark_prof.analyzers.step_time import StepSums
from tests.analyzers.graphs import Captured, graph_launch
from tests.rows import each_row
from tests.support import MODEL, Piece, Recorded, call, eager_decode, kineto, step

STEPS = Steps(40, 0, 40, 0, 40, 40, 0, None, None, None, None, None)
COVERAGE = Coverage(1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
SUMS = StepSums(40, 1000.0, 890.0, 890.0, 10.0, 0.0, 100.0, 0.0, 1000.0)


GRAPHS = {"execution": "eager, CUDA graphs (FULL)"}


@each_row(
    ("changes", "steps", "coverage", "sums", "says"),
    [
        ({"lost": ("rank1: gone",)}, {}, {}, {}, ["lost: rank1: gone"]),
        ({"lost": ("a", "b"), "state": "salvaged"}, {}, {}, {}, ["lost: a", "lost: b", "died"]),
        ({"state": "interrupted"}, {}, {}, {}, ["ended early"]),
        ({"settings": {"steps": 40}}, {}, {}, {}, ["after 40 steps"]),
        ({}, {"decode": 15}, {}, {}, ["Only 15 decode steps"]),
        ({}, {}, {}, {"residual_us": 11.0}, ["off by 1.1 %"]),
        ({}, {}, {}, {"residual_us": -20.0}, ["off by -2.0 %"]),
        ({}, {}, {}, {"engine_us": None}, ["scheduler's own record"]),
        (GRAPHS, {}, {"placed": 0.9}, {}, ["capture was not seen"]),
        ({}, {}, {"guessed": 0.5}, {}, ["50.0 % of the kernel time was placed by a guess"]),
        ({"backend": "imported: nsys stats", "settings": {"summed": True}}, {}, {}, {},
         ["no times of steps, no gaps"]),
        ({}, {}, {}, {}, []),
        ({"settings": {"steps": 41}}, {}, {}, {}, []),
        ({"settings": {"steps": 0}}, {"count": 0}, {}, {}, []),
        ({}, {"decode": 0}, {}, {}, []),
        ({}, {}, {}, {"residual_us": 10.0}, []),
        (GRAPHS, {}, {"layer": 0.96}, {}, []),
        ({"backend": "imported: kineto"}, {}, {}, {"engine_us": None}, []),
    ],
)  # fmt: skip
def test_each_note_has_its_reason_and_none_is_without(
    tmp_path: Path, changes: dict[str, Any], steps: dict[str, Any], coverage: dict[str, Any],
    sums: dict[str, Any], says: list[str],
) -> None:  # fmt: skip
    bundle = Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    facts = {"rank0": {"execution": changes.get("execution", "eager")}}
    others = {name: value for name, value in changes.items() if name != "execution"}
    bundle.meta = replace(bundle.meta, facts=facts, **others)
    notes = notes_of(
        bundle, 0, replace(STEPS, **steps), replace(COVERAGE, **coverage),
        replace(SUMS, **sums),
    )  # fmt: skip
    assert len(notes) == len(says)
    assert all(word in note for word, note in zip(says, notes, strict=True)), notes


@each_row(("node", "told"), [(1, False), (5, True)])
def test_a_capture_that_was_seen_is_not_said_to_be_missing(
    tmp_path: Path, node: int, *, told: bool
) -> None:
    """However few kernels have a place. Two ran; nodes 0 and 1 were captured."""
    rows = [
        *graph_launch(1, 50, ("some_kernel", 0, 1000, 7)),
        *graph_launch(2, 60, ("some_kernel", node, 1100, 7)),
    ]
    piece = Piece([step(0, 0, 90_000)], (), kineto(*rows))
    recorded = Recorded({0: [piece]}, facts=GRAPHS)
    bundle = Captured([100, 200], call(MODEL, 0, 1000)).assemble(recorded, tmp_path / "b")
    notes = notes_of(bundle, 0, STEPS, replace(COVERAGE, placed=0.5), SUMS)
    assert any("capture was not seen" in note for note in notes) == told
