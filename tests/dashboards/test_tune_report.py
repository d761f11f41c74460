"""The document of a result of `spark-prof tune`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.dashboards.section import Layout
from spark_prof.dashboards.tune_report import answer_line, render_tune
from spark_prof.errors import CommandError
from spark_prof.tune.tune_result import read_tune, to_json
from spark_prof.tune.tune_trial import Answers, UntriedCandidate
from tests.tune.sample import NOTHING, SAME, STOPPED, TIMES, TUNED

OPEN = replace(TIMES[1], gain=TIMES[1].gain and replace(TIMES[1].gain, low=0.9))
KINDS = ("text", "md", "html", "json")


def test_the_answer_is_one_line() -> None:
    told = "moe=spark_prof --x 1: 1.61 x per token at batch 1, 1.34 x per token at batch 8; "
    assert answer_line(TUNED) == f"{told}same answers on 256 positions"
    half = replace(TUNED, times=(TIMES[0], OPEN))
    told = "moe=spark_prof --x 1: 1.61 x per token at batch 1; at batch 8 it is unclear (1.34 x"
    assert answer_line(half).startswith(told)
    assert answer_line(NOTHING).startswith("nothing helps, of 3 candidates tried; moe=spark_prof")
    late = tuple(replace(each, verdict="not tried") for each in NOTHING.tried)
    some = replace(NOTHING, line="", tried=(*NOTHING.tried[:1], *late[1:]))
    told = "nothing helps, of 1 candidate tried; 2 were not tried in this time"
    assert answer_line(some) == told
    none = replace(some, tried=late)
    assert answer_line(none) == "no candidate could be tried in this time"
    early = replace(NOTHING, unconfirmed="moe=spark_prof", line="the time was up")
    seen = "not confirmed: moe=spark_prof, 1.50 x per token in the search; the time was up"
    assert answer_line(early) == seen
    assert answer_line(replace(early, others=1.94)) == (
        f"{seen}; other programs kept up to 1.9 processors busy"
    )
    assert answer_line(replace(early, others=0.1)) == seen
    assert answer_line(STOPPED) == "nothing is confirmed yet (ended early: it was stopped)"


def test_it_is_the_answer_only_at_the_batch_sizes_that_show_it() -> None:
    half = replace(TUNED, times=(TIMES[0], OPEN))
    told = " ".join(render_tune(half, Layout("text", 100), whole=False).split())
    assert "For batch 1. For batch 8 serve the engine as it is" in told
    assert "--batch-sizes 8" in told
    found = json.loads(render_tune(half, Layout("json")))
    assert found["per_batch"] == [
        {"requests": 1, "verdict": "faster"}, {"requests": 8, "verdict": "not told"},
    ]  # fmt: skip
    assert "serve the engine as it is" not in render_tune(TUNED, Layout())


def test_a_side_may_be_wrapped_between_its_words_alone() -> None:
    rows = [UntriedCandidate(words, "vLLM", "why") for words in ("a=b,c=d", "--o=[1,2],x=y")]
    text = render_tune(replace(TUNED, left_out=tuple(rows)), Layout("text", 200))
    assert "a=b, c=d" in text
    assert "--o=[1,2],x=y" in text


def test_where_time_was_lacking_it_says_how_much_is_needed() -> None:
    late = replace(NOTHING, line="", needed_minutes=12, engine_s=95.4)
    assert answer_line(late).endswith(
        "an engine takes about 95 s here, so all of it takes 12 minutes: give --minutes 12"
    )


RESULTS = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("tune-*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_by_default_it_is_one_screen(path: Path) -> None:
    result = read_tune(path)
    for width in (80, 140):
        lines = render_tune(result, Layout("text", width), whole=False).splitlines()
        assert len(lines) <= 70
        assert lines[0].startswith(answer_line(result)[:60])
    whole = render_tune(result, Layout("text", 100))
    assert len(whole.splitlines()) > 70


def test_of_what_was_not_tried_one_screen_says_how_many_and_why() -> None:
    late = tuple(replace(each, verdict="not tried", why="no time") for each in TUNED.tried)
    told = render_tune(replace(NOTHING, tried=late), Layout("text", 100), whole=False)
    assert "3 more not tried: no time." in told
    assert "1, each with its reason: KV cache 1." in told


@pytest.mark.parametrize("whole", [False, True])
def test_one_screen_leaves_the_command_out_of_the_setup(whole: bool) -> None:
    text = render_tune(TUNED, Layout("text", 100), whole=whole)
    heads = {line.partition("  ")[0] for line in text.splitlines()}
    assert {"model", "vLLM", "prompts"} <= heads
    assert ("command" in heads) is whole


def test_of_answers_no_more_is_said_than_is_known() -> None:
    def says(answers: Answers | None) -> str:
        return answer_line(replace(TUNED, answers=answers)).partition("; ")[2]

    assert "nothing is told by 256 positions" in says(replace(SAME, decided=False))
    assert says(replace(SAME, agreement=0.9843)).startswith("98.4 % of 256 positions")
    assert "something else" in says(replace(SAME, agreement=0.9, bits="changed"))
    assert says(None) == "what it says was not compared"


def test_every_format_says_it() -> None:
    for kind in KINDS:
        drawn = " ".join(render_tune(TUNED, Layout(kind, 200)).split())
        for words in ("1.61", "vllm serve m --x 1", "KL is 3 nats", "needs --allow-kv-dtype"):
            assert words in drawn, (kind, words)
        assert "Serve it" not in render_tune(NOTHING, Layout(kind))
    assert json.loads(render_tune(TUNED, Layout("json")))["answer_line"] == answer_line(TUNED)


def test_a_file_is_read_back_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for result in (TUNED, NOTHING, STOPPED):
        path.write_bytes(to_json(result))
        assert read_tune(path) == result
    path.write_bytes(to_json(TUNED)[:500])
    with pytest.raises(CommandError, match="no result of spark-prof tune"):
        read_tune(path)
