"""A few of the pairs of benchmarks/compare_gate.py: the same thing passes, 3 % slower fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare_gate import Cut, judged
from spark_prof.datasets.compared import read_side
from tests.slowed import slowed

PAIRS = (
    (Cut("compare-h100/qwen-graph", 1), Cut("code-h100/qwen3-30b-a3b-nvfp4", 1), "gaps"),
    (Cut("compare-h100/gpt-graph", 1, 0, 2), Cut("compare-h100/gpt-graph", 1, 1, 2), "layer 3"),
    (Cut("compare-h100/gpt-graph", 8, 0, 2), Cut("compare-h100/gpt-graph", 8, 1, 2), "attention"),
    (Cut("compare-h100/gpt-duty", 1, 1, 5), Cut("compare-h100/gpt-duty", 1, 2, 5), "experts"),
)
LIMITS = ("3%", "2.5%")


@pytest.mark.parametrize(("one", "two", "what"), PAIRS, ids=lambda value: str(value))
def test_the_same_thing_passes_and_a_slower_one_fails(
    one: Cut, two: Cut, what: str, tmp_path: Path
) -> None:
    paths = [cut.made(tmp_path) for cut in (one, two)]
    a, b = (read_side(str(path)) for path in paths)
    assert judged(a, b, LIMITS)[0].outcome == "passed"
    assert judged(b, a, LIMITS)[0].outcome == "passed"
    slow = read_side(str(slowed(paths[1], tmp_path / "slow", 0.03, what)))
    assert [each.outcome for each in judged(a, slow, LIMITS)] == ["failed", "failed"]
