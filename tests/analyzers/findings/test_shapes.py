"""Rules about blocks, waves and tiles: what fires each, and what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_run import Gpu
from spark_prof.analyzers.roofline.model import Ceilings, Roofline, RooflinePhase, RooflineRow
from spark_prof.analyzers.shapes.model import ShapeRow, Tile
from tests.analyzers.findings.reports import (
    HEALTHY,
    MARLIN,
    NORM,
    STEPS,
    executed,
    found,
    kernel,
    shape,
    shaped,
)
from tests.rows import each_row

SMALL = shape(us=20.0, calls=10, blocks=33, waves=0.25, busy=0.25)
TAIL = shape(us=20.0, calls=10, blocks=140, waves=140 / 132, busy=70 / 132)


def floored(report: Report, row: ShapeRow, floor_us: float, limiter: str = "memory") -> Report:
    """The report with a roofline that knows the floor of that kernel."""
    known = RooflineRow(
        row.name, row.component, row.calls / STEPS, row.us_per_call, 1e6, 1e6, 1e6, "", "", False,
        None, None, floor_us / row.us_per_call, floor_us, limiter, None, None,
    )  # fmt: skip
    phase = RooflinePhase("decode", STEPS, 1.0, 1e3, 9e2, 9e2, 1e2, 1e6, 1e6, 1e6, (known,))
    return replace(report, roofline=Roofline(Ceilings("H100"), (phase,), (), ()))


def test_a_grid_that_leaves_multiprocessors_idle() -> None:
    [finding] = found(shaped(SMALL), "grid-smaller-than-gpu")
    # 200 us of a step, three quarters of the GPU idle.
    assert finding.ms_per_token == pytest.approx(0.15)
    assert "Marlin (o_proj): 33 blocks" in finding.text
    assert "--linear-backend" in finding.fix
    assert "--moe-backend" not in finding.fix


def test_no_more_is_at_stake_than_a_kernel_is_above_its_floor() -> None:
    [finding] = found(floored(shaped(SMALL), SMALL, 15.0), "grid-smaller-than-gpu")
    assert finding.ms_per_token == pytest.approx(0.05)
    assert found(floored(shaped(SMALL), SMALL, 19.9), "grid-smaller-than-gpu") == []


def test_options_that_a_version_may_not_have_are_not_promised() -> None:
    for version in ("0.11.0", "", "unknown"):
        old = executed(shaped(SMALL), HEALTHY.run.execution, vllm=version)
        assert "--linear-backend" not in found(old, "grid-smaller-than-gpu")[0].fix


@each_row(
    "quiet",
    [
        shape(us=20.0, calls=10),  # all have a block
        shape(us=4.0, calls=50, blocks=33, busy=0.25),  # too short to be more than its start
        shape(us=20.0, calls=1, blocks=33, busy=0.25),  # too rare
        shape(NORM, "norm", us=20.0, calls=10, blocks=1, busy=0.01),  # no product
        replace(SMALL, busy=None, waves=None, occupancy=None),  # the GPU is not known
    ],
)
def test_grids_that_are_large_enough_or_do_not_matter(quiet: ShapeRow) -> None:
    assert found(shaped(quiet), "grid-smaller-than-gpu") == []
    assert found(shaped(quiet), "tail-wave") == []


def test_a_last_wave_that_is_nearly_empty() -> None:
    [finding] = found(shaped(TAIL), "tail-wave")
    assert finding.ms_per_token == pytest.approx(0.2 * (1 - 70 / 132))
    assert "140 blocks in 1.06 waves" in finding.text
    assert found(shaped(TAIL), "grid-smaller-than-gpu") == []
    full = shape(us=20.0, calls=10, blocks=1000, waves=1000 / 132, busy=0.95)
    assert found(shaped(full), "tail-wave") == []


def tiled(rows: int, used: float, precision: str = "bf16", weights: str | None = "fp4") -> Report:
    row = shape(us=20.0, calls=10, tile=Tile("Marlin", rows, 64, 64, rows), rows_used=used)
    known = {"precision": precision} | ({"weights": weights} if weights else {})
    return replace(shaped(row), kernels=(kernel(MARLIN, "o_proj", row.us, **known),))


def test_empty_rows_that_cost_arithmetic() -> None:
    # 64 rows of FP4 weights in BF16 are 256 operations a byte; an H100 has 326 a byte it reads.
    [finding] = found(tiled(64, 4.0), "tile-waste")
    assert finding.ms_per_token == pytest.approx(0.2 * (60 / 64) * 256 / 326, rel=0.01)
    assert "4 of 64 rows hold a token" in finding.text


@each_row(
    "quiet",
    [
        tiled(16, 1.0),  # 94 % are empty, and the memory takes five times as long
        tiled(64, 40.0),
        tiled(64, 4.0, weights=None),  # weights of two bytes are read long enough
        tiled(64, 4.0, precision="fp4"),  # no such peak on an H100
        replace(tiled(64, 4.0), gpu=Gpu("some GPU", None)),
    ],
)
def test_empty_rows_that_cost_nothing(quiet: Report) -> None:
    assert found(quiet, "tile-waste") == []


THIN = shape(us=20.0, calls=10, warps=12, shared=0)


def test_too_few_warps_for_the_memory() -> None:
    [finding] = found(floored(shaped(THIN), THIN, 5.0), "low-occupancy")
    assert finding.ms_per_token == pytest.approx(0.15)
    assert "12 warps at a time, limited by registers" in finding.text


@each_row(
    "quiet",
    [
        shaped(THIN),  # nobody knows what it should take
        floored(shaped(THIN), THIN, 15.0),  # it reads fast enough
        floored(shaped(THIN), THIN, 5.0, "arithmetic"),
        floored(shaped(replace(THIN, shared_bytes=200_000)), THIN, 5.0),  # much is fetched ahead
        floored(shaped(shape(us=20.0, calls=10, warps=48, shared=0)), THIN, 5.0),
        floored(shaped(replace(THIN, busy=0.2)), THIN, 5.0),  # the grid is what is wrong
    ],
)
def test_few_warps_that_are_enough_or_not_to_blame(quiet: Report) -> None:
    assert found(quiet, "low-occupancy") == []
