"""What a metric of `--fail-on` reads off a comparison."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.matching import floors_of, like_change, matched
from spark_prof.analyzers.comparing.model import Comparison, KernelPart, PhaseComparison, Side
from spark_prof.analyzers.comparing.noise import FEWEST, Change
from spark_prof.analyzers.comparing.stable_names import stable_name
from spark_prof.analyzers.token_ledger.model import HOST, LAUNCH_GAPS
from spark_prof.analyzers.windows import tokens_per_sequence
from spark_prof.errors import CommandError
from spark_prof.vocabulary import COMPONENTS

__all__ = ["METRICS", "Reading", "read"]

Kind = Literal["time", "rate", "share", "count"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """What a metric says of two sides.

    Attributes:
        kind: time in us, rate a second, share of 1, or count.
        change: from side a to side b; the interval of what has no noise is a point.
        there: whether side b has it at all.
        short: why its noise is not known, such as too few steps; empty where it is.
    """

    kind: Kind
    change: Change
    there: bool = True
    short: str = ""


def read(found: Comparison, metric: Sequence[str]) -> Reading:
    """Reads a metric.

    Args:
        found: the comparison.
        metric: its words.

    Raises:
        CommandError: there is none of that name; the message has those that are near.
    """
    reader = METRICS.get(metric[0])
    if reader is None:
        raise _unknown(metric[0], METRICS, "metric")
    return reader(found, tuple(metric[1:]))


def _phase(found: Comparison, name: str) -> PhaseComparison:
    phase = found.phase(name)
    if phase is None:
        raise CommandError(
            f"--fail-on needs {name} steps on both sides, of which {found.a.source} or "
            f"{found.b.source} has none; record more steps"
        )
    return phase


def _typical(found: Comparison) -> PhaseComparison:
    """The steps whose parts are asked for: decode steps, or those whose phase nothing tells."""
    return found.phase("decode") or found.phase("unknown") or _phase(found, "decode")


def _short(phase: PhaseComparison, statistic: str = "median") -> str:
    """Why a statistic decides nothing; empty where it does."""
    rows = [row for row in phase.sizes if row.weight or not phase.alike]
    few = min(sum(row.steps_a for row in rows), sum(row.steps_b for row in rows))
    if few >= FEWEST[statistic]:
        return ""
    return (
        f"a side has only {few} {phase.phase} steps, and {FEWEST[statistic]} are needed for a "
        f"{statistic}"
    )


def _steps(name: str) -> Callable[[Comparison, tuple[str, ...]], Reading]:
    """Reads a statistic of the times of steps of a phase."""

    def reader(found: Comparison, rest: tuple[str, ...]) -> Reading:
        statistic = _one_of(rest, FEWEST, f"{name} statistic", "median")
        phase = _phase(found, name)
        lengths = [side.steps["step_us"].to_numpy(np.float64) for side in (found.a, found.b)]
        if phase.unit == "prompt token":
            lengths = [
                us / np.maximum(side.steps["prefill_tokens"].to_numpy(np.float64), 1.0)
                for us, side in zip(lengths, (found.a, found.b), strict=True)
            ]
        change = _like(found, name, (lengths[0], lengths[1]), statistic)
        return Reading("time", change, short=_short(phase, statistic))

    return reader


def _tpot(found: Comparison, rest: tuple[str, ...]) -> Reading:
    statistic = _one_of(rest, FEWEST, "tpot_us statistic", "median")
    phase = _phase(found, "decode")
    change = _like(found, "decode", (_token_us(found.a), _token_us(found.b)), statistic)
    return Reading("time", change, short=_short(phase, statistic))


def _rate(found: Comparison, rest: tuple[str, ...]) -> Reading:
    _nothing_after("tokens_per_s", rest)
    us = _tpot(found, ("median",)).change
    a, b = 1e6 / us.a, 1e6 / us.b
    # A rate falls as the time grows: the interval's ends change places.
    low, high = (1e6 / max(us.a + end, 1e-9) - a for end in (us.high, us.low))
    if not math.isfinite(us.low):
        low, high = -math.inf, math.inf
    return Reading("rate", Change(a, b, b - a, low, high), short=_short(_phase(found, "decode")))


def _components(found: Comparison, rest: tuple[str, ...]) -> Reading:
    phase = _typical(found)
    name = _one_of(rest, COMPONENTS, "component")
    return _part(phase, name)


def _gaps(found: Comparison, rest: tuple[str, ...]) -> Reading:
    phase = _typical(found)
    what = _one_of(rest, ("us", "share", LAUNCH_GAPS, HOST), "part of gaps", "us")
    if what in (LAUNCH_GAPS, HOST):
        return _part(phase, what)
    change = _sum([_part(phase, name).change for name in (LAUNCH_GAPS, HOST)])
    if what == "share":
        return Reading("share", _shares(change, phase.typical))
    return Reading("time", change, short=_short(phase))


def _conversions(found: Comparison, rest: tuple[str, ...]) -> Reading:
    phase = _typical(found)
    what = _one_of(rest, ("us", "share"), "part of conversions", "us")
    if what == "share":
        return Reading("share", _shares(phase.conversions, phase.typical))
    return Reading("time", phase.conversions, phase.conversions.b > 0, _short(phase))


def _layers(found: Comparison, rest: tuple[str, ...]) -> Reading:
    phase = _typical(found)
    if not 1 <= len(rest) <= 2:
        raise CommandError("--fail-on layers needs a layer, such as layers.3 or layers.3.experts")
    known = {str(row.layer): row for row in phase.layers}
    layer = _one_of(rest[:1], known, "layer")
    if len(rest) == 1:
        change = known[layer].change
        return Reading("time", change, change.b > 0, _short(phase))
    name = _one_of(rest[1:], COMPONENTS, "component")
    for row in phase.layer_parts:
        if str(row.layer) == layer and row.component == name:
            return Reading("time", row.change, row.change.b > 0, _short(phase))
    return Reading("time", _point(0.0, 0.0), there=False)


def _kernels(found: Comparison, rest: tuple[str, ...]) -> Reading:
    phase = _typical(found)
    if len(rest) != 1:
        raise CommandError('--fail-on kernels needs a name in quotes, as in kernels."marlin"')
    rows = _named(phase.kernels, rest[0])
    if not rows:
        return Reading("time", _point(0.0, 0.0), there=False)
    change = _sum([row.change for row in rows])
    return Reading("time", change, any(row.calls_b for row in rows), _short(phase))


def _coverage(found: Comparison, rest: tuple[str, ...]) -> Reading:
    what = _one_of(rest, ("layer", "component", "engine"), "coverage")
    a, b = (getattr(side.report.coverage, what) for side in (found.a, found.b))
    return Reading("share", _point(a, b))


def _findings(found: Comparison, rest: tuple[str, ...]) -> Reading:
    if len(rest) > 1:
        raise _unknown(".".join(rest), (), "finding")
    a, b = (
        sum(not rest or each.id == rest[0] for each in side.report.findings)
        for side in (found.a, found.b)
    )
    return Reading("count", _point(float(a), float(b)), there=b > 0)


METRICS: Mapping[str, Callable[[Comparison, tuple[str, ...]], Reading]] = MappingProxyType(
    {
        "decode_us": _steps("decode"),
        "prefill_us": _steps("prefill"),
        "step_us": _steps("unknown"),
        "tpot_us": _tpot,
        "tokens_per_s": _rate,
        "components": _components,
        "layers": _layers,
        "kernels": _kernels,
        "conversions": _conversions,
        "gaps": _gaps,
        "coverage": _coverage,
        "findings": _findings,
    }
)
"""The first word of every metric, and what reads it."""


def _token_us(side: Side) -> Floats:
    per_sequence = tokens_per_sequence(side.steps).to_numpy(np.float64)
    known = np.where(per_sequence > 0, per_sequence, 1.0)
    return np.asarray(side.steps["step_us"].to_numpy(np.float64) / known, np.float64)


def _like(found: Comparison, phase: str, values: tuple[Floats, Floats], statistic: str) -> Change:
    sides = found.a, found.b
    steps = matched(sides, phase)
    assert steps is not None
    return like_change(steps, values, floors_of(sides), statistic)


def _part(phase: PhaseComparison, name: str) -> Reading:
    for part in phase.parts:
        if part.name == name:
            return Reading("time", part.change, part.change.b > 0, _short(phase))
    return Reading("time", _point(0.0, 0.0), there=False)


def _named(kernels: Iterable[KernelPart], name: str) -> list[KernelPart]:
    """The kernels of that name; else those whose stable name or part of a name it is."""
    rows = list(kernels)
    exact = [row for row in rows if row.name == name or stable_name(row.name) == stable_name(name)]
    return exact or [row for row in rows if name in row.name]


def _sum(changes: Sequence[Change]) -> Change:
    """Several changes as one, taken as independent."""
    us = sum(each.us for each in changes)
    below = math.sqrt(sum((each.us - each.low) ** 2 for each in changes))
    above = math.sqrt(sum((each.high - each.us) ** 2 for each in changes))
    a, b = sum(each.a for each in changes), sum(each.b for each in changes)
    return Change(a, b, us, us - below, us + above)


def _shares(part: Change, whole: Change) -> Change:
    return _point(part.a / whole.a if whole.a else 0.0, part.b / whole.b if whole.b else 0.0)


def _point(a: float, b: float) -> Change:
    return Change(a, b, b - a, b - a, b - a)


def _one_of(rest: tuple[str, ...], known: Iterable[str], what: str, default: str = "") -> str:
    word = ".".join(rest) or default
    if word not in known:
        raise _unknown(word, known, what)
    return word


def _nothing_after(metric: str, rest: tuple[str, ...]) -> None:
    if rest:
        raise CommandError(f"--fail-on {metric} has no part {'.'.join(rest)!r}; leave it out")


def _unknown(word: str, known: Iterable[str], what: str) -> CommandError:
    names = list(known)
    near = difflib.get_close_matches(word[:100], names, n=3, cutoff=0.4) or names[:12]
    return CommandError(
        f"--fail-on knows no {what} {word[:100]!r}; it may be {', '.join(near) or 'none'}"
    )
