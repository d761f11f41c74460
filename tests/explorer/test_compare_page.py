"""The pages that compare, drawn for real recordings and results."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.dashboards.compare_report import answer
from spark_prof.datasets.compared import read_side
from spark_prof.datasets.prepared import prepare
from spark_prof.explorer.page import Sources

DATA = Path(__file__).parents[1] / "data"
AWQ, NVFP4 = (str(DATA / "code-h100" / name) for name in ("dense-awq", "dense-nvfp4"))
KINETO = str(DATA / "kineto" / "gpt-oss-eager.json.gz")
SUMS = str(DATA / "proton" / "tree.hatchet")


def _script(page: str, given: object) -> None:
    import importlib

    importlib.import_module(f"spark_prof.explorer.pages.{page}").PAGE.show(given)


def drawn(page: str, given: object, **address: str) -> AppTest:
    app = AppTest.from_function(_script, kwargs={"page": page, "given": given}, default_timeout=60)
    for name, value in address.items():
        app.query_params[name] = value
    return app.run()


def several(*paths: str, place: int = 0) -> Sources:
    found = tuple(prepare(path) for path in paths)
    return Sources(found[place], found, tuple(Path(path).name for path in paths), place)


def said(app: AppTest) -> str:
    assert not app.exception, app.exception
    return "\n".join(element.value for element in (*app.subheader, *app.text))


def test_one_recording_says_how_to_give_two() -> None:
    assert "spark-prof explore BEFORE AFTER" in said(drawn("compare", several(AWQ)))


def test_the_page_says_what_the_command_says() -> None:
    app = drawn("compare", several(AWQ, NVFP4, place=1))
    assert answer(compare(read_side(AWQ), read_side(NVFP4))) in said(app)
    tables = [table.value for table in app.dataframe]
    kernels = next(table for table in tables if "Change, us" in table.columns)
    assert {"only a", "only b", "both"} <= set(kernels["In"])


def test_the_reference_and_the_component_come_from_the_address() -> None:
    sources = several(NVFP4, KINETO, AWQ, place=2)
    app = drawn("compare", sources, other="0", component="mlp")
    assert answer(compare(read_side(NVFP4), read_side(AWQ))) in said(app)
    kernels = next(table.value for table in app.dataframe if "Change, us" in table.value.columns)
    assert set(kernels["Component"]) == {"mlp"}


def test_steps_of_another_phase_can_be_chosen() -> None:
    app = drawn("compare", several(AWQ, NVFP4), phase="prefill")
    assert "Prefill steps" in said(app)


def test_a_foreign_trace_can_be_compared() -> None:
    assert "than a" in said(drawn("compare", several(KINETO, NVFP4))).replace("as a", "than a")


def test_sums_are_refused_in_one_line() -> None:
    app = drawn("compare", several(SUMS, NVFP4))
    assert "sums without steps" in app.exception[0].message


@pytest.mark.parametrize("name", ["ab-h100", "ab-cpu"])
def test_a_result_of_ab_is_drawn(name: str) -> None:
    text = said(drawn("ab", DATA / name / "result.json"))
    assert "Gain" in text
    assert "Side a against itself" in text
