"""What a graph's node was created for: clones followed to their originals, captures, what was open.

The shapes are those that CUPTI 13.0 reported for a graph of 481 kernels: captured as graph 1, then
instantiated as graph 2, whose nodes were each reported as created and as cloned.
"""

from __future__ import annotations

import io
import json
import lzma
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.traces.chunks import CAPTURE_DTYPE, EVENT_DTYPE, NODE_DTYPE
from spark_prof.traces.host_timeline import GraphNodes, place_nodes, replay
from tests.rows import each_row

LAYERS = (-1, 0, 0, 1)
MODEL, LAYER0, ATTENTION0, LAYER1 = range(4)

EVENTS = [
    (100, MODEL + 1), (110, LAYER0 + 1), (120, ATTENTION0 + 1), (130, -ATTENTION0 - 1),
    (140, -LAYER0 - 1), (150, LAYER1 + 1), (160, -LAYER1 - 1), (170, -MODEL - 1),
]  # fmt: skip
CAPTURE = (90, 180, 8, 2, 0, 0)
Rows = list[tuple[int, ...]]


def place(nodes: Rows, events: Rows = EVENTS, captures: Rows | None = None) -> GraphNodes:
    return place_nodes(
        np.array([(*row, 7) for row in nodes], NODE_DTYPE),
        np.array(events, EVENT_DTYPE),
        np.array([CAPTURE] if captures is None else captures, CAPTURE_DTYPE),
        LAYERS,
    )


def found(nodes: GraphNodes, *columns: str) -> list[tuple[int, ...]]:
    return list(nodes.frame[list(columns)].itertuples(index=False, name=None))


@pytest.mark.parametrize("times", [(300, 301), (125, 126)])
def test_clones_that_go_in_circles_end(times: tuple[int, int]) -> None:
    nodes = place([(times[0], 5, 6, 1), (times[1], 6, 5, 1), (times[0], 7, 7, 1)])
    assert list(nodes.frame["node"]) == [5, 6, 7]
    assert set(nodes.frame["original"]) <= {5, 6, 7}


def test_times_keep_their_last_digit() -> None:
    at = 1_800_000_000_000_000_001
    nodes = place([(at, 1, 0, 1)], [(at, LAYER1 + 1)], [(at, at, 1, 2, 0, 0)])
    assert found(nodes, "created_ns", "module", "capture") == [(at, LAYER1, 0)]


@each_row("events", [[], EVENTS])
@each_row("captures", [[], [CAPTURE]])
def test_no_nodes(events: Rows, captures: Rows) -> None:
    nodes = place([], events, captures)
    assert len(nodes.frame) == 0
    assert nodes.find(np.array([0, 5])).tolist() == [-1, -1]


def slowly(nodes: Rows, captures: Rows) -> dict[int, tuple[int, int, int, int]]:
    """Original, module, layer and capture of each node, one after another."""
    rows: dict[int, tuple[int, ...]] = {}
    for row in nodes:
        if row[1] not in rows or (row[2] and not rows[row[1]][2]):
            rows[row[1]] = row
    placed = {}
    for node in rows:
        root = node
        while rows[root][2] in rows and rows[root][2] != root:
            root = rows[root][2]
        at, module, layer = rows[root][0], -1, -1
        capture = next((i for i, c in enumerate(captures) if c[0] <= at <= c[1]), -1)
        if capture >= 0:
            stack: list[int] = []
            for time, code in EVENTS:
                if time <= at and code > 0:
                    stack.append(code - 1)
                elif time <= at:
                    stack.pop()
            module = stack[-1] if stack else -1
            layer = max((LAYERS[m] for m in stack), default=-1)
        placed[node] = (root, module, layer, capture)
    return placed


