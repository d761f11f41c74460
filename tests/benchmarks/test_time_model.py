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
    predictions,
)
from benchmarks.time_model import (
    GpuFacts,
    MeasuredCall,
    TimeConstants,
    fit,
    scaled,
    streams_of,
)
from spark_prof.kernels.tuning import TunedShape
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
            assert row.as_good[0] / row.as_good[1] >= 11 / 16
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
