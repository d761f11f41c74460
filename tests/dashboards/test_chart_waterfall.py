"""The waterfall from the memory floor: what its bars add up to, and what it says in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.charts import logarithmic_time_ticks, time_ticks
from spark_prof.dashboards.formats import microseconds
from spark_prof.dashboards.sections.waterfall_section import floor_waterfall, verdict, waterfall
from spark_prof.datasets.ceilings import ceilings_for
from spark_prof.datasets.opened import opened
from tests.rows import each_row

from .sample import SAMPLES

DATA = Path(__file__).parents[1] / "data" / "code-h100"


@each_row("sample", SAMPLES)
def test_each_bar_begins_where_the_one_before_ends(sample: str) -> None:
    found = waterfall_of(SAMPLES[sample])
    (bars,) = floor_waterfall(SAMPLES[sample]).data
    *parts, whole = bars.x
    assert whole == pytest.approx(found.us)
    ends = [base + us for base, us in zip(bars.base[:-1], parts, strict=True)]
    assert list(bars.base[1:-1]) == pytest.approx(ends[:-1])
    assert not ends or ends[-1] == pytest.approx(whole, rel=5e-3)


@each_row("sample", SAMPLES)
def test_a_table_says_the_same(sample: str) -> None:
    found, drawn = waterfall_of(SAMPLES[sample]), waterfall(SAMPLES[sample])
    assert bool(drawn.rows) == any(abs(part.us) >= 0.005 for part in found.parts)
    if drawn.rows:
        assert drawn.rows[-1][:2] == ("measured", microseconds(found.us))


@each_row("sample", SAMPLES)
def test_nothing_hostile_is_drawn(sample: str) -> None:
    assert "<script" not in str(floor_waterfall(SAMPLES[sample]).to_dict())
    assert not any(set(text) & set("\x1b\u202e") for text in verdict(SAMPLES[sample]))


def test_the_verdict_says_how_fast_and_what_to_do_first() -> None:
    with opened(str(DATA / "dense-nvfp4")) as bundle:
        report = summarize(bundle, measured=ceilings_for(bundle, 0))
    said = verdict(report)
    tokens = report.steps.tpot_us
    assert tokens is not None
    assert microseconds(tokens.median) in said[0]
    assert "% of the time is that floor" in said[0]
    assert report.findings[0].fix in said[-2]
    assert report.findings[0].text in said[-1]


def test_ticks_are_round_and_within_the_axis() -> None:
    ticks = time_ticks(4544.6)
    assert ticks["ticktext"] == ["0", "1", "2", "3", "4 ms"]
    assert time_ticks(0.9)["ticktext"] == ["0", "0.2", "0.4", "0.6", "0.8 us"]
    assert time_ticks(0.0)["tickvals"] == [0.0]
    later = time_ticks(2_000_000.0, least_us=1_000_000.0)
    assert later["ticktext"] == ["1", "1.2", "1.4", "1.6", "1.8", "2 s"]


@each_row(("low", "high"), [(0.0, 6.0), (4.06, 4.64), (3.0, 3.04), (-3.0, -2.9)])
def test_logarithmic_ticks_lie_on_the_axis(low: float, high: float) -> None:
    ticks = logarithmic_time_ticks(low, high)
    values, texts = ticks["tickvals"], ticks["ticktext"]
    assert isinstance(values, list)
    assert isinstance(texts, list)
    assert 4 <= len(values) <= 25
    assert all(low - 1e-3 <= value <= high + 1e-3 for value in values)
    assert len(set(texts)) == len(texts)
