"""One screen of a result of `spark-prof ab`."""

from __future__ import annotations

from pathlib import Path

from spark_prof.ab.result import read_result
from spark_prof.dashboards.ab_answer import answer
from spark_prof.dashboards.ab_report import render_ab
from spark_prof.dashboards.section import DocumentBounds, Layout
from tests.rows import each_row

from .ab_sample import AB_SAMPLES

RESULTS = sorted((Path(__file__).parents[2] / "benchmarks" / "results" / "ab").glob("*.json"))


@each_row("path", RESULTS)
def test_the_answer_stands_first_on_one_screen(path: Path) -> None:
    """On a narrow page, which takes the most lines."""
    result = read_result(path)
    drawn = render_ab(result, Layout("text", 80), whole=False)
    assert len(drawn.splitlines()) <= 70
    assert drawn.startswith(answer(result)[:60])
    assert "--all" in drawn


def test_one_screen_has_the_step_and_the_largest_savings() -> None:
    path = next(path for path in RESULTS if path.stem == "gpt-oss-20b-layer-h200")
    result = read_result(path)
    assert len(render_ab(result, Layout("text", 100)).splitlines()) > 70
    for section in ("ab_costs", "ab_setup"):
        bounds = DocumentBounds(None, (section,))
        requested = render_ab(result, Layout("text", 100, bounds=bounds), whole=False)
        assert "--all, and report.html" not in requested
    drawn = render_ab(result, Layout("text", 100), whole=False)
    assert len(drawn.splitlines()) <= 70
    for words in ("experts ", "step  ", "Proof, batch 1: 4 of 6 claims hold; the others:"):
        assert words in drawn
    assert "Kernels that changed most" not in drawn


def test_one_screen_has_the_perplexity_of_a_text_that_was_given() -> None:
    result = AB_SAMPLES["ab_quantized_two_engines"]
    assert any(gate.verdict.figures and gate.verdict.figures.text for gate in result.gates)
    drawn = render_ab(result, Layout("text", 100), whole=False)
    assert "Perplexity of the text" in drawn
    assert "a rounded" not in drawn.partition("Perplexity of the text")[2].partition("\n\n")[0]


def test_no_cell_is_cut_on_a_narrow_page() -> None:
    path = Path(__file__).parents[1] / "data" / "ab-h100" / "result.json"
    assert "…" not in render_ab(read_result(path), Layout("text", 80), whole=False)
