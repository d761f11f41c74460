"""The model of the kernels' times: its fit, its occupancy, and how far off it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.predicted_times import (
    FILES,
    Prediction,
    calls_of,
    errors,
    facts_of,
    fits,
    predictions,
)
from benchmarks.time_model import (
    GpuFacts,
    MeasuredCall,
    TimeConstants,
    WeightStream,
    fit,
    scaled,
    streams_of,
)
from spark_prof.kernels.tuning import TunedShape
from spark_prof.rules.gpus import SM_LIMITS
from tests.docs.pages import DOCS, tables
from tests.rows import each_row

H100 = GpuFacts("H100", 132, 3e12, "9.0")
GB10 = facts_of("GB10")

WORK = TunedShape("dense", "mxfp4", 5120, 2880, 1)
CONFIG = {"warps": 8, "split": 8, "depth": 2, "x_ahead": 0, "min_blocks": 3, "blocks": 0}
CALL = MeasuredCall(WORK, CONFIG, 7.9e6, 7.8e6, 1.0)
EXPERTS = MeasuredCall(
    TunedShape("moe", "nvfp4", 1536, 2048, 1, 128, 8),
    {"warps": 4, "split": 4, "depth": 2, "min_blocks": 5}
    | {"down_warps": 16, "down_depth": 2, "down_min_blocks": 1},
    bytes=21.3e6,
    weight_bytes=8 * 3 * 2048 * 768 * 9 / 16,
    us=1.0,
)


def stream(warps: int, min_blocks: int, shared: int) -> WeightStream:
    return WeightStream(1e6, 100, 0, 10, 5, warps, 2, min_blocks, shared, waits_for_x=True)


@each_row(
    ("capability", "warps", "min_blocks", "shared", "blocks"),
    [
        # 65,536 registers for 768 threads: 80 each, 2,560 a warp, 6 warps of each scheduler.
        ("9.0", 8, 3, 0, 3),
        ("12.1", 8, 3, 0, 3),
        ("9.0", 4, 6, 0, 6),
        # 128 registers each, 4 warps of each scheduler.
        ("9.0", 16, 1, 0, 1),
        # Few blocks are asked for: 255 registers at most leave room for one more of 4 warps.
        ("9.0", 4, 1, 0, 2),
        # 64 warps fit on an H100, 48 on a GB10.
        ("9.0", 16, 4, 0, 4),
        ("12.1", 16, 4, 0, 3),
        # Of 100 KiB a block takes 46 and the driver's one; of 228 four times as much.
        ("12.1", 8, 3, 46 * 1024, 2),
        ("9.0", 8, 3, 46 * 1024, 3),
        # Such a block does not fit at all; that it runs is for the launch to refuse.
        ("12.1", 8, 3, 120 * 1024, 1),
    ],
)
def test_blocks_of_a_multiprocessor(
    capability: str, warps: int, min_blocks: int, shared: int, blocks: int
) -> None:
    assert stream(warps, min_blocks, shared).resident(SM_LIMITS[capability]) == blocks


def test_streams_of_a_matrix() -> None:
    (matrix,) = streams_of(CALL)
    # 320 stacks of 23 units, 3 of them for each of 8 warps.
    assert (matrix.blocks, matrix.units, matrix.units_of_warp) == (320, 23, 3)
    assert matrix.grid(GB10) == 320
    few = streams_of(replace(CALL, config=CONFIG | {"blocks": 2}))[0]
    assert (few.grid(GB10), few.grid(H100)) == (96, 264)
    # 3 blocks of 8 warps with 2 units of 16 x 128 weights in 17 bits of 32.
    assert matrix.in_flight(GB10) == pytest.approx(48 * 16 * 128 * 17 / 32, rel=0.05)
    assert not streams_of(replace(CALL, config=CONFIG | {"x_ahead": 1}))[0].waits_for_x


def test_activations_in_shared_memory_leave_room_for_fewer_blocks() -> None:
    call = replace(CALL, work=replace(WORK, tokens=8), config=CONFIG | {"x_ahead": 2, "depth": 3})
    (matrix,) = streams_of(call)
    assert 46_000 < matrix.shared_bytes < 56_000
    assert (matrix.resident(H100.limits), matrix.resident(GB10.limits)) == (3, 1)


def test_streams_of_experts() -> None:
    up, down = streams_of(EXPERTS)
    # 8 experts of 96 stacks of 16 units; 128 stacks of down of 6 units an expert.
    assert (up.blocks, up.units) == (pytest.approx(8 * 96), 16)
    assert (down.blocks, down.units) == (128, pytest.approx(48))
    assert down.units_of_warp == pytest.approx(3)
    assert up.bytes + down.bytes == pytest.approx(EXPERTS.bytes)
    assert up.grid(GB10) == 5 * 48


@each_row("call", [CALL, EXPERTS])
def test_more_bytes_and_less_bandwidth_take_longer(call: MeasuredCall) -> None:
    constants = TimeConstants()

    def us(gpu: GpuFacts, times: float = 1.0) -> float:
        streams = [replace(stream, bytes=stream.bytes * times) for stream in streams_of(call)]
        return constants.us(call.work, streams, gpu)

    for gpu in (H100, GB10):
        series = [us(gpu, times) for times in (0.5, 1.0, 1.5, 4.0)]
        assert series == sorted(set(series))
        slower = [us(replace(gpu, read=gpu.read / by)) for by in (1, 2, 8)]
        assert slower == sorted(set(slower))
        # No time is below that of the bytes.
        assert us(gpu) > call.bytes / gpu.read * 1e6


def test_fit_recovers_planted_constants() -> None:
    planted = TimeConstants(
        call=3.1, experts=7.5, unit=0.05, wide_unit=0.065, latency=0.9, efficiency=0.9
    )
    calls = [(call, gpu) for _, call, gpu in calls_of("H100")[::2]]
    times = [planted.us(call.work, streams_of(call), gpu) for call, gpu in calls]
    again = fit([(replace(c, us=us), gpu) for (c, gpu), us in zip(calls, times, strict=True)])
    off = [
        abs(again.us(call.work, streams_of(call), gpu) / us - 1)
        for (call, gpu), us in zip(calls, times, strict=True)
    ]
    assert max(off) < 0.02
    for name in ("call", "experts", "unit", "wide_unit", "efficiency"):
        assert getattr(again, name) == pytest.approx(getattr(planted, name), rel=0.03), name
    assert again.latency == pytest.approx(planted.latency, rel=0.15)


def test_constants_are_scaled_by_name() -> None:
    before = TimeConstants()
    after = scaled(before, {"call": 2.0, "x": 0.5})
    assert after == replace(before, call=2 * before.call, x=before.x / 2)


def test_configurations_of_other_shapes_are_left_out_where_they_do_not_fit() -> None:
    assert fits(CONFIG, WORK)
    assert not fits(CONFIG | {"warps": 16, "split": 16}, replace(WORK, columns=1024))
    assert not fits(CONFIG | {"x_ahead": 2}, replace(WORK, tokens=16))


def percents(values: list[float]) -> str:
    return f"{100 * np.median(values):.1f}, {100 * np.quantile(values, 0.9):.1f}"


@pytest.mark.slow
def test_errors_and_the_gb10_are_as_documented() -> None:
    page = DOCS / "kernels.md"
    calls = {gpu: calls_of(gpu) for gpu in FILES}
    told: list[str] = []
    between: list[float] = []
    for source, target in (("H100", "H200"), ("H200", "H100")):
        constants = fit([(call, gpu) for _, call, gpu in calls[source]])
        off = errors(constants, calls[target])
        between.append(float(np.quantile(off, 0.9)))
        told += [percents(off), f"{100 * np.median(errors(constants, calls[source])):.1f}"]
    assert told == ["5.2, 17.2", "3.1", "4.5, 15.4", "3.6"], "also in docs and README"
    every = [row for rows in calls.values() for row in rows]
    constants = fit([(call, gpu) for _, call, gpu in every])
    cells: dict[str, dict[int, Prediction]] = {}
    for row in predictions(constants, max(between), every):
        assert row.low < row.us < row.high
        if row.cell.weight_bytes > 4e6:
            assert row.alike[0] / row.alike[1] >= 11 / 16
            assert min(row.in_flight) > 24 * 1024
        label = f"{row.cell.label.split(',')[0]}{' experts' * (row.cell.kind == 'moe')}"
        label += f", {row.cell.work.format}"
        cells.setdefault(label, {})[row.cell.work.tokens] = row
    for label, megabytes, one, share, eight, sixteen in tables(page, "On a GB10")[0]:
        by_tokens = cells[label]
        first = by_tokens[1]
        read = first.cell.weight_bytes
        assert megabytes == f"{read / 1e6:,.{0 if read > 1e8 else 1}f} MB"
        assert one == f"{first.us:,.0f} us ({first.low:,.0f} to {first.high:,.0f})"
        assert share == f"{read / first.us / 273e3 * 100:.0f} %"
        assert [eight, sixteen] == [f"{by_tokens[tokens].us:,.0f} us" for tokens in (8, 16)]
