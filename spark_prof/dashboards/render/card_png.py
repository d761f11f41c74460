"""Draws a report's card as a PNG of 1,600 by 900 pixels, as posts show pictures."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from spark_prof.dashboards.charts import COLORS, NEUTRAL
from spark_prof.dashboards.section import Cell, Document, Section
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from PIL import ImageDraw as _Drawing
    from PIL.ImageFont import FreeTypeFont


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
        """All texts on the card."""
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


WIDTH, HEIGHT = 1600, 900
_GROUND, _INK, _DIM, _LINE = "#11151b", "#f2f4f7", "#a2aab5", "#303844"
_BOUND, _CAVEAT, _BAR = "#5fb0e8", "#f0b44c", "#232a34"
_LEFT, _RIGHT, _TABLE = 56, WIDTH - 56, 850
_BARS_END = 800
_PLAIN = {"\N{RIGHTWARDS ARROW}": "->", "\N{EM DASH}": "-", "\N{EN DASH}": "-"}
_LONGEST = 400  # characters of a line
NO_PILLOW = "a card is drawn with Pillow, which is not installed: pip install pillow"


def has_pillow() -> bool:
    """Whether a card can be drawn."""
    return find_spec("PIL") is not None


def card_png(card: Card) -> bytes:
    """The picture.

    Raises:
        CommandError: Pillow is not installed.
    """
    if not has_pillow():
        raise CommandError(NO_PILLOW)
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH, HEIGHT), _GROUND)
    pen = _Pen(ImageDraw.Draw(image))
    y = pen.text(_LEFT, 40, card.title, 30, _DIM, _RIGHT)
    first, *rest = card.verdict or ("",)
    y = pen.wrapped(_LEFT, y + 14, first, 38, _INK, _RIGHT, 2)
    for text in rest[:2]:
        y = pen.wrapped(_LEFT, y + 4, text, 26, _INK, _RIGHT, 1)
    y = pen.wrapped(_LEFT, y + 8, card.run, 22, _DIM, _RIGHT, 2)
    pen.draw.line((_LEFT, y + 16, _RIGHT, y + 16), _LINE, 2)
    bottom = HEIGHT - 64 - 30 * min(len(card.caveats), 2)
    _bars(pen, card, y + 32, bottom)
    _table(pen, card, y + 32, bottom)
    y = bottom + 10
    for text in card.caveats[:2]:
        y = pen.text(_LEFT, y, text, 20, _CAVEAT, _RIGHT) + 4
    pen.text(_LEFT, HEIGHT - 42, f"spark-prof {version('spark-prof')}", 20, _DIM, _RIGHT)
    out = BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


class _Pen:
    """Writes lines of text, shortened to their room."""

    def __init__(self, draw: _Drawing.ImageDraw) -> None:
        self.draw = draw

    def font(self, size: int) -> FreeTypeFont:
        from PIL import ImageFont

        return ImageFont.load_default(size)  # type: ignore[return-value]

    def width(self, text: str, size: int) -> float:
        return self.draw.textlength(text, self.font(size))

    def text(
        self, x: float, y: float, text: str, size: int, color: str, end: float, *,
        right: bool = False, middle: bool = False,
    ) -> float:  # fmt: skip
        """One line between two places; returns where the next one begins.

        Args:
            middle: what is too long loses its middle, as two names may differ in their ends.
        """
        whole = _latin(text)

        def cut(length: int) -> str:
            tail = length // 2 if middle else 0
            return f"{whole[: length - tail].rstrip()}...{whole[len(whole) - tail :]}"

        line = whole
        if self.width(whole, size) > end - x:
            fitting = bisect_left(
                range(len(whole)), True, key=lambda length: self.width(cut(length), size) > end - x
            )
            line = cut(max(fitting - 1, 0))
        place = end - self.width(line, size) if right else x
        self.draw.text((place, y), line, color, self.font(size))
        return y + 1.3 * size

    def wrapped(
        self, x: float, y: float, text: str, size: int, color: str, end: float, most: int
    ) -> float:
        """A text in so many lines at most, of which the last is shortened."""
        lines, words = [""], _latin(text).split()
        for word in words:
            longer = f"{lines[-1]} {word}".strip()
            if self.width(longer, size) <= end - x or len(lines) == most:
                lines[-1] = longer
            else:
                lines.append(word)
        for line in lines:
            y = self.text(x, y, line, size, color, end)
        return y


def _latin(text: str) -> str:
    """A text with what the built-in font has: letters of Latin 1."""
    for special, plain in _PLAIN.items():
        text = text.replace(special, plain)
    return " ".join(text[:_LONGEST].encode("latin-1", "replace").decode("latin-1").split())


def _bars(pen: _Pen, card: Card, y: float, bottom: float) -> None:
    """The parts of a token's time, a bar each."""
    y = pen.text(_LEFT, y, card.bars_title, 22, _DIM, _BARS_END) + 8
    step = min((bottom - y) / max(len(card.bars), 1), 48)
    longest = max((bar.length for bar in card.bars), default=0.0) or 1.0
    room = 260  # of a bar
    for bar in card.bars:
        pen.text(_LEFT, y, bar.name, 22, _INK, _LEFT + 200)
        begin = _LEFT + 210
        if bar.length:
            pen.draw.rectangle((begin, y + 4, begin + room, y + 22), _BAR)
            end = begin + max(room * bar.length / longest, 2)
            pen.draw.rectangle((begin, y + 4, end, y + 22), _color(bar.name))
        for place, figure in zip((620, 740), bar.figures, strict=False):
            pen.text(place - 130, y, figure, 22, _INK, place, right=True)
        y += step


def _color(name: str) -> str:
    component = name.replace(" ", "_")
    return _BOUND if name == "lower bound" else COLORS.get(component, NEUTRAL)


def _table(pen: _Pen, card: Card, y: float, bottom: float) -> None:
    """The kernels, whose columns share what room they need."""
    if not card.rows:
        return
    title, _, evidence = card.table_title.partition("; ")
    y = pen.text(_TABLE, y, title, 22, _DIM, _RIGHT)
    if evidence:
        y = pen.text(_TABLE, y, evidence, 20, _DIM, _RIGHT)
    ends = _ends(pen, [card.heads, *card.rows])
    step = min((bottom - y - 8) / (len(card.rows) + 1), 44)
    y += 8
    for number, row in enumerate((card.heads, *card.rows)):
        begin: float = _TABLE
        for place, (cell, end) in enumerate(zip(row, ends, strict=True)):
            color = _DIM if number == 0 else _INK
            pen.text(begin, y, cell, 19, color, end - 14, right=card.numbers[place], middle=True)
            begin = end
        y += step


def _ends(pen: _Pen, rows: Sequence[Sequence[str]]) -> list[float]:
    """Where each column ends: all but the widest get what they need, that one the rest."""
    columns = zip(*rows, strict=True)
    widths = [max(pen.width(_latin(cell), 19) for cell in column) + 16 for column in columns]
    while (spare := _RIGHT - _TABLE - sum(widths)) < 0:
        widest = widths.index(max(widths))
        second = max((width for width in widths if width < widths[widest]), default=0.0)
        widths[widest] -= min(-spare, max(widths[widest] - second, 1.0))
    ends, x = [], float(_TABLE)
    for width in widths:
        x += width
        ends.append(x)
    return ends
