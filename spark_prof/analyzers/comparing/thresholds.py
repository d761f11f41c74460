"""Holds a comparison against what `--fail-on` allows, where noise may hide or feign a change.

A limit fails where the whole 95 % interval lies beyond it, and passes where the whole interval lies
within it. Else the recordings do not tell: undecided. That holds for changes (in per cent, or with
a sign) by the interval of the change, and for levels by that of side b's own figure. Coverage and
numbers of findings have no noise: their interval is a point.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median_high
from typing import Literal

from spark_prof.analyzers.comparing.comparison import (
    Comparison,
    Obstacle,
    PhaseComparison,
    combined,
    kernels_of,
    point,
    summed,
)
from spark_prof.analyzers.comparing.noise import FEWEST, Change, Figure, interval_of
from spark_prof.analyzers.comparing.noise import change as change_of
from spark_prof.analyzers.comparing.phases import PhaseSteps, matching_steps, token_figure
from spark_prof.analyzers.comparing.swapped_steps import stable_name
from spark_prof.analyzers.comparing.threshold_expression import Expression, Unit
from spark_prof.analyzers.step_time import GAPS
from spark_prof.arrays import Floats
from spark_prof.errors import CommandError
from spark_prof.vocabulary import BASIS_CLASSES, COMPONENTS

Kind = Literal["time", "rate", "share", "count"]


@dataclass(frozen=True)
class MetricReading:
    """What a metric says of two sides."""

    kind: Kind  # time in us, rate a second, share of 1, or count
    change: Change  # the interval of what has no noise is a point
    present: bool = True  # whether side b has it at all
    short: str = ""  # why its noise is not known, such as too few steps; empty where it is
    phase: PhaseComparison | None = None  # of whose steps it is


def _phase(comparison: Comparison, name: str) -> PhaseComparison:
    if phase := comparison.phase(name):
        return phase
    raise CommandError(
        f"--fail-on needs {name} steps on both sides, of which {comparison.a.source} or "
        f"{comparison.b.source} has none; record more steps"
    )


def _typical(comparison: Comparison) -> PhaseComparison:
    """The steps whose parts are asked for: decode steps, or those whose phase nothing tells."""
    return comparison.phase("decode") or comparison.phase("unknown") or _phase(comparison, "decode")


def _short(phase: PhaseComparison, statistic: str = "median") -> str:
    """Why a statistic decides nothing; empty where it does."""
    if phase.fewest >= FEWEST[statistic]:
        return ""
    return (
        f"a recording has only {phase.fewest} {phase.phase} steps, and {FEWEST[statistic]} are "
        f"needed for a {statistic}"
    )


def _steps(
    name: str, us_of: Callable[[PhaseSteps], Floats]
) -> Callable[[Comparison, tuple[str, ...]], MetricReading]:
    """Reads a statistic of a time of the steps of a phase."""

    def reader(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
        statistic = _one_of(rest, FEWEST, f"{name} statistic", "median")
        phase = _phase(comparison, name)
        steps = matching_steps(comparison.sides, name)
        assert steps is not None
        change = steps.change(lambda recording: recording.matched(us_of(recording), statistic))
        return MetricReading("time", change, short=_short(phase, statistic), phase=phase)

    return reader


def _step_us(steps: PhaseSteps) -> Floats:
    return steps.column("step_us")


def _tpot(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    """A token's time: the steps' over the tokens that they give a sequence."""
    statistic = _one_of(rest, FEWEST, "tpot_us statistic", "median")
    phase = _phase(comparison, "decode")
    steps = matching_steps(comparison.sides, "decode")
    assert steps is not None

    change = steps.change(lambda recording: token_figure(recording, statistic))
    return MetricReading("time", change, short=_short(phase, statistic), phase=phase)


def _rate(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    if rest:
        part = ".".join(rest)
        raise CommandError(f"--fail-on tokens_per_s has no part {part!r}; leave it out")
    us = _tpot(comparison, ())

    def a_second(figure: Figure) -> Figure:
        # The errors of a rate are the same shares as those of the time.
        by = 1e6 / max(figure.value, 1e-9) ** 2
        value, error = by * figure.value, by * figure.error
        return Figure(value, error, figure.free, by * figure.floor, by * figure.start)

    return MetricReading("rate", combined([us.change], a_second), short=us.short, phase=us.phase)


def _gaps(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    phase = _typical(comparison)
    word = _one_of(rest, ("us", "share", *GAPS), "part of gaps", "us")
    if word in GAPS:
        return _part(phase, word)
    change = summed([part.change for part in phase.parts if part.name in GAPS])
    if word == "share":
        components = [part.change for part in phase.parts if part.name in COMPONENTS]
        return _share_of(phase, change, summed(components))
    return MetricReading("time", change, short=_short(phase), phase=phase)


def _conversions(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    phase = _typical(comparison)
    if _one_of(rest, ("us", "share"), "part of conversions", "us") == "share":

        def remainder(part: Figure, whole: Figure) -> Figure:
            # The error of the part is small beside that of the whole.
            return replace(whole, value=whole.value - part.value, start=0.0)

        rest_of = combined([phase.conversions, phase.typical], remainder, phase.typical)
        return _share_of(phase, phase.conversions, rest_of)
    return _time(phase, phase.conversions)


def _layers(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    phase = _typical(comparison)
    if not 1 <= len(rest) <= 2:
        raise CommandError("--fail-on layers needs a layer, such as layers.3 or layers.3.experts")
    changes = {str(row.layer): row.change for row in phase.layers}
    layer = _one_of(rest[:1], changes, "layer")
    if len(rest) == 1:
        return _time(phase, changes[layer])
    name = _one_of(rest[1:], COMPONENTS, "component")
    cells = {(str(row.layer), row.component): row.change for row in phase.layer_parts}
    return _time(phase, cells.get((layer, name)))


def _kernels(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    phase = _typical(comparison)
    if not rest:
        return _time(phase, kernels_of(phase))
    if len(rest) != 1:
        raise CommandError(
            '--fail-on kernels needs one name in quotes, as in kernels."marlin", or none for all'
        )
    [name] = rest
    # The kernels of that name; else those whose stable name or part of a name it is.
    same = [row for row in phase.kernels if stable_name(row.name) == stable_name(name)]
    rows = same or [row for row in phase.kernels if name in row.name]
    if not rows:
        return _time(phase, None)
    change = summed([row.change for row in rows])
    return MetricReading("time", change, any(row.calls_b for row in rows), _short(phase), phase)


def _coverage(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    level = _one_of(rest, ("layer", "component", "engine", *BASIS_CLASSES), "coverage")
    a, b = (
        fmean(getattr(recording.report.coverage, level) for recording in side)
        for side in comparison.sides
    )
    return MetricReading("share", point(a, b))


def _findings(comparison: Comparison, rest: tuple[str, ...]) -> MetricReading:
    if len(rest) > 1:
        raise _unknown(".".join(rest), (), "finding")
    # What half of the recordings of a side have counts.
    a, b = (
        median_high(
            sum(not rest or finding.id == rest[0] for finding in recording.report.findings)
            for recording in side
        )
        for side in comparison.sides
    )
    return MetricReading("count", point(float(a), float(b)), present=b > 0)


METRICS: Mapping[str, Callable[[Comparison, tuple[str, ...]], MetricReading]] = {
    "decode_us": _steps("decode", _step_us),
    "prefill_us": _steps("prefill", _step_us),
    "step_us": _steps("unknown", _step_us),
    "tpot_us": _tpot,
    "tokens_per_s": _rate,
    "components": lambda comparison, rest: _part(
        _typical(comparison), _one_of(rest, COMPONENTS, "component")
    ),
    "layers": _layers,
    "kernels": _kernels,
    "conversions": _conversions,
    "gaps": _gaps,
    "coverage": _coverage,
    "findings": _findings,
}
"""The first word of every metric, and what reads it."""

WALL_TIMES = ("decode_us", "prefill_us", "step_us", "tpot_us", "tokens_per_s", "gaps")
"""Metrics that hold the time between launches."""


def _time(phase: PhaseComparison, change: Change | None) -> MetricReading:
    """What a part of a typical step takes; None for a part that neither side has."""
    if change is None:
        return MetricReading("time", point(0.0, 0.0), present=False)
    return MetricReading("time", change, change.b > 0, _short(phase), phase)


def _part(phase: PhaseComparison, name: str) -> MetricReading:
    return _time(phase, {part.name: part.change for part in phase.parts}.get(name))


def _share_of(phase: PhaseComparison, part: Change, rest: Change) -> MetricReading:
    """A part's share of it and the rest; that all of a recording is slower changes no share."""

    def share(part: Figure, rest: Figure) -> Figure:
        whole = max(part.value + rest.value, 1e-9)
        by_part, by_rest = rest.value / whole**2, part.value / whole**2
        error = math.hypot(by_part * part.error, by_rest * rest.error)
        floor = math.hypot(by_part * part.floor, by_rest * rest.floor)
        return Figure(part.value / whole, error, min(part.free, rest.free), floor)

    return MetricReading("share", combined([part, rest], share), short=_short(phase), phase=phase)


