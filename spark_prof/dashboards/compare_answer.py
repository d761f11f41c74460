"""The first sentence of a comparison, and the few figures below it: both of one outcome."""

from __future__ import annotations

import math

from spark_prof.analyzers.comparing.comparison import Comparison, Obstacle, PhaseComparison
from spark_prof.analyzers.comparing.noise import FEWEST, Change
from spark_prof.analyzers.comparing.obstacles import Outcome, change_of, contexts_differ, outcome_of
from spark_prof.analyzers.step_time import GAPS
from spark_prof.dashboards.compare_gate import by_share, by_us, shown_part, span_of_share, why_not
from spark_prof.dashboards.sections.run_section import swapped_words
from spark_prof.dashboards.units import clean, count, microseconds, shorten

LONGEST_NAME = 40  # characters of what a side is called


def answer(comparison: Comparison) -> str:
    """What the comparison comes to, in one sentence, with the sides by name.

    It follows from `outcome_of`: no speed is told of what is not comparable, and where both sides
    ran eagerly the kernels are compared, as launches are the host's.
    """
    outcome = outcome_of(comparison)
    names = shown_names(comparison)
    phase = comparison.phase(outcome.phase)
    assert phase is not None
    if outcome.obstacle is not None:
        return clean(_not_comparable(comparison, phase, outcome.obstacle))
    assert outcome.change is not None
    a, b = names
    change, figures = outcome.change, _figures(comparison, phase, outcome)
    besides = "".join(_besides(comparison, phase, outcome))
    if not change.sure:
        subject = "the kernels of " if "kernels" in outcome.basis else ""
        return clean(
            f"no difference between {subject}{a} and {b} is shown: {figures}{besides}"
            f"{_undecided(change)}"
        )
    by = f"{by_share(change).lstrip('+-')} {outcome.verdict}"
    if "kernels" in outcome.basis:
        return clean(f"the kernels of {b} are {by} than those of {a}: {figures}{besides}")
    return clean(f"{b} is {by} than {a}: {figures}{besides}")


def shown_names(comparison: Comparison) -> tuple[str, str]:
    """What the sides are called in sentences."""
    a, b = (shorten(name, LONGEST_NAME) for name in comparison.names)
    return a, b


