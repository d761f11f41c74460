"""The pages that compare, drawn for real recordings and results."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from spark_prof.ab.result import read_result
from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.dashboards.ab_answer import doubts
from spark_prof.dashboards.compare_answer import answer
from spark_prof.dashboards.units import clean
from spark_prof.datasets.opened import read_side
from spark_prof.datasets.prepared import prepare
from spark_prof.explorer.state import Sources
from spark_prof.speculate.speculate_result import to_json as speculate_json
from spark_prof.tune.tune_result import to_json
from tests.explorer.framed import DATA, one_page, texts
from tests.rows import each_row
from tests.speculate.sample import DRAFTED
from tests.tune.sample import TUNED

AWQ, NVFP4 = (str(DATA / "code-h100" / name) for name in ("dense-awq", "dense-nvfp4"))
KINETO = str(DATA / "kineto" / "gpt-oss-eager.json.gz")
SUMS = str(DATA / "proton" / "tree.hatchet")


def several(*paths: str, place: int = 0) -> Sources:
    found = tuple(prepare(path) for path in paths)
    return Sources(found[place], found.__getitem__, tuple(Path(path).name for path in paths), place)


def said(app: AppTest) -> str:
    assert not app.exception, app.exception
    return texts(app)


def test_one_recording_says_how_to_give_two() -> None:
    assert "spark-prof explore BEFORE AFTER" in said(one_page("compare", several(AWQ)))


@pytest.mark.slow
def test_the_page_says_what_the_command_says() -> None:
    app = one_page("compare", several(AWQ, NVFP4, place=1))
    assert answer(compare(read_side(AWQ), read_side(NVFP4))) in said(app)
    tables = [table.value for table in app.dataframe]
    kernels = next(table for table in tables if "Change, us" in table.columns)
    assert {"only dense-awq", "only dense-nvfp4", "both"} <= set(kernels["In"])


@pytest.mark.slow
def test_the_reference_the_steps_and_the_component_come_from_the_address() -> None:
    sources = several(NVFP4, KINETO, AWQ, place=2)
    app = one_page("compare", sources, other="0", component="mlp", phase="prefill")
    assert answer(compare(read_side(NVFP4), read_side(AWQ))) in said(app)
    assert "Prefill steps" in said(app)
    kernels = next(table.value for table in app.dataframe if "Change, us" in table.value.columns)
    assert set(kernels["Component"]) == {"mlp"}


def test_a_foreign_trace_can_be_compared() -> None:
    assert "dense-nvfp4" in said(one_page("compare", several(KINETO, NVFP4)))


def test_sums_are_refused_in_one_line() -> None:
    app = one_page("compare", several(SUMS, NVFP4))
    assert "sums without steps" in app.exception[0].message


@each_row("name", ["ab-h100", "ab-cpu"])
def test_a_result_of_ab_is_drawn(name: str) -> None:
    text = said(one_page("ab", DATA / name / "result.json"))
    assert "Gain" in text
    assert "Side a against itself" in text


def test_a_result_begins_with_its_caveats_and_a_picture() -> None:
    path = DATA / "ab-h100" / "result.json"
    caveats = [clean(text) for text in doubts(read_result(path))]
    assert caveats
    app = one_page("ab", path)
    kinds = [node.type for node in app.main.children.values()]
    first = kinds[: len(caveats) + 3]
    assert first == ["subheader", *["text"] * len(caveats), "html", "plotly_chart"]
    assert [node.value for node in app.text[: len(caveats)]] == caveats


def test_a_result_of_tune_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(to_json(TUNED))
    text = said(one_page("ab", path))
    assert "1.61 x per token at batch 1" in text
    assert "What was tried" in text


def test_a_result_of_speculate_is_drawn_with_its_chart(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(speculate_json(DRAFTED))
    app = one_page("ab", path)
    assert "k = 2 at batch 1" in said(app)
    assert "Cost of a step by its drafts" in said(app)
    kinds = [node.type for node in app.main.children.values()]
    assert kinds.count("plotly_chart") == 2
