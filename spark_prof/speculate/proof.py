"""The proof: the best drafts, served as they would be, against the engine without drafts.

First the gate of `ab`: both engines compute the same tokens, and the logits of each are compared.
What the engine without drafts says is forced on the other, whose drafts are accepted where they are
that; so the rows behind accepted drafts are compared, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import fmean

from spark_prof.ab.accuracy_gate import Depth, Position, judge
from spark_prof.ab.agreement import compare_logits, gate_batch, keep_logits
from spark_prof.ab.measuring import MeasuredShape
from spark_prof.ab.messages import Draft, Drafted, PromptBatch
from spark_prof.ab.result import Gate
from spark_prof.errors import CommandError
from spark_prof.speculate.acceptance import Acceptance, Prompts
from spark_prof.speculate.engines import SpeculateRun
from spark_prof.speculate.measuring import LiveDrafts, token_times
from spark_prof.speculate.plan import PLAIN, Variant, served_config, with_drafter
from spark_prof.speculate.speculate_result import Proof, served_drafts
from spark_prof.speculate.step_cost import StepCost, mean_interval

_TOKENS = 96  # of each request
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 12


def prove(run: SpeculateRun, plain: Sequence[LiveDrafts]) -> None:
    """Serves what was chosen and puts tokens a second into the result, or why they are missing.

    Args:
        plain: the engine without drafts, where it is still alive.
    """
    result, engines = run.keeper.result, run.engines
    best = served_drafts(result.bests, result.measured, run.options.contexts[0])
    served = served_config(run.config, best)
    if served is None:
        return
    if time.monotonic() + engines.start_seconds * (1 if plain else 2) > run.deadline:
        run.keeper.miss("the best drafts were not proven: the time was up; give more --minutes")
        return
    variant = Variant(tuple(sorted({*best.values()} - {0})), "proof")
    start = partial(engines.start, [variant], with_drafter(run.command, served), as_served=True)
    start_plain = partial(engines.start, [PLAIN], with_drafter(run.command, run.config))
    proving = _Proving(run, {size: drafts for size, drafts in best.items() if drafts})
    try:
        if plain or run.options.at_once > 1:
            [*first] = plain or start_plain()
            proving.together(first[0], start()[0])
        else:
            proving.apart(start_plain, start)
    except CommandError as error:
        run.keeper.miss(f"the best drafts were not proven: {error}")
    finally:
        proving.forget()


def prompts_for(prompts: Prompts, requests: int) -> Prompts:
    """The prompts of a batch size: the first ones, repeated where there are fewer."""
    return tuple(prompts[at % len(prompts)] for at in range(requests)) if prompts else ()


class _Proving:
    """The proof at several batch sizes."""

    def __init__(self, run: SpeculateRun, best: dict[int, int]) -> None:
        self._run, self._best = run, best
        self._context = run.options.contexts[0]

    def together(self, plain: LiveDrafts, served: LiveDrafts) -> None:
        """Proves the answer in two engines that live at once, in turns."""
        for number, (requests, drafts) in enumerate(self._best.items()):
            if not self._passes(served, requests, self._floor(plain, requests)):
                return
            remaining = (self._run.deadline - time.monotonic()) / (len(self._best) - number)
            seconds = min(remaining, self._run.options.seconds)
            self._run.say(f"proving k = {drafts} at batch {requests}")
            for live in (plain, served):
                self._generated(live, requests)
            of_plain: list[Drafted] = []
            of_served: list[Drafted] = []
            begin = time.monotonic()
            while len(of_plain) < _MOST_ROUNDS:
                order = [(plain, of_plain), (served, of_served)]
                for live, into in order if len(of_plain) % 2 else reversed(order):
                    into.append(self._generated(live, requests))
                took = time.monotonic() - begin
                if len(of_plain) >= _LEAST_ROUNDS and took + took / len(of_plain) > seconds:
                    break
            self._keep(requests, of_plain, of_served, fixed=served.facts.acceptance_fixed)

    def apart(self, *starts: Callable[[], list[LiveDrafts]]) -> None:
        """Proves the answer in one engine after another, first without drafts."""
        floors: dict[int, tuple[Position, ...]] = {}
        generations: list[dict[int, list[Drafted]]] = []
        for start in starts:
            [live] = start()
            rounds: dict[int, list[Drafted]] = {}
            for requests, drafts in self._best.items():
                if not generations:
                    floors[requests] = self._floor(live, requests)
                elif not self._passes(live, requests, floors[requests]):
                    return
                self._run.say(f"proving k = {drafts} at batch {requests}")
                self._generated(live, requests)
                rounds[requests] = [self._generated(live, requests) for _ in range(_LEAST_ROUNDS)]
            generations.append(rounds)
            self._run.engines.end([live])
        for requests, of_plain in generations[0].items():
            of_served, fixed = generations[1][requests], live.facts.acceptance_fixed
            self._keep(requests, of_plain, of_served, fixed=fixed)

    def forget(self) -> None:
        """Removes the logits."""
        for requests in self._best:
            with suppress(OSError):
                self._logits(requests).unlink()

    # The gate.

    def _floor(self, plain: LiveDrafts, requests: int) -> tuple[Position, ...]:
        """How far the engine without drafts is from itself; its logits are kept."""
        self._run.say(f"comparing what both say at batch {requests}")
        of = "", self._batch(plain, requests), self._logits(requests), None, self._prompts(requests)
        try:
            keep_logits(plain.engine, *of)
            return compare_logits(plain.engine, *of, disturbed=True)
        except CommandError as error:
            return self._miss_gate(plain, requests, error)

    def _passes(self, served: LiveDrafts, requests: int, floor: tuple[Position, ...]) -> bool:
        """Whether the engine with drafts says the same, which goes into the result.

        Where that cannot be told, the result says so, and times are taken all the same.
        """
        if not self._logits(requests).exists():
            return True
        of = "", self._batch(served, requests), self._logits(requests), None
        try:
            positions = compare_logits(served.engine, *of, self._prompts(requests))
        except CommandError as error:
            self._miss_gate(served, requests, error)
            return True
        facts = served.facts
        depth = None if facts.layers is None else Depth(facts.layers, facts.routed)
        verdict = judge(positions, "kept", floor, (), depth)
        behind = sum(position.behind > 0 for position in positions)
        self._run.keeper.add(gates=(Gate(requests, verdict, self._context, behind),))
        if not verdict.passed:
            self._run.say(f"gate, batch {requests}: {verdict.reasons[0]}")
            self._run.keeper.set(config=None, serve=(), configs=())
        return verdict.passed

    def _miss_gate(self, live: LiveDrafts, requests: int, error: CommandError) -> tuple[()]:
        live.engine.check_alive()
        self._run.keeper.miss(f"whether drafts change answers at batch {requests}: {error}")
        return ()

    def _batch(self, live: LiveDrafts, requests: int) -> PromptBatch:
        shape = MeasuredShape("decode", requests, self._context)
        return gate_batch(self._run.options.gate_tokens, shape, live.facts)

    def _logits(self, requests: int) -> Path:
        return self._run.options.folder.absolute() / f".logits-{requests}"

    # Times.

    def _prompts(self, requests: int) -> Prompts:
        return prompts_for(self._run.options.prompts, requests)

    def _generated(self, live: LiveDrafts, requests: int) -> Drafted:
        prompts, rates = self._prompts(requests), None
        if live.facts.acceptance_fixed and (fixed := self._fixed):
            rates = fixed.rates(live.facts.drafts)
        batch = PromptBatch(requests, self._context, _TOKENS)
        request = Draft(batch, acceptance=rates, prompts=prompts, to_the_end=True)
        return live.engine.ask(request, Drafted, f"proving batch {requests}")

    @property
    def _fixed(self) -> Acceptance | None:
        """What is accepted, where the engine can fix that; None of the user's own requests."""
        return None if self._run.options.prompts else self._run.keeper.result.acceptance

    def _keep(
        self, requests: int, plain: Sequence[Drafted], served: Sequence[Drafted], *, fixed: bool
    ) -> None:
        acceptance = self._fixed if fixed else None
        of_plain = [token_times(drafted, requests) for drafted in plain]
        of_served = [token_times(drafted, requests, acceptance) for drafted in served]
        pairs = zip(of_plain, of_served, strict=True)
        logs = mean_interval([math.log(a[0] / b[0]) for a, b in pairs])
        ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
        proof = Proof(
            requests,
            self._best[requests],
            fmean(us for us, _ in of_plain),
            fmean(us for us, _ in of_served),
            StepCost(math.exp(logs.value), *ends),
            fmean(tokens for _, tokens in of_served),
            *(() if acceptance else _common_text(plain[0].tokens, served[0].tokens)),
        )
        self._run.keeper.add(proofs=(proof,))


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
