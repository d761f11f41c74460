"""The figures and words in the pages are those of the recordings and of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import spark_prof
from spark_prof import vocabulary
from spark_prof.analyzers.clients.client_comparison import AGREES, VERDICTS
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.layer_outliers import threshold
from spark_prof.dashboards.units import microseconds, share
from spark_prof.profiler.settings import Settings
from spark_prof.traces import formats as trace_formats
from spark_prof.traces.benchmarks.load_test import CLOCKS
from spark_prof.traces.bundle import Meta
from tests.docs.pages import CAPTURE, DOCS, ROOT, output, tables
from tests.rows import each_row

EAGER = "tests/data/h100-gpt-oss-20b-mxfp4-eager"
PAIR = ("tests/data/code-h100/dense-fp8-block", "tests/data/code-h100/dense-nvfp4")
GPT_OSS = "tests/data/h100-gpt-oss-20b-mxfp4-graphs"


@cache
def report_of(capture: str) -> Report:
    return spark_prof.report(ROOT / capture)


def text_of(page: str) -> str:
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def test_coverage() -> None:
    for row, capture in zip(
        tables(DOCS / "attribution.md", "Coverage")[1], (EAGER, CAPTURE), strict=True
    ):
        coverage = report_of(capture).coverage
        assert row[1:] == [share(x) for x in (coverage.layer, coverage.component, coverage.engine)]


def test_lower_bounds() -> None:
    for row in tables(DOCS / "roofline.md", "What a kernel needs")[1]:
        roofline = report_of(f"tests/data/{row[0]}").roofline
        phase = roofline.decode if roofline else None
        assert phase is not None
        times = (phase.floor_us, phase.kernels_us, phase.step_us)
        assert row[1:] == [*map(microseconds, times), share(phase.of_floor)]


def test_blocks_of_the_experts_and_of_lm_head() -> None:
    report = report_of(GPT_OSS)
    assert report.shapes is not None
    assert report.roofline is not None
    assert report.roofline.decode is not None
    reached = {(row.name, row.component): row.of_reached for row in report.roofline.decode.rows}
    told = text_of("roofline.md")
    for component, blocks in (("experts", 48), ("lm_head", 132)):
        row = next(r for r in report.shapes.rows if (r.component, r.blocks) == (component, blocks))
        found = reached[row.name, component]
        assert found is not None
        assert f"has {blocks}" in told
        assert f"at {100 * found:.0f} %" in told


def test_the_tutorials_read_the_outputs_as_they_are() -> None:
    def shown(page: str) -> str:
        text = (DOCS / page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
        return " ".join(" ".join(blocks).split())

    prefill = "Parts of a prefill step"
    told = text_of("tutorial-kernel.md") + text_of("tutorial-nvfp4.md")
    for figures, printed in (
        (("39.5 %", "22.7 %", "0.18", "5.9 %"), shown("tutorial-kernel.md")),
        (("310.8 us", "646.1 us"), output(["compare", *PAIR, "--all"]).partition(prefill)[2]),
        (("50.6 %", "71.9 %"), output(["why", PAIR[1], PAIR[0]])),
    ):
        assert [each for each in figures if each not in printed or each not in told] == []


def test_the_threshold_of_outliers() -> None:
    assert f"{threshold(24, 192):.1f} times the scatter" in text_of("attribution.md")


def test_every_word_is_explained() -> None:
    [components] = tables(DOCS / "bundle.md", "Components")
    assert tuple(row[0].strip("`") for row in components) == vocabulary.COMPONENTS
    words = {
        row[0].split(",")[0]: re.findall(r"`([\w-]+)`", row[1])
        for row in tables(DOCS / "bundle.md", "Other words")[0]
    }
    assert {name: tuple(found) for name, found in words.items()} == {
        "phase": vocabulary.PHASES,
        "engine": vocabulary.ENGINES,
        "precision": vocabulary.PRECISIONS,
        "weights": vocabulary.WEIGHTS,
        "conversion": vocabulary.CONVERSIONS,
        "evidence of an engine": vocabulary.EVIDENCE,
        "basis of an owner": vocabulary.BASES,
    }


def test_every_field_of_meta_json_is_explained() -> None:
    found = [
        [row[0].strip("`") for row in table] for table in tables(DOCS / "bundle.md", "meta.json")
    ]
    assert found == [[field.name for field in fields(kind)] for kind in (Meta, Settings)]


def test_a_token_is_a_mean_and_a_typical_step_the_median() -> None:
    """What docs/time.md and docs/query.md say of the example, and the tutorial of its own."""
    report = report_of("spark_prof/example.zip")
    token, step = report.steps.headline, report.steps.decode_us
    assert report.decode_roofline is not None
    floor = report.decode_roofline.floor_us
    assert token is not None
    assert step is not None
    assert floor is not None
    page = text_of("time.md")
    assert f"{share(floor / token.token_us)} of a token's {microseconds(token.token_us)}" in page
    assert f"{share(floor / step.median)} of the median step's {microseconds(step.median)}" in page
    sql = "SELECT median(end_ns - start_ns) / 1e6 AS ms FROM steps WHERE phase = 'decode'"
    ms = float(output(["query", "spark_prof/example.zip", sql]).split()[-1])
    assert f"{microseconds(step.median)} against {ms:.2f} ms" in text_of("query.md")
    tutorial = report_of(PAIR[1]).steps
    assert tutorial.headline is not None
    assert tutorial.decode_us is not None
    assert f"({microseconds(tutorial.decode_us.median)} is the median step; the " in text_of(
        "tutorial-nvfp4.md"
    )
    assert f"{microseconds(tutorial.headline.token_us)} of a token" in text_of("tutorial-nvfp4.md")


def test_every_format_has_a_row() -> None:
    rows = tables(DOCS / "import.md", "Formats")[0]
    found = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    folders = ("BENCHMARK", "BUNDLE", "PIECES", "FOLDER")
    known = {each.name for each in trace_formats.FORMATS}
    assert found == known | {getattr(trace_formats, name) for name in folders}


def test_every_verdict_and_clock_of_clients_is_explained() -> None:
    [verdicts] = tables(DOCS / "clients.md", "How they are compared")
    assert {row[0].strip("`") for row in verdicts} == set(VERDICTS)
    assert f"{100 * AGREES:.0f} %" in verdicts[0][1]
    [files] = tables(DOCS / "clients.md", "Which results")
    assert {row[3] for row in files} == set(CLOCKS)


@each_row("page", ["report.md", "precision.md"])
def test_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        if "sys.exit" not in block:
            exec(compile(block, page, "exec"), names)
    assert names


def test_what_number_formats_hold() -> None:
    pytest.importorskip("torch")
    from spark_prof.kernels import formats

    (types,) = tables(DOCS / "precision.md", "Number formats")
    for name, held, _ in types:
        kind = getattr(formats, name.strip("`"))
        assert re.findall(r"`(\w+)`", held) == [field.name for field in fields(kind)]
