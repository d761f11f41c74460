"""`spark-prof speculate` as a command, against an engine whose steps take what a model says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.speculate.speculate_result import SpeculateResult, read_speculate
from tests.ab.engines import Done, run

CONFIG = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
WORDS = f"serve fake --speculative-config {json.dumps(CONFIG, separators=(',', ':'))}"
SPECULATE = ("speculate", "--drafts", "1,2,3", "--seconds", "0.1", "--timeout", "30")
ACCEPTED = [0.8, 0.5, 0.1]


def speculated(folder: Path, *options: str, **model: Any) -> Done:
    planted = {"drafts": [1000, 1050, 100, ACCEPTED], **model}
    return run(folder, *options, model=planted, words=WORDS, command=SPECULATE)


def result_of(done: Done) -> SpeculateResult:
    assert done.code == 0, done.errors
    result = read_speculate(done.folder / "result.json")
    assert result.finished
    return result


def test_the_best_passes_the_gate_and_is_proven_at_once(tmp_path: Path) -> None:
    result = result_of(
        speculated(tmp_path, "--batch-sizes=1,4", "--acceptance=0.8,0.5,0.1", "--contexts=1k,64")
    )
    assert [(best.requests, best.context, best.drafts) for best in result.bests] == [
        (1, 1024, 2), (4, 1024, 2), (1, 64, 2), (4, 64, 2)
    ]  # fmt: skip
    assert result.config == CONFIG | {"num_speculative_tokens": 2}
    assert [(row.context, row.config) for row in result.configs] == [
        (1024, result.config), (64, result.config)
    ]  # fmt: skip
    assert [(gate.requests, gate.verdict.passed) for gate in result.gates] == [(1, True), (4, True)]
    for proof in result.proofs:
        # A step of 1250 us for 2.3 tokens, against 1000 us for one.
        assert proof.speed.value == pytest.approx(2.3 / 1.25, rel=0.01)
        assert proof.same_texts is None
    for row in result.measured:
        # Without drafts an engine that has a drafter is slower than one that has none.
        assert [times[0] for times in row.rounds] == pytest.approx(
            [1000] * len(row.rounds), rel=0.01
        )
        assert row.loaded_us == pytest.approx([1050] * len(row.rounds), rel=0.01)


def test_what_says_something_else_is_not_set(tmp_path: Path) -> None:
    done = speculated(tmp_path, "--batch-sizes=1", "--acceptance=0.8,0.5,0.1", wrong_drafts=5.0)
    result = result_of(done)
    assert not result.gates[0].verdict.passed
    assert (result.config, result.serve, result.proofs, result.configs) == (None, (), (), ())
    answer = " ".join(done.output.partition("\n\n")[0].split())
    assert "nothing to set: with drafts the model says something else, at batch 1" in answer
    assert not list(done.folder.glob(".logits*"))


def test_where_answers_cannot_be_compared_times_are_taken_all_the_same(tmp_path: Path) -> None:
    done = speculated(tmp_path, "--batch-sizes=1", "--acceptance=0.8,0.5,0.1", fail="Compare")
    result = result_of(done)
    assert result.gates == ()
    assert any("whether drafts change answers at batch 1" in line for line in result.missing)
    assert [proof.drafts for proof in result.proofs] == [2]


def test_of_the_users_requests_texts_are_compared_too(tmp_path: Path) -> None:
    (tmp_path / "requests").write_text("[1, 2, 3]\n[4, 5]\n")
    result = result_of(
        speculated(
            tmp_path, "--batch-sizes=2", f"--requests={tmp_path / 'requests'}", "--at-once=1"
        )
    )
    assert result.acceptance
    assert result.acceptance.accepted == (0.8, 0.5, 0.1)
    [proof] = result.proofs
    assert (proof.same_texts, proof.texts) == (2, 2)
    assert proof.drafts == 2
