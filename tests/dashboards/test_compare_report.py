"""A comparison in every format, of real recordings and with hostile names."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    Comparison,
    PhaseComparison,
    SetupDifference,
)
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.threshold_expression import parse
from spark_prof.analyzers.comparing.thresholds import check
from spark_prof.dashboards import chart_compare
from spark_prof.dashboards.compare_answer import answer
from spark_prof.dashboards.compare_report import CompareRun, document, render_comparison
from spark_prof.dashboards.section import Layout
from spark_prof.datasets.opened import read_side

DATA = Path(__file__).parents[1] / "data"
HOSTILE = "<script>alert(1)</script>\x1b[31m|`[x](http://x)@you\u202e\n# **b** {{7*7}}"


@cache
def side(name: str) -> ComparedRecording:
    return read_side(str(DATA / name))


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(side("code-h100/dense-awq"), side("code-h100/dense-nvfp4"))


@pytest.fixture(scope="module")
def hostile(found: Comparison) -> Comparison:
    """The same with hostile text wherever a recording can put one."""
    kernels = tuple(replace(row, name=HOSTILE, engine_a=HOSTILE) for row in decode(found).kernels)
    sides = ((replace(found.a, source=HOSTILE),), found.sides[1])
    setup = (SetupDifference("engine", HOSTILE, HOSTILE, HOSTILE),)
    phases = (replace(decode(found), kernels=kernels),)
    return replace(found, sides=sides, phases=phases, setup=setup, notes=(HOSTILE,))


def decode(found: Comparison) -> PhaseComparison:
    phase = found.phase("decode")
    assert phase is not None
    return phase


@pytest.mark.slow
def test_text_fits_its_page_and_has_whole_caveats(found: Comparison, hostile: Comparison) -> None:
    for each, width in product((found, hostile), (60, 80, 100, 200)):
        short = render_comparison(CompareRun((each,)), Layout("text", width))
        text = render_comparison(CompareRun((each,)), Layout("text", width), whole=True)
        tables = short.partition("\nMore\n")[0]  # a command that is broken cannot be copied
        assert max(map(len, (*text.splitlines(), *tables.splitlines()))) <= width
        assert "\x1b" not in text + short
        assert "\u202e" not in text + short
        assert width < 80 or len(short.splitlines()) <= 70
        whole = " ".join(text.split())
        assert [n for n in found.notes if each is found and " ".join(n.split()) not in whole] == []


def test_hostile_names_open_nothing(hostile: Comparison) -> None:
    markdown = render_comparison(CompareRun((hostile,)), Layout("md"))
    assert "<script>" not in markdown
    assert "](http://" not in markdown
    page = render_comparison(CompareRun((hostile,)), Layout("html"))
    assert "<script>alert(1)" not in page
    for drawn in chart_compare.compare_figures((hostile,)).values():
        assert "<script" not in drawn.to_json()


def test_json_is_strict_and_whole(found: Comparison) -> None:
    first, *_ = decode(found).parts
    unknown = Change(1.0, 2.0, 1.0, -math.inf, math.inf)
    phase = replace(decode(found), parts=(replace(first, change=unknown), *decode(found).parts[1:]))
    text = render_comparison(CompareRun((replace(found, phases=(phase,)),)), Layout("json"))
    parsed = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    change = parsed["comparisons"][0]["phases"][0]["parts"][0]["change"]
    assert (change["low"], change["high"], change["share"]) == (None, None, 1.0)


def test_eager_runs_are_compared_by_their_kernels() -> None:
    found = compare(side("code-h100/dense-nvfp4"), side("code-h100/dense-awq"))
    said = answer(found)
    assert said.startswith("the kernels of dense-awq are 7.1 % slower than those of dense-nvfp4: ")
    assert "both ran eagerly, and the step itself, 4.83 ms on dense-nvfp4, 4.49 ms on" in said
    text = render_comparison(CompareRun((found,)), Layout()).partition("What is compared")[0]
    assert "faster" not in text
    assert "launch_gaps" not in text


def test_what_graphs_bring_is_the_step() -> None:
    eager, graphs = "h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs"
    said = answer(compare(side(eager), side(graphs)))
    assert said.startswith(
        "graphs is 95.4 % faster than eager: a decode step at batch 1 takes 71.71"
    )
    assert "eager ran eagerly: the kernels alone take 3.12 ms" in said


@pytest.mark.slow
def test_no_speed_is_told_of_different_models() -> None:
    found = compare(side("h100-gpt-oss-20b-mxfp4-graphs"), side("compare-h100/qwen-graph"))
    said = "are not comparable: they are different models (architectures: GptOssForCausalLM and Q"
    assert said in answer(found)
    text = render_comparison(CompareRun((found,)), Layout()).partition("What is compared")[0]
    assert not re.search("faster|slower|%", text)


def test_sides_are_called_by_their_names_everywhere(found: Comparison) -> None:
    limits = check(found, [parse("kernels > 3%"), parse("coverage.layer < 90%")])
    compared = CompareRun((found,), (limits,))
    for section in document(compared).sections:
        titles = [column.title for column in section.columns]
        assert not [title for title in titles if re.search(r"(^|[ ,])[ab]('s)?( is)?$", title)]
        cells = " ".join(str(cell) for row in section.rows for cell in row)
        told = " ".join((section.title, *section.intro, cells))
        assert not re.search(r"\b([Ss]ide|only|on|from|of|in) [ab]\b(?! [a-z])", told), told
    for drawn in chart_compare.compare_figures((found,)).values():
        [first, *_] = drawn.data
        said = [drawn.layout.title.text, *map(str, first.y)]
        assert not [text for text in said if re.search(r"^[ab]$|\b[ab]'s", text)]


def test_kernels_of_one_name_are_told_apart(found: Comparison) -> None:
    shown = [
        s for s in document(CompareRun((found,))).sections if s.id.startswith("compare_kernels")
    ]
    for section in shown:
        place = [column.title for column in section.columns].index("Component")
        rows = [(row[0], row[place]) for row in section.rows]
        assert len({*rows}) == len(rows)
    [decode, *_] = shown
    assert "marlin::Marlin<128, 4>" in {row[0] for row in decode.rows}
