"""Bundles whose `tensors` and `arguments` say which memory each kernel of a captured graph holds.

A kernel is written as a line: its name, the tensors that it reads, the activations that it holds
(one letter or word each; the same word is the same memory, used again), and where it belongs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.rules.components import component_of, layer_of
from spark_prof.traces.bundle import META_FILE, Bundle, table_file
from spark_prof.traces.tables import TABLES
from tests.analyzers.graphs import Captured, captured_node, graph_launch
from tests.support import MODEL, Piece, Recorded, call, kineto, step

WEIGHTS, ACTIVATIONS = 0x7000_0000_0000, 0x7800_0000_0000
COMPILED = {"execution": "torch.compile (VLLM_COMPILE), CUDA graphs (FULL_AND_PIECEWISE)"}
POINTER, STRUCT, PACKED = "pointer", "struct", "packed"


def tensor(module: str, address: int, size: int = 4096, **more: Any) -> dict[str, Any]:
    """A row of `tensors`: a matrix of that module unless `more` says otherwise."""
    row = {"address": address, "bytes": size, "kind": "weight", "name": "weight", "type": "",
           "module": module, "layer": layer_of(module), "component": component_of(module, ""),
           "shape": "64x32", "dtype": "bfloat16", "format": "bf16"}  # fmt: skip
    return row | more


def argument(node: int, address: int, **more: int) -> dict[str, int]:
    """A row of `arguments`: a plain pointer, the first argument of a captured node."""
    row = {"node": captured_node(node), "correlation": -1, "argument": 0, "offset": 0, "size": 8}
    return row | {"address": address} | more


def with_tables(
    bundle: Bundle, tensors: Iterable[Mapping[str, Any]], arguments: Iterable[Mapping[str, Any]]
) -> Bundle:
    """The bundle with these two tables of rank 0."""
    meta = json.loads((bundle.path / META_FILE).read_text())
    for name, rows in (("tensors", list(tensors)), ("arguments", list(arguments))):
        frame = pd.DataFrame(rows, columns=TABLES[name].schema.names)
        table = pa.Table.from_pandas(frame, schema=TABLES[name].schema, preserve_index=False)
        pq.write_table(table, bundle.path / table_file(name, 0))
        meta["tables"][table_file(name, 0)] = len(frame)
    (bundle.path / META_FILE).write_text(json.dumps(meta))
    return Bundle(bundle.path)


@dataclass(frozen=True)
class Line:
    """One kernel of a captured graph."""

    name: str  # its name
    reads: tuple[str, ...]  # the tensors that it reads, as `Memory` names them
    holds: str  # the activations, separated by blanks
    place: tuple[str, int, str, str]  # component, layer, basis and role that it must get
    style: str = POINTER  # how it is given what it reads: as plain pointers, in a struct, or packed
    stream: int = 7


@dataclass
class Memory:
    """Allots addresses to tensors by name."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    _activations: dict[str, int] = field(default_factory=dict)

    def add(self, module: str, **more: Any) -> Memory:
        """Adds a tensor of that module; `at` gives it the memory of another one."""
        at = more.pop("at", None)
        address = self.address(at) if at else WEIGHTS + (len(self.rows) << 20)
        self.rows.append(tensor(module, address, **more))
        return self

    def address(self, tensor: str) -> int:
        """The address of the tensor `module` or `module:name`."""
        module, _, name = tensor.partition(":")
        name = name or "weight"
        found = (r for r in self.rows if (r["module"], r["name"]) == (module, name))
        return int(next(found)["address"])

    def activation(self, name: str) -> int:
        """The address of an activation."""
        return self._activations.setdefault(name, ACTIVATIONS + (len(self._activations) << 12))

    def arguments(self, node: int, line: Line) -> list[dict[str, int]]:
        """The rows of `arguments` of a node."""
        addresses = [*map(self.address, line.reads), *map(self.activation, line.holds.split())]
        if line.style == POINTER:
            return [argument(node, a, argument=n) for n, a in enumerate(addresses)]
        number, size = (-1, 1024) if line.style == PACKED else (0, 2688)
        return [
            argument(node, a, argument=number, offset=64 * n, size=size)
            for n, a in enumerate(addresses)
        ]

    def tensors(self) -> list[dict[str, Any]]:
        """The rows of `tensors`, with the segments that hold weights and activations."""
        segment = {"name": "", "layer": -1, "component": "", "shape": "", "dtype": "", "format": ""}
        pool = tensor("", ACTIVATIONS, 1 << 30, kind="pool", **segment)
        return [tensor("", WEIGHTS, 1 << 30, kind="memory", **segment), *self.rows, pool]


def calls_of_lines(modules: Sequence[int | None]) -> list[tuple[int, int]]:
    """The calls of `placed_lines` where each line was captured while that module was open."""
    return [
        pair
        for number, module in enumerate(modules)
        if module is not None
        for pair in call(module, 100 * number - 20, 100 * number + 20)
    ]


def placed_lines(
    folder: Path,
    memory: Memory,
    lines: Sequence[Line],
    modules: Sequence[Mapping[str, Any]] | None = None,
    calls: Sequence[tuple[int, int]] | None = None,
    kind: int = 0,
) -> list[tuple[Any, ...]]:
    """Component, layer, basis and role of each line, captured as one graph and replayed twice.

    Node n is created at 100 n; the calls are what was entered and left while they were captured,
    `kind` the graph's among vocabulary.GRAPH_KINDS.
    """
    modules = modules or _ROOT
    rows: list[Any] = []
    for replay in range(2):
        begin = 100_000 * replay
        kernels = (
            (line.name, n, begin + 1000 + 20 * n, line.stream) for n, line in enumerate(lines)
        )
        rows += graph_launch(replay + 1, begin + 50, *kernels)
    steps = [step(n, 100_000 * n, 100_000 * n + 90_000) for n in range(2)]
    piece = Piece(steps, (), kineto(*rows))
    recorded = Recorded({0: [piece]}, facts=COMPILED, modules=modules)
    whole = call(MODEL, -50, 100 * len(lines))
    nodes = [100 * n + 1 for n in range(len(lines))]
    captured = Captured(nodes, [*whole, *(calls or ())], kind=kind)
    bundle = captured.assemble(recorded, folder / "b")
    arguments = [row for n, line in enumerate(lines) for row in memory.arguments(n, line)]
    placed = place_kernels(with_tables(bundle, memory.tensors(), arguments), 0)
    found = placed[["component", "layer", "basis", "role"]].astype({"layer": int})
    both = list(found.itertuples(index=False, name=None))
    # What is replayed from one node has one owner.
    assert both[: len(lines)] == both[len(lines) :]
    return both[: len(lines)]


_ROOT = [
    {"path": path, "type": "", "layer": -1, "component": component}
    for path, component in (("step.prepare", "attention"), ("step.finish", "lm_head"),
                            ("step.sample", "sampler"), ("model", ""))
]  # fmt: skip
