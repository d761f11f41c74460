"""Layers inside CUDA graphs of a compiled model, against an eager run on the same machine.

In the eager run every module had a range of its own, so that its kernels' layers are certain.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.graph_layers import cells, compare, decode_step
from spark_prof.traces.bundle import Bundle

DATA = Path(__file__).parents[1] / "data"
LAYERS = 24


@pytest.fixture(scope="module")
def steps() -> tuple[Any, Any]:
    """A decode step of both runs."""
    names = ("h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs")
    eager, graph = (decode_step(Bundle(DATA / name), batch=1) for name in names)
    return eager, graph


def test_no_kernel_of_both_runs_is_in_another_place(steps: tuple[Any, Any]) -> None:
    found = compare(*steps)
    assert found["different"] == []
    assert found["alike"] == 351


def test_everything_is_placed(steps: tuple[Any, Any]) -> None:
    found = compare(*steps)
    assert found["placed_share"] == found["placed_share_in_graphs"] == 1
    assert float(str(found["share_in_graphs"])) > 0.8


def test_what_only_one_run_has_is_fused_or_chosen_otherwise(steps: tuple[Any, Any]) -> None:
    """Norm and rope in every layer, attention's variants, and the embedding."""
    found = compare(*steps)
    for side in ("only_eager", "only_graph"):
        counts: Counter[str] = Counter()
        rows: Any = found[side]
        for name, count in rows.items():
            counts[name.partition(":")[0]] += count
        norms = 2 * LAYERS + 1
        assert counts["norm"] == norms, side
        assert counts["rope"] == LAYERS, side
        assert set(counts) <= {"norm", "rope", "attention", "embedding"}, side


def test_every_layer_has_the_same_components_as_in_the_eager_run(steps: tuple[Any, Any]) -> None:
    places = [{cell for cell in cells(step) if cell[0] >= 0} for step in steps]
    assert places[0] == places[1]
    assert len(places[0]) == LAYERS * 8
