"""`spark-prof report` of what `spark-prof ab` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.ab.result import to_json
from spark_prof.dashboards.ab_report import render_ab
from spark_prof.dashboards.section import Layout
from tests.cli.conftest import Refuses, Run
from tests.dashboards.ab_sample import AB_SAMPLES, FASTER

COMMAND = "report"


@pytest.fixture(autouse=True)
def _result(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(to_json(FASTER))


def test_a_result_is_drawn_and_written(run: Run, tmp_path: Path) -> None:
    for source in ("result.json", "."):
        for kind in ("text", "md", "html", "json"):
            code, out, _ = run(source, "--format", kind)
            drawn = render_ab(FASTER, Layout(kind), whole=False, source="result.json")
            assert (code, out.rstrip("\n")) == (0, drawn.rstrip("\n"))
    whole = render_ab(FASTER, Layout(), source="result.json")
    assert run("result.json", "--all")[1].rstrip("\n") == whole.rstrip("\n")
    assert run("result.json", "-o", "page.html")[0] == 0
    page = render_ab(FASTER, Layout("html"), source="result.json")
    assert (tmp_path / "page.html").read_text() == page


def test_what_is_refused(refuses: Refuses, tmp_path: Path) -> None:
    for option in ("--rank 0", "--bench x.json"):
        refuses(
            f"result.json {option}", "holds a result of spark-prof ab, tune or speculate; --rank"
        )
    (tmp_path / "result.json").write_bytes(to_json(AB_SAMPLES["ab_moved"])[:5000])
    refuses("result.json", "result.json is no result of spark-prof ab")