def headline(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """The change that the first sentence is about, and the parts that moved most for certain."""
    outcome = outcome_of(comparison)
    phase = comparison.phase(outcome.phase)
    if outcome.change is None or phase is None:
        return ()
    parts = [part for part in phase.parts if "kernels" not in outcome.basis
             or part.name not in GAPS]  # fmt: skip
    slower = next((part for part in parts if part.change.sure and part.change.us > 0), None)
    faster = next((p for p in reversed(parts) if p.change.sure and p.change.us < 0), None)
    change = outcome.change
    interval = f" (95 %: {share})" if (share := span_of_share(change)) else ""
    figures = [(_subject(phase, outcome), f"{by_us(change.us)}, {by_share(change)}{interval}")]
    if slower:
        figures.append((f"{shown_part(slower.name)}, the most slowed", by_us(slower.change.us)))
    if faster:
        figures.append((f"{shown_part(faster.name)}, the most sped up", by_us(faster.change.us)))
    return tuple(figures)


def _subject(phase: PhaseComparison, outcome: Outcome) -> str:
    if outcome.basis == "token":
        return "a token of a sequence"
    if outcome.basis == "kernels by token":
        return "the kernels of a sequence's token"
    one = f"a {phase.one}" if phase.phase == "unknown" else f"the median {phase.one}"
    return f"the kernels of a typical {phase.one}" if outcome.basis == "kernels" else one


def one_step(phase: PhaseComparison) -> str:
    """One of the steps that are compared, with its size: a decode step at batch 1."""
    sizes = sorted(row.size for row in phase.sizes if row.weight)
    if phase.unit == "prompt token":
        return "a prompt token"
    one = f"a {phase.one}"
    if phase.phase == "unknown" or not phase.alike or not sizes:
        return one
    size = count(sizes[0]) if len(sizes) == 1 else f"{count(sizes[0])} to {count(sizes[-1])}"
    return f"{one} at batch {size}" if phase.phase == "decode" else f"{one} of {size} tokens"


def _both(names: tuple[str, str], change: Change) -> str:
    a, b = names
    return f"{microseconds(change.a)} on {a}, {microseconds(change.b)} on {b}"


def _figures(comparison: Comparison, phase: PhaseComparison, outcome: Outcome) -> str:
    """What the change is of, and both sides' figures."""
    assert outcome.change is not None
    both, step = _both(shown_names(comparison), outcome.change), one_step(phase)
    if "token" in outcome.basis:
        subject = "a token's kernels take" if "kernels" in outcome.basis else "a token takes"
        a, b = phase.step_tokens
        return f"{subject} {both} ({step} gives a sequence {a:.2f} and {b:.2f} tokens)"
    if outcome.basis == "kernels":
        return f"those of {step} take {both}"
    return f"{step} takes {both}"


def _besides(comparison: Comparison, phase: PhaseComparison, outcome: Outcome) -> list[str]:
    """What else belongs to the sentence: means, eager sides, contexts, few steps."""
    names, change = shown_names(comparison), outcome.change
    assert change is not None
    clauses = []
    if max(map(len, comparison.sides)) > 1:
        clauses.append(
            f", means of {' and '.join(str(len(side)) for side in comparison.sides)} recordings"
        )
    if "kernels" in outcome.basis:
        clauses.append(
            f"; both ran eagerly, and the step itself, {_both(names, phase.like)}, is as fast "
            "as the host launches"
        )
    else:
        eager = [name for name, is_eager in zip(names, comparison.eager, strict=True) if is_eager]
        kernels = change_of(phase, "kernels by token" if outcome.basis == "token" else "kernels")
        if eager:
            clauses.append(
                f"; {eager[0]} ran eagerly: the kernels alone take {_both(names, kernels)}"
            )
        elif kernels.sure and kernels.a > 0 and not _same_way(kernels, change):
            word = "slower" if kernels.us > 0 else "faster"
            clauses.append(f"; the kernels alone are {by_share(kernels).lstrip('+-')} {word}")
    clauses += _swapped(comparison)
    if contexts_differ(phase):
        a, b = phase.context_tokens
        clauses.append(f"; contexts differ, {a:,.0f} and {b:,.0f} tokens")
    if phase.fewest < FEWEST["median"]:
        clauses.append(f"; only {phase.fewest} steps of a side")
    return clauses


def _swapped(comparison: Comparison) -> list[str]:
    """What kernels of this package run on one side and not on the other."""
    ours, theirs = ({*swapped_words(side.report)} for side in (comparison.a, comparison.b))
    if ours == theirs:
        return []
    sides = zip(shown_names(comparison), (comparison.a, comparison.b), (theirs, ours), strict=True)
    clauses = [
        f"{name} has {', '.join(word for word in swapped_words(side.report) if word not in other)}"
        for name, side, other in sides
        if {*swapped_words(side.report)} - other
    ]
    return [f"; swapped: {' and '.join(clauses)}"]


def _same_way(kernels: Change, change: Change) -> bool:
    return change.sure and (kernels.us > 0) == (change.us > 0)


def _undecided(change: Change) -> str:
    within = max(map(abs, change.shares))
    if not math.isfinite(within):
        return ""
    return f"; scatter hides a change of up to {100 * within:.1f} %"


def _not_comparable(comparison: Comparison, phase: PhaseComparison, obstacle: Obstacle) -> str:
    names = shown_names(comparison)
    why = why_not(obstacle, names, phase.phase)
    line = f"{names[0]} and {names[1]} are not comparable: {why}"
    if obstacle.reason in ("models", "windows", "contexts"):
        one = "a window" if phase.unit == "recording" else one_step(phase)
        line += f"; {one} takes {_both(names, phase.like)}"
    return line