def _one_of(rest: tuple[str, ...], choices: Iterable[str], noun: str, default: str = "") -> str:
    word = ".".join(rest) or default
    if word not in choices:
        raise _unknown(word, choices, noun)
    return word


def _unknown(word: str, choices: Iterable[str], noun: str) -> CommandError:
    names = list(choices)
    near = difflib.get_close_matches(word[:100], names, n=3, cutoff=0.4) or names[:12]
    return CommandError(
        f"--fail-on knows no {noun} {word[:100]!r}; it may be {', '.join(near) or 'none'}"
    )


GateOutcome = Literal["failed", "passed", "undecided"]

_UNITS: Mapping[str, tuple[tuple[Unit, ...], str]] = {
    "time": (("%", "us"), "3%, +50us or 5ms"),
    "rate": (("%", "tokens/s"), "-3% or 200 tokens/s"),
    "share": (("%", ""), "0.95 or -2%"),
    "count": (("",), "0"),
}
"""In what a limit on each kind is written, and examples."""

_EDGE = 1e-9  # limits are decimal fractions and changes binary ones: this much counts as equal


@dataclass(frozen=True)
class ThresholdResult:
    """One limit and what became of it."""

    expression: Expression  # the limit
    reading: MetricReading  # what was compared
    outcome: GateOutcome  # failed, passed or undecided
    why: str = ""  # why nothing could be decided, or what is missing
    obstacle: Obstacle | None = None  # why the sides are not comparable, where a change is limited

    @property
    def relative(self) -> bool:
        """Whether the limit is a share of side a's figure."""
        return _is_relative(self.expression, self.reading)

    @property
    def is_change(self) -> bool:
        """Whether it limits a change, and not side b's figure."""
        return self.relative or self.expression.signed


