"""A comparison in every format, of real recordings and with hostile names."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.comparison import (
    Comparison,
    PhaseComparison,
    Setting,
    Side,
)
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.threshold_expression import parse
from spark_prof.analyzers.comparing.thresholds import check
from spark_prof.dashboards import chart_compare
from spark_prof.dashboards.colors import COLORS
from spark_prof.dashboards.compare_gate import by_share, span, verdict
from spark_prof.dashboards.compare_report import (
    Compared,
    answer,
    document,
    render_comparison,
)
from spark_prof.datasets.compared import read_side
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
HOSTILE = "<script>alert(1)</script>\x1b[31m|`[x](http://x)@you\u202e\n# **b** {{7*7}}"


@pytest.fixture(scope="module")
def found() -> Comparison:
    names = ("dense-awq", "dense-nvfp4")
    a, b = (read_side(str(DATA / "code-h100" / name)) for name in names)
    return compare(a, b)


@pytest.fixture(scope="module")
def hostile(found: Comparison) -> Comparison:
    """The same with hostile text wherever a recording can put one."""
    kernels = tuple(replace(row, name=HOSTILE, engine_a=HOSTILE) for row in decode(found).kernels)
    sides = ((replace(found.a, source=HOSTILE),), found.sides[1])
    setup = (Setting("engine", HOSTILE, HOSTILE, HOSTILE),)
    phases = (replace(decode(found), kernels=kernels),)
    return replace(found, sides=sides, phases=phases, setup=setup, notes=(HOSTILE,))


def decode(found: Comparison) -> PhaseComparison:
    phase = found.phase("decode")
    assert phase is not None
    return phase


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_text_fits_its_page(found: Comparison, hostile: Comparison, width: int) -> None:
    for each in (found, hostile):
        text = render_comparison(Compared((each,)), "text", width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_hostile_names_open_nothing(hostile: Comparison) -> None:
    markdown = render_comparison(Compared((hostile,)), "md")
    assert "<script>" not in markdown
    assert "](http://" not in markdown
    page = render_comparison(Compared((hostile,)), "html")
    assert "<script>alert(1)" not in page
    for drawn in chart_compare.compare_figures((hostile,)).values():
        assert "<script" not in drawn.to_json()


def test_json_is_strict_and_whole(found: Comparison) -> None:
    first, *_ = decode(found).parts
    unknown = Change(1.0, 2.0, 1.0, -math.inf, math.inf)
    phase = replace(decode(found), parts=(replace(first, change=unknown), *decode(found).parts[1:]))
    text = render_comparison(Compared((replace(found, phases=(phase,)),)), "json")
    parsed = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    change = parsed["comparisons"][0]["phases"][0]["parts"][0]["change"]
    assert (change["low"], change["high"], change["share"]) == (None, None, 1.0)


def test_the_answer_stands_first(found: Comparison) -> None:
    assert found.names == ("dense-awq", "dense-nvfp4")
    assert answer(found).startswith("dense-nvfp4 is 6.7 % faster than dense-awq: ")
    assert document(Compared((found,))).title == answer(found)
    same = compare(found.a, found.a)
    assert answer(same).startswith("no difference between dense-awq and dense-awq (2) is shown")


@pytest.fixture(scope="module")
def sides() -> dict[str, Side]:
    names = ("code-h100/dense-nvfp4", "code-h100/dense-awq", "compare-h100/qwen-graph",
             "h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs")  # fmt: skip
    return {name.rpartition("/")[2]: read_side(str(DATA / name)) for name in names}


def test_eager_runs_are_compared_by_their_kernels(sides: dict[str, Side]) -> None:
    found = compare(sides["dense-nvfp4"], sides["dense-awq"])
    assert answer(found).startswith("dense-awq is 7.2 % slower than dense-nvfp4: ")
    assert "launches left out: both ran eagerly" in answer(found)
    text = render_comparison(Compared((found,)), "text").partition("What is compared")[0]
    assert "faster" not in text
    assert "launch_gaps" not in text


def test_what_graphs_bring_is_the_step(sides: dict[str, Side]) -> None:
    eager, graphs = "h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs"
    said = answer(compare(sides[eager], sides[graphs]))
    assert said.startswith("graphs is 94.0 % faster than eager: a decode step takes 71.71 ms")
    assert "eager ran eagerly; the kernels alone 3.12 ms" in said


def test_no_speed_is_told_of_different_models(sides: dict[str, Side]) -> None:
    found = compare(sides["h100-gpt-oss-20b-mxfp4-graphs"], sides["qwen-graph"])
    assert "are different models (architectures: GptOssForCausalLM and Qwen3Moe" in answer(found)
    text = render_comparison(Compared((found,)), "text").partition("What is compared")[0]
    assert not re.search("faster|slower|%", text)


def test_several_are_told_apart(found: Comparison) -> None:
    back = compare(found.a, found.a)
    sections = document(Compared((found, back))).sections
    assert len({section.id for section in sections}) == len(sections)
    assert any(section.title.startswith("dense-awq (2): ") for section in sections)


def test_sides_are_called_by_their_names_everywhere(found: Comparison) -> None:
    limits = check(found, [parse("decode_us.median > 3%"), parse("coverage.layer < 90%")])
    compared = Compared((found,), (limits,))
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


def test_caveats_are_whole(found: Comparison) -> None:
    for width in (60, 100, 200):
        text = " ".join(render_comparison(Compared((found,)), "text", width).split())
        assert [note for note in found.notes if " ".join(note.split()) not in text] == []


def test_kernels_of_one_name_are_told_apart(found: Comparison) -> None:
    shown = [s for s in document(Compared((found,))).sections if s.id.startswith("compare_kernels")]
    for section in shown:
        place = [column.title for column in section.columns].index("Component")
        rows = [(row[0], row[place]) for row in section.rows]
        assert len({*rows}) == len(rows)
    [decode, *_] = shown
    assert "marlin::Marlin<128, 4>" in {row[0] for row in decode.rows}


def test_the_waterfall_ends_at_b(found: Comparison) -> None:
    for phase in found.phases:
        [bar] = chart_compare.difference_waterfall(phase).data
        names, lengths, bases = list(bar.y), list(bar.x), list(bar.base)
        assert (names[-1], names[0]) == ("a", "b")
        assert bases[1] + lengths[1] == pytest.approx(phase.like.b)
        assert lengths[-1] + sum(lengths[1:-1]) == pytest.approx(lengths[0])


def test_a_component_has_its_colour(found: Comparison) -> None:
    [bar] = chart_compare.difference_waterfall(decode(found)).data
    colours = dict(zip(bar.y, bar.marker.color, strict=True))
    assert colours["mlp"] == COLORS["mlp"]


def test_the_map_shows_only_what_is_certain(found: Comparison) -> None:
    phase = decode(found)
    [heat] = chart_compare.layer_differences(phase).data
    shown = sum(value is not None for row in heat.z for value in row)
    sure = [row for row in phase.layer_parts if row.layer is not None and row.change.sure]
    assert shown == len(sure)
    assert heat.zmin == -heat.zmax


@each_row(
    ("change", "share", "interval", "word"),
    [
        (Change(100, 110, 10, 5, 15), "+10.0 %", "+5.00 to +15.0 us", "slower"),
        (Change(100, 90, -10, -15, -5), "-10.0 %", "-15.0 to -5.00 us", "faster"),
        (Change(100, 101, 1, -1, 3), "+1.0 %", "-1.00 to +3.00 us", "noise"),
        (Change(0, 5, 5, 4, 6), "new", "+4.00 to +6.00 us", "slower"),
        (Change(1, 2, 1, -math.inf, math.inf), "+100.0 %", "-", "-"),
        (Change(10, 3000, 2990, 900, 5000), "+29900.0 %", "+900.0 us to +5.00 ms", "slower"),
    ],
)
def test_words(change: Change, share: str, interval: str, word: str) -> None:
    assert (by_share(change), span(change), verdict(change)) == (share, interval, word)
