"""The figures: what they add up to, and their palette."""

from __future__ import annotations

import pytest

from spark_prof.dashboards import charts
from spark_prof.vocabulary import COMPONENTS

from .sample import SAMPLES


def test_every_component_has_its_own_colour() -> None:
    assert set(charts.COLORS) == set(COMPONENTS)
    assert len(set(charts.COLORS.values())) == len(COMPONENTS)


@pytest.mark.parametrize("sample", ["mixture_of_experts", "almost_empty"])
def test_the_waterfall_ends_at_the_step(sample: str) -> None:
    report = SAMPLES[sample]
    (bars,) = charts.books_waterfall(report).data
    (step, *parts) = bars.x
    books = {entry.phase: entry for entry in report.books}
    chosen = books.get("decode", books["all"])
    assert step == pytest.approx(chosen.step_us / chosen.steps)
    assert sum(parts) == pytest.approx(step, rel=1e-3)


def test_the_heatmap_has_every_layer_and_nothing_else() -> None:
    (cells,) = charts.layer_heatmap(SAMPLES["deep"]).data
    assert list(cells.y) == [str(layer) for layer in range(36)]
    assert "lm_head" not in cells.x


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(
    "draw", [charts.component_bars, charts.layer_heatmap, charts.books_waterfall]
)
def test_every_figure_can_be_drawn(draw, sample: str) -> None:
    assert "<script" not in str(draw(SAMPLES[sample]).to_dict())
