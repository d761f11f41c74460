"""A run of `spark-prof speculate`: engines, costs, acceptance, the best drafts, and the proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_process import EngineError
from spark_prof.ab.messages import Draft, Drafted, PromptBatch
from spark_prof.ab.refusals import refuse
from spark_prof.ab.setting import Keeper
from spark_prof.errors import CommandError, one_line
from spark_prof.profiler.interrupts import terminated_as_interrupt
from spark_prof.redact import redacted, redacted_value
from spark_prof.speculate.acceptance import Acceptance, counted_acceptance
from spark_prof.speculate.best_k import best_of, chosen_at
from spark_prof.speculate.engines import DraftEngines, SpeculateRun
from spark_prof.speculate.measuring import (
    STEPS,
    WARM_STEPS,
    LiveDrafts,
    length_of,
    measure,
    step_times,
)
from spark_prof.speculate.plan import (
    PLAIN,
    SpeculateOptions,
    Variant,
    drafter_of,
    fixed_variants,
    served_config,
    served_words,
    variants_of,
    with_drafter,
)
from spark_prof.speculate.proof import prove
from spark_prof.speculate.speculate_result import (
    ContextConfig,
    IfAccepted,
    Measured,
    SpeculateResult,
    served_drafts,
    to_json,
)
from spark_prof.traces.claim import Claim

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 40
_RATES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
_PROOF_SHARE = 0.25  # of the time, kept for the proof beside an engine's start


def run_speculate(
    command: EngineCommand,
    options: SpeculateOptions,
    say: Callable[[str], None],
    draw: Callable[[SpeculateResult], str],
) -> SpeculateResult:
    """Measures, judges, proves. What was found before a failure is kept, with the failure's line.

    Raises:
        CommandError: the command or the folder cannot be; nothing was started.
        KeyboardInterrupt: after what was found has been kept.
    """
    refuse(command, ())
    config = drafter_of(command)
    variants = variants_of(config, options.drafts)
    result = SpeculateResult(
        model=command.model,
        engine=tuple(redacted(list(command.text))),
        drafter=redacted_value(config),
        minutes=options.minutes,
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        acceptance=options.acceptance,
    )
    with Claim(options.folder):
        keeper = Keeper(options.folder, result, to_json, draw)
        deadline = time.monotonic() + 60 * options.minutes
        try:
            with (
                terminated_as_interrupt(),
                DraftEngines(command, options, deadline, say) as engines,
            ):
                run = SpeculateRun(command, config, options, keeper, engines, deadline, say)
                Measuring(run).go(variants)
            keeper.set(finished=True)
        except CommandError as error:
            keeper.set(failure=one_line(str(error)))
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            why = "it was stopped" if stopped else one_line(f"{type(error).__name__}: {error}")
            keeper.set(failure=why)
            raise
        finally:
            keeper.write_page()
    return keeper.result


class Measuring:
    """One run, in its engines."""

    def __init__(self, run: SpeculateRun) -> None:
        self._run = run
        self._command, self._config, self._options = run.command, run.config, run.options
        self._keeper, self._engines, self._say = run.keeper, run.engines, run.say
        self._rounds: dict[tuple[int, int], list[dict[int, float]]] = {}
        self._loaded: dict[tuple[int, int], list[float]] = {}
        self._length = 0  # steps of a generation, of the longest engine's

    def go(self, variants: Sequence[Variant]) -> None:
        """Measures in these engines, and in others where vLLM cannot vary the drafts in one."""
        arguments = with_drafter(self._command, self._config)
        self._length = length_of(variants, STEPS)
        together = len(variants) <= max(self._options.at_once, 1)
        if not together:
            self._keeper.miss(
                "engines were alive one after the other, not in turns: how a start differs from "
                f"the next is in the times; --at-once {len(variants)} has all alive, where memory "
                "allows"
            )
        plain: list[LiveDrafts] = []
        groups = [tuple(variants)] if together else [(variant,) for variant in variants]
        for group in groups:
            try:
                lives = self._engines.start(group, arguments)
            except EngineError as error:
                if len(group) < 2 or not self._engines.alone:
                    raise
                self._say(f"the engines are not alive together: {error.fault}")
                self._engines.close()
                self._options = replace(self._options, at_once=1)
                self._engines.one_at_a_time()
                self.go(variants)
                return
            self._keep_facts(lives, together=together)
            if any(live.facts.drafting == "pieces" for live in lives):
                self._engines.close()
                self._say("this engine varies drafts only without whole graphs: one engine each")
                self.go(fixed_variants(self._options.drafts))
                return
            self._measure(lives, len(variants))
            self._accept(lives)
            plain = [live for live in lives if live.variant == PLAIN] if together else []
            self._engines.end([live for live in lives if live not in plain])
        self._judge()
        if self._options.proof:
            prove(replace(self._run, options=self._options), plain)

    def _keep_facts(self, lives: Sequence[LiveDrafts], *, together: bool) -> None:
        facts = lives[-1].facts
        self._keeper.set(
            model=facts.model,
            gpu=facts.gpu or facts.processor,
            vllm=facts.versions.get("vllm", ""),
            execution=facts.execution,
            dummy=facts.dummy,
            together=together,
            engines=self._engines.started,
            start_seconds=self._engines.start_seconds,
        )
        if any(live.facts.drafts and not live.facts.acceptance_fixed for live in lives):
            self._keeper.miss(
                "which drafts are accepted could not be fixed in this engine: requests grow faster "
                "where more are, which is in the times of steps"
            )

    # Costs.

    def _measure(self, lives: Sequence[LiveDrafts], engines: int) -> None:
        shapes = [
            (requests, context)
            for context in self._options.contexts
            for requests in self._options.batch_sizes
        ]
        for number, (requests, context) in enumerate(shapes):
            seconds = min(self._options.seconds, self._share(len(shapes) - number))
            if why := self._impossible(lives, requests, context):
                self._keeper.miss(why)
                continue
            self._say(f"timing batch {requests} after {context} tokens")
            self._time(lives, requests, context, seconds * len(lives) / engines)
            self._keep_measured()

    def _share(self, shapes: int) -> float:
        """Seconds for one of so many shapes, where the proof shall have its time, too."""
        remaining = self._run.deadline - time.monotonic()
        if self._options.proof:
            remaining -= self._engines.start_seconds + _PROOF_SHARE * 60 * self._options.minutes
        return max(remaining, 1.0) / shapes

    def _impossible(self, lives: Sequence[LiveDrafts], requests: int, context: int) -> str:
        """Why the engines cannot run these steps; empty where they can."""
        words = f"batch {requests} after {context} tokens"
        for live in lives:
            facts = live.facts
            grows = 1 if facts.acceptance_fixed else 1 + facts.drafts
            needed = context + self._length * grows + requests
            if needed + facts.drafts > facts.longest:
                return f"{words} needs requests of {needed} tokens; this engine takes " + str(
                    facts.longest
                )
            if requests > facts.most_requests:
                return f"{words}: the engine runs {facts.most_requests} requests at most"
            if facts.cache_tokens and needed * requests > facts.cache_tokens:
                return f"{words}: the KV cache holds {facts.cache_tokens} tokens only"
        return ""

    def _time(
        self, lives: Sequence[LiveDrafts], requests: int, context: int, seconds: float
    ) -> None:
        key = requests, context
        for live in lives:
            measure(live, requests, context, WARM_STEPS, 0)
        rounds: list[dict[int, float]] = []
        loaded: list[float] = []
        begin = time.monotonic()
        while len(rounds) < _MOST_ROUNDS:
            order = lives if len(rounds) % 2 else list(reversed(lives))
            times: dict[int, float] = {}
            for live in order:
                drafted = measure(live, requests, context, STEPS, self._length)
                for drafts, us in step_times(drafted.steps, requests).items():
                    if drafts or live.variant == PLAIN:
                        times[drafts] = us
                    else:
                        loaded.append(us)
            rounds.append(times)
            took = time.monotonic() - begin
            if len(rounds) >= _LEAST_ROUNDS and took + took / len(rounds) > seconds:
                break
        # Of engines that are alive one after the other as many rounds as the shortest had.
        earlier = self._rounds.get(key) or [{} for _ in rounds]
        self._rounds[key] = [a | b for a, b in zip(earlier, rounds, strict=False)]
        self._loaded.setdefault(key, []).extend(loaded)

    def _keep_measured(self) -> None:
        self._keeper.set(
            measured=tuple(
                Measured(requests, context, tuple(rounds), tuple(self._loaded[requests, context]))
                for (requests, context), rounds in self._rounds.items()
            )
        )
        self._judge()

    # Acceptance.

    def _accept(self, lives: Sequence[LiveDrafts]) -> None:
        prompts = self._options.prompts
        drafting = [live for live in lives if live.facts.drafts == max(self._options.drafts)]
        if not prompts or not drafting:
            return
        live = drafting[0]
        self._say(f"drafting for {len(prompts)} of your requests")
        request = Draft(
            PromptBatch(len(prompts), 1, self._options.answer_tokens),
            drafts=live.facts.drafts,
            prompts=prompts,
        )
        drafted = live.engine.ask(request, Drafted, "drafting for your requests")
        self._keeper.set(acceptance=counted_acceptance(drafted.requests, "requests"))

    # What is best.

    def _judge(self) -> None:
        acceptance: Acceptance | None = self._keeper.result.acceptance
        measured = self._keeper.result.measured
        bests = tuple(
            best_of(shape.requests, shape.context, shape.rounds, acceptance) for shape in measured
        )
        rates = () if acceptance else _RATES
        self._keeper.set(
            bests=bests,
            if_accepted=tuple(
                IfAccepted(shape.requests, shape.context, rate, drafts)
                for shape in measured
                for rate in rates
                if (drafts := chosen_at(shape.rounds, rate)) is not None
            ),
        )
        configs = tuple(
            ContextConfig(context, served_config(self._config, best))
            for context in self._options.contexts
            if (best := served_drafts(bests, measured, context))
        )
        if configs and configs[0].context == self._options.contexts[0]:
            config = configs[0].config
            words = redacted(list(served_words(self._command, config)))
            self._keeper.set(config=config, serve=tuple(words), configs=configs)
