"""The figures: what they add up to, and their palette."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spark_prof.dashboards.colors import COLORS
from spark_prof.dashboards.outline import FIGURES, figures, outline
from spark_prof.dashboards.sections.layer_section import layer_heatmap
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

from .sample import SAMPLES


def test_every_component_has_its_own_colour() -> None:
    assert set(COLORS) == set(COMPONENTS)
    assert len(set(COLORS.values())) == len(COMPONENTS)


def test_the_heatmap_has_every_layer_and_nothing_else() -> None:
    (cells,) = layer_heatmap(SAMPLES["deep"]).data
    assert list(cells.y) == [str(layer) for layer in range(36)]
    assert "lm_head" not in cells.x


@each_row("sample", SAMPLES)
def test_no_figure_holds_a_tag_of_a_name(sample: str) -> None:
    """Titles, labels, hover texts: plotly would read HTML in any of them."""
    for name, figure in figures(SAMPLES[sample]).items():
        for text in _texts(figure.to_plotly_json()):
            assert not re.search(r"<(?!/?(extra|br|b|i|sub|sup)\b)", text), (name, text)
            assert "javascript:" not in text.replace("(javascript:alert(1))", "")


def test_a_figure_is_named_after_a_section() -> None:
    found = figures(SAMPLES["filled"])
    assert list(found) == [s.id for s in outline(SAMPLES["filled"]).sections if s.id in FIGURES]
    assert set(found) == set(FIGURES)


def test_a_thousand_layers_are_a_picture_of_a_page_without_gaps() -> None:
    report = SAMPLES["deep"]
    rows = [row for row in report.layers if row.layer == 0]
    layers = tuple(replace(row, layer=layer) for layer in range(1000) for row in rows)
    figure = layer_heatmap(replace(report, layers=layers))
    assert len(figure.data[0].z) == 1000
    assert figure.data[0].ygap == 0
    assert figure.layout.height < 850


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inside in value.values():
            yield from _texts(inside)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from _texts(inside)
