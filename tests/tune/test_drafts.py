"""Numbers of drafts as candidates of a tune, from a table that speculate measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.speculate.acceptance import given_acceptance
from spark_prof.speculate.plan import drafts_at
from spark_prof.speculate.speculate_result import to_json
from spark_prof.tune import tune_run
from spark_prof.tune.drafts import CommandDrafts, draft_candidates, earlier_table
from spark_prof.tune.earlier_results import Like
from spark_prof.tune.tune_result import TuneResult, read_tune
from spark_prof.tune.tune_trial import rivals
from tests.ab.engines import Done, run
from tests.speculate.sample import DRAFTED, DRAFTER
from tests.speculate.test_run import ACCEPTED, WORDS

TUNE = ("tune", "--minutes", "8", "--batch-sizes", "1,2", "--timeout", "30")
LIKE = Like("NVIDIA H200", "m")


def tuned(folder: Path, *options: str, **model: Any) -> Done:
    planted = {"drafts": [1000, 1050, 100, ACCEPTED], **model}
    return run(folder, *options, model=planted, words=WORDS, command=TUNE)


def result_of(done: Done) -> TuneResult:
    assert done.code == 0, done.errors
    return read_tune(done.folder / "result.json")


@pytest.mark.slow
def test_the_table_leaves_the_best_and_it_is_confirmed_with_its_interval(tmp_path: Path) -> None:
    done = tuned(tmp_path, "--acceptance=0.8,0.5,0.1")
    result = result_of(done)
    [answer] = result.answer
    assert '"num_speculative_tokens":2' in answer.replace("\\", "")
    for timed in result.times:
        # 1250 us for 2.3 tokens, and 1350 us for 2.4 with the command's own three drafts.
        assert timed.gain
        assert timed.gain.value == pytest.approx((1350 / 2.4) / (1250 / 2.3), rel=0.01)
        assert timed.gain.low > 1
    assert result.serve.count("--speculative-config") == 1
    assert '"num_speculative_tokens":2' in result.serve
    assert [row.verdict for row in result.tried] == ["chosen"]
    left = {row.words for row in result.left_out}
    assert {"num_speculative_tokens 0", "num_speculative_tokens 1", "all else"} <= left
    drafts = (done.folder / "drafts" / "result.json").read_bytes()
    assert b"spark-prof speculate" in drafts


@pytest.mark.slow
def test_a_table_that_is_there_is_taken_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_run, "_gpu", lambda: "none")  # as the engine says
    measured = tuned(tmp_path / "a", "--acceptance=0.8,0.5,0.1")
    known = f"--known={measured.folder}"
    listed = tuned(tmp_path / "b", known, "--list")
    assert "1.84 x at batch" in listed.output  # over no drafts, in lines that the width breaks
    again = tuned(tmp_path / "c", known)
    assert result_of(again).answer == result_of(measured).answer
    assert not (again.folder / "drafts").exists()
    assert "what drafts cost was measured" in again.errors


def test_without_acceptance_nothing_is_started(tmp_path: Path) -> None:
    done = tuned(tmp_path)
    assert done.code == 2
    assert "say what is accepted" in done.errors
    assert not list(done.folder.glob("**/engine-*.log"))
    assert run(tmp_path, "--acceptance=0.5", command=TUNE).code == 2


@pytest.mark.slow
def test_a_drafter_that_does_not_pay_is_left_out_of_what_is_served(tmp_path: Path) -> None:
    done = tuned(tmp_path, "--acceptance=0.1,0.01,0.001", drafts=[1000, 1050, 400, [0.1, 0, 0]])
    result = result_of(done)
    assert result.answer == ("--speculative-config None",)
    assert result.serve == "vllm serve fake"


def test_an_earlier_table_is_of_the_same_drafter_model_and_gpu(tmp_path: Path) -> None:
    for number, result in enumerate((DRAFTED, replace(DRAFTED, taken="2020"))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "result.json").write_bytes(to_json(result))
    (tmp_path / "2.json").write_text('{"kind": "spark-prof speculate", "x": "\x1b[31m"}')

    def found(drafting: CommandDrafts, like: Like = LIKE, sizes: tuple[int, ...] = (1, 16)) -> bool:
        return earlier_table([tmp_path], like, drafting, sizes) is not None

    assert found(CommandDrafts(DRAFTER | {"num_speculative_tokens": 7}))
    assert earlier_table([tmp_path], LIKE, CommandDrafts(DRAFTER), (1,)) == DRAFTED
    assert not found(CommandDrafts(DRAFTER | {"model": "another"}))
    assert not found(CommandDrafts(DRAFTER), Like("NVIDIA GB10", "m"))
    assert not found(CommandDrafts(DRAFTER), sizes=(1, 2))
    # What is accepted now decides, of the same costs.
    nothing = CommandDrafts(DRAFTER, given_acceptance("0,0,0"))
    result = earlier_table([tmp_path], LIKE, nothing, (1, 16))
    assert result
    assert [best.drafts for best in result.bests] == [0, 0]
    broken = replace(DRAFTED.measured[0], rounds=({0: -1.0, 1: 2.0},))
    (tmp_path / "9.json").write_bytes(to_json(replace(DRAFTED, measured=(broken,), taken="9")))
    assert found(CommandDrafts(DRAFTER))


def test_candidates_are_the_best_table_and_what_is_not_told_apart() -> None:
    table = draft_candidates(DRAFTED, DRAFTER, (1, 16))
    first = table.candidates[0]
    assert "[[1,15,2],[16,16,1]]" in first.words
    assert first.expected_ms is not None
    assert "at batch 1" in first.condition
    assert all(rivals(first.words, row.words) for row in table.candidates[1:])
    own = DRAFTER | {"num_speculative_tokens_per_batch_size": [[1, 15, 2], [16, 16, 1]]}
    assert first.words not in [
        row.words for row in draft_candidates(DRAFTED, own, (1, 16)).candidates
    ]
    assert not draft_candidates(replace(DRAFTED, bests=()), DRAFTER, (1,)).candidates


def test_a_file_cannot_ask_for_more_than_numbers(tmp_path: Path) -> None:
    best = DRAFTED.bests[0]
    rows = tuple(replace(row, drafts=row.drafts + 1000) for row in best.rows)
    hostile = replace(DRAFTED, bests=(replace(best, rows=rows, drafts=1000),))
    assert not draft_candidates(hostile, DRAFTER, (1,)).candidates


def test_the_drafts_of_a_table() -> None:
    config = {
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 3, 4], [4, 9, 1]],
    }
    assert [drafts_at(config, size) for size in (1, 3, 4, 30)] == [4, 4, 1, 1]
    assert drafts_at({"num_speculative_tokens": 5}, 1) == 5
    assert drafts_at({"num_speculative_tokens_per_batch_size": [3]}, 1) == 0


def test_both_sources_of_acceptance_are_refused(tmp_path: Path) -> None:
    done = tuned(tmp_path, "--acceptance=0.5", f"--requests={tmp_path}")
    assert done.code == 2
    with pytest.raises(CommandError, match="the command has none"):
        raise CommandError(run(tmp_path, "--acceptance=0.5", command=TUNE).errors)
