"""Drafts in a real engine: a trained model and a drafter whose drafts are known without running it.

What the engine accepts is held to the texts: greedy drafts are accepted where they are the text.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from spark_prof.ab.accuracy_gate import Depth, Position, judge
from spark_prof.ab.agreement import compare_logits, keep_logits
from spark_prof.ab.command import EngineCommand
from spark_prof.ab.messages import Draft, Drafted, PromptBatch
from spark_prof.speculate.acceptance import counted_acceptance
from spark_prof.speculate.engines import DraftEngines
from spark_prof.speculate.measuring import STEPS, LiveDrafts, length_of, measure, step_times
from spark_prof.speculate.plan import PLAIN, SpeculateOptions, Variant, with_drafter
from tests.engine.conftest import ENVIRONMENT
from tests.small_moe.drafter import counted_followers, library_texts, write_drafter
from tests.small_moe.model import FOLDER, HELD_OUT

MOST = 3
TOKENS = 48


@pytest.fixture(scope="module")
def followers() -> list[int]:
    return counted_followers(library_texts())


@pytest.fixture(scope="module")
def prompts() -> tuple[tuple[int, ...], ...]:
    text = HELD_OUT.read_bytes()
    return tuple(tuple(text[at * 1024 : at * 1024 + 90]) for at in range(4))


def played(
    prompt: tuple[int, ...], text: list[int], followers: list[int], drafts: int
) -> tuple[int, list[int]]:
    """The steps that give a text after its first token, and how many accept each position."""
    steps, accepted = 0, [0] * drafts
    at = 1  # the prefill gave the first
    while at < len(text):
        last, many = text[at - 1], 0
        steps += 1
        while many < drafts and at + many < len(text):
            last = followers[last]
            if last != text[at + many]:
                break
            accepted[many] += 1
            many += 1
        at += many + 1
    return steps, accepted


def test_what_is_accepted_is_what_the_texts_say(
    tmp_path: Path,
    followers: list[int],
    prompts: tuple[tuple[int, ...], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    drafter = write_drafter(tmp_path / "drafter", followers)
    config = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": MOST}
    words = (
        str(FOLDER), "--enforce-eager", "--max-model-len", "900", "--max-num-seqs", "4",
        "--speculative-config", json.dumps(config),
    )  # fmt: skip
    command = EngineCommand(words, (), sys.executable, "model", words)
    options = SpeculateOptions(tmp_path, (1, 2, 3), (2,), (32,), 10.0, 1.0, at_once=1)
    variant = Variant((0, 1, 2, 3), "with")
    texts: dict[int, list[list[int]]] = {}
    logits = (tmp_path / "logits", None, prompts)
    batch = PromptBatch(4, 90, TOKENS)
    with DraftEngines(command, options, time.monotonic() + 800, print) as engines:
        [plain] = engines.start([PLAIN], with_drafter(command, None))
        keep_logits(plain.engine, "", batch, *logits)
        engines.end([plain])
        [live] = engines.start([variant], with_drafter(command, config))
        _check_gate(compare_logits(live.engine, "", batch, *logits))
        assert live.facts.drafting == "chosen"
        assert live.facts.drafts == MOST
        for drafts in range(MOST + 1):
            request = Draft(
                PromptBatch(4, 90, TOKENS), drafts=drafts, prompts=prompts, to_the_end=True
            )
            drafted = live.engine.ask(request, Drafted, "drafting")
            texts[drafts] = drafted.tokens
            assert [len(text) for text in drafted.tokens] == [TOKENS] * 4
            _check(drafted, prompts, followers, drafts)
        _check_blocks(live, variant)
    # A near tie may be rounded otherwise where several tokens are checked at once.
    same = [texts[0][at] == texts[drafts][at] for at in range(4) for drafts in range(1, MOST + 1)]
    assert sum(same) >= len(same) - 2


def _check_gate(positions: tuple[Position, ...]) -> None:
    """The engine without drafts is forced on the one that drafts, and both compute the same."""
    assert len({(position.row, position.step) for position in positions}) == 4 * TOKENS
    assert judge(positions, "kept", depth=Depth(4, routed=True)).passed
    behind = [position for position in positions if position.behind]
    assert len(behind) > TOKENS / 4
    assert judge(behind, "kept", depth=Depth(4, routed=True)).passed


def _check(
    drafted: Drafted, prompts: tuple[tuple[int, ...], ...], followers: list[int], drafts: int
) -> None:
    truth = [
        played(prompt, text, followers, drafts)
        for prompt, text in zip(prompts, drafted.tokens, strict=True)
    ]
    steps = sum(many for many, _ in truth)
    accepted = [sum(row[at] for _, row in truth) for at in range(drafts)]
    assert sum(request.steps for request in drafted.requests) == steps
    counted = [sum(request.accepted[at] for request in drafted.requests) for at in range(MOST)]
    # The last step of a request may accept more than the tokens that it still may have.
    assert counted[drafts:] == [0] * (MOST - drafts)
    for count, exact in zip(counted, accepted, strict=False):
        assert exact <= count <= exact + len(prompts)
    if drafts:
        count = counted_acceptance(drafted.requests, "requests")
        assert count.accepted[0] > 0.1
        assert count.steps == steps


def _check_blocks(live: LiveDrafts, variant: Variant) -> None:
    drafted = measure(live, 2, 32, STEPS, length_of([PLAIN, variant], STEPS))
    assert set(step_times(drafted.steps, 2)) == {0, 1, 2, 3}
    assert all(us > 0 for us in step_times(drafted.steps, 2).values())
