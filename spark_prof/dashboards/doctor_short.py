"""One screen of a diagnosis: the verdict, the findings in short, and the first rows of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from spark_prof.analyzers.finding import Finding
from spark_prof.dashboards.one_screen import first_rows, fitting
from spark_prof.dashboards.section import Cell, Document, Section, document, listed
from spark_prof.dashboards.short_report import abridged
from spark_prof.dashboards.units import count

_ROWS = (12, 9, 7, 6, 5, 4, 3, 2, 1)
_LONGEST_FINDING, _LONGEST_FIX, _LONGEST_CELL = 240, 160, 180
_DETAILS = ("log", "unknown-lines", "startup", "memory", "libraries", "ceilings_left_out")
"""Sections that only `--all` has."""
_PROSE = ("known-issues", "startup-slow")
"""Lists whose sentences say at their end what to do: each is shown whole."""
_WHOLE = ("step_bytes",)
"""Tables that end with a sum: they are shown whole."""


def short_diagnosis(whole: Document, findings: Sequence[Finding], width: int) -> Document:
    """The fullest document of a diagnosis that fits on one screen.

    Args:
        whole: the document with everything.
        width: columns of the page.
    """
    return fitting(
        (
            document(
                whole.title,
                (),
                _first_rows_of(findings, whole.sections, rows),
                whole.caveats,
                whole.verdict,
            )
            for rows in _ROWS
        ),
        width,
    )


def _first_rows_of(
    findings: Sequence[Finding], sections: Sequence[Section], rows: int
) -> Iterator[Section]:
    texts = [f"{number}. {_in_short(finding)}" for number, finding in enumerate(findings, start=1)]
    title = f"Findings ({count(len(texts))})"
    yield first_rows(listed("findings", title, texts), max(rows // 2, 1), "findings")
    left_out = []
    for section in sections:
        if section.id == "findings":
            continue
        if section.id in _DETAILS:
            left_out.append(section.title)
            continue
        short = section
        if section.id not in _PROSE:
            short = replace(section, rows=tuple(tuple(map(_cell, row)) for row in section.rows))
        yield short if section.id in _WHOLE else first_rows(short, rows)
    if left_out:
        yield listed("more", "", [f"{', '.join(left_out)}: --all."])


def _in_short(finding: Finding) -> str:
    return (
        f"{abridged(finding.text, _LONGEST_FINDING)} {abridged(finding.fix, _LONGEST_FIX)}".strip()
    )


def _cell(cell: Cell) -> Cell:
    """A text that is a sentence, in short; figures and names as they are."""
    return abridged(cell, _LONGEST_CELL) if type(cell) is str else cell
