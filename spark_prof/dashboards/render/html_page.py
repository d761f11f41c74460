"""Draws a document as one HTML file that needs no network: styles, data and plotly.js are inside.

Jinja escapes everything that is not marked as HTML here, and a content policy forbids the page to
load anything, so that a hostile name in a foreign trace stays a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from html import unescape
from importlib import resources

import plotly.graph_objects as go
import plotly.io
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from spark_prof.dashboards.render.limits import shortened
from spark_prof.dashboards.section import Document, without_bars
from spark_prof.dashboards.units import clean, shorten

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_MOST_BYTES = 600_000
"""Of the tables. With plotly.js, 4.8 MB, and the figures a page stays below 6 MB."""
_MANY_SECTIONS = 5  # a page with as many has a table of contents
_MANY_COLUMNS = 8  # a table with more is drawn smaller
_NAME_WIDTH = 72
_LONGEST_NAME = 2000
_TITLE, _NO_TITLE = 40, 8
"""Pixels above a figure with its title, as `charts.new_figure` sets them, and without."""
# In a script a name could end it.
_ESCAPES = {character: f"\\u{ord(character):04x}" for character in "<>&"}


def draw(document: Document, figures: Mapping[str, go.Figure]) -> str:
    """Draws a document as one self-contained page, its figures by the section of each.

    Of very long tables it has the first rows.
    """
    document = shortened(
        document, lambda tables: len(_sections(tables, {}).encode()) <= _MOST_BYTES
    )
    plots = {s.id: figures[s.id] for s in document.sections if s.id in figures}
    template = _templates().get_template("page.html.j2")
    return template.render(
        policy=_POLICY,
        document=document,
        style=Markup(resources.files(__package__).joinpath("page.css").read_text()),
        many_sections=_MANY_SECTIONS,
        sections=Markup(_sections(document, plots)),
        plotly=Markup(get_plotlyjs()) if plots else "",
        figures={name: Markup(_data(figure)) for name, figure in plots.items()},
    )


def fragment(document: Document) -> str:
    """The sections of a short document for a page that is somebody else's, such as a notebook."""
    title = (
        _templates()
        .from_string("<h3>{{ title }}</h3>\n")
        .render(title=document.verdict or document.title)
    )
    return title + _sections(document, {})


def draw_figure(figure: go.Figure, title: str) -> str:
    """Draws a figure, its labels safe as `charts.label` makes them, as a page of its own."""
    options = {"displaylogo": False, "responsive": True}
    drawn = plotly.io.to_html(figure, full_html=False, include_plotlyjs=True, config=options)
    template = _templates().get_template("figure.html.j2")
    return template.render(policy=_POLICY, title=title, drawn=Markup(drawn))


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("spark_prof.dashboards.render", "."),
        autoescape=True,
        keep_trailing_newline=True,
    )
    environment.filters["shorten"] = shorten
    return environment


def _sections(document: Document, figures: Mapping[str, go.Figure]) -> str:
    template = _templates().get_template("sections.html.j2")
    return template.render(
        tables=[(section, without_bars(section)) for section in document.sections],
        places={name: _place(figure) for name, figure in figures.items()},
        many_columns=_MANY_COLUMNS,
        name_width=_NAME_WIDTH,
        longest_name=_LONGEST_NAME,
    )


def _place(figure: go.Figure) -> dict[str, object]:
    """The title and height of a figure.

    Plotly does not break a title's line, and on a phone it would leave the page.
    """
    title = clean(unescape(figure.layout.title.text or ""))
    return {"title": title, "height": _height(figure)}


def _data(figure: go.Figure) -> str:
    untitled = go.Figure(figure)
    untitled.update_layout(title=None, margin={"t": _NO_TITLE}, height=_height(figure))
    # ASCII alone: half a character of a foreign name is no fault, and none ends a line.
    drawn = untitled.to_json(engine="json")
    return re.sub("[<>&]", lambda match: _ESCAPES[match[0]], drawn)


def _height(figure: go.Figure) -> int:
    return int(figure.layout.height) - _TITLE + _NO_TITLE
