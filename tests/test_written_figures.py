"""How figures and names are written: what is read back is the value, and no longer than it says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.analyzers.classify.classifier import kernel_id, short_name, short_names
from spark_prof.dashboards import units

MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SCALES = {
    units.microseconds: {"us": 1, "ms": 1e3, "s": 1e6},
    units.size: {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    units.decimal_size: {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9},
    units.bandwidth: {"GB/s": 1e9},
    units.operations: {"G": 1e9, "T": 1e12},
    units.rate: {"": 1},
}
"""What each unit is of the smallest one that is written."""
AT_MOST = {
    units.microseconds: {"us": 1e3, "ms": 1e3},
    units.size: {"B": 1024, "KiB": 1024, "MiB": 1024, "GiB": 1024},
    units.decimal_size: {"B": 1e3, "kB": 1e3, "MB": 1e3},
    units.operations: {"G": 100.01},
}
"""Below which number a unit is used, where a larger one follows."""
WRITERS = tuple(SCALES)
Writer = Callable[[float], str]


def read(text: str) -> tuple[float, str, int]:
    """A figure's number, unit and digits behind the point."""
    number, _, unit = text.partition(" ")
    digits = len(number.partition(".")[2])
    return float(number.replace(",", "")), unit, digits


@MANY
@given(st.sampled_from(WRITERS), st.floats(-6, 15), st.sampled_from([0.99949, 1.0, 1.0001]))
def test_a_figure_reads_back_as_its_value(write: Writer, power: float, near: float) -> None:
    for value in (10**power, 10 ** round(power) * near, 1024.0 ** (round(power) % 5) * near):
        number, unit, digits = read(write(value))
        scale = SCALES[write][unit]
        value = round(value) if write is units.size else value
        assert number * scale == pytest.approx(value, abs=scale * 0.501 * 10**-digits), value
        assert number < AT_MOST.get(write, {}).get(unit, math.inf), value
        least = min(SCALES[write].values())
        assert scale == least or write is units.bandwidth or number >= 0.099, value


@MANY
@given(st.floats(-3, 9))
def test_a_time_has_three_to_five_digits_and_loses_no_more_than_a_half_per_cent(
    power: float,
) -> None:
    number, unit, _ = read(units.microseconds(10**power))
    scale = SCALES[units.microseconds][unit]
    if power > 0:
        assert number * scale == pytest.approx(10**power, rel=5.1e-3)
    assert unit == "s" or len(re.sub(r"\D", "", units.microseconds(10**power))) <= 5
    assert units.microseconds(-(10**power)) == f"-{units.microseconds(10**power)}"


@MANY
@given(st.floats(-6, 2), st.sampled_from([1, -1]))
def test_a_share_is_in_per_cent_and_nothing_is_written_as_none(power: float, sign: int) -> None:
    text = units.share(sign * 10**power)
    if text.startswith(("<", ">")):
        assert 10**power < 0.0005
        assert text == ("<0.1 %" if sign > 0 else ">-0.1 %")
        return
    assert read(text)[0] / 100 == pytest.approx(sign * 10**power, abs=0.000501)
    assert read(text)[0] != 0
    off = units.difference(1 + sign * 10**power, 1.0)
    assert off[0] in "+-"
    assert read(off)[0] / 100 == pytest.approx(sign * 10**power, abs=0.000501)
    assert units.difference(1.0, 0.0) == units.difference(None, 1.0) == units.MISSING


@MANY
@given(st.sets(st.integers(0, 60), max_size=20))
def test_spans_hold_these_numbers_and_no_others(numbers: set[int]) -> None:
    found: list[int] = []
    for span in filter(None, units.spans(numbers).split(", ")):
        first, last, step = re.fullmatch(r"(\d+)(?:-(\d+))?(?: by (\d+))?", span).groups()  # type: ignore[union-attr]
        members = range(int(first), int(last or first) + 1, int(step or 1))
        assert last is None or members[-1] == int(last)
        assert not step or len(members) > 2
        found += members
    assert found == sorted(numbers)
    runs = sum(1 for number in numbers if number - 1 not in numbers)
    assert units.spans(numbers).count(",") <= max(2 * runs, len(numbers))


@MANY
@given(st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), max_size=40),
       st.integers(3, 45))  # fmt: skip
def test_a_shortened_text_is_as_long_as_there_is_room_and_keeps_both_ends(
    text: str, width: int
) -> None:
    found = units.shorten(text, width)
    assert len(found) == min(len(text), width)
    head, _, tail = found.partition("...") if found != text else (text, "", "")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert found == text or 0 <= len(head) - len(tail) <= 1


@pytest.mark.parametrize("number", [0, 1, 2, 1000])
def test_of_one_there_is_one(number: int) -> None:
    assert units.counted(number, "step") == f"{number:,} step{'s' if number != 1 else ''}"


PARTS = st.lists(st.text("abcXYZ_09", min_size=1, max_size=25), min_size=1, max_size=6)


@MANY
@given(PARTS)
def test_a_name_is_whole_up_to_sixty_characters(parts: list[str]) -> None:
    base = "::".join(f"k{part}" for part in parts)
    name = f"void {base}<int, 4>(float*)"
    found = short_name(name)
    assert len(found) <= 60
    if len(base) <= 60:
        assert found == base
    elif len("::".join(base.split("::")[-2:])) <= 60:
        assert found == "::".join(base.split("::")[-2:])
    else:
        assert found.startswith(found[:40])
        assert base.endswith(found[-17:])
    for length in (59, 60, 61):
        plain = "n" * length
        assert (short_name(plain) == plain) is (length <= 60)
        inside = f"{'n' * (length - 8)}::bb::cc"
        assert short_name(inside) == (inside if length <= 60 else "bb::cc")


@MANY
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.just(7)), min_size=1,
                max_size=6, unique=True))  # fmt: skip
def test_names_that_differ_are_called_otherwise_by_what_differs(given_arguments: object) -> None:
    rows: list[tuple[int, ...]] = list(given_arguments)  # type: ignore[call-overload]
    names = [f"void k<{', '.join(map(str, row))}>(int)" for row in rows]
    found = short_names(names)
    assert len(set(found.values())) == len(names)
    differ = [place for place in range(3) if len({row[place] for row in rows}) > 1]
    for name, row in zip(names, rows, strict=True):
        words = ", ".join(str(row[place]) for place in differ)
        assert found[name] == (f"k<{words}>" if words else "k")
    several = short_names(["void k<1, 2>(int)", "void k<1>(int)"])
    assert all(short == name for name, short in several.items())
    assert len(kernel_id(names[0])) == 10
