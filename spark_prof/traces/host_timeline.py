"""What was open at a moment: the step, module and layer around a launch.

The recorder logs when a module was entered and left, on one thread. Between two such events the
state does not change, so that the state at any time is one binary search away.

A node of a CUDA graph belongs to what was open when it was captured. vLLM captures each graph once,
while it starts. The graph that runs is an instantiated clone: its nodes carry other numbers, and
each is followed back to the node that was captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spark_prof.arrays import Int64s, Rows
from spark_prof.vocabulary import GRAPH_KINDS

if TYPE_CHECKING:
    import pandas as pd

PREPARE, FINISH, SAMPLE, FIRST_MODULE = 0, 1, 2, 3
"""Module numbers of what runs outside the model, and the first one of a module of the model."""

PHASE_MODULES = (
    ("step.prepare", "attention"),
    ("step.finish", "lm_head"),
    ("step.sample", "sampler"),
)
"""What runs outside the model, as modules 0 to 2 of every recording, with its component.

Preparation builds positions, block tables, sequence lengths and slots, which attention consumes;
what follows the model inside execute_model gathers the rows for the logits.
"""

MODEL_PATH = "model"  # path of the model itself among the marked modules


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module: entered, left."""

    module: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Timeline:
    """Times at which the state changed, and the innermost module and layer from then on."""

    times: Int64s
    module: Int64s
    layer: Int64s

    def at(self, times: Int64s) -> tuple[Int64s, Int64s]:
        """Innermost module and layer at each time in ns; -1 where nothing was open."""
        if not len(self.times):
            nothing = np.full(len(times), -1, np.int64)
            return nothing, nothing
        index = np.searchsorted(self.times, times, side="right") - 1
        before = index < 0
        index = np.maximum(index, 0)
        module, layer = self.module[index], self.layer[index]
        return np.where(before, -1, module), np.where(before, -1, layer)


def replay(
    events: Rows, layers: Sequence[int], model: int | None
) -> tuple[Timeline, list[ModuleCall]]:
    """Replays a log of traces.pieces.EVENT_DTYPE.

    Args:
        events: the log, in order of time.
        layers: decoder layer of each module, -1 for none; such a module has its caller's layer.
        model: number of the module that is the model itself; after it is left, the rest of
            execute_model counts as FINISH.
    """
    stack: list[tuple[int, int, int]] = []
    calls: list[ModuleCall] = []
    modules_out = np.empty(len(events), np.int64)
    layers_out = np.empty(len(events), np.int64)
    times = events["time_ns"].astype(np.int64)
    for index, (now, code) in enumerate(zip(times.tolist(), events["code"].tolist(), strict=True)):
        if code > 0:
            module = code - 1
            layer = layers[module] if module < len(layers) else -1
            if layer < 0 and stack:
                layer = stack[-1][1]
            stack.append((module, layer, now))
        else:
            left = -code - 1
            if code == 0 or any(open_module == left for open_module, _, _ in stack):
                while stack:
                    module, _, start = stack.pop()
                    calls.append(ModuleCall(module, start, now))
                    if module == left:
                        break
            if left == model and stack and stack[-1][0] == PREPARE:
                _, layer, start = stack.pop()
                calls.append(ModuleCall(PREPARE, start, now))
                stack.append((FINISH, layer, now))
            if code == -(PREPARE + 1) and stack and stack[-1][0] == FINISH:
                module, _, start = stack.pop()
                calls.append(ModuleCall(module, start, now))
        modules_out[index], layers_out[index] = stack[-1][:2] if stack else (-1, -1)
    if (np.diff(times) < 0).any():
        # The clock was set back: what is looked up by time has to ascend.
        order = np.argsort(times, kind="stable")
        times, modules_out, layers_out = times[order], modules_out[order], layers_out[order]
    return Timeline(times, modules_out, layers_out), calls


