"""Stages of a search about options, variables and layers, which need engines of their own."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.tune.bench import Bench, beside, engine_groups, names
from spark_prof.tune.known_gains import WORTH, swaps_of
from spark_prof.tune.tune_trial import BASE, Combination, fits, name_of, swaps_only

_MOST_STARTS = 3


def try_lead(bench: Bench) -> None:
    """Starts what promises most where it needs an engine of its own.

    That comes before all swaps, and with time for one start to confirm it left, not for two: what
    a search has no time for may be the answer, and the first of the table mostly is.
    """
    first = next(iter(bench.order), "")
    if first not in bench.separate or not (swaps_of(first) or first in bench.faster_before):
        return
    group = next(group for group in engine_groups(bench.separate) if first in group)
    unknown = bench.lacks(BASE, 0)
    if not bench.budget.allows(1 + unknown):
        return
    if unknown:
        bench.tell("the engine as it is", len(bench.order))
        bench.start("search", 0, [BASE], starts=1)
    bench.tell(f"{names(group)} in an engine of its own", len(bench.order))
    bench.start("search", 0, [(words,) for words in group], starts=1)
    gains = bench.evidence.gains
    worth = [words for words in group if bench.evidence.worth((words,))]
    bench.lead = max(worth, key=lambda words: gains[words,].value, default="")


def try_engines(bench: Bench) -> None:
    """An engine for each option and variable, with and without the swaps that won.

    One start tells no interval, so the better half is started again.
    """
    alive = list(bench.separate)
    for number in range(_MOST_STARTS):
        tried: list[str] = []
        for group in engine_groups(alive):
            both: dict[Combination, None] = {}
            for words in group:
                together = (*beside(bench.answer.swapped, words), words)
                both |= dict.fromkeys([(words,), bench.ordered(together)])
            lacking = [c for c in both if bench.lacks(c, number)]
            if not lacking:
                tried += group
                continue
            missing = 1 + bench.lacks(BASE, number)
            if not bench.budget.allows(missing, confirming=2):
                if not number:
                    bench.leave(group, "no time for an engine of its own; give more --minutes")
                continue
            if missing > 1:
                bench.tell("the engine as it is, once more", len(alive))
                bench.start("search", number, [BASE])
                if bench.lacks(BASE, number):
                    return  # the base itself does not start any more
            bench.tell(f"{names(group)} in an engine of its own", len(alive) - len(tried))
            bench.start("search", number, lacking)
            tried += group
        alive = _promising(bench, tried)


def _promising(bench: Bench, tried: Sequence[str]) -> list[str]:
    """The better half of those that are open yet."""
    evidence = bench.evidence
    live = [w for w in tried if evidence.lasting((w,)) and evidence.is_open((w,))]
    live = [w for w in live if evidence.gains[w,].value > 1]
    live.sort(key=lambda words: -evidence.gains[words,].value)
    return live[: -(-len(tried) // 2)]


def extend(bench: Bench) -> None:
    """The best that was measured, and what makes it better still, an engine each."""
    evidence, swapped = bench.evidence, bench.answer.swapped
    gains = {c: g.value for c, g in evidence.gains.items() if c and evidence.worth(c)}
    best = max([*gains, swapped], key=lambda c: gains.get(c, 1.0))
    if swapped and gains.get(best, 1.0) < WORTH * evidence.gains[swapped].value:
        best = swapped
    rest = [w for w in bench.order if w not in best and evidence.worth((w,)) and fits(best, w)]
    for words in sorted(rest, key=lambda w: -evidence.gains[w,].value):
        extended = bench.ordered((*best, words))
        if not fits(best, words) or extended in evidence.gains or swaps_only(extended):
            continue
        if not bench.budget.allows(1, confirming=2):
            evidence.why[words] = f"no time was left to try it with {name_of(best)}"
            continue
        bench.tell(f"{name_of(extended)} in an engine of its own", 1)
        bench.start("search", 0, [extended])
        gain, before = evidence.gains.get(extended), evidence.gains.get(best)
        if gain and before and gain.value > WORTH * before.value:
            best = extended
        else:
            evidence.why[words] = f"brings nothing beside {name_of(best)}"
    bench.answer.best = best
