"""Layers inside CUDA graphs of a compiled model, against an eager run on the same machine.

In the eager run every module had a range of its own, so that its kernels' layers are certain.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.graph_layers import cells, compare, decode_step
from spark_prof.traces.bundle import Bundle

DATA = Path(__file__).parents[1] / "data"
LAYERS = 24


def test_a_compiled_step_is_placed_as_the_eager_one() -> None:
    names = ("h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs")
    steps = [decode_step(Bundle(DATA / name), batch=1) for name in names]
    found = compare(*steps)
    assert (found["different"], found["alike"]) == ([], 351)
    assert found["placed_share"] == found["placed_share_in_graphs"] == 1
    assert float(str(found["share_in_graphs"])) > 0.8
    places = [{cell for cell in cells(step) if cell[0] >= 0} for step in steps]
    assert places[0] == places[1]
    assert len(places[0]) == LAYERS * 8
    # What only one run has is fused or chosen otherwise: norm and rope in every layer, attention's
    # variants, and the embedding.
    for side in ("only_eager", "only_graph"):
        counts: Counter[str] = Counter()
        rows: Any = found[side]
        for name, count in rows.items():
            counts[name.partition(":")[0]] += count
        assert (counts["norm"], counts["rope"]) == (2 * LAYERS + 1, LAYERS), side
        assert set(counts) <= {"norm", "rope", "attention", "embedding"}, side
