"""Occupancy against NVIDIA's calculator, launches added up by shape, and what is said of them.

occupancy.csv holds what cudaOccMaxActiveBlocksPerMultiprocessor of CUDA 13.0's cuda_occupancy.h
returns with the largest shared memory: two launches for each number of blocks that it gives for a
compute capability, out of 127,776.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.counters.counter_batches import CounterBatch, CounterRow, Counters
from spark_prof.analyzers.instants import with_own_starts
from spark_prof.analyzers.shapes import shape_summary
from spark_prof.analyzers.shapes.shape_rows import SHAPE_COLUMNS, ShapeRow, Shapes
from spark_prof.analyzers.shapes.shape_summary import (
    busy_share,
    launches_of,
    occupancy_of,
    rows_per_expert,
    shapes_of,
)
from spark_prof.analyzers.windows import timed_windows
from spark_prof.rules.gpus import SM_LIMITS
from spark_prof.traces.bundle import META_FILE, Bundle, table_file
from tests.analyzers.reported import reported
from tests.rows import each_row
from tests.support import Piece, Recorded, kernel, kineto, step

with open(Path(__file__).with_name("occupancy.csv"), encoding="utf-8") as _file:
    CALCULATED = [tuple(row.values()) for row in csv.DictReader(_file)]


def test_the_blocks_are_those_of_the_calculator() -> None:
    wrong = []
    for capability, *numbers in CALCULATED:
        threads, registers, shared, blocks = map(int, numbers)
        found = occupancy_of(SM_LIMITS[capability], threads, registers, shared)
        if (found.blocks if found else 0) != blocks:
            wrong.append((capability, *numbers, found))
    assert wrong == []
    assert {row[0] for row in CALCULATED} >= {"7.5", "8.0", "9.0", "10.0", "12.0", "12.1"}


@each_row(
    ("threads", "registers", "shared", "warps", "limiters"),
    [
        (384, 168, 0, 12, ("registers",)),
        (128, 16, 0, 48, ("threads",)),
        (32, 16, 0, 24, ("blocks",)),
        (128, 16, 99 * 1024, 4, ("shared memory",)),
        (128, 168, 33 * 1024, 8, ("shared memory",)),
    ],
)
def test_on_a_gb10_what_limits(
    threads: int, registers: int, shared: int, warps: int, limiters: tuple[str, ...]
) -> None:
    found = occupancy_of(SM_LIMITS["12.1"], threads, registers, shared)
    assert found is not None
    assert (found.warps, found.limiters) == (warps, limiters)
    assert found.share == warps / 48


@each_row(
    ("threads", "registers", "shared"),
    [(0, 32, 0), (1025, 32, 0), (-1, 32, 0), (128, 0, 0), (128, 256, 0), (128, 32, -1),
     (128, 32, 1 << 40), (1024, 255, 0)],
)  # fmt: skip
def test_what_no_gpu_launches_has_none(threads: int, registers: int, shared: int) -> None:
    assert occupancy_of(SM_LIMITS["9.0"], threads, registers, shared) is None


@each_row(
    ("blocks", "places", "multiprocessors", "busy"),
    [(16, 48, 48, 1 / 3), (48, 48, 48, 1.0), (96, 96, 48, 1.0), (60, 96, 48, 1.0),
     (97, 96, 48, 97 / 192), (49, 48, 48, 49 / 96), (480, 48, 48, 1.0), (1, 132, 132, 1 / 132)],
)  # fmt: skip
def test_busy(blocks: int, places: int, multiprocessors: int, busy: float) -> None:
    assert busy_share(blocks, places, multiprocessors) == pytest.approx(busy)


CAPTURE = Path(__file__).parents[2] / "data" / "h100-gpt-oss-20b-mxfp4-eager"


def launch(
    name: str, start: int, number: int, grid: int, registers: int = 32
) -> list[dict[str, Any]]:
    return kernel(
        name, start, start + 10 * number, number, start, grid=[grid, 1, 1], block=[128, 1, 1],
        **{"registers per thread": registers, "shared memory": 1024},
    )  # fmt: skip


def looked_at(bundle: Bundle) -> tuple[pd.DataFrame, float]:
    placed = with_own_starts(place_kernels(bundle, 0, ["stream"]))
    steps = timed_windows(bundle, 0, placed).steps
    return launches_of(bundle, 0, placed, steps, sums_of(placed, steps["phase"]))


def slowly(bundle: Bundle) -> dict[tuple[object, ...], tuple[int, int, float]]:
    """Time, calls and mean tokens of each shape, one launch after the other."""
    placed = place_kernels(bundle, 0, SHAPE_COLUMNS)
    steps = bundle.frame("steps", 0).set_index("step")
    found: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for row in placed.itertuples():
        if row.step in steps.index and steps.phase[row.step] == "decode" and row.kind == "kernel":
            key = (row.name, row.component, *(getattr(row, name) for name in SHAPE_COLUMNS))
            found[key].append((row.end_ns - row.start_ns, steps.decode_tokens[row.step]))
    return {
        key: (sum(ns for ns, _ in rows), len(rows), float(np.mean([t for _, t in rows])))
        for key, rows in found.items()
    }


def as_dict(found: pd.DataFrame) -> dict[tuple[object, ...], tuple[float, float, float]]:
    keys = (
        found[["name", "component", *SHAPE_COLUMNS]]
        .astype(object)
        .itertuples(index=False, name=None)
    )
    values = found[["ns", "calls", "tokens"]].itertuples(index=False, name=None)
    return dict(zip(keys, values, strict=True))


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CAPTURE, tmp_path / "capture"))


def rewrite(folder: Path, order: Sequence[int], group: int) -> None:
    """Writes the kernels in another order, in row groups of so many."""
    path = folder / table_file("kernels", 0)
    table = pq.read_table(path)
    pq.write_table(table.take(pa.array(order)), path, row_group_size=group)


def test_a_capture_as_if_every_launch_was_looked_at(capture: Path) -> None:
    bundle = Bundle(capture)
    found, share = looked_at(bundle)
    assert share == 1
    wanted = slowly(bundle)
    assert {key: pytest.approx(value) for key, value in wanted.items()} == as_dict(found)
    assert found["ns"].is_monotonic_decreasing


def test_a_sample_keeps_what_each_kernel_takes(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(capture)
    rows = bundle.meta.tables[table_file("kernels", 0)]
    rewrite(capture, range(rows), 500)
    monkeypatch.setattr(shape_summary, "_ROWS", rows // 4)
    found, share = looked_at(Bundle(capture))
    assert share == pytest.approx(0.25, abs=0.05)
    wanted: dict[object, int] = defaultdict(int)
    for key, (ns, _, _) in slowly(bundle).items():
        wanted[key[:2]] += ns
    sampled = found.groupby(["name", "component"])["ns"].sum()
    # Kernels of a few steps may be in no row group that was read; what was read is exact.
    assert len(sampled) >= 0.9 * len(wanted)
    for key, ns in sampled.items():
        assert ns == pytest.approx(wanted[key])


def test_a_table_out_of_order(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered, _ = looked_at(Bundle(capture))
    rows = Bundle(capture).meta.tables[table_file("kernels", 0)]
    order = list(range(rows))
    random.Random(2).shuffle(order)
    rewrite(capture, order, 1000)
    monkeypatch.setattr(shape_summary, "_ROWS", rows // 3)
    shuffled, share = looked_at(Bundle(capture))
    assert share == 1
    # Which of two kernels that start in the same nanosecond comes first is all that can differ.
    same = as_dict(shuffled)
    assert {key: pytest.approx(value) for key, value in as_dict(ordered).items()} == same


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_kernel_that_waited_keeps_its_shape(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes behind one of another stream that was seen to start after it."""
    events = [
        kernel(name, start, end, number, start, grid=[number, 1, 1], block=[32, 1, 1],
               stream=stream, **{"registers per thread": 32, "shared memory": 0})
        for name, start, end, number, stream in
        (("first", 100, 200, 1, 7), ("waits", 150, 260, 2, 7), ("beside", 160, 180, 3, 8))
    ]  # fmt: skip
    monkeypatch.setattr(shape_summary, "_ROWS", rows)
    piece = Piece([step(0, 0, 900)], (), kineto(*events))
    found, _ = looked_at(Recorded({0: [piece]}).assemble(tmp_path / "b"))
    shown = found[["name", "grid", "ns"]].astype(object).itertuples(index=False, name=None)
    assert sorted(shown) == [
        ("beside", "3,1,1", 20.0), ("first", "1,1,1", 100.0), ("waits", "2,1,1", 60.0),
    ]  # fmt: skip


