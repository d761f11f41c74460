"""What a result of `spark-prof speculate` says, in every format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.ab.accuracy_gate import GateVerdict
from spark_prof.ab.result import Gate
from spark_prof.dashboards.chart_speculate import speculate_figures
from spark_prof.dashboards.section import Layout
from spark_prof.dashboards.speculate_report import answer_line, document, render_speculate
from spark_prof.errors import CommandError
from spark_prof.speculate.speculate_result import ContextConfig, read_speculate, to_json
from tests.speculate.sample import DRAFTED, ONE, STOPPED, UNKNOWN


def test_the_answer_is_the_first_line() -> None:
    line = answer_line(ONE, typed=True)
    assert line.startswith(
        "k = 2 at batch 1: a token takes 4.84 ms, without drafts 10.10 ms (2.09 x"
    )
    assert line.endswith(
        """; set --speculative-config '{"method": "eagle3", "model": "drafter", """
        """"num_speculative_tokens": 2}'"""
    )
    assert render_speculate(ONE, Layout(), typed=True).startswith("k = 2 at batch 1: a token")
    several = answer_line(DRAFTED, typed=True)
    assert several.startswith("k = 2 at batch 1 (2.09 x, 2.09 to 2.09), no drafts at batch 16; set")


def test_what_a_file_says_is_no_option_to_type() -> None:
    assert "--speculative-config" not in answer_line(DRAFTED)
    assert "recorded as: vllm serve" in " ".join(render_speculate(DRAFTED, Layout()).split())


def test_without_acceptance_there_is_no_answer_but_where_drafts_begin_to_pay() -> None:
    line = answer_line(UNKNOWN)
    assert line.startswith(
        "2 drafts at batch 1 pay from 7.5 % accepted on; 1 draft at batch 16 pay"
    )
    assert "what is accepted is not known: give --requests FILE" in line
    drawn = render_speculate(UNKNOWN, Layout())
    assert "If this much were accepted" in drawn
    assert "The best number of drafts" not in drawn
    never = replace(UNKNOWN, bests=tuple(
        replace(best, rows=tuple(
            replace(row, break_even=row.break_even and replace(row.break_even, value=1.2))
            for row in best.rows
        ))
        for best in UNKNOWN.bests
    ))  # fmt: skip
    assert answer_line(never).startswith("drafts cannot pay at batch 1; drafts cannot pay at batch")
    assert "never" in render_speculate(never, Layout())


def test_numbers_that_are_not_told_apart_are_named() -> None:
    unsure = replace(ONE, bests=(replace(ONE.bests[0], rivals=(1, 3)),))
    assert "not told apart from 1 and 3" in answer_line(unsure)
    nothing = replace(ONE, bests=(replace(ONE.bests[0], rivals=(0,)),), config=None)
    assert answer_line(nothing).endswith("no drafts are certain to be faster than none")


def test_a_run_that_ended_early_says_so() -> None:
    assert answer_line(STOPPED) == "nothing is measured yet (ended early: it was stopped)"
    assert answer_line(replace(DRAFTED, finished=False)).endswith("(not finished)")


@pytest.mark.parametrize("kind", ["text", "md", "html"])
def test_all_sections_are_in_every_format(kind: str) -> None:
    drawn = " ".join(render_speculate(DRAFTED, Layout(kind, 200), typed=True).split())
    for text in ("Cost of a step by its drafts", "Acceptance by position", "A step as a line",
                 "Proof: served as above", "15 of 16, 97.7 %", "Not measured"):  # fmt: skip
        assert text in drawn
    short = render_speculate(DRAFTED, Layout(kind, 200), typed=True, whole=False)
    assert ("A step as a line" in short) == (kind == "html")


def test_json_has_the_result_and_its_answer() -> None:
    record = json.loads(render_speculate(DRAFTED, Layout("json")))
    assert record["answer_line"] == answer_line(DRAFTED)
    assert record["bests"][0]["drafts"] == 2


@pytest.mark.parametrize("result", [DRAFTED, ONE, UNKNOWN, STOPPED])
def test_a_result_is_read_as_it_was_written(result: object, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(to_json(result))  # type: ignore[arg-type]
    assert read_speculate(path) == result
    path.write_bytes(to_json(result)[:300])  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="no result of spark-prof speculate"):
        read_speculate(path)


def test_a_damaged_result_is_refused(tmp_path: Path) -> None:
    assert DRAFTED.acceptance is not None
    path = tmp_path / "result.json"
    for damaged in (
        replace(DRAFTED, bests=(replace(DRAFTED.bests[0], drafts=9),)),
        replace(DRAFTED, bests=(replace(DRAFTED.bests[0], rows=()),)),
        replace(DRAFTED, acceptance=replace(DRAFTED.acceptance, drafted=(1.0,))),
    ):
        path.write_bytes(to_json(damaged))
        with pytest.raises(CommandError, match="is damaged"):
            read_speculate(path)


def test_the_charts_have_every_batch_size_and_mark_the_best() -> None:
    figures = speculate_figures(DRAFTED)
    assert set(figures) == {"spec_costs", "spec_best"}
    lines = figures["spec_best"].data
    assert [line.name for line in lines] == ["batch 1", "batch 16"]
    assert list(lines[0].x) == [0, 1, 2, 3]
    assert [size > 10 for size in lines[0].marker.size] == [False, False, True, False]
    assert set(speculate_figures(UNKNOWN)) == {"spec_costs"}
    assert speculate_figures(STOPPED) == {}


def test_the_commands_own_drafts_stand_against_none() -> None:
    [section] = [part for part in document(DRAFTED).sections if part.id == "spec_why"]
    # Three drafts: 14.5 ms for 2.8 tokens against 10 ms, and 80 ms against 20 ms.
    assert [row[3] for row in section.rows] == ["1.45 x", "4.00 x"]
    assert [row[6] for row in section.rows] == ["60.0 %", "60.0 %"]


def test_a_failed_gate_and_several_contexts_are_told() -> None:
    verdict = GateVerdict(False, "kept", ("other tokens",), (), None, None, None, ())
    failed = replace(DRAFTED, gates=(Gate(1, verdict),), config=None, serve=(), proofs=())
    line = answer_line(failed)
    assert "nothing to set: with drafts the model says something else" in line
    assert "at batch 1 other tokens" in line
    hostile = {"method": "\x1b[31m<script>", "num_speculative_tokens": 1}
    configs = (ContextConfig(128, None), ContextConfig(4096, hostile))
    drawn = render_speculate(replace(DRAFTED, configs=configs), Layout("html"))
    assert "leave it out" in drawn
    assert "31m<script>" not in drawn
    assert "\x1b" not in render_speculate(replace(DRAFTED, configs=configs), Layout("text"))
