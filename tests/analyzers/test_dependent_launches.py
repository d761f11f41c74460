"""Kernels that start early and wait (programmatic dependent launch): no instant has two owners."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers import instants
from spark_prof.analyzers.breakdown import TypicalKernel
from spark_prof.analyzers.instants import with_own_starts
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import Ceilings, Place
from spark_prof.analyzers.roofline.rows import Sum, rows_of, together
from spark_prof.analyzers.summary import summarize
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.rules.gpus import SourcedFigure
from tests.rows import each_row

from .comparing.swapped_recordings import LAYERS, Ran, attribute, record, stock, with_experts


def started_early(rows: Sequence[Ran], chosen: random.Random) -> list[Ran]:
    """The step with most gaps gone: its kernels start while one or several before them run."""
    found: list[Ran] = []
    before = 0  # how long before the end of the last kernel it was seen to start
    for row in rows:
        early = 0 if not found or chosen.random() < 0.2 else chosen.randrange(1, before + 1)
        found.append(replace(row, gap=0 if early else row.gap, early=early))
        before = row.ns + early
    return found


def waiting_left_out(rows: Sequence[Ran]) -> list[Ran]:
    return [replace(row, early=0) for row in rows]


def figures(report: Report) -> dict[str, object]:
    """All that a report says of times."""
    told = asdict(replace(report, notes=()))
    told.pop("ahead_us")
    told.pop("run")  # has the bundle's path and when it was recorded
    for found in told["findings"]:
        found.pop("verify")  # names the bundle
    for row in (*told["kernels"], *told["typical"]):
        row.pop("ahead_us")
    for phase in (told["roofline"] or {}).get("phases", ()):
        for row in phase["rows"]:
            for name in ("ahead_us", "bandwidth", "of_data_sheet", "of_reached"):
                row.pop(name)
    return told


@each_row("seed", range(2))
def test_a_report_is_that_of_the_kernels_without_their_waiting(seed: int, tmp_path: Path) -> None:
    early = started_early(with_experts(stock()), random.Random(seed))
    found = summarize(record(tmp_path / "early", early))
    wanted = summarize(record(tmp_path / "apart", waiting_left_out(early)))
    assert figures(found) == figures(wanted)
    assert found.broken == ()
    (own,) = (row for row in found.components if row.name == "experts")
    assert own.decode_us_per_step == pytest.approx(LAYERS * 17.0)
    step, sums = found.decode_step, found.all_steps
    assert step is not None
    assert sums is not None
    assert sum(part.us for part in step.parts) == step.step_us
    assert step.overlap_us == pytest.approx(0, abs=1e-6)
    assert sums.kernels_us == pytest.approx(sums.union_us)
    waited = sum(row.early for row in early) / 1e3
    assert any(f"kernels start {waited:.1f} us before" in note for note in found.notes)
    time = json.loads(render_report(found, Layout("json")))["time"]
    assert time["exclusive_us"] == time["sum_us"] == pytest.approx(sums.kernels_us)
    assert time["kernel_time_us"] == pytest.approx(time["exclusive_us"] + found.ahead_us)
    assert (found.ahead_us > 0, wanted.ahead_us) == (waited > 0, 0)
    assert not any("dependent launch" in note for note in wanted.notes)


@each_row("seed", range(2))
def test_parts_of_a_gain_add_up_where_kernels_of_both_sides_wait(seed: int, tmp_path: Path) -> None:
    chosen = random.Random(seed)
    a = started_early(stock(), chosen) if seed % 2 else stock()
    b = started_early(with_experts(stock()), chosen)
    found = attribute(tmp_path / "early", a, b)
    wanted = attribute(tmp_path / "apart", waiting_left_out(a), waiting_left_out(b))
    assert found.components == wanted.components
    assert found.layers == wanted.layers
    assert found.kernels == wanted.kernels
    assert found.adds_up is True
    assert found.residual_us == pytest.approx(0, abs=1e-6)


@each_row("seed", range(40))
def test_each_kernel_begins_where_its_stream_is_its_own(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that ended before the kernel before it ran beside it, in a branch of a graph."""
    monkeypatch.setattr(instants, "_BLOCK", (3, 1 << 16)[seed % 2])
    chosen = random.Random(seed)
    raw, own = [], []
    for stream in range(1 + seed % 3):
        end = seen = chosen.randrange(50)
        for _ in range(chosen.randrange(1, 30)):
            begin = end + chosen.choice([0, 0, 5])
            finish = begin + chosen.randrange(1, 40)
            seen = chosen.randrange(seen, begin + 1) if begin == end else begin
            raw.append((stream, seen, finish))
            own.append((stream, begin, finish, begin - seen))
            end = finish
            if chosen.random() < 0.2 and finish - begin > 2:
                beside = chosen.randrange(begin + 1, finish - 1)
                raw.append((stream, beside, beside + 1))
                own.append((stream, beside, beside + 1, 0))
                seen = max(seen, beside)
    rows = pd.DataFrame(raw, columns=["stream", "start_ns", "end_ns"])
    rows = rows.sort_values("start_ns", kind="stable", ignore_index=True)
    before = rows.copy()
    found = with_own_starts(rows).reindex(columns=[*rows.columns, "ahead_ns"], fill_value=0)
    assert (np.diff(found["start_ns"]) >= 0).all()
    assert sorted(found.itertuples(index=False, name=None)) == sorted(own)
    pd.testing.assert_frame_equal(rows, before)


@each_row(("ahead_us", "known"), [(0.0, True), (0.1, True), (3.0, False)])
def test_bandwidth_is_not_told_of_what_began_before_its_time(ahead_us: float, known: bool) -> None:
    place = Place("mlp", "mlp.down_proj", "dense")
    kernel = TypicalKernel("decode", *place, 1.0, 10.0, 10.0, ahead_us, 4, "range")
    ceilings = Ceilings("GPU", reached=SourcedFigure(1e12, "measured"))
    need = Sum(streamed=5e6)
    (row,) = rows_of([kernel], 4, {place: need}, {}, {}, ceilings, None, {})
    assert (row.us, row.ahead_us, row.floor_us) == (10.0, ahead_us, 5.0)
    assert (row.of_reached == pytest.approx(0.5)) if known else row.of_reached is None
    both = together([row, replace(row, role="other")])["dense", "mlp"]
    assert (both.bandwidth == row.bandwidth) is True
