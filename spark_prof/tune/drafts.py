"""Numbers of drafts as candidates: those that `spark-prof speculate` measured to be worth a start.

A step with drafts gives no fixed number of tokens, so an engine that has a drafter is timed by its
tokens, one engine a candidate; which candidates there are says a table of costs that two engines
measured in all.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import set_options
from spark_prof.ab.engine_process import Engine
from spark_prof.ab.measuring import MeasuredShape
from spark_prof.ab.messages import Draft, Drafted, Facts, PromptBatch
from spark_prof.errors import CommandError
from spark_prof.redact import redacted_value
from spark_prof.speculate.acceptance import MOST_DRAFTS, Acceptance, Prompts, given_acceptance
from spark_prof.speculate.best_k import Best, best_of
from spark_prof.speculate.measuring import token_times
from spark_prof.speculate.plan import (
    MOST,
    OPTION,
    drafter_like,
    drafter_of,
    drafts_at,
    served_config,
)
from spark_prof.speculate.proof import prompts_for
from spark_prof.speculate.requests import read_requests
from spark_prof.speculate.speculate_result import SpeculateResult, read_speculate, served_drafts
from spark_prof.traces.resolve import command_of_result
from spark_prof.tune.earlier_results import MOST_FILES, Like, result_files
from spark_prof.tune.tune_trial import Candidate, CandidateTable, UntriedCandidate

SOURCE = "speculation"
_DRAFTER_OPTIONS = ("--speculative-config", "--spec-")
_TOKENS = 96  # of each request
_FEWEST = 3  # generations
_REST = (
    "kernels are switched between steps of one token each, and what suits them needs a recording "
    "of such: tune the engine without its drafter; --try names options to try with it"
)


@dataclass(frozen=True)
class CommandDrafts:
    """What is known of drafts before a tune whose engine has a drafter."""

    config: Mapping[str, Any]  # of the command's drafter
    acceptance: Acceptance | None = None  # None until it is measured
    prompts: Prompts = ()  # of the requests that tell it

    def time(self, engine: Engine, facts: Facts, shape: MeasuredShape, seconds: float) -> float:
        """The time of a token of each request in us, over generations of so many seconds."""
        prompts = prompts_for(self.prompts, shape.requests)
        fixed = self.acceptance if facts.acceptance_fixed and not prompts else None
        batch = PromptBatch(
            shape.requests, shape.prompt_tokens,
            max(8, min(_TOKENS, facts.longest - shape.prompt_tokens - facts.drafts - 1)),
        )  # fmt: skip
        rates = fixed.rates(facts.drafts) if fixed else None
        request = Draft(batch, acceptance=rates, prompts=prompts, to_the_end=True)
        took = 0.0
        times: list[float] = []
        while len(times) <= _FEWEST or took < seconds:
            drafted = engine.ask(request, Drafted, f"timing tokens at batch {shape.requests}")
            took += drafted.seconds
            times.append(token_times(drafted, shape.requests, fixed)[0])
        return median(times[1:])  # the first warms up


def drafting_of(
    command: EngineCommand, requests: Path | None, acceptance: str
) -> CommandDrafts | None:
    """What is known of a command's drafts; None where it has no drafter."""
    if not any(name.startswith(_DRAFTER_OPTIONS) for name in set_options(command.arguments)):
        if requests or acceptance:
            raise CommandError("--requests and --acceptance are of drafts; the command has none")
        return None
    if requests and acceptance:
        raise CommandError("give one of --requests and --acceptance")
    rates = given_acceptance(acceptance) if acceptance else None
    return CommandDrafts(drafter_of(command), rates, read_requests(requests) if requests else ())


def is_drafts(options: Sequence[str]) -> bool:
    """Whether options set nothing but drafts, which decide no answer."""
    return all(name.partition(".")[0] == OPTION for name in set_options(options))


