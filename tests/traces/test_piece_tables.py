"""What comes into the bundle beside kernels: arguments of those that ran, once, and counters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from spark_prof.traces.assemble import assemble
from spark_prof.traces.chunks import (
    ARGUMENT_DTYPE,
    COUNTER_DTYPE,
    array_name,
    capture_name,
    write_array,
)
from tests.analyzers.graphs import Captured, captured_node, graph_launch
from tests.support import ORIGIN, Piece, Recorded, eager_decode, step

MS = 1_000_000
Rows = list[tuple[int, ...]]


def row(node: int, correlation: int, address: int) -> tuple[int, ...]:
    return (node, correlation, address, 0, 0, 8)


def recorded(bundle: Path, captured: Rows, launched: list[Rows]) -> Path:
    """Two pieces with a step each, which replays the first of two captured nodes."""
    pieces = []
    for number in range(2):
        at = 100 * MS * number
        trace = graph_launch(7 + number, at + MS, ("gemm", 0, at + 2 * MS, 1))
        text = json.dumps({"traceEvents": trace})
        pieces.append(Piece([step(number, at, at + 50 * MS)], trace=text))
    made = Recorded({0: pieces})
    folder = Captured([10, 20], []).write(made, bundle)
    write_array(folder, capture_name("rank0", "arguments"), np.array(captured, ARGUMENT_DTYPE))
    for number, rows in enumerate(launched):
        name = array_name("rank0", "arguments", number)
        write_array(folder, name, np.array(rows, ARGUMENT_DTYPE))
    return folder


def test_of_captured_kernels_those_that_ran(tmp_path: Path) -> None:
    first, second = captured_node(0), captured_node(1)
    captured = [row(second, -1, 3 << 40), row(first, -1, 2 << 40), row(first, -1, 1 << 40)]
    recorded(tmp_path / "b", captured, [[], []])
    found = assemble(tmp_path / "b", state="complete").frame("arguments", 0)
    assert found["node"].tolist() == [first, first]
    assert sorted(found["address"]) == [1 << 40, 2 << 40]
    assert (found["correlation"] == -1).all()


def test_of_kernels_outside_graphs_all(tmp_path: Path) -> None:
    launched = [[row(0, 7, 1 << 40)], [row(0, 8, 1 << 40), row(0, 9, 2 << 40)]]
    recorded(tmp_path / "b", [], launched)
    found = assemble(tmp_path / "b", state="complete").frame("arguments", 0)
    assert found["correlation"].tolist() == [7, 8, 9]


def samples(begin: int, count: int) -> np.ndarray:
    """Samples of 2 us each; what one sampling cannot take is NaN."""
    rows = np.zeros(count, COUNTER_DTYPE)
    rows["warps_active"] = np.nan
    rows["start_ns"] = ORIGIN + begin + 2_000 * np.arange(count)
    rows["end_ns"] = rows["start_ns"] + 2_000
    rows["dram_read_bytes"] = np.arange(count)
    rows["tensor_active"] = 0.5
    return rows


def two_pieces(tmp_path: Path) -> tuple[Path, Path]:
    pieces = Recorded({0: [eager_decode(), eager_decode(2, 5000)]}).write(tmp_path / "b")
    return tmp_path / "b", pieces


def test_samples_of_all_pieces_are_a_table(tmp_path: Path) -> None:
    folder, pieces = two_pieces(tmp_path)
    for piece in (0, 1):
        rows = samples(100_000 * piece, 3)
        write_array(pieces, array_name("rank0", "counters", piece), rows)
    found = assemble(folder, state="complete").frame("counters", 0)
    assert found["start_ns"].tolist() == [
        ORIGIN + t for t in (0, 2_000, 4_000, 100_000, 102_000, 104_000)
    ]
    assert found["dram_read_bytes"].tolist() == [0, 1, 2, 0, 1, 2]
    assert found["warps_active"].isna().all()
    assert (found["tensor_active"] == 0.5).all()
