"""What a newcomer reads first of each command: an answer, of what is there, in plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.ceilings.ceiling_rows import Question
from spark_prof.analyzers.fallbacks.known_issues import every_known_issue
from spark_prof.analyzers.why import answer_of
from spark_prof.analyzers.why_sides import WhySide, side_of_checkpoint
from spark_prof.dashboards.doctor_report import render_known_issues
from spark_prof.dashboards.section import Layout
from spark_prof.rules.gpus import Gpu, gpu_called
from spark_prof.traces.checkpoint import read_checkpoint
from spark_prof.traces.readers import engine_log
from tests.command_line import ran
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
AB = DATA / "ab-h100"
EXAMPLE = Path(spark_prof.__file__).parent / "example.zip"
MODELS = DATA / "models"


def drawn(*words: object) -> str:
    code, out, err = ran(*words)
    assert code == 0, err
    return out


@pytest.mark.slow
def test_a_swap_is_named_wherever_its_recording_is_looked_at() -> None:
    for words in (("report", AB / "recording-b-1"), ("report", AB / "recording-b-1", "--all"),
                  ("compare", AB / "recording-a-1", AB / "recording-b-1")):  # fmt: skip
        assert "lm_head=mxfp4" in drawn(*words), words
    doctor = drawn("doctor", AB / "recording-b-1")
    assert "spark_prof mxfp4" in doctor
    assert "lm_head is bfloat16" not in doctor


def test_a_result_says_how_to_serve_it_and_passes_no_answers_that_differ() -> None:
    text = drawn("report", AB / "result.json")
    assert f"$ spark-prof ab --apply -- {AB / 'result.json'}" in text
    rows = [line for line in text.splitlines() if line.endswith((" passed", " differs"))]
    assert len(rows) == 2
    for row in rows:  # of a side that computes with other bits
        assert float(row.split(" %")[0].split()[-1]) < 100
        assert row.endswith("differs")
    kept = DATA.parents[1] / "benchmarks/results/ab/gpt-oss-20b-layer-vllm033-h200.json"
    assert "--apply -- " in drawn("report", kept)


def test_the_example_has_its_actions() -> None:
    text = drawn("report", EXAMPLE)
    assert "$ spark-prof ab --b layer=spark_prof,o=spark_prof,lm_head=spark_prof -- MODEL" in text
    assert "put its path for MODEL" in text
    assert f"$ spark-prof export {EXAMPLE} -o " in text
    assert f"$ spark-prof classify {EXAMPLE}" in text
    assert "tensor bf16" in text


@each_row("name", ["ab-h100/recording-b-1", "code-h100/gpt-oss-20b-mxfp4", "compare-h100/gpt-duty",
                   "h100-gpt-oss-20b-mxfp4-eager"])  # fmt: skip
def test_no_finding_leads_to_itself(name: str) -> None:
    for found in spark_prof.report(DATA / name).findings:
        assert "--section findings" not in found.command
        assert "FULL_AND_PIECEWISE" not in found.fix or "already" in found.fix


def test_classify_says_shares_of_time_first() -> None:
    first = drawn("classify", DATA / "code-h100" / "dense-fp8-block").splitlines()[0]
    assert re.match(
        r"83\.0 % of the kernel time is on tensor cores \(bf16 48\.5 %, fp8 34\.5 %\), "
        r"17\.0 % on CUDA cores\.$",
        first,
    )
    assert "kernel time" not in drawn("classify", "--name", "dense")


@each_row("width", [80, 100, 120])
def test_every_known_issue_can_be_read_in_a_terminal(width: int) -> None:
    rows = every_known_issue()
    text = render_known_issues(rows, Layout("text", width))
    assert "…" not in text
    flat = " ".join(text.split())
    for row in rows:
        assert " ".join(row.effect.split())[:40] in flat
    longest = max(len(line) for line in text.splitlines() if "://" not in line)
    assert longest <= width


def test_a_log_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DATA / "logs" / "gpt-oss-20b-mxfp4.log"
    read: list[Path] = []
    original = engine_log.read_engine_log

    def counted(path: Path, *rest: str) -> engine_log.EngineLog:
        read.append(path)
        return original(path, *rest)

    monkeypatch.setattr(engine_log, "read_engine_log", counted)
    for words in (("doctor", log), ("doctor", "--log", log)):
        read.clear()
        assert "W4 mxfp4" in drawn(*words)
        assert len(read) == 1


@each_row(
    ("words", "says"),
    [
        (("doctor", AB / "result.json"), "ask: spark-prof report "),
        (("why", AB / "result.json"), "ask: spark-prof report "),
        (("doctor", "ab", AB / "result.json"), "doctor takes one source"),
        (("doctor", __file__), "is no log of vLLM or SGLang"),
        (("why", __file__), "is no model and no recording"),
    ],
)
def test_what_cannot_be_read_is_told_by_what_can(words: tuple[object, ...], says: str) -> None:
    code, _, err = ran(*words)
    assert code == 2
    assert says in err


def gb10() -> Gpu:
    found = gpu_called("gb10")
    assert found is not None
    return found


def side(name: str) -> WhySide:
    return side_of_checkpoint(read_checkpoint(MODELS / name), name, gb10(), Question(1, 0))


def test_no_part_of_a_difference_is_more_than_the_whole() -> None:
    nvfp4, fp8 = side("qwen3-next-80b-a3b-nvfp4"), side("qwen3-next-80b-a3b-fp8")
    text = " ".join(answer_of([nvfp4, fp8], gb10()))
    # ssm alone differs by more than all weights do.
    assert "most of it is ssm" not in text
    assert "reads 0.77 GB more, the rest of it less" in text
    text = " ".join(answer_of([side("qwen3-next-80b-a3b"), fp8], gb10()))
    assert "most of it is" in text or "the largest part of it is" in text