def earlier_table(
    folders: Sequence[Path], like: Like, drafting: CommandDrafts, sizes: Sequence[int]
) -> SpeculateResult | None:
    """The latest result of speculate of this GPU, model and drafter that has these batch sizes.

    What is accepted is what is known now; where that is nothing, what the result says.
    """
    drafter = redacted_value(drafter_like(drafting.config))
    results = []
    files = (path for folder in folders for path in result_files(folder))
    for path in islice(files, MOST_FILES):
        with suppress(CommandError):
            if command_of_result(path) == "speculate":
                result = _judged_anew(read_speculate(path), drafting.acceptance)
                same = drafter_like(result.drafter) == drafter
                if same and like.fits(result.gpu, result.model):
                    results.append(result)
    whole = (r for r in results if set(sizes) <= {best.requests for best in _judged(r)})
    return max(whole, key=lambda result: result.taken, default=None)


def _judged_anew(result: SpeculateResult, acceptance: Acceptance | None) -> SpeculateResult:
    if acceptance is None:
        return result
    bests = (best_of(m.requests, m.context, m.rounds, acceptance) for m in result.measured)
    return replace(result, acceptance=acceptance, bests=tuple(bests))


def draft_candidates(
    result: SpeculateResult, config: Mapping[str, Any], sizes: Sequence[int]
) -> CandidateTable:
    """What a table of speculate leaves to be tried: the best, and what is not told apart from it.

    Args:
        config: of the command's drafter, from which all but the numbers is.
    """
    bests = [best for best in _judged(result) if best.requests in sizes]
    if not bests:
        return CandidateTable((), (UntriedCandidate(OPTION, SOURCE, "no drafts were measured"),))
    context = bests[0].context
    counts = {row.drafts for best in bests for row in best.rows if row.token_us is not None}
    open_counts = {count for best in bests for count in (best.drafts or 0, *best.rivals)}
    served = served_drafts(bests, result.measured, context)
    plans = [served, *({best.requests: count for best in bests} for count in sorted(open_counts))]
    rows: dict[str, Candidate] = {}
    for plan in plans:
        if plan != {best.requests: drafts_at(config, best.requests) for best in bests}:
            row = _candidate(bests, plan, config)
            rows.setdefault(row.words, row)
    left = [
        UntriedCandidate(f"{MOST} {count}", SOURCE, _slower(bests, count))
        for count in sorted(counts - open_counts)
    ]
    ordered = sorted(rows.values(), key=lambda row: -(row.expected_ms or 0.0))
    return CandidateTable(tuple(ordered), (*left, UntriedCandidate("all else", SOURCE, _REST)))


def _judged(result: SpeculateResult) -> list[Best]:
    """What was found at the first context, with numbers that can be."""
    bests = [
        best
        for best in result.bests
        if best.drafts is not None and all(0 <= row.drafts <= MOST_DRAFTS for row in best.rows)
    ]
    return [best for best in bests if best.context == bests[0].context]


def _candidate(
    bests: Sequence[Best], plan: Mapping[int, int], config: Mapping[str, Any]
) -> Candidate:
    option = served_config(config, plan)
    value = "None" if option is None else json.dumps(option, separators=(",", ":"))
    saved = list(_saved_ms(bests, plan, config))
    expected = sum(saved) / len(saved) if len(saved) == len(bests) else None
    words = f"{OPTION} {shlex.quote(value)}"
    return Candidate(words, SOURCE, f"speculate: {_figures(bests, plan)}", "", expected)


def _saved_ms(
    bests: Sequence[Best], plan: Mapping[int, int], config: Mapping[str, Any]
) -> Iterator[float]:
    for best in bests:
        times = {row.drafts: row.token_us for row in best.rows}
        now, then = times.get(drafts_at(config, best.requests)), times.get(plan[best.requests])
        if now is not None and then is not None:
            yield (now - then) / 1e3


def _figures(bests: Sequence[Best], plan: Mapping[int, int]) -> str:
    """Tokens a second over no drafts, by batch size."""
    speeds = {
        best.requests: row.speed.value
        for best in bests
        for row in best.rows
        if row.drafts == plan[best.requests] and row.speed
    }
    words = [f"{speed:.2f} x at batch {requests}" for requests, speed in speeds.items()]
    return f"{', '.join(words)} over no drafts" if words else "no figure"


def _slower(bests: Sequence[Best], count: int) -> str:
    plan = {best.requests: count for best in bests}
    return f"speculate measured it: {_figures(bests, plan)}"