_MODES = ("", "PIECEWISE", "FULL", "BREAKABLE")
_METADATA = GRAPH_KINDS.index("metadata")
_LONGEST_CHAIN = 16  # clones of clones are followed this far; real ones are one or two


@dataclass(frozen=True)
class GraphNodes:
    """The placed nodes of one rank, in order of their number."""

    frame: pd.DataFrame  # rows of the `graph_nodes` table

    def find(self, nodes: Int64s) -> Int64s:
        """The row of each node, -1 for a node that nobody saw created."""
        numbers = self.frame["node"].to_numpy(np.int64)
        if not len(numbers):
            return np.full(len(nodes), -1, np.int64)
        index = np.minimum(np.searchsorted(numbers, nodes), len(numbers) - 1)
        return np.where((numbers[index] == nodes) & (nodes != 0), index, -1).astype(np.int64)


def place_nodes(nodes: Rows, events: Rows, captures: Rows, layers: Sequence[int]) -> GraphNodes:
    """Places NODE_DTYPE rows, where a clone may stand as a new node too, by EVENT_DTYPE rows."""
    import pandas as pd  # not in vLLM's processes, which read the numbers of modules above

    timeline, _ = replay(events, layers, None)
    rows = nodes[last_of_each(nodes["node"], nodes["original"])]
    number = rows["node"].astype(np.int64)
    root = roots(number, rows["original"].astype(np.int64))
    created = rows["created_ns"].astype(np.int64)[root]
    capture = stretch_at(created, captures["start_ns"], captures["end_ns"])
    module, layer = (np.where(capture >= 0, numbers, -1) for numbers in timeline.at(created))
    # What builds attention's metadata prepares the step, in a graph as outside of one.
    builds = (capture >= 0) & (captures["kind"] == _METADATA)[capture] if len(captures) else False
    module = np.where(builds & (module < 0), PREPARE, module)
    return GraphNodes(
        pd.DataFrame(
            {
                "node": number,
                "original": number[root],
                "graph": rows["graph"].astype(np.int64),
                "created_ns": created,
                "module": module,
                "layer": layer,
                "capture": capture,
            }
        )
    )


def capture_rows(captures: Rows) -> pd.DataFrame:
    """The `captures` table."""
    import pandas as pd

    frame = pd.DataFrame(captures)
    for column, words in (("mode", _MODES), ("kind", GRAPH_KINDS)):
        frame[column] = [words[n] if 0 <= n < len(words) else "" for n in captures[column]]
    # An earlier spark-prof wrote neither kind nor group.
    frame.loc[captures["kind"] == 0, "group"] = -1
    return frame.rename_axis("capture").reset_index()


def last_of_each(number: Rows, original: Rows) -> Int64s:
    """The row that says most about each node, in order of the nodes' numbers."""
    # A clone's row says more than the row of the same node as a new one: it comes last, and stays.
    order: Int64s = np.lexsort((original != 0, number))
    if len(order):
        ascending = number[order]
        order = order[np.append(ascending[1:] != ascending[:-1], True)]
    return order


def roots(number: Int64s, original: Int64s) -> Int64s:
    """The row of the node that each row is in the end a clone of; of itself where it is none.

    Args:
        number: the nodes, ascending.
        original: the node that each is a clone of, 0 for none. Cycles are followed for a while.
    """
    index = np.arange(len(number))
    if not len(number):
        return index
    parent = np.minimum(np.searchsorted(number, original), len(number) - 1)
    parent = np.where((original != 0) & (number[parent] == original), parent, index)
    for _ in range(_LONGEST_CHAIN):
        further = parent[parent]
        if (further == parent).all():
            break
        parent = further
    return parent


def stretch_at(times: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Which stretch was running at each time, -1 for none; they ascend and do not overlap."""
    if not len(start):
        return np.full(len(times), -1, np.int64)
    index = np.searchsorted(start, times, side="right") - 1
    inside = (index >= 0) & (times <= end[np.maximum(index, 0)])
    return np.where(inside, index, -1).astype(np.int64)