@each_row("seed", range(30))
def test_as_a_slow_obvious_way_does_it(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows: Rows = []
    numbers = (random.permutation(200) + 1).tolist()
    for index, number in enumerate(numbers):
        cloned = random.random() < 0.5
        # Clones of an earlier node, so that there is no circle; or of one that nobody saw.
        original = int(random.choice([*numbers[:index][-12:], 999])) if cloned else 0
        at = int(random.integers(80, 190))
        if random.random() < 0.5:
            rows.append((at, number, 0, 1))
        if original or not rows or rows[-1][1] != number:
            rows.append((at, number, original, 1))
    rows = [rows[i] for i in random.permutation(len(rows))]
    captures: Rows = [(90, 118, 8, 1, 0, 0), (121, 150, 4, 1, 0, 1), (153, 172, 1, 2, 0, 2)]
    nodes = place(rows, captures=captures)
    expected = slowly(rows, captures)
    actual: dict[int, Any] = {
        row[0]: row[1:] for row in found(nodes, "node", "original", "module", "layer", "capture")
    }
    assert actual == expected


def test_builds_of_metadata_prepare_the_step() -> None:
    """Also in a CUDA graph of their own, in which no module is open; and no other graph does."""
    captures: Rows = [(200, 220, 1, 2, 3, 0), (230, 250, 1, 2, 7, 1)]
    nodes = place([(210, 1, 0, 1), (240, 2, 0, 2)], [], captures)
    assert found(nodes, "module", "layer") == [(0, -1), (-1, -1)]


FOLDER = Path(__file__).parents[1] / "data" / "graph-maps" / "h100-gpt-oss-20b"
DEPTH = 24
MODULES = json.loads((FOLDER / "modules.json").read_text())


def load(kind: str, dtype: Any) -> Any:
    rows = np.load(io.BytesIO(lzma.decompress((FOLDER / f"rank0.{kind}.npy.xz").read_bytes())))
    filled = np.zeros(len(rows), dtype)  # it was recorded before captures had a kind
    for name in rows.dtype.names:
        filled[name] = rows[name]
    return filled


@pytest.fixture(scope="module")
def placed() -> GraphNodes:
    nodes = load("nodes", NODE_DTYPE)
    events, captures = load("capture-events", EVENT_DTYPE), load("captures", CAPTURE_DTYPE)
    return place_nodes(nodes, events, captures, [module["layer"] for module in MODULES])


@pytest.fixture(scope="module")
def one_step(placed: GraphNodes) -> Any:
    """The placed nodes of one replayed step in order, with `name` and `component`."""
    step = json.loads((FOLDER / "replay.json").read_text())
    found = placed.find(np.array([node for node, _ in step], np.int64))
    assert (found >= 0).all()
    rows = placed.frame.iloc[found]
    return rows.assign(
        name=[name for _, name in step],
        component=[MODULES[module]["component"] for module in rows["module"]],
    )


def test_nodes_have_their_capture_unless_they_came_before_it(placed: GraphNodes) -> None:
    """vLLM also captures graphs to measure their memory, and throws them away."""
    nodes, first = placed.frame, load("captures", CAPTURE_DTYPE)["start_ns"][0]
    early = nodes["created_ns"] < first
    assert (early.sum(), len(nodes)) == (3516, 8790)
    assert (nodes["capture"][early] == -1).all()
    assert (nodes["capture"][~early] >= 0).all()
    assert (nodes["node"] != nodes["original"])[~early].mean() > 0.4


def test_anchors_are_in_their_layer_and_in_the_layers_order(one_step: Any) -> None:
    anchors = one_step[one_step["layer"] >= 0]
    assert Counter(anchors["layer"]) == dict.fromkeys(range(DEPTH), 11)
    assert (np.diff(anchors["layer"]) >= 0).all()
    assert Counter(anchors["component"]) == {
        "kv_write": DEPTH, "attention": 3 * DEPTH, "experts": 7 * DEPTH,
    }  # fmt: skip


PREPARE, FINISH, SAMPLE, WHOLE, LAYER, SHARED, ATTENTION = range(7)
OF_MODULE = [-1, -1, -1, -1, 5, -1, 2]


def enter(module: int) -> int:
    return module + 1


def leave(module: int) -> int:
    return -(module + 1)


@each_row(
    ("codes", "modules", "layers"),
    [
        ((), [-1], [-1]),
        ((enter(LAYER), enter(ATTENTION), leave(ATTENTION), leave(LAYER)),
         [-1, LAYER, ATTENTION, LAYER, -1], [-1, 5, 2, 5, -1]),
        # A module without a layer has its caller's, if there is one.
        ((enter(LAYER), enter(SHARED), leave(SHARED)),
         [-1, LAYER, SHARED, LAYER], [-1, 5, 5, 5]),
        ((enter(SHARED),), [-1, SHARED], [-1, -1]),
        ((enter(LAYER), enter(SHARED), enter(ATTENTION), 0),
         [-1, LAYER, SHARED, ATTENTION, -1], [-1, 5, 5, 2, -1]),
        # Leaving what was never entered changes nothing, leaving a caller leaves what it called.
        ((enter(LAYER), leave(ATTENTION)), [-1, LAYER, LAYER], [-1, 5, 5]),
        ((enter(LAYER), enter(ATTENTION), leave(LAYER)),
         [-1, LAYER, ATTENTION, -1], [-1, 5, 2, -1]),
        ((enter(99),), [-1, 99], [-1, -1]),  # nobody described it
        # After the model the rest of execute_model is its finish, as often as the model runs.
        ((enter(PREPARE), enter(WHOLE), leave(WHOLE), leave(PREPARE), enter(SAMPLE), 0),
         [-1, PREPARE, WHOLE, FINISH, -1, SAMPLE, -1], [-1] * 7),
        ((enter(PREPARE), enter(WHOLE), leave(WHOLE), enter(WHOLE), leave(WHOLE), 0),
         [-1, PREPARE, WHOLE, FINISH, WHOLE, FINISH, -1], [-1] * 7),
    ],
)  # fmt: skip
def test_state_after_each_event(
    codes: tuple[int, ...], modules: Sequence[int], layers: Sequence[int]
) -> None:
    """The events are at 10, 20, 30, ..."""
    times = [10 * (index + 1) for index in range(len(codes))]
    log = np.array(list(zip(times, codes, strict=True)), EVENT_DTYPE)
    timeline, _ = replay(log, OF_MODULE, WHOLE)
    module, layer = timeline.at(np.array([5, *(time + 5 for time in times)], np.int64))
    assert (module.tolist(), layer.tolist()) == (modules, layers)
