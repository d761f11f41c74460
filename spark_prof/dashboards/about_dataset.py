"""Sections about many recordings: their figures, components and ranks beside each other."""

from __future__ import annotations

from collections import defaultdict

from spark_prof.analyzers.dataset import Dataset, RankFigures, Recording
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    difference,
    microseconds,
    share,
    shorten,
)
from spark_prof.dashboards.section import Column, Section

_LONGEST_NAME = 80
_LONGEST_FIELD = 60
_LONGEST_PROSE = 1000
_FIGURES = (
    Column("Steps", "number"),
    Column("Decode step", "number"),
    Column("99th percentile", "number", optional=True),
    Column("Tokens/s", "number"),
    Column("Kernels", "number", optional=True),
    Column("Layer", "number", optional=True),
    Column("Component", "number", optional=True),
    Column("Engine", "number", optional=True),
)


def recordings(dataset: Dataset) -> Section:
    """One row a recording, the shortest decode step first."""
    rows = tuple(
        (
            _name(recording.name),
            _to_first(recording, dataset),
            *_figures(recording.first),
            shorten(clean(recording.model), _LONGEST_FIELD),
            shorten(clean(recording.gpu), _LONGEST_FIELD),
        )
        for recording in dataset.recordings
    )
    columns = (
        Column("Recording", "name"),
        Column("To the first", "number"),
        *_FIGURES,
        Column("Model", optional=True),
        Column("GPU", optional=True),
    )
    intro = (
        "By the median decode step of each recording's lowest rank. Tokens/s: tokens that the "
        "requests received over the recorded time. Layer, component, engine: share of the kernel "
        "time that has one.",
    )
    return Section("recordings", "Recordings", columns, rows, intro)


def components(dataset: Dataset) -> Section:
    """The share of each component, one row a recording: what differs stands in one column."""
    total: dict[str, float] = defaultdict(float)
    for recording in dataset.recordings:
        for name, part in recording.first.components.items():
            total[name] += part
    names = sorted(total, key=lambda name: (-total[name], name))
    rows = tuple(
        (_name(r.name), *(share(r.first.components.get(name)) for name in names))
        for r in dataset.recordings
    )
    columns = (
        Column("Recording", "name"),
        *(Column(name, "number", optional=place > 3) for place, name in enumerate(names)),
    )
    intro = ("Share of the kernel time of each recording's lowest rank.",)
    return Section("components", "What the time goes to", columns, rows, intro)


def ranks(dataset: Dataset) -> Section:
    """The same figures for each rank of the recordings that have several."""
    rows = tuple(
        (
            _name(recording.name),
            str(figures.rank),
            difference(figures.decode_median_us, _shortest(recording)),
            *_figures(figures),
        )
        for recording in dataset.recordings
        if len(recording.ranks) > 1
        for figures in recording.ranks
    )
    columns = (
        Column("Recording", "name"),
        Column("Rank", "number"),
        Column("To the shortest", "number"),
        *_FIGURES,
    )
    return Section("ranks", "Ranks", columns, rows)


def failures(dataset: Dataset) -> Section:
    """What could not be read, and why."""
    rows = tuple(
        (
            shorten(clean(failure.name), _LONGEST_FIELD),
            shorten(clean(failure.reason), _LONGEST_PROSE),
        )
        for failure in dataset.failures
    )
    title = f"Not read ({counted(len(rows), 'recording')})"
    return Section("failures", title, (Column("Recording"), Column("Why", "prose")), rows)


def notes(dataset: Dataset) -> Section:
    """What to know before believing a figure; a note of several recordings stands there once."""
    found: dict[str, list[str]] = defaultdict(list)
    for recording in dataset.recordings:
        for note in recording.notes:
            found[shorten(clean(note), _LONGEST_PROSE)].append(recording.name)
    everywhere = len(dataset.recordings)
    rows = tuple(
        (
            "all"
            if len(names) == everywhere > 1
            else shorten(", ".join(map(_name, names)), _LONGEST_FIELD),
            note,
        )
        for note, names in found.items()
    )
    columns = (Column("Recording"), Column("Note", "prose"))
    return Section("notes", "Before believing these figures", columns, rows)


def _figures(figures: RankFigures) -> tuple[str, ...]:
    rate = figures.tokens_per_s
    return (
        count(figures.steps),
        microseconds(figures.decode_median_us),
        microseconds(figures.decode_p99_us),
        MISSING if rate is None else f"{rate:,.1f}",
        microseconds(figures.kernels_us),
        share(figures.layer_coverage),
        share(figures.component_coverage),
        share(figures.engine_coverage),
    )


def _to_first(recording: Recording, dataset: Dataset) -> str:
    first = dataset.recordings[0]
    if recording is first:
        return MISSING
    return difference(recording.first.decode_median_us, first.first.decode_median_us)


def _shortest(recording: Recording) -> float | None:
    known = [r.decode_median_us for r in recording.ranks if r.decode_median_us is not None]
    return min(known, default=None)


def _name(name: str) -> str:
    return shorten(clean(name), _LONGEST_NAME)
