"""Bundles of recordings in which CUDA graphs were captured, through the same assembly as real ones.

A graph's captured nodes are numbered from 1000 on; the nodes of its instantiated clone, which the
kernels carry, from 9000 down, so that nothing can be told from their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import (
    CAPTURE_DTYPE,
    EVENT_DTYPE,
    NODE_DTYPE,
    capture_name,
    write_array,
)
from tests.support import ORIGIN, THREAD, Recorded, event

_BEFORE = 10_000_000
"""Captures are that long before the first step, in ns."""


def captured_node(number: int) -> int:
    """The number of the node that was captured as that one."""
    return 1000 + number


def clone_of(number: int) -> int:
    """The number that its kernels carry."""
    return 9000 - number


def graph_launch(
    correlation: int, launched: int, *kernels: tuple[str, int, int, int]
) -> list[dict[str, Any]]:
    """One launch of a graph, and its kernels: name, node as captured, start and stream."""
    rows = [event("cuda_runtime", "cudaGraphLaunch", launched, launched + 5,
                  correlation=correlation)]  # fmt: skip
    for name, number, start, stream in kernels:
        node = {"graph node id": clone_of(number)}
        rows.append(
            event("kernel", name, start, start + 10, stream, correlation=correlation, device=0,
                  stream=stream, **node)
        )  # fmt: skip
    return rows


@dataclass(frozen=True)
class Captured:
    """One capture of a graph.

    Attributes:
        nodes: when each node was created; its index is its number.
        calls: what was entered and left meanwhile (see `tests.support.call`).
        mode: 1 for PIECEWISE, 2 for FULL.
        kind: number of vocabulary.GRAPH_KINDS.
        several: instead of one capture of everything, rows of CAPTURE_DTYPE with times as `nodes`.
    """

    nodes: Sequence[int]
    calls: Sequence[tuple[int, int]]
    mode: int = 2
    kind: int = 0
    several: Sequence[tuple[int, ...]] = ()

    def assemble(self, recorded: Recorded, bundle: Path) -> Bundle:
        """The bundle of a recording on rank 0 before which this was captured."""
        self.write(recorded, bundle)
        return assemble(bundle, state="complete")

    def write(self, recorded: Recorded, bundle: Path) -> Path:
        """The pieces of that recording; returns their folder."""
        folder = recorded.write(bundle)
        begin = ORIGIN - _BEFORE
        nodes = []
        for number, at in enumerate(self.nodes):
            original, clone = captured_node(number), clone_of(number)
            nodes.append((begin + at, original, 0, 1, THREAD))
            # CUPTI reports the nodes of an instantiated graph both ways.
            nodes.append((begin + 100_000, clone, 0, 2, THREAD))
            nodes.append((begin + 100_001, clone, original, 2, THREAD))
        events = sorted((time - _BEFORE, code) for time, code in self.calls)
        whole = (0, 50_000, 1, self.mode, self.kind, 0)
        captures = [
            (begin + start, begin + end, *rest) for start, end, *rest in self.several or (whole,)
        ]
        for kind, rows, dtype in (
            ("nodes", nodes, NODE_DTYPE),
            ("capture-events", events, EVENT_DTYPE),
            ("captures", captures, CAPTURE_DTYPE),
        ):
            write_array(folder, capture_name("rank0", kind), np.array(rows, dtype))
        return folder