def test_two_shapes_of_one_kernel_are_two_rows(tmp_path: Path) -> None:
    steps = [step(0, 0, 900), step(1, 1000, 1900, decode_requests=8, decode_tokens=8)]
    events = [
        launch("gemm", 100, 1, 16), launch("gemm", 300, 2, 16), launch("gemm", 1100, 3, 48),
        launch("gemm", 1300, 4, 16, 64),
    ]  # fmt: skip
    bundle = Recorded({0: [Piece(steps, (), kineto(*events))]}).assemble(tmp_path / "b")
    found, _ = looked_at(bundle)
    rows = found[["grid", "registers", "calls", "ns", "tokens"]].itertuples(index=False, name=None)
    assert sorted(rows) == [
        ("16,1,1", 32, 2.0, 30.0, 1.0),
        ("16,1,1", 64, 1.0, 40.0, 8.0),
        ("48,1,1", 32, 1.0, 30.0, 8.0),
    ]


DATA = Path(__file__).parents[2] / "data"
GRAPHS = DATA / "h100-gpt-oss-20b-mxfp4-graphs"


def shapes(folder: Path) -> Shapes:
    found = reported(Bundle(folder)).shapes
    assert found is not None
    return found


def product(found: Shapes, part: str, component: str) -> ShapeRow:
    return next(r for r in found.rows if part in r.name and r.component == component)


