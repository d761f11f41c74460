"""What is said of a launch: on recordings, on unknown GPUs, and where a model has experts."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spark_prof
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.counters.counter_rows import CounterBatch, CounterRow, Counters
from spark_prof.analyzers.shapes.shape_rows import ShapeRow, Shapes
from spark_prof.analyzers.shapes.shape_summary import rows_per_expert, shapes_of
from spark_prof.analyzers.windows import timed_windows
from spark_prof.traces.bundle import META_FILE, Bundle
from tests.rows import each_row
from tests.support import Piece, Recorded, kernel, kineto, step

DATA = Path(__file__).parents[2] / "data"
GRAPHS = DATA / "h100-gpt-oss-20b-mxfp4-graphs"


def shapes(folder: Path) -> Shapes:
    found = spark_prof.report(folder).shapes
    assert found is not None
    return found


def product(found: Shapes, part: str, component: str) -> ShapeRow:
    return next(r for r in found.rows if part in r.name and r.component == component)


def test_gpt_oss_on_an_h100() -> None:
    found = shapes(GRAPHS)
    assert (found.steps, found.multiprocessors, found.notes) == (4, 132, ())
    w2 = product(found, "16x256x128x1", "experts")
    assert (w2.blocks, w2.busy) in ((92, 92 / 132), (48, 48 / 132))
    assert (w2.rows_used, w2.tile_waste, w2.expected) == (1, 15 / 16, False)
    lm_head = product(found, "nvjet", "lm_head")
    assert (lm_head.waves, lm_head.busy) == (1, 1)
    assert lm_head.occupancy is not None
    assert lm_head.occupancy.warps == 12
    assert sum(row.share for row in found.rows) == pytest.approx(1)


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
def capture(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GRAPHS, tmp_path / "capture"))


def with_gpu(folder: Path, gpu: Mapping[str, Any]) -> Shapes:
    path = folder / META_FILE
    meta = json.loads(path.read_text())
    meta["facts"]["rank0"]["gpu"] = gpu
    path.write_text(json.dumps(meta))
    return shapes(folder)


def test_a_gpu_that_nobody_knows(capture: Path) -> None:
    found = with_gpu(capture, {"name": "Z9", "compute_capability": "99.1"})
    assert found.multiprocessors is None
    assert all(r.waves is None and r.busy is None and r.occupancy is None for r in found.rows)
    assert len(found.notes) == 2
    assert "99.1" in found.notes[1]


@pytest.mark.parametrize("count", [None, "132", -1, 0, 10**9, True, 1.5, [132]])
def test_a_number_of_multiprocessors_that_is_none(capture: Path, count: object) -> None:
    gpu = {"name": "Z9", "compute_capability": "9.0", "multiprocessors": count}
    assert with_gpu(capture, gpu).multiprocessors is None
    known = {"name": "NVIDIA GB10", "compute_capability": "12.1", "multiprocessors": count}
    assert with_gpu(capture, known).multiprocessors == 48


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
