"""Takes the time of a token apart, from what memory allows at best to what was measured.

Every kernel is in one part only. What it needs at least, its bytes at the memory's bandwidth or its
arithmetic at the peak, is in the floor; what it takes beyond that is in the first of these that it
belongs to: conversions, collectives, small kernels, and else its component. A kernel of which
nothing tells what it needs has no floor: all of its time is beyond it. Copies and the two kinds of
gaps follow, and the rest makes the parts add up exactly. No part is negative: kernels are those of
the mean step and may overlap each other, so that together they may take longer than anything ran in
the median step; what they take beyond the floor then shares the time that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spark_prof.analyzers.model import Books, Report
from spark_prof.analyzers.roofline.model import RooflinePhase
from spark_prof.analyzers.token_ledger.model import HOST, LAUNCH_GAPS, Ledger
from spark_prof.vocabulary import COMPONENTS

SMALL_US = 3.0
"""A kernel whose mean call is shorter is small, as in the finding small-kernels."""
_ENOUGH_KNOWN = 0.5
"""Share of the kernel time whose needs must be known; a floor of less says nothing of a step."""
_ROUNDING = 1e-9
"""Of a step: less is what adding up floats leaves."""
_SMALLEST = 0.01
"""Components with less of the whole above their floor are drawn together."""
_ORDER = ("component", "components", "small", "conversion", "collective")


@dataclass(frozen=True)
class Part:
    """One step of the waterfall.

    Attributes:
        kind: floor; component (what kernels of one component take above their floor), components
            (of several with little each), small, conversion or collective (of kernels of that
            kind); copies, rest, launch_gaps or host.
        component: of a part of kind component, else empty.
        calls: kernels in a step, 0 where nothing counts them.
    """

    kind: str
    us: float
    component: str = ""
    calls: float = 0.0


@dataclass(frozen=True)
class Waterfall:
    """The parts of a token, a step or a run, in the order in which they are read.

    Attributes:
        of: token, step or run: what the whole is.
        phase: of the steps, as in a ledger; empty of a run.
        steps: how many it stands on, 0 of a run.
        typical: median or mean: which step it is; empty of a run.
        us: the whole; the parts add up to it.
        parts: the floor first, where it is known.
        no_floor: why there is none; empty where there is one.
        known: share of the kernel time of which is known what it needs.
    """

    of: str
    phase: str
    steps: int
    typical: str
    us: float
    parts: tuple[Part, ...]
    no_floor: str
    known: float

    @property
    def floor_us(self) -> float | None:
        """The floor; None where it is not known."""
        return self.parts[0].us if self.parts and self.parts[0].kind == "floor" else None


@dataclass(frozen=True)
class _Kernel:
    """All calls of one kernel for one component in a mean step, or in a run."""

    name: str
    component: str
    calls: float
    us: float
    floor_us: float | None


def waterfall_of(report: Report) -> Waterfall:
    """The time of an output token; of a step where none decodes, of a run that has sums alone."""
    if not report.tokens:
        kernels = _of_run(report)
        parts = _above_floor(report, kernels, sum(k.us for k in kernels))
        why = "The source has sums of kernels, without steps or times."
        return Waterfall("run", "", 0, "", sum(p.us for p in parts), parts, why, 0.0)
    ledger = report.tokens[0]
    phase = _roofline(report, ledger.phase)
    kernels, floor_us = _of_step(report, ledger, phase), None
    known = phase.known_us / phase.kernels_us if phase and phase.kernels_us else 0.0
    decodes, times = ledger.phase == "decode", report.steps
    step_us = ledger.step.median if decodes else ledger.step.mean
    idle = _idle(ledger, step_us, decodes=decodes)
    why = _no_floor(report, phase, known, step_us - sum(part.us for part in idle))
    if why:
        kernels = [_Kernel(k.name, k.component, k.calls, k.us, None) for k in kernels]
    elif phase:
        kernels, floor_us = _with_unplaced(kernels, phase), phase.floor_us
    per_token = decodes and times.tpot_us is not None and times.decode_us is not None
    factor = 1.0
    if times.tpot_us and times.decode_us and per_token and times.decode_us.median:
        factor = times.tpot_us.median / times.decode_us.median
    parts = _step_parts(report, ledger.phase, kernels, floor_us, step_us, idle)
    return Waterfall(
        of="token" if per_token else "step",
        phase=ledger.phase,
        steps=ledger.steps,
        typical="median" if decodes else "mean",
        us=step_us * factor,
        parts=tuple(Part(p.kind, p.us * factor, p.component, p.calls) for p in parts),
        no_floor=why,
        known=known,
    )


def _roofline(report: Report, phase: str) -> RooflinePhase | None:
    phases = report.roofline.phases if report.roofline else ()
    return next((found for found in phases if found.phase == phase), None)


def _no_floor(report: Report, phase: RooflinePhase | None, known: float, busy_us: float) -> str:
    """Why there is no floor; empty where there is one."""
    if phase is None:
        return "Nothing tells how many tokens these steps computed."
    if phase.floor_us is None and (broken := report.failed("floor-step")):
        return broken[0]
    if not phase.needed_bytes:
        return " ".join(report.roofline.notes) if report.roofline else ""
    if phase.floor_us is None:
        if report.run.units == "op":
            return "The bandwidth of this processor's memory is not known."
        return " ".join(report.roofline.notes) if report.roofline else ""
    if known < _ENOUGH_KNOWN:
        return f"What kernels need is known for {100 * known:.0f} % of their time only."
    if phase.floor_us > busy_us:
        return "Their lower bound is longer than anything ran in such a step, which cannot be."
    return ""


def _of_run(report: Report) -> list[_Kernel]:
    return [_Kernel(k.name, k.component, k.calls, k.us, None) for k in report.kernels]


def _of_step(report: Report, ledger: Ledger, phase: RooflinePhase | None) -> list[_Kernel]:
    """The kernels of a mean step, as finely as the report knows them."""
    if phase:
        return [
            _Kernel(r.name, r.component, r.calls, r.us * r.calls, _floor(r.floor_us, r.calls))
            for r in phase.rows
        ]
    if ledger.steps == report.steps.count:
        return [
            _Kernel(k.name, k.component, k.calls / ledger.steps, k.us / ledger.steps, None)
            for k in report.kernels
        ]
    times = {
        row.name: {"decode": row.decode_us, "prefill": row.prefill_us, "mixed": row.mixed_us}.get(
            ledger.phase, row.unknown_us
        )
        for row in report.components
    }
    return [_Kernel("", name, 0.0, us / ledger.steps, None) for name, us in times.items() if us]


def _floor(floor_us: float | None, calls: float) -> float | None:
    return None if floor_us is None else floor_us * calls


def _with_unplaced(kernels: list[_Kernel], phase: RooflinePhase) -> list[_Kernel]:
    """The kernels, with the floors of work that is known by its component only."""
    times: dict[str, float] = {}
    for k in kernels:
        if k.floor_us is None:
            times[k.component] = times.get(k.component, 0.0) + k.us
    shares = {
        f.component: min(f.us / times[f.component], 1.0)
        for f in phase.unplaced
        if times.get(f.component)
    }
    return [
        replace(k, floor_us=shares[k.component] * k.us)
        if k.floor_us is None and k.component in shares
        else k
        for k in kernels
    ]


def _idle(ledger: Ledger, step_us: float, *, decodes: bool) -> tuple[Part, ...]:
    """Both kinds of gaps of a step; medians of which may be more than the median step together."""
    parts = [
        Part(row.name, row.spread.median if decodes else row.spread.mean)
        for row in ledger.rows
        if row.name in (LAUNCH_GAPS, HOST)
    ]
    return _fitted(parts, step_us)


def _fitted(parts: Sequence[Part], us: float) -> tuple[Part, ...]:
    """The parts, scaled down where they are more than that together."""
    total = sum(part.us for part in parts)
    factor = max(us, 0.0) / total if total > us and total > 0 else 1.0
    return tuple(replace(part, us=part.us * factor) for part in parts)


def _step_parts(
    report: Report,
    phase: str,
    kernels: list[_Kernel],
    floor_us: float | None,
    step_us: float,
    idle: tuple[Part, ...],
) -> tuple[Part, ...]:
    """Everything that a step consists of, up to its time."""
    books = next((entry for entry in report.books if entry.phase == phase), None)
    beyond = step_us - sum(part.us for part in idle) - (floor_us or 0.0)
    running = [*_above_floor(report, kernels, step_us), Part("copies", _a_step(books))]
    parts = _fitted(running, beyond)
    left = beyond - sum(part.us for part in parts)
    rest = left if left > _ROUNDING * step_us else 0.0
    floor = () if floor_us is None else (Part("floor", floor_us),)
    return (*floor, *parts, Part("rest", rest), *idle)


def _a_step(books: Books | None) -> float:
    return books.copies_us / books.steps if books and books.steps else 0.0


def _above_floor(report: Report, kernels: Iterable[_Kernel], whole_us: float) -> tuple[Part, ...]:
    """What kernels take beyond their floor, or at all where that is not known, by kind."""
    converting = {row.name for row in report.conversions.items}
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for kernel in kernels:
        kind = _kind(kernel, converting)
        place = kind, kernel.component if kind == "component" else ""
        us, calls = sums.get(place, (0.0, 0.0))
        sums[place] = us + max(kernel.us - (kernel.floor_us or 0.0), 0.0), calls + kernel.calls
    parts = [Part(kind, us, component, calls) for (kind, component), (us, calls) in sums.items()]
    little = [p for p in parts if p.component and abs(p.us) < _SMALLEST * whole_us]
    if len(little) > 1:
        together = Part("components", sum(p.us for p in little), "", sum(p.calls for p in little))
        parts = [*(p for p in parts if p not in little), together]
    return tuple(sorted(parts, key=_place))


def _place(part: Part) -> tuple[int, int]:
    known = part.component in COMPONENTS
    return _ORDER.index(part.kind), COMPONENTS.index(part.component) if known else len(COMPONENTS)


def _kind(kernel: _Kernel, converting: set[str]) -> str:
    if kernel.name in converting:
        return "conversion"
    if kernel.component == "collective":
        return "collective"
    if kernel.calls and kernel.us / kernel.calls < SMALL_US:
        return "small"
    return "component"
