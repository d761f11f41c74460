"""What a card to post shows of a report: its verdict, what was recorded, and where the time goes.

Every text and figure is a cell of the report's one screen, so that a card says nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.dashboards.section import Cell, Document, Section

_PARTS, _KERNELS, _CAVEATS = "parts", "decode_kernels", "caveats"
_ON_A_CARD = {
    "Role": "Role", "Kernel": "Kernel", "A step": "A step", "In all": "In all",
    "Of bound": "Of bound", "Evidence": "Evidence",
}  # fmt: skip
"""Columns of kernels for which there is room, and what they are called without the others."""


@dataclass(frozen=True)
class CardBar:
    """One part of the time of a token."""

    name: str
    figures: tuple[str, ...]  # its time and its share, as the report writes them
    length: float  # of the bar, a fraction of 1


@dataclass(frozen=True)
class Card:
    """The texts of a card, from the top down."""

    title: str
    run: str  # the GPU, vLLM's version, the steps
    verdict: tuple[str, ...]
    bars_title: str
    bars: tuple[CardBar, ...]
    table_title: str
    heads: tuple[str, ...]
    numbers: tuple[bool, ...]  # which columns are figures
    rows: tuple[tuple[str, ...], ...]
    caveats: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """All that is written on it."""
        bars = [text for bar in self.bars for text in (bar.name, *bar.figures)]
        cells = [text for row in (self.heads, *self.rows) for text in row]
        above = (self.title, self.run, *self.verdict, self.bars_title, self.table_title)
        return tuple(filter(None, (*above, *bars, *cells, *self.caveats)))


def card_of(document: Document) -> Card:
    """The card of a report's one screen.

    card_of(short_report(report)).verdict[0]
    """
    sections = {section.id: section for section in document.sections}
    parts, kernels = sections.get(_PARTS), sections.get(_KERNELS)
    columns = [
        index
        for index, column in enumerate(kernels.columns if kernels else ())
        if column.title in _ON_A_CARD
    ]
    return Card(
        document.title,
        next(iter(_prose(sections.get("run"))), ""),
        (*filter(None, (document.verdict,)), *_prose(sections.get("verdict"))),
        parts.title if parts else "",
        tuple(map(_bar, parts.rows)) if parts else (),
        kernels.title if kernels else "",
        tuple(_ON_A_CARD[kernels.columns[index].title] for index in columns) if kernels else (),
        tuple(kernels.columns[index].kind == "number" for index in columns) if kernels else (),
        tuple(tuple(str(row[index]) for index in columns) for row in kernels.rows)
        if kernels
        else (),
        _prose(sections.get(_CAVEATS)),
    )


def _prose(section: Section | None) -> tuple[str, ...]:
    return tuple(str(row[0]) for row in section.rows) if section else ()


def _bar(row: tuple[Cell, ...]) -> CardBar:
    """A row of the parts: what it is called, its time and share, and its bar."""
    length = row[-1]
    texts = [str(cell) for cell in row[1:] if not isinstance(cell, float)]
    return CardBar(str(row[0]), tuple(texts), length if isinstance(length, float) else 0.0)