def check(comparison: Comparison, expressions: Iterable[Expression]) -> tuple[ThresholdResult, ...]:
    """Checks every limit."""
    return tuple(_checked(comparison, expression) for expression in expressions)


def _checked(comparison: Comparison, limit: Expression) -> ThresholdResult:
    reader = METRICS.get(limit.metric[0])
    if reader is None:
        raise _unknown(limit.metric[0], METRICS, "metric")
    reading = reader(comparison, limit.metric[1:])
    if limit.operator == "missing":
        missing = f"{comparison.names[1]} has none" if not reading.present else ""
        return ThresholdResult(limit, reading, "passed" if reading.present else "failed", missing)
    units, examples = _UNITS[reading.kind]
    if limit.unit not in units:
        raise CommandError(
            f"--fail-on {limit.text[:100]!r}: {'.'.join(limit.metric)} is a {reading.kind}; "
            f"write {examples}"
        )
    _refuse_launches(comparison, limit)
    if reading.short:
        return ThresholdResult(limit, reading, "undecided", reading.short)
    obstacle = reading.phase.obstacle if reading.phase else None
    if obstacle and (limit.signed or _is_relative(limit, reading)):
        return ThresholdResult(limit, reading, "undecided", obstacle=obstacle)
    outcome = gate_outcome_of(limit, reading)
    why = _undecided(comparison, limit, reading) if outcome == "undecided" else ""
    return ThresholdResult(limit, reading, outcome, why)


def _refuse_launches(comparison: Comparison, limit: Expression) -> None:
    """The wall time of eager runs is the host's launches, whose speed is another job's doing."""
    metric = limit.metric[0]
    if metric in WALL_TIMES and all(comparison.eager):
        raise CommandError(
            f"--fail-on {limit.text[:100]!r}: both sides ran eagerly, where {metric} is how fast "
            "the host launches; limit the kernels instead, as in 'kernels > 3%', or record both "
            "with CUDA graphs"
        )


def _is_relative(limit: Expression, reading: MetricReading) -> bool:
    return limit.unit == "%" and reading.kind in ("time", "rate")


def gate_outcome_of(limit: Expression, reading: MetricReading) -> GateOutcome:
    """What becomes of a limit on a change, or on the level of side b."""
    change, bound = reading.change, limit.value
    if _is_relative(limit, reading):
        low, high = change.shares
    elif limit.signed:
        low, high = change.low, change.high
    else:
        figures = change.figures[1]
        low, high = interval_of(figures) if figures else (change.b, change.b)
    if limit.operator[0] == "<":
        # The same question in the mirror.
        low, high, bound = -high, -low, -bound
    # Reaching the limit is beyond it for >= and within it for >.
    bound += -_EDGE if limit.operator[1:] == "=" else _EDGE
    if low > bound:
        return "failed"
    return "passed" if high <= bound else "undecided"


def _undecided(comparison: Comparison, limit: Expression, reading: MetricReading) -> str:
    """Why the recordings do not tell, and what would."""
    if not comparison.assumed:
        return "too noisy to tell; record more engine starts a side, or more steps"
    which = (
        "one recording a side"
        if max(map(len, comparison.sides)) == 1
        else "one recording on a side"
    )
    several = "record several and run spark-prof compare A1,A2,A3 B1,B2,B3"
    a, b = ([replace(figure, start=0.0) for figure in side] for side in reading.change.figures)
    sure = replace(reading, change=change_of(a, b)) if a and b else reading
    if gate_outcome_of(limit, sure) == "undecided":
        return f"{which}, and its steps vary too much to tell; {several}, or record more steps"
    return (
        f"{which}: engine starts are taken to differ by up to {100 * comparison.assumed:g} %; "
        f"{several}"
    )
