"""The callbacks of a real start of vLLM: which node of which graph belongs to which layer.

Recorded on an H100 with vLLM 0.26, gpt-oss-20b, torch.compile and FULL_AND_PIECEWISE graphs of 1, 2
and 4 tokens; with it the nodes of one replayed step and the names of its kernels.
"""

from __future__ import annotations

import io
import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.traces.chunks import CAPTURE_DTYPE, EVENT_DTYPE, NODE_DTYPE
from spark_prof.traces.host_timeline import GraphNodes, capture_rows, place_nodes

FOLDER = Path(__file__).parents[1] / "data" / "graph-maps" / "h100-gpt-oss-20b"
LAYERS = 24
MODULES = json.loads((FOLDER / "modules.json").read_text())


def load(kind: str, dtype: Any) -> Any:
    rows = np.load(io.BytesIO(lzma.decompress((FOLDER / f"rank0.{kind}.npy.xz").read_bytes())))
    assert rows.dtype == dtype
    return rows


@pytest.fixture(scope="module")
def placed() -> GraphNodes:
    nodes = load("nodes", NODE_DTYPE)
    events, captures = load("capture-events", EVENT_DTYPE), load("captures", CAPTURE_DTYPE)
    return place_nodes(nodes, events, captures, [module["layer"] for module in MODULES])


@pytest.fixture(scope="module")
def replay(placed: GraphNodes) -> Any:
    """The placed nodes of one replayed step in order, with `name` and `component`."""
    step = json.loads((FOLDER / "replay.json").read_text())
    found = placed.find(np.array([node for node, _ in step], np.int64))
    assert (found >= 0).all()
    rows = placed.frame.iloc[found]
    return rows.assign(
        name=[name for _, name in step],
        component=[MODULES[module]["component"] for module in rows["module"]],
    )


def test_captures_are_told_apart() -> None:
    captures = capture_rows(load("captures", CAPTURE_DTYPE))
    full = captures[captures["mode"] == "FULL"]
    assert full["tokens"].tolist() == [4, 2, 1]
    pieces = captures[captures["mode"] == "PIECEWISE"]
    assert Counter(pieces["tokens"]) == dict.fromkeys((4, 2, 1), LAYERS + 1)


def test_nodes_have_their_capture_unless_they_came_before_it(placed: GraphNodes) -> None:
    """vLLM also captures graphs to measure their memory, and throws them away."""
    nodes, first = placed.frame, load("captures", CAPTURE_DTYPE)["start_ns"][0]
    early = nodes["created_ns"] < first
    assert (early.sum(), len(nodes)) == (3516, 8790)
    assert (nodes["capture"][early] == -1).all()
    assert (nodes["capture"][~early] >= 0).all()
    assert (nodes["node"] != nodes["original"])[~early].mean() > 0.4


def test_anchors_are_in_their_layer_and_in_the_layers_order(replay: Any) -> None:
    anchors = replay[replay["layer"] >= 0]
    assert Counter(anchors["layer"]) == dict.fromkeys(range(LAYERS), 11)
    assert (np.diff(anchors["layer"]) >= 0).all()
    assert Counter(anchors["component"]) == {
        "kv_write": LAYERS, "attention": 3 * LAYERS, "experts": 7 * LAYERS,
    }  # fmt: skip


def test_what_the_compiler_made_lies_in_the_model_and_in_no_layer(replay: Any) -> None:
    rest = replay[replay["layer"] < 0]
    assert {MODULES[module]["path"] for module in rest["module"]} == {"model"}
    assert len(rest) == 193
