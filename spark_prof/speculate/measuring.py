"""Times steps by their number of drafts, in one live engine or several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spark_prof.ab.engine_process import Engine
from spark_prof.ab.messages import Draft, Drafted, DraftStep, Facts, PromptBatch
from spark_prof.ab.timed_steps import middle_mean
from spark_prof.errors import CommandError
from spark_prof.speculate.acceptance import Acceptance
from spark_prof.speculate.plan import Variant, blocks_of

SETTLE = 3
"""First steps of a block that are not counted: what is chosen now is drafted after the step, and
with asynchronous scheduling one step later."""
STEPS = 11  # of a block
_FEWEST = 4  # steps that count, of a number of drafts in a generation
WARM_STEPS = 5


@dataclass(frozen=True)
class LiveDrafts:
    """An engine that runs."""

    variant: Variant
    engine: Engine
    facts: Facts


def measure(live: LiveDrafts, requests: int, context: int, steps: int, length: int) -> Drafted:
    """A generation in which every number of drafts of an engine has its blocks.

    Drafts are all rejected where the engine can do that, so that its requests grow by a token a
    step, whatever is drafted.

    Args:
        steps: of a block.
        length: steps of the generation in all, at least; another engine's may be longer.
    """
    drafts = live.variant.drafts or (0,)
    plan = blocks_of(drafts, max(steps, -(-length // (2 * len(drafts)))))
    batch = PromptBatch(requests, context, sum(count for _, count in plan))
    rates = (0.0,) * live.facts.drafts if live.facts.acceptance_fixed else None
    doing = f"timing batch {requests} after {context} tokens"
    return live.engine.ask(Draft(batch, plan, acceptance=rates), Drafted, doing)


def length_of(variants: Sequence[Variant], steps: int) -> int:
    """The steps of the longest generation of these engines."""
    return max(2 * steps * len(variant.drafts or (0,)) for variant in variants)


def step_times(steps: Sequence[DraftStep], requests: int, settle: int = SETTLE) -> dict[int, float]:
    """The time of a step in us by its number of drafts.

    Only steps count in which exactly the requests decode, each with the same number of drafts, and
    so did those before it. Where a drafter finds fewer for some requests, and no steps of a number
    are alike, those count whose mean is nearest to it.
    """
    uniform: dict[int, list[int]] = defaultdict(list)
    mixed: dict[int, list[int]] = defaultdict(list)
    steady = whole = 0
    for before, step in pairwise(steps):
        whole = whole + 1 if before.requests == step.requests == requests else 0
        same = (before.fewest, before.most) == (step.fewest, step.most)
        steady = steady + 1 if same and whole else 0
        duration = step.at_ns - before.at_ns
        if steady >= settle and step.fewest == step.most:
            uniform[step.most].append(duration)
        elif whole >= settle and step.fewest != step.most:
            mixed[round(step.drafts / requests)].append(duration)
    counted = {count: durations for count, durations in mixed.items() if len(durations) >= _FEWEST}
    counted |= {
        count: durations for count, durations in uniform.items() if len(durations) >= _FEWEST
    }
    return {drafts: middle_mean(durations) / 1e3 for drafts, durations in sorted(counted.items())}


def token_times(
    drafted: Drafted, requests: int, acceptance: Acceptance | None = None
) -> tuple[float, float]:
    """Us a token of each request and tokens a step, of the steps in which exactly these decode.

    Args:
        acceptance: that was fixed: what a step of its drafts gives is known then, and which drafts
            were drawn to be accepted is no noise. None where tokens are counted.
    """
    took, tokens, count = 0, 0.0, 0
    steady = 0
    for before, step in pairwise(drafted.steps):
        steady = steady + 1 if before.requests == step.requests == requests else 0
        if steady >= SETTLE:
            took += step.at_ns - before.at_ns
            if acceptance is not None and step.fewest == step.most:
                tokens += requests * acceptance.tokens(step.most)
            else:
                tokens += step.tokens
            count += 1
    if not tokens:
        raise CommandError(f"no step had {requests} requests that decode; give more tokens")
    return took / 1e3 / (tokens / requests), tokens / requests / count