def test_what_the_counters_saw_stands_beside_what_could_be() -> None:
    bundle = Bundle(GRAPHS)
    placed = place_kernels(bundle, 0)
    steps = timed_windows(bundle, 0, placed).steps
    w2 = product(shapes(GRAPHS), "16x256x128x1", "experts").name
    seen = CounterRow(w2, "experts", 24.0, 20.0, *[None] * 6, 0.031, 1.0, 1.0)
    blind = replace(seen, name="other", warps_active=None)
    batch = CounterBatch(1, 20, True, 0.0, 1.0, None, (seen, blind), ())
    counters = Counters(2.0, 100, 200.0, (batch,), (), ())
    sums = sums_of(placed, steps["phase"])
    found = shapes_of(bundle, 0, placed, steps, sums, counters)
    assert found is not None
    assert {row.achieved for row in found.rows if row.name == w2} == {0.031}
    assert {row.achieved for row in found.rows if row.name != w2} == {None}


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GRAPHS, tmp_path / "graphs"))


def with_gpu(folder: Path, gpu: Mapping[str, Any]) -> Shapes:
    path = folder / META_FILE
    meta = json.loads(path.read_text())
    meta["facts"]["rank0"]["gpu"] = gpu
    path.write_text(json.dumps(meta))
    return shapes(folder)


def test_a_gpu_that_nobody_knows(graphs: Path) -> None:
    found = with_gpu(graphs, {"name": "Z9", "compute_capability": "99.1"})
    assert found.multiprocessors is None
    assert all(r.waves is None and r.busy is None and r.occupancy is None for r in found.rows)
    assert len(found.notes) == 2
    assert "99.1" in found.notes[1]


def test_a_number_of_multiprocessors_that_the_table_has(graphs: Path) -> None:
    for count in (None, -1, 10**9):
        known = {"name": "NVIDIA GB10", "compute_capability": "12.1", "multiprocessors": count}
        assert with_gpu(graphs, known).multiprocessors == 48


def test_a_product_of_nvfp4_on_a_gb10(tmp_path: Path) -> None:
    """2,048 features in tiles of 128, one token: 16 blocks for 48 multiprocessors."""
    with open(Path(__file__).with_name("symbols.csv"), encoding="utf-8") as file:
        symbol = next(
            row["symbol"]
            for row in csv.DictReader(file)
            if "MainloopSm120TmaWarpSpecializedBlockScaled" in row["symbol"]
            and (row["first"], row["second"]) == ("128", "128")
        )
    launch = {"grid": [16, 1, 1], "block": [384, 1, 1], "registers per thread": 168,
              "shared memory": 90_000}  # fmt: skip
    piece = Piece([step(0, 0, 900)], (), kineto(kernel(symbol, 100, 700, 1, 50, **launch)))
    gpu = {"name": "NVIDIA GB10", "compute_capability": "12.1", "multiprocessors": 48}
    Recorded({0: [piece]}, facts={"gpu": gpu}).assemble(tmp_path / "b")
    [row] = shapes(tmp_path / "b").rows
    assert (row.blocks, row.busy) == (16, 1 / 3)
    assert row.occupancy is not None
    assert (row.occupancy.share, row.occupancy.limiters) == (0.25, ("registers", "shared memory"))
    assert (row.rows_used, row.tile_waste) == (1, 127 / 128)


OSS = {"num_local_experts": 128, "num_experts_per_tok": 4}


@each_row(
    ("tokens", "hit"), [(1, 4.0), (4, 15.3), (8, 28.7), (16, 51.0)]
)  # the experts that so many tokens hit, as in docs/ceilings.md
def test_rows_of_an_expert(tokens: int, hit: float) -> None:
    rows = rows_per_expert(Config(OSS), tokens)
    assert rows is not None
    assert tokens * 4 / rows == pytest.approx(hit, rel=0.01)
    assert rows_per_expert(Config({"text_config": OSS}), tokens) == rows


@each_row(
    "config",
    [{}, {"num_experts": 8}, {"num_experts": 0, "num_experts_per_tok": 0},
     {"num_experts": "8", "num_experts_per_tok": 2}, {"num_experts": 2, "num_experts_per_tok": 8},
     {"num_experts": 10**18, "num_experts_per_tok": 1},
     {"num_experts": 10**400, "num_experts_per_tok": 10**399},
     {"num_experts": True, "num_experts_per_tok": True, "text_config": None}],
)  # fmt: skip
def test_a_configuration_that_tells_no_experts(config: Mapping[str, Any]) -> None:
    assert rows_per_expert(Config(config), 4) is None
