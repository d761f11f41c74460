"""What is told of an engine with drafts and swaps, from made-up positions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import drafts_agree
from benchmarks.drafts_agree import batch_lines, swap_lines
from spark_prof.ab.accuracy_gate import Depth, Position
from spark_prof.ab.agreement import bits_of_swaps
from spark_prof.ab.result import RankSwaps, SwappedModule
from spark_prof.errors import CommandError

DEPTH = Depth(4, routed=True)
POSITION = Position(
    step=0, row=0, token_a=7, token_b=7, margin_a=5.0, kl_nats=1e-4, worst=0.01, scale=2.0,
    loss_a=0.5, loss_b=0.501,
)  # fmt: skip
PLAIN = [replace(POSITION, step=step) for step in range(384)]
DRAFTED = [replace(position, behind=position.step % 3) for position in PLAIN]
FLOOR = [replace(position, loss_b=0.4995) for position in PLAIN]
LIVE = SwappedModule("layer", "model.layers.0", "spark_prof!", "a", "live", bits="kept")
BACK = SwappedModule("o", "model.layers.0.o", "spark_prof!", "a", "fell back", "no GPU")


def test_a_batch_size_that_agrees_is_one_line() -> None:
    [(line, good)] = batch_lines(4, DRAFTED, FLOOR, DEPTH)
    assert good
    assert line.startswith(
        "batch 4: 384 positions, 256 behind an accepted draft (KL there 0.0001 nats); "
        "agreement 1.0000, 0 near ties; KL 0.0001 nats of at most "
    )
    assert line.endswith(
        "perplexity 1.6487 stock, 1.6504 with drafts: +0.00100 (standard error 0.00000) nats a "
        "token, floor -0.00050 (standard error 0.00000); gate passed"
    )


def test_without_a_position_behind_a_draft_nothing_is_proven() -> None:
    [(line, good)] = batch_lines(1, PLAIN, FLOOR, DEPTH)
    assert not good
    assert "384 positions, 0 behind an accepted draft; agreement" in line
    assert line.endswith("gate passed")


def test_nothing_is_proven_by_near_ties() -> None:
    [(line, good)] = batch_lines(1, [replace(p, margin_a=0.0) for p in DRAFTED], FLOOR, DEPTH)
    assert not good
    assert "384 near ties" in line


def test_a_fault_behind_drafts_alone_fails_and_is_named() -> None:
    wrong = [replace(p, token_b=9, kl_nats=3.0, worst=9.0) if p.behind else p for p in DRAFTED]
    (line, good), *reasons = batch_lines(8, wrong, FLOOR, DEPTH)
    assert not good
    assert "(KL there 3 nats); agreement 0.3333" in line
    assert line.endswith("gate failed")
    assert reasons
    assert all(text.startswith("batch 8: ") and not reached for text, reached in reasons)


def test_logits_that_are_no_numbers_fail() -> None:
    (line, good), *_ = batch_lines(
        1, [replace(p, kl_nats=float("nan")) for p in DRAFTED], FLOOR, DEPTH
    )
    assert not good
    assert "nothing finite was compared" in line


def test_some_layer_has_to_be_swapped_where_that_was_asked_for() -> None:
    assert [*swap_lines([RankSwaps(0, (LIVE, BACK))], swaps_expected=True)] == [
        ("1 layers swapped, 1 fell back", True),
        ("fell back: o: no GPU", True),
    ]
    assert next(swap_lines([RankSwaps(0, (BACK,))], swaps_expected=True))[1] is False
    assert next(swap_lines([RankSwaps(0)], swaps_expected=False))[1] is True


def test_a_live_swap_with_other_bits_changes_those_of_the_model() -> None:
    assert bits_of_swaps([RankSwaps(0, (LIVE, replace(BACK, bits="changed")))]) == "kept"
    assert bits_of_swaps([RankSwaps(0, (LIVE, replace(LIVE, bits="changed")))]) == "changed"


def test_an_engine_that_fails_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Iterator[tuple[str, bool]]:
        yield "1 layers swapped, 0 fell back", True
        raise CommandError("the engine failed")

    monkeypatch.setattr(drafts_agree, "_compared", fail)
    monkeypatch.setattr(sys, "argv", ["drafts_agree", str(tmp_path / "out")])
    assert drafts_agree.main() == 1
    printed = capsys.readouterr().out
    assert printed == "1 layers swapped, 0 fell back\nthe engine failed  NOT REACHED\n"
    assert (tmp_path / "out/result.txt").read_text(encoding="utf-8") == printed
