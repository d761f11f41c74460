"""What the cells of a column are, and how they are written.

    columns = (cells.Time("A step", "us"), cells.Name("Kernel", "name"))

shows these two attributes of each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from spark_prof.analyzers.classify.classifier import short_names
from spark_prof.dashboards.section import Cell, Column, Kind
from spark_prof.dashboards.units import (
    MISSING,
    ShortName,
    bandwidth,
    count,
    decimal_size,
    figure,
    microseconds,
    nothing_as_missing,
    rate,
    share,
    shorten,
    size,
)  # fmt: skip

Show = str | Callable[[Any], object]
"""An attribute of the record, such as `occupancy.share`, or what makes the value of the record."""


class Quantity(NamedTuple):
    """What a column's cells are: how they are written, and which kind of column that is."""

    kind: Kind
    write: Callable[[Any], Cell]

    def __call__(
        self,
        title: str,
        show: Show,
        *,
        optional: bool = False,
        missing: str | None = None,
        longest: int | None = None,
    ) -> Column:
        """A column of this quantity."""
        value = _of_attribute(show) if isinstance(show, str) else show
        nothing = missing if missing is not None else MISSING if self.kind == "number" else ""

        def cell(record: Any) -> Cell:
            content = value(record)
            if content is None or content == "":
                return nothing
            if longest is not None:
                return shorten(str(content), longest) or nothing
            return self.write(content)

        return Column(title, self.kind, optional, cell)


def _as_is(value: object) -> Cell:
    return value if isinstance(value, str) else str(value)


Time = Quantity("number", microseconds)  # microseconds
SomeTime = Quantity("number", nothing_as_missing)
"""The same where most cells are empty: none has a dash."""
Share = Quantity("number", share)  # fractions of 1
Bytes = Quantity("number", size)
DecimalBytes = Quantity("number", decimal_size)  # in units of 1000, beside bandwidths
Bandwidth = Quantity("number", bandwidth)  # bytes a second
Count = Quantity("number", count)
SomeCount = Quantity("number", lambda number: count(number) if number else MISSING)
Rate = Quantity("number", rate)  # a second
Ratio = Quantity("number", lambda value: figure(value, ".2f"))
Times = Quantity("number", lambda value: figure(value, ".2f", " x"))
Formatted = Quantity("number", _as_is)  # figures that have their units already
Bar = Quantity("bar", float)  # a fraction of 1 as a bar
Text = Quantity("text", _as_is)
Name = Quantity("name", _as_is)
Prose = Quantity("prose", _as_is)


def called(names: Iterable[str]) -> dict[str, ShortName]:
    """What kernels are called beside each other: the short name of each."""
    return {name: ShortName(short, name) for name, short in short_names(names).items()}


def _of_attribute(path: str) -> Callable[[Any], object]:
    """Reads an attribute of an attribute; None where one on the way is None."""
    first, *rest = path.split(".")

    def read(record: Any) -> object:
        attribute = getattr(record, first)
        for name in rest:
            attribute = None if attribute is None else getattr(attribute, name)
        return attribute

    return read
