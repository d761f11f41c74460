"""Figures of sections: what they hold, what they add up to, and that names stay names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from spark_prof.analyzers.model import RankRow
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views.step_series import StepSeries, batch_times, context_fits
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards import chart_steps
from spark_prof.dashboards.outline import FIGURES
from spark_prof.dashboards.sections import conversion_section, rank_section
from spark_prof.dashboards.sections.kernel_section import evidence_bars, evidence_shares
from spark_prof.dashboards.sections.layer_section import layer_heatmap
from spark_prof.dashboards.sections.waterfall_section import (
    floor_waterfall,
    speed_and_distance,
    waterfall,
)
from spark_prof.dashboards.units import microseconds
from spark_prof.datasets.opened import ceilings_for, opened
from spark_prof.vocabulary import PHASES
from tests.rows import each_row

from .sample import SAMPLES


def test_the_heatmap_has_every_layer_and_of_a_thousand_is_a_picture_of_a_page() -> None:
    report = SAMPLES["deep"]
    (cells,) = layer_heatmap(report).data
    assert list(cells.y) == [str(layer) for layer in range(48)]
    assert "lm_head" not in cells.x
    rows = [row for row in report.layers if row.layer == 0]
    layers = tuple(replace(row, layer=layer) for layer in range(1000) for row in rows)
    figure = layer_heatmap(replace(report, layers=layers))
    assert len(figure.data[0].z) == 1000
    assert figure.data[0].ygap == 0
    assert figure.layout.height < 850


DATA = Path(__file__).parents[1] / "data" / "code-h100"


@each_row("sample", SAMPLES)
def test_each_bar_begins_where_the_one_before_ends(sample: str) -> None:
    found = waterfall_of(SAMPLES[sample])
    (bars,) = floor_waterfall(SAMPLES[sample]).data
    table = waterfall(SAMPLES[sample]).rows
    assert bool(table) == any(abs(part.us) >= 0.005 for part in found.parts)
    assert not table or table[-1][:2] == ("measured", microseconds(found.us))
    *parts, whole = bars.x
    assert whole == pytest.approx(found.us)
    ends = [base + us for base, us in zip(bars.base[:-1], parts, strict=True)]
    assert list(bars.base[1:-1]) == pytest.approx(ends[:-1])
    assert not ends or ends[-1] == pytest.approx(whole, rel=5e-3)


def test_the_verdict_says_how_fast_and_how_far_from_its_bound() -> None:
    with opened(str(DATA / "dense-nvfp4")) as bundle:
        report = summarize(bundle, measured=ceilings_for(bundle, 0))
    said = speed_and_distance(report)
    token = report.steps.headline
    assert token is not None
    assert microseconds(token.token_us) in said
    assert "% of the time is that bound" in said


def many(number: int) -> StepSeries:
    rng = np.random.default_rng(number)
    us = rng.lognormal(8, 0.3, number)
    us[number // 3 : number // 3 + 1] = 1e6
    return StepSeries(
        step=np.arange(number),
        phase=rng.integers(0, len(PHASES), number).astype(np.int8),
        begin_s=np.cumsum(us) / 1e6,
        us=us,
        requests=rng.integers(0, 12, number),
        prompt_tokens=rng.integers(0, 3, number) * 50,
        context=rng.uniform(0, 4000, number),
        slow=us > 2 * (np.median(us) if number else 1.0),
    )


def drawn(figure: go.Figure) -> list[Any]:
    return [trace for trace in figure.data if trace.mode == "markers"]


@each_row("number", [0, 1, 50, 100_000])
def test_points_of_steps_are_few_and_name_their_step(number: int) -> None:
    steps = many(number)
    for figure in (
        chart_steps.times_in_order(steps, chosen=0),
        chart_steps.times_against_context(steps, context_fits(steps)),
        chart_steps.times_against_prompt(steps),
    ):
        assert sum(len(trace.x) for trace in figure.data) <= 5000
        for trace in drawn(figure):
            assert list(trace.y) == steps.us[np.array(trace.customdata)].tolist()
    assert len(chart_steps.times_against_batch(batch_times(steps)).data) == 1


def test_every_step_is_in_the_distribution() -> None:
    steps = many(3000)
    bars = chart_steps.times_spread(steps).data
    assert sum(int(np.sum(trace.y)) for trace in bars) == 3000
    for trace in bars:
        assert sum(trace.y) == (steps.phase == PHASES.index(trace.name)).sum()


@each_row("sample", SAMPLES)
def test_conversions_add_up(sample: str) -> None:
    report = SAMPLES[sample]
    (bars,) = conversion_section.most_expensive(report).data
    whole = sum(conversion_section.cost_of(row, report) for row in report.conversions.attributed)
    assert sum(bars.x) == pytest.approx(whole)
    layers = conversion_section.by_layer(report).data
    inside = [row for row in report.conversions.layers if row.layer is not None]
    if any(row.decode_us for row in inside):
        shown = sum(sum(trace.y) for trace in layers)
        found = sum(row.decode_us for row in inside) / max(report.steps.decode, 1)
        assert shown == pytest.approx(found)


@each_row("wait", [None, 0.0, 3.0, 30.0])
@each_row("transfer", [None, 2.0])
@each_row("gap", [None, 5.0])
def test_the_parts_of_a_rank_are_its_kernels_and_gaps(
    wait: float | None, transfer: float | None, gap: float | None
) -> None:
    row = RankRow(1, 4, 15.0, 10.0, gap, wait, transfer, collective_us=6.0)
    parts = {name: part(row) for name, _, _, part in rank_section._PARTS}
    inside = (wait or 0.0) + (transfer or 0.0)
    assert parts == {"other kernels": max(10.0 - inside, 0.0), "transfer": transfer or 0.0,
                     "waiting": wait or 0.0, "gaps": gap or 0.0}  # fmt: skip
    assert rank_section._not_matched_us(row) == (6.0 - inside if inside < 6 else None)
    assert rank_section._not_matched_us(replace(row, collective_us=None)) is None


@each_row("sample", SAMPLES)
def test_ranks_are_drawn_with_what_the_report_has(sample: str) -> None:
    report = SAMPLES[sample]
    for trace in rank_section.rank_bars(report).data:
        assert list(trace.customdata) == [row.rank for row in report.ranks if row.steps]
    heat, marks = rank_section.waits_for_ranks(report).data
    assert len(marks.x) == len(marks.customdata) <= 5000
    assert np.asarray(heat.z).shape[0] in (0, len(report.ranks))


@each_row("sample", SAMPLES)
def test_what_figures_stand_on_is_all_of_the_time(sample: str) -> None:
    report = SAMPLES[sample]
    if not sample.startswith("filled"):
        for parts in evidence_shares(report).values():
            assert sum(parts.values()) == pytest.approx(1.0, abs=0.01)
    evidence_bars(report)


@pytest.mark.slow
@each_row("sample", SAMPLES)
def test_names_are_drawn_as_names(sample: str) -> None:
    report = SAMPLES[sample]
    for draw in (
        conversion_section.most_expensive,
        conversion_section.by_layer,
        rank_section.rank_bars,
        rank_section.waits_for_ranks,
        rank_section.waits_by_collective,
        evidence_bars,
        *FIGURES.values(),
    ):
        text = draw(report).to_json()
        assert "<script" not in text
        assert "<a " not in text
