"""Draws the report of a dataset in every format."""

from __future__ import annotations

from dataclasses import asdict

from spark_prof.analyzers.dataset import Dataset
from spark_prof.dashboards import about_dataset
from spark_prof.dashboards.formats import clean, counted, shorten
from spark_prof.dashboards.outline import without_empty_columns
from spark_prof.dashboards.section import Document


def render_dataset(dataset: Dataset, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a dataset.

    Args:
        dataset: the dataset.
        kind: text, md, html or json.
        width: columns of the text.
        color: whether the text is coloured.
    """
    if kind == "json":
        return _json(dataset)
    drawn = document(dataset)
    if kind == "html":
        # Plotly takes most of a second to import, and only HTML needs it.
        from spark_prof.dashboards import html

        return html.draw(drawn, {})
    from spark_prof.dashboards import markdown, text

    return markdown.draw(drawn) if kind == "md" else text.draw(drawn, width, color)


def document(dataset: Dataset) -> Document:
    """The document that text, Markdown and HTML draw."""
    sections = (
        about_dataset.recordings(dataset),
        about_dataset.components(dataset),
        about_dataset.ranks(dataset),
        about_dataset.failures(dataset),
        about_dataset.notes(dataset),
    )
    return Document(
        f"spark-prof: {shorten(clean(dataset.name), 120)}, "
        f"{counted(len(dataset.recordings), 'recording')}",
        (),
        tuple(without_empty_columns(section) for section in sections if section.rows),
    )


def _json(dataset: Dataset) -> str:
    from spark_prof.dashboards import json_report

    return json_report.write(
        {
            "schema": json_report.SCHEMA,
            "dataset": dataset.name,
            "recordings": [asdict(recording) for recording in dataset.recordings],
            "failures": [asdict(failure) for failure in dataset.failures],
        }
    )
