"""The proof: the best drafts, served as they would be, against the engine without drafts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.messages import Draft, Drafted, PromptBatch
from spark_prof.ab.setting import Keeper
from spark_prof.errors import CommandError
from spark_prof.speculate.acceptance import Acceptance
from spark_prof.speculate.engines import DraftEngines
from spark_prof.speculate.measuring import LiveDrafts, token_times
from spark_prof.speculate.plan import PLAIN, SpeculateOptions, Variant, served_config, with_drafter
from spark_prof.speculate.speculate_result import Proof, SpeculateResult, served_drafts
from spark_prof.speculate.step_cost import StepCost, mean_interval

_TOKENS = 96  # of each request
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 12


def prove(
    command: EngineCommand,
    config: dict[str, Any],
    options: SpeculateOptions,
    keeper: Keeper[SpeculateResult],
    engines: DraftEngines,
    deadline: float,
    say: Callable[[str], None],
    plain: Sequence[LiveDrafts],
) -> None:
    """Serves what was chosen and puts tokens a second into the result, or why they are missing.

    Args:
        plain: the engine without drafts, where it is still alive.
    """
    context = options.contexts[0]
    best = served_drafts(keeper.result.bests, keeper.result.measured, context)
    served = served_config(config, best)
    if served is None:
        return
    needed = engines.start_seconds * (1 if plain else 2)
    if time.monotonic() + needed > deadline:
        keeper.miss("the best drafts were not proven: the time was up; give more --minutes")
        return
    variant = Variant(tuple(sorted({*best.values()} - {0})), "proof")
    try:

        def start() -> list[LiveDrafts]:
            return engines.start([variant], with_drafter(command, served), as_served=True)

        def start_plain() -> list[LiveDrafts]:
            return engines.start([PLAIN], with_drafter(command, config))

        if not plain and options.at_once < 2:
            _apart(options, keeper, engines, (start_plain, start), best, context, say)
            return
        lives = [*(plain or start_plain()), *start()]
        pairs = {size: drafts for size, drafts in best.items() if drafts}
        for number, (requests, drafts) in enumerate(pairs.items()):
            say(f"proving k = {drafts} at batch {requests}")
            remaining = (deadline - time.monotonic()) / (len(pairs) - number)
            _prove_at(
                lives, options, keeper, requests, drafts, context, min(remaining, options.seconds)
            )
    except CommandError as error:
        keeper.miss(f"the best drafts were not proven: {error}")


def _apart(
    options: SpeculateOptions,
    keeper: Keeper[SpeculateResult],
    engines: DraftEngines,
    starts: Sequence[Callable[[], list[LiveDrafts]]],  # of the engine without drafts, and with them
    best: dict[int, int],
    context: int,
    say: Callable[[str], None],
) -> None:
    """Two engines one after the other, where memory holds one."""
    generations: list[dict[int, list[Drafted]]] = []
    for begin in starts:
        [live] = begin()
        of_engine: dict[int, list[Drafted]] = {}
        for requests, drafts in best.items():
            if drafts:
                say(f"proving k = {drafts} at batch {requests}")
                _generated(live, options, keeper.result.acceptance, requests, context)
                of_engine[requests] = [
                    _generated(live, options, keeper.result.acceptance, requests, context)
                    for _ in range(_LEAST_ROUNDS)
                ]
        generations.append(of_engine)
        engines.end([live])
    for requests, rounds in generations[0].items():
        _keep(keeper, requests, best[requests], rounds, generations[1][requests])


def _prove_at(
    lives: Sequence[LiveDrafts],
    options: SpeculateOptions,
    keeper: Keeper[SpeculateResult],
    requests: int,
    drafts: int,
    context: int,
    seconds: float,
) -> None:
    acceptance = keeper.result.acceptance
    for live in lives:
        _generated(live, options, acceptance, requests, context)
    of_plain: list[Drafted] = []
    of_served: list[Drafted] = []
    begin = time.monotonic()
    while len(of_plain) < _MOST_ROUNDS:
        order = [(lives[0], of_plain), (lives[1], of_served)]
        for live, into in order if len(of_plain) % 2 else reversed(order):
            into.append(_generated(live, options, acceptance, requests, context))
        took = time.monotonic() - begin
        if len(of_plain) >= _LEAST_ROUNDS and took + took / len(of_plain) > seconds:
            break
    _keep(keeper, requests, drafts, of_plain, of_served)


def _generated(
    live: LiveDrafts,
    options: SpeculateOptions,
    acceptance: Acceptance | None,
    requests: int,
    context: int,
) -> Drafted:
    rates = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    if options.prompts:
        many = len(options.prompts)
        prompts = tuple(options.prompts[at % many] for at in range(requests))
    elif live.facts.acceptance_fixed and acceptance is not None:
        most = live.facts.drafts
        rates = tuple([*acceptance.accepted, *[0.0] * most][:most])
    batch = PromptBatch(requests, context, _TOKENS)
    request = Draft(batch, acceptance=rates, prompts=prompts, to_the_end=True)
    return live.engine.ask(request, Drafted, f"proving batch {requests}")


def _keep(
    keeper: Keeper[SpeculateResult],
    requests: int,
    drafts: int,
    plain: Sequence[Drafted],
    served: Sequence[Drafted],
) -> None:
    of_plain = [token_times(drafted, requests) for drafted in plain]
    of_served = [token_times(drafted, requests) for drafted in served]
    logs = mean_interval([math.log(a[0] / b[0]) for a, b in zip(of_plain, of_served, strict=True)])
    ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
    real = (
        served[0].tokens and keeper.result.acceptance and keeper.result.acceptance.source != "given"
    )
    proof = Proof(
        requests,
        drafts,
        fmean(us for us, _ in of_plain),
        fmean(us for us, _ in of_served),
        StepCost(math.exp(logs.value), *ends),
        fmean(tokens for _, tokens in of_served),
        *(_common_text(plain[0].tokens, served[0].tokens) if real else ()),
    )
    keeper.set(proofs=(*keeper.result.proofs, proof))


def _common_text(
    texts: Sequence[Sequence[int]], other_texts: Sequence[Sequence[int]]
) -> tuple[int, int, int, int]:
    """Texts that are the same, texts, tokens before the first difference, tokens."""
    same = common = total = 0
    for text, other in zip(texts, other_texts, strict=True):
        length = min(len(text), len(other))
        before = next((at for at in range(length) if text[at] != other[at]), length)
        same += before == length
        common += before
        total += length
    return same, len(texts), common, total
