"""How numbers and names are written."""

from __future__ import annotations

import math
import random
import shlex
from collections.abc import Callable

from spark_prof.dashboards import units
from tests.rows import each_row

from .sample import HOSTILE_NAME


@each_row(
    ("write", "value", "written"),
    [
        *((units.microseconds, *row) for row in (
            (None, "-"), (math.nan, "-"), (0.0, "0 us"), (0.37, "0.37 us"), (9.996, "10.0 us"),
            (812.44, "812.4 us"), (999.96, "1.00 ms"), (12_350.0, "12.35 ms"),
            (999_996.0, "1.00 s"), (-14.8, "-14.8 us"),
        )),
        *((units.share, *row) for row in (
            (None, "-"), (0.1234, "12.3 %"), (0.0001, "<0.1 %"), (0.0, "0.0 %"), (1.0, "100.0 %"),
        )),
        *((units.size, *row) for row in (
            (512, "512 B"), (1536, "1.50 KiB"), (1_158_266_880, "1.08 GiB"),
        )),
        *((units.decimal_size, *row) for row in (
            (0, "0 B"), (512, "512 B"), (5_760, "5.8 kB"), (999_960, "1.0 MB"),
            (26_542_080, "26.5 MB"), (999_949_999, "999.9 MB"), (1_903_564_800, "1.904 GB"),
            (65_168_000_000_000, "65,168.000 GB"),
        )),
        *((units.rate, *row) for row in (
            (0.0, "0.0"), (46.21, "46.2"), (999.96, "1,000"), (1220.4, "1,220"),
        )),
    ],
)  # fmt: skip
def test_figures_are_written_and_know_their_value(
    write: Callable[[float | None], str], value: float | None, written: str
) -> None:
    found = write(value)
    assert found == written
    assert isinstance(found, units.WrittenFigure)
    assert math.isnan(found.value) if written == "-" else found.value == value


@each_row(
    ("numbers", "written"),
    [
        ([], ""), ([5], "5"), ([0, 1], "0-1"), ([0, 2], "0, 2"), (range(24), "0-23"),
        (range(0, 36, 2), "0-34 by 2"), ([3, 0, 1, 2, 7], "0-3, 7"),
        ([1, 3, 5, 9, 10, 11], "1-5 by 2, 9-11"),
    ],
)  # fmt: skip
def test_spans(numbers: list[int], written: str) -> None:
    assert units.spans(numbers) == written


def test_shorten_keeps_both_ends() -> None:
    assert units.shorten("marlin_moe_bf16", 11) == "marl...bf16"
    assert units.shorten("marlin", 6) == "marlin"
    assert [len(units.shorten("x" * 50, width)) for width in range(3, 50)] == list(range(3, 50))


def test_clean_leaves_one_printable_line() -> None:
    cleaned = units.clean(HOSTILE_NAME)
    assert cleaned.isprintable()
    assert "[31m" not in cleaned
    assert "owned" not in cleaned
    assert units.clean("größe 模型") == "größe 模型"


def test_clean_leaves_what_is_quoted_for_a_shell_quoted() -> None:
    pieces = [*"\x1b[]'\"\x07\n #\\\x9bm", "0;", "touch x"]
    signs = random.Random(3)
    for _ in range(3000):
        words = ["".join(signs.choices(pieces, k=signs.randrange(6))) for _ in range(3)]
        drawn = units.clean(shlex.join(["vllm", *words, "end"]))
        found = shlex.split(drawn)
        assert (len(found), found[0], found[-1]) == (5, "vllm", "end"), words
        assert drawn.isprintable()
