"""The stages of a search: swaps share one engine, options need engines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from itertools import combinations

from spark_prof.ab.statistics import Interval
from spark_prof.tune.bench import ROUNDS, SWAPS_COST, Bench, engine_groups, names
from spark_prof.tune.known_gains import WORTH, swaps_of
from spark_prof.tune.tune_trial import (
    BASE,
    Combination,
    Pair,
    fits,
    name_of,
    over_batches,
    swaps_only,
)

_MOST_SIDES = 10
"""Of one engine: each takes two or three seconds for CUDA graphs of its own."""


def try_swaps(bench: Bench) -> None:
    """All swaps in one engine, each against the base; what is open gets twice the time, and twice.

    Then the faster ones are put together, and held against candidates of several swaps.
    """
    budget, evidence = bench.budget, bench.evidence
    if not bench.swapped:
        return
    if bench.lead and not budget.allows(SWAPS_COST, confirming=2):
        why = f"no time was left beside {bench.lead}, which promises more; give more --minutes"
        bench.leave(bench.swapped, why)
        return
    if not budget.allows(SWAPS_COST):
        bench.leave(bench.swapped, "no time was left; give more --minutes")
        return
    singles: list[Combination] = [(words,) for words in bench.swapped]
    apart = [words for words in bench.swapped if words not in evidence.bundles]
    also = family(BASE, apart, _MOST_SIDES - len(singles))
    seconds = budget.steps_each(len(singles), len(engine_groups(bench.separate)))
    alive = singles
    for number, factor in enumerate(ROUNDS):
        if not alive or (number and not budget.allows_steps(len(alive) * seconds * factor)):
            break
        bench.tell(f"{len(alive)} swaps in one engine, {seconds * factor:.1f} s each", len(alive))
        bench.together(number, [Pair(c) for c in alive], also, seconds * factor)
        alive = [c for c in alive if evidence.is_open(c)]
    won = [c for c in singles if evidence.lasting(c) and evidence.effect(c) == "faster"]
    won.sort(key=lambda c: -evidence.gains[c].value)
    bundles = [c for c in won if c[0] in evidence.bundles]
    joined = _joined(bench, [c for c in won if c not in bundles], 2 * seconds)
    bench.answer.swapped = bench.answer.best = _or_bundle(bench, joined, bundles, 2 * seconds)


def _or_bundle(
    bench: Bench, best: Combination, bundles: Sequence[Combination], seconds: float
) -> Combination:
    """The fastest bundle, where it is faster than what was put together."""
    evidence = bench.evidence
    for bundle in bundles[:1]:
        (words,) = bundle
        if {*swaps_of(words)} == {s for w in best for s in swaps_of(w)}:
            evidence.why[words] = f"the same as {name_of(best)}"
        elif not best or evidence.gains[bundle].value > evidence.gains[best].value:
            if best and bench.budget.allows_steps(seconds):
                bench.together(0, [Pair(bundle, best)], [], seconds)
                trial = evidence.last(bundle, best)
                gain = over_batches(trial.times) if trial else None
                if not gain or evidence.claims(gain) != "faster":
                    evidence.why[words] = f"no faster than {name_of(best)}"
                    continue
            best = bundle
    return best


def _joined(bench: Bench, won: Sequence[Combination], seconds: float) -> Combination:
    """Adds one after another to the best, and keeps what makes it faster.

    Of those that are left the fastest is next; but first those that need no other engine.
    """
    evidence, holds = bench.evidence, bench.measure.holds
    best, rest = (won[0], [words for (words,) in won[1:]]) if won else (BASE, [])
    while rest:
        live = (w for w in rest if holds(bench.ordered((*best, w))))
        words = next(live, rest[0])
        rest.remove(words)
        extended = bench.ordered((*best, words))
        if not fits(best, words):
            evidence.why[words] = f"{name_of(best)} is faster in its place"
            continue
        if not bench.budget.allows_steps(seconds, engines=not holds(extended)):
            evidence.why[words] = f"no time was left to try it with {name_of(best)}"
            continue
        also = map(bench.ordered, family(best, [words, *rest], _MOST_SIDES))
        bench.tell(f"{name_of(extended)} over {name_of(best)}", len(rest) + 1)
        bench.together(0, [Pair(extended, best)], list(also), seconds)
        trial = evidence.last(extended, best)
        gain = over_batches(trial.times) if trial and trial.outcome == "measured" else None
        if gain and evidence.claims(gain) == "faster":
            ends = zip(astuple(evidence.gains[best]), astuple(gain), strict=True)
            evidence.gains[extended] = Interval(*(one * other for one, other in ends))
            best = extended
        else:
            evidence.why[words] = f"brings nothing beside {name_of(best)}"
    return best


def family(current: Combination, rest: Sequence[str], most: int) -> list[Combination]:
    """Combinations that may be asked for when the rest is added one after another.

    Each of the rest stays or not: first come those where all stay, then where one did not.
    """
    members: dict[Combination, None] = {}
    for left_out in range(len(rest)):
        for skipped in combinations(range(len(rest)), left_out):
            grown = current
            for place, words in enumerate(rest):
                if place in skipped or not fits(grown, words):
                    continue
                grown = (*grown, words)
                if len(grown) > 1:
                    members.setdefault(grown)
                if len(members) >= most:
                    return list(members)[: max(most, 0)]
    return list(members)[: max(most, 0)]


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
                together = (*bench.beside(bench.answer.swapped, words), words)
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
    rest = [
        w for w in bench.order if w not in best and evidence.worth((w,)) and bench.fits(best, w)
    ]
    for words in sorted(rest, key=lambda w: -evidence.gains[w,].value):
        extended = bench.ordered((*best, words))
        if not bench.fits(best, words) or extended in evidence.gains or swaps_only(extended):
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
