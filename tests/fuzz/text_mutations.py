"""Mutations of CSV and of printed text: cells, quotes, columns and lines."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.fuzz.hostile import NUMBERS, hostile_text

_MANY_COLUMNS = 1_000_000
_LARGEST = 4 << 20


def mutate_text(text: bytes, chance: Random) -> tuple[bytes, str]:
    """The text with some of its lines or cells changed, and what was done."""
    lines = text.decode("utf-8", "replace").split("\n")
    done = []
    for _ in range(chance.choice((1, 2, 5))):
        mutation = chance.choice(_MUTATIONS)
        done.append(mutation.__name__[1:])
        mutation(lines, chance.randrange(len(lines)), chance)
        lines = lines or [""]
    encoding = chance.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1", "utf-8-sig"))
    return "\n".join(lines).encode(encoding, "replace"), ", ".join([*done, encoding])


def _cell(lines: list[str], at: int, chance: Random) -> None:
    cells = lines[at].split(",")
    value = hostile_text(chance) if chance.random() < 0.5 else str(chance.choice(NUMBERS))
    quoted = '"' + value.replace('"', '""') + '"'
    cells[chance.randrange(len(cells))] = chance.choice((value, quoted))
    lines[at] = ",".join(cells)


def _column(lines: list[str], at: int, chance: Random) -> None:
    """One value in a whole column."""
    number, value = chance.randrange(12), str(chance.choice(NUMBERS))
    for i, line in enumerate(lines):
        cells = line.split(",")
        if number < len(cells) and chance.random() < 0.9:
            cells[number] = value
        lines[i] = ",".join(cells)


def _open_quote(lines: list[str], at: int, chance: Random) -> None:
    place = chance.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + chance.choice(('"', '""', "'", '"\n')) + lines[at][place:]


def _columns(lines: list[str], at: int, chance: Random) -> None:
    lines[at] += "," * chance.choice((1, 300, _MANY_COLUMNS))


def _drop(lines: list[str], at: int, chance: Random) -> None:
    del lines[at : at + chance.choice((1, 1, 30))]


def _repeat(lines: list[str], at: int, chance: Random) -> None:
    times = chance.choice((1, 2, 1000))
    lines[at:at] = lines[at : at + 1] * min(times, 1 + _LARGEST // max(len(lines[at]), 1))


def _swap(lines: list[str], at: int, chance: Random) -> None:
    other = chance.randrange(len(lines))
    lines[at], lines[other] = lines[other], lines[at]


def _insert(lines: list[str], at: int, chance: Random) -> None:
    place = chance.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + hostile_text(chance) + lines[at][place:]


def _digits(lines: list[str], at: int, chance: Random) -> None:
    """Every digit of a line becomes many, or none."""
    many = chance.choice(("", "9" * 30, "-", ".", "1e9"))
    lines[at] = "".join(many if c.isdigit() else c for c in lines[at])


_MUTATIONS: tuple[Callable[[list[str], int, Random], None], ...] = (
    _cell, _cell, _column, _open_quote, _columns, _drop, _repeat, _swap, _insert, _digits,
)  # fmt: skip
