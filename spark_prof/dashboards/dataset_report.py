"""Many recordings, or results of load generators: their figures beside each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_prof.analyzers.clients.client_comparison import client_row
from spark_prof.dashboards import cells
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.json_report import SCHEMA
from spark_prof.dashboards.render.terminal import first_rows, fitting
from spark_prof.dashboards.section import Column, Document, Section, document, table
from spark_prof.dashboards.sections import client_section
from spark_prof.dashboards.units import counted, difference, figure, shorten
from spark_prof.datasets.every_recording import Dataset, DatasetRecording, RankFigures
from spark_prof.traces.benchmarks.load_test import BenchmarkResult

_LONGEST_NAME = 80
_LONGEST_FIELD = 60
_LONGEST_PROSE = 1000


class _DatasetRow(NamedTuple):
    recording: DatasetRecording
    figures: RankFigures


_RECORDING = cells.Name("Recording", "recording.name", longest=_LONGEST_NAME)
_FIGURES = (
    cells.Count("Steps", "figures.steps"),
    cells.Time("Decode step", "figures.decode_median_us"),
    cells.Time("99th percentile", "figures.decode_p99_us", optional=True),
    cells.Formatted("Tokens/s", lambda row: figure(row.figures.tokens_per_s, ",.1f")),
    cells.Time("Kernels", "figures.kernels_us", optional=True),
    cells.Share("Layer", "figures.layer_coverage", optional=True),
    cells.Share("Component", "figures.component_coverage", optional=True),
    cells.Share("Engine", "figures.engine_coverage", optional=True),
)


_ROWS = (40, 25, 15, 10, 7, 5, 3, 2)
"""Rows of each table that are shown, from the first on until all fits on one screen."""


def render_dataset(dataset: Dataset, layout: Layout, *, whole: bool = False) -> str:
    """Draws a dataset in a format.

    Args:
        whole: every row; without it, and where no section is asked for, text and Markdown have one
            screen.
    """
    record = {
        "schema": SCHEMA,
        "dataset": dataset.name,
        "recordings": dataset.recordings,
        "failures": dataset.failures,
    }

    def drawn() -> Document:
        everything = document_of(dataset)
        if layout.kind == "html" or whole or layout.bounds.sections:
            return everything
        return fitting((_first_rows(everything, rows) for rows in _ROWS), layout.width)

    return draw(drawn, lambda: record, layout)


def _first_rows(everything: Document, rows: int) -> Document:
    sections = tuple(first_rows(section, rows) for section in everything.sections)
    return replace(everything, sections=sections)


def document_of(dataset: Dataset) -> Document:
    """The document that text, Markdown and HTML draw."""
    sections = (_recordings, _components, _ranks, _failures, _notes)
    title = f"{shorten(dataset.name, 120)}, {counted(len(dataset.recordings), 'recording')}"
    return document(f"spark-prof: {title}", (), (section(dataset) for section in sections))


def _recordings(dataset: Dataset) -> Section:
    """One row a recording, the shortest decode step first."""
    rows = [_DatasetRow(recording, recording.first) for recording in dataset.recordings]

    def to_first(row: _DatasetRow) -> str | None:
        if row is rows[0]:
            return None
        return difference(row.figures.decode_median_us, rows[0].figures.decode_median_us)

    columns = (
        _RECORDING,
        cells.Formatted("To the first", to_first),
        *_FIGURES,
        cells.Text("Model", "recording.model", longest=_LONGEST_FIELD, optional=True),
        cells.Text("GPU", "recording.gpu", longest=_LONGEST_FIELD, optional=True),
    )
    intro = (
        "By the median decode step of each recording's lowest rank. Tokens/s: tokens that the "
        "requests received over the recorded time. Layer, component, engine: share of the kernel "
        "time that has one.",
    )
    return table("recordings", "Recordings", rows, columns, intro)


def _components(dataset: Dataset) -> Section:
    """The share of each component, one row a recording: what differs stands in one column."""
    total: dict[str, float] = defaultdict(float)
    for recording in dataset.recordings:
        for name, part in recording.first.components.items():
            total[name] += part
    names = sorted(total, key=lambda name: (-total[name], name))

    def share_of(name: str, optional: bool) -> Column:
        return cells.Share(name, lambda row: row.figures.components.get(name), optional=optional)

    columns = (_RECORDING, *(share_of(name, place > 3) for place, name in enumerate(names)))
    rows = [_DatasetRow(recording, recording.first) for recording in dataset.recordings]
    intro = ("Share of the kernel time of each recording's lowest rank.",)
    return table("components", "What the time goes to", rows, columns, intro)


def _ranks(dataset: Dataset) -> Section:
    """The figures of each rank, of the recordings that have several."""
    several = [recording for recording in dataset.recordings if len(recording.ranks) > 1]

    def to_shortest(row: _DatasetRow) -> str:
        times = (figures.decode_median_us for figures in row.recording.ranks)
        shortest = min((us for us in times if us is not None), default=None)
        return difference(row.figures.decode_median_us, shortest)

    columns = (
        _RECORDING,
        cells.Formatted("Rank", lambda row: figure(row.figures.rank, "d")),
        cells.Formatted("To the shortest", to_shortest),
        *_FIGURES,
    )
    rows = [_DatasetRow(recording, figures) for recording in several for figures in recording.ranks]
    return table("ranks", "Ranks", rows, columns)


def _failures(dataset: Dataset) -> Section:
    """What could not be read, and why."""
    columns = (
        cells.Text("Recording", "name", longest=_LONGEST_FIELD),
        cells.Prose("Why", "reason", longest=_LONGEST_PROSE),
    )
    title = f"Not read ({counted(len(dataset.failures), 'recording')})"
    return table("failures", title, dataset.failures, columns)


def _notes(dataset: Dataset) -> Section:
    """What to know before believing a figure; a note of several recordings stands there once."""
    names_by_note: dict[str, list[str]] = defaultdict(list)
    for recording in dataset.recordings:
        for note in recording.notes:
            names_by_note[note].append(recording.name)
    everywhere = len(dataset.recordings)

    def whose(names: list[str]) -> str:
        if len(names) == everywhere > 1:
            return "all"
        return ", ".join(shorten(name, _LONGEST_NAME) for name in names)

    columns = (
        cells.Text("Recording", lambda pair: whose(pair[1]), longest=_LONGEST_FIELD),
        cells.Prose("Note", lambda pair: pair[0], longest=_LONGEST_PROSE),
    )
    return table("notes", "Caveats", names_by_note.items(), columns)


def render_clients(results: Sequence[BenchmarkResult], layout: Layout) -> str:
    """Draws what load generators measured: at least one result."""
    rows = [client_row(run) for result in results for run in result.runs]
    sources = [result.source for result in results]
    # What the formats do not tell, once each.
    lost = list(dict.fromkeys(line for result in results for line in result.lost))
    record = {"schema": SCHEMA, "sources": sources, "clients": rows, "lost": lost}
    title = f"spark-prof: {shorten(', '.join(sources), 120)}"
    sections = (client_section.runs(rows), client_section.remarks(rows, lost))
    drawn = document(title, (), sections)
    return draw(lambda: drawn, lambda: record, layout)
