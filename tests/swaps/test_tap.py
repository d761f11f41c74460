"""The tap matches rows and requests however they are scheduled, and forces side a's tokens."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.swaps.tap import Tap, checksum_of
from tests.rows import each_row

from .toy_worker import (
    DraftingRunner,
    SecondDraftingRunner,
    SecondToyRunner,
    ToyModel,
    ToyRunner,
    ToyWorker,
    generate,
    generate_drafted,
)

PROMPTS = [[5, 9, 2], [7], [1, 1, 4, 8, 3, 9, 6]]
TOKENS = 9
RUNNERS = pytest.mark.parametrize("runner", [ToyRunner, SecondToyRunner])


def tapped(model: ToyModel, runner: type[ToyRunner] = ToyRunner) -> tuple[ToyWorker, Tap]:
    worker = ToyWorker(runner(model), seed=4)
    tap = Tap(worker)
    return worker, tap


def record(path: Path, runner: type[ToyRunner] = ToyRunner) -> list[list[int]]:
    """Records the answers to `PROMPTS` of the model with seed 0."""
    worker, tap = tapped(ToyModel(), runner)
    tap.switch("record", str(path), len(PROMPTS))
    answers = generate(worker, PROMPTS, TOKENS, seed=1)
    tap.switch("off", "", 0)
    return answers


@RUNNERS
@each_row("seed", range(8))
def test_the_same_model_differs_nowhere(tmp_path: Path, runner: type[ToyRunner], seed: int) -> None:
    answers = record(tmp_path / "a", runner)
    worker, tap = tapped(ToyModel(), runner)
    tap.switch("compare", str(tmp_path / "a"), len(PROMPTS))
    assert generate(worker, PROMPTS, TOKENS, seed, name="again") == answers
    compared = tap.compared()
    assert {(c["row"], c["step"]): c["token_a"] for c in compared} == {
        (row, step): token
        for row, answer in enumerate(answers)
        for step, token in enumerate(answer)
    }
    assert all(c["token_a"] == c["token_b"] and c["kl_nats"] == c["worst"] == 0 for c in compared)
    assert tap.compared() == []


@RUNNERS
@each_row("seed", range(8))
def test_another_model_gets_the_same_tokens(
    tmp_path: Path, runner: type[ToyRunner], seed: int
) -> None:
    answers = record(tmp_path / "a", runner)
    worker, tap = tapped(ToyModel(seed=1), runner)
    assert generate(worker, PROMPTS, TOKENS, seed) != answers
    tap.switch("compare", str(tmp_path / "a"), len(PROMPTS))
    assert generate(worker, PROMPTS, TOKENS, seed, name="tapped") == answers
    compared = tap.compared()
    assert len(compared) == TOKENS * len(PROMPTS)
    assert all(c["kl_nats"] > 0 and c["worst"] > 0 for c in compared)
    tap.switch("off", "", 0)
    assert generate(worker, PROMPTS, TOKENS, seed, name="untapped") != answers


@RUNNERS
def test_a_text_is_what_both_sides_go_on_with(tmp_path: Path, runner: type[ToyRunner]) -> None:
    following = [[(3 * row + step) % 10 for step in range(TOKENS)] for row in range(len(PROMPTS))]
    text = [(checksum_of(prompt), more) for prompt, more in zip(PROMPTS, following, strict=True)]
    worker, tap = tapped(ToyModel(), runner)
    tap.switch("record", str(tmp_path / "a"), len(PROMPTS), text)
    assert generate(worker, PROMPTS, TOKENS, seed=1) == following
    tap.switch("off", "", 0)
    for model, alike in ((ToyModel(), True), (ToyModel(seed=1), False)):
        worker, tap = tapped(model, runner)
        tap.switch("compare", str(tmp_path / "a"), len(PROMPTS))
        assert generate(worker, PROMPTS, TOKENS, seed=2, name="b") == following
        found = tap.compared()
        assert all((each["loss_a"] == each["loss_b"]) == alike for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("runner", [DraftingRunner, SecondDraftingRunner])
@pytest.mark.parametrize("ahead", [False, True])
@each_row("seed", range(6))
def test_each_token_has_one_row_however_many_drafts_are_accepted(
    tmp_path: Path, runner: type[ToyRunner], ahead: bool, seed: int
) -> None:
    answers = record(tmp_path / "a")
    chance = random.Random(seed)
    guesses = [[t if chance.random() < 0.7 else (t + 1) % 50 for t in row] for row in answers]
    for model, alike in ((ToyModel(), True), (ToyModel(seed=1), False)):
        worker, tap = tapped(model, runner)
        worker.model_runner.vllm_config = SimpleNamespace(speculative_config=object())  # type: ignore[attr-defined]
        tap.switch("compare", str(tmp_path / "a"), len(PROMPTS))
        assert generate_drafted(worker, PROMPTS, guesses, seed, ahead=ahead) == answers
        compared = {(c["row"], c["step"]): c for c in tap.compared()}
        assert len(compared) == TOKENS * len(PROMPTS)
        assert all((c["kl_nats"] == 0) == alike for c in compared.values())
        behind = [c for (row, step), c in compared.items() if c["behind"]]
        assert behind
        assert all(
            answers[c["row"]][c["step"] - 1] == guesses[c["row"]][c["step"] - 1] for c in behind
        )


def test_a_text_that_ends_too_early_ends_the_tap(tmp_path: Path) -> None:
    worker, tap = tapped(ToyModel())
    tap.switch("record", str(tmp_path / "a"), 1, [(checksum_of(PROMPTS[0]), [1, 2])])
    generate(worker, PROMPTS[:1], 3, seed=1)
    with pytest.raises(CommandError, match="has no token 2 of this prompt"):
        tap.switch("off", "", 0)


@RUNNERS
def test_requests_beyond_the_limit_are_left_alone(tmp_path: Path, runner: type[ToyRunner]) -> None:
    answers = record(tmp_path / "a", runner)
    worker, tap = tapped(ToyModel(seed=1), runner)
    own = generate(worker, PROMPTS, TOKENS, seed=3)
    tap.switch("compare", str(tmp_path / "a"), 2)
    found = generate(worker, PROMPTS, TOKENS, seed=3, name="tapped")
    assert found == [*answers[:2], own[2]]
    assert {c["row"] for c in tap.compared()} == {0, 1}


def test_ranks_that_only_force_tokens_write_and_compare_nothing(tmp_path: Path) -> None:
    answers = record(tmp_path / "a")
    worker = ToyWorker(ToyRunner(ToyModel(seed=1)))
    tap = Tap(worker, first=False)
    tap.switch("compare", str(tmp_path / "a"), len(PROMPTS))
    assert generate(worker, PROMPTS, TOKENS, seed=5) == answers
    assert tap.compared() == []
    tap.switch("record", str(tmp_path / "b"), len(PROMPTS))
    generate(worker, PROMPTS, TOKENS, seed=5, name="more")
    tap.switch("off", "", 0)
    assert not (tmp_path / "b").exists()


WRONG = {
    "another prompt": ([[5, 9, 3]], TOKENS, "had another prompt"),
    "a longer answer": ([PROMPTS[0]], TOKENS + 1, "has no token 9 of request 0"),
    "another request": ([*PROMPTS, [4]], TOKENS, "has no token 0 of request 3"),
}


@pytest.mark.parametrize(("prompts", "tokens", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_was_not_recorded_ends_the_tap_and_not_the_engine(
    tmp_path: Path, prompts: list[list[int]], tokens: int, message: str
) -> None:
    record(tmp_path / "a")
    worker, tap = tapped(ToyModel())
    tap.switch("compare", str(tmp_path / "a"), 100)
    assert len(generate(worker, prompts, tokens, seed=1)) == len(prompts)
    for look in (tap.compared, lambda: tap.switch("off", "", 0)):
        with pytest.raises(CommandError, match=message):
            look()
    tap.switch("compare", str(tmp_path / "a"), 1)
    generate(worker, PROMPTS[:1], TOKENS, seed=1, name="right")
    assert len(tap.compared()) == TOKENS


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "a")
    model = ToyModel()
    model.weight = model.weight[:, :40]
    worker, tap = tapped(model)
    tap.switch("compare", str(tmp_path / "a"), 1)
    generate(worker, PROMPTS[:1], TOKENS, seed=1)
    with pytest.raises(CommandError, match="40 logits a token, recorded 50"):
        tap.compared()


def test_logits_without_a_row_for_each_request_end_the_tap(tmp_path: Path) -> None:
    model = ToyModel()
    compute = model.compute_logits
    model.compute_logits = lambda hidden: compute(hidden[[0, *range(len(hidden))]])  # type: ignore[method-assign]
    worker, tap = tapped(model)
    tap.switch("record", str(tmp_path / "a"), 1)
    with pytest.raises(ValueError, match="longer"):
        generate(worker, PROMPTS[:1], TOKENS, seed=1)
    with pytest.raises(CommandError, match="2 rows of logits came for 1 requests"):
        tap.switch("off", "", 0)


REFUSED = {
    "data parallel": (
        {"parallel_config": SimpleNamespace(data_parallel_size=2)},
        "data parallelism",
    ),
    "pipeline": ({"parallel_config": SimpleNamespace(pipeline_parallel_size=2)}, "pipeline stage"),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_engines_that_cannot_be_tapped(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    tap = Tap(ToyWorker(ToyRunner(ToyModel()), **config))
    with pytest.raises(CommandError, match=message):
        tap.switch("record", str(tmp_path / "a"), 1)


def test_a_recording_without_logits_writes_nothing(tmp_path: Path) -> None:
    _, tap = tapped(ToyModel())
    tap.switch("record", str(tmp_path / "a"), 1)
    with pytest.raises(CommandError, match="no logits came"):
        tap.switch("off", "", 0)
    assert list(tmp_path.iterdir()) == []
