"""Takes the typical step's time apart once more, from its lower bound to what was measured.

The parts are those of `analyzers.step_time`: launch gaps, host and copies as they stand there, and
each component's part split among its kernels by their kernel time. What a kernel needs at least,
its bytes at the memory's bandwidth or its arithmetic at the peak, is in the lower bound; what it
takes beyond that is in the first of these that it belongs to: conversions, collectives, small
kernels, and else its component. A kernel of which nothing tells what it needs has no lower bound.
Where kernels overlap, their bounds together may be longer than their part of the step: what others
take beyond theirs is then scaled to the time that is left, so that the parts add up and none is
negative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import ENOUGH_KNOWN, RooflinePhase
from spark_prof.analyzers.step_time import GAPS, Ledger

SMALL_US = 3.0  # a kernel whose mean call is shorter is small, as in the finding small-kernels
_ROUNDING = 1e-9  # of a step: less is what adding up floats leaves
_SMALLEST = 0.01  # components with less of the whole above their lower bound are drawn together
_ORDER = ("component", "components", "small", "conversion", "collective")
_COPIES = "memcpy"


@dataclass(frozen=True)
class Part:
    """One step of the waterfall."""

    # Floor; component (what kernels of one component take above their floor), components (of
    # several with little each), small, conversion or collective (of kernels of that kind); copies,
    # rest, launch_gaps or host.
    kind: str
    us: float
    component: str = ""  # of a part of kind component, else empty
    calls: float = 0.0  # kernels in a step, 0 where nothing counts them


@dataclass(frozen=True)
class Waterfall:
    """The parts of a token, a step or a run, in the order in which they are read."""

    of: str  # token, step or run: what the whole is
    phase: str  # of the steps, as in a ledger; empty of a run
    steps: int  # how many it stands on, 0 of a run
    us: float  # the whole; the parts add up to it
    parts: tuple[Part, ...]  # the floor first, where it is known
    no_floor: str  # why there is none; empty where there is one
    known: float  # share of the kernel time of which is known what it needs

    @property
    def floor_us(self) -> float | None:
        """The lower bound; None where it is not known."""
        return self.parts[0].us if self.parts and self.parts[0].kind == "floor" else None


@dataclass(frozen=True)
class _Kernel:
    """All calls of one kernel for one component in a typical step, or in a run."""

    kind: str  # of the part that takes what is above its floor
    component: str
    calls: float
    us: float  # what is attributed to it
    floor_us: float | None = None  # the lower bound of all calls; None where unknown


def waterfall_of(report: Report) -> Waterfall:
    """The time of an output token; of a step where none decodes, of a run that has sums alone."""
    if not report.tokens:
        rows = ((k.name, k.component, float(k.calls), k.us, None) for k in report.kernels)
        kernels = _kernels(report, rows)
        parts = _above_floor(kernels, sum(k.us for k in kernels))
        why = "The source has sums of kernels, without steps or times."
        return Waterfall("run", "", 0, sum(p.us for p in parts), parts, why, 0.0)
    ledger = report.tokens[0]
    phases = report.roofline.phases if report.roofline else ()
    phase = next((found for found in phases if found.phase == ledger.phase), None)
    kernels = _of_step(report, ledger, phase)
    running_us = sum(kernel.us for kernel in kernels)
    why = _no_floor(report, phase, running_us)
    floor_us = 0.0
    if why:
        kernels = [replace(kernel, floor_us=None) for kernel in kernels]
    elif phase and phase.floor_us:
        kernels, floor_us = _with_unplaced(kernels, phase), phase.floor_us
    parts = _fitted(_above_floor(kernels, ledger.step_us), running_us - floor_us)
    idle = (Part(name, ledger.us(name)) for name in GAPS)
    rest = running_us - floor_us - sum(part.us for part in parts)
    parts = (
        *(() if why else (Part("floor", floor_us),)),
        *parts,
        Part("copies", ledger.us(_COPIES)),
        Part("rest", rest if rest > _ROUNDING * ledger.step_us else 0.0),
        *idle,
    )
    us = ledger.step_us if ledger.ms_per_token is None else 1e3 * ledger.ms_per_token
    factor = us / ledger.step_us if ledger.step_us else 1.0
    return Waterfall(
        of="step" if ledger.ms_per_token is None else "token",
        phase=ledger.phase,
        steps=ledger.steps,
        us=us,
        parts=tuple(replace(part, us=part.us * factor) for part in parts),
        no_floor=why,
        known=phase.known if phase else 0.0,
    )


def _no_floor(report: Report, phase: RooflinePhase | None, busy_us: float) -> str:
    """Why there is no lower bound; empty where there is one."""
    if phase is None:
        return "Nothing tells how many tokens these steps computed."
    if phase.floor_us is None and (broken := report.failed("floor-step")):
        return broken[0]
    if phase.floor_us is None and phase.needed_bytes and report.run.units == "op":
        return "The bandwidth of this processor's memory is not known."
    if phase.floor_us is None or not phase.needed_bytes:
        return " ".join(report.roofline.notes) if report.roofline else ""
    if phase.known < ENOUGH_KNOWN:
        return f"What kernels need is known for {100 * phase.known:.0f} % of their time only."
    if phase.floor_us > busy_us:
        return "Their lower bound is longer than anything ran in such a step, which cannot be."
    return ""


def _kernels(
    report: Report, rows: Iterable[tuple[str, str, float, float, float | None]]
) -> list[_Kernel]:
    """Kernels by name, component, calls, time of all calls, and lower bound of all calls."""
    converting = {row.name for row in report.conversions.items}

    def kind_of(name: str, component: str, calls: float, us: float) -> str:
        if name in converting:
            return "conversion"
        if component == "collective":
            return "collective"
        return "small" if calls and us / calls < SMALL_US else "component"

    return [_Kernel(kind_of(*row[:4]), *row[1:]) for row in rows]


def _of_step(report: Report, ledger: Ledger, phase: RooflinePhase | None) -> list[_Kernel]:
    """The typical step's components, each split among its kernels by their kernel time."""
    rows: list[tuple[str, str, float, float, float | None]] = []
    if phase:
        rows = [(k.name, k.component, k.calls, k.step_us, k.bound_us) for k in phase.rows]
    elif (steps := ledger.steps) == report.steps.count:
        rows = [(k.name, k.component, k.calls / steps, k.us / steps, None) for k in report.kernels]
    sums: defaultdict[str, float] = defaultdict(float)
    for _, component, _, us, _ in rows:
        sums[component] += us
    found = [
        replace(kernel, us=kernel.us * ledger.us(kernel.component) / sums[kernel.component])
        for kernel in _kernels(report, rows)
        if sums[kernel.component] and kernel.component != _COPIES
    ]
    others = (
        ("", row.name, 0.0, row.charged_us, None)
        for row in ledger.rows
        if not sums[row.name] and row.name not in (_COPIES, *GAPS)
    )
    return found + _kernels(report, others)


def _with_unplaced(kernels: list[_Kernel], phase: RooflinePhase) -> list[_Kernel]:
    """The kernels, with the floors of work that is known by its component only."""
    times: defaultdict[str, float] = defaultdict(float)
    for k in kernels:
        times[k.component] += k.us if k.floor_us is None else 0.0
    shares = {
        f.component: min(f.us / times[f.component], 1.0)
        for f in phase.unplaced
        if times[f.component]
    }
    return [
        replace(k, floor_us=shares[k.component] * k.us)
        if k.floor_us is None and k.component in shares
        else k
        for k in kernels
    ]


def _fitted(parts: tuple[Part, ...], us: float) -> tuple[Part, ...]:
    total = sum(part.us for part in parts)
    factor = max(us, 0.0) / total if total > us and total > 0 else 1.0
    return tuple(replace(part, us=part.us * factor) for part in parts)


def _above_floor(kernels: Iterable[_Kernel], whole_us: float) -> tuple[Part, ...]:
    """What kernels take beyond their lower bound, or at all where that is not known, by kind."""
    parts: dict[tuple[str, str], Part] = {}
    for kernel in kernels:
        key = kernel.kind, kernel.component if kernel.kind == "component" else ""
        part = parts.get(key, Part(kernel.kind, 0.0, key[1]))
        beyond = max(kernel.us - (kernel.floor_us or 0.0), 0.0)
        parts[key] = replace(part, us=part.us + beyond, calls=part.calls + kernel.calls)
    little = [p for p in parts.values() if p.component and abs(p.us) < _SMALLEST * whole_us]
    shown = list(parts.values())
    if len(little) > 1:
        together = Part("components", sum(p.us for p in little), "", sum(p.calls for p in little))
        shown = [*(p for p in shown if p not in little), together]
    return tuple(sorted(shown, key=_place))


def _place(part: Part) -> tuple[int, int]:
    return _ORDER.index(part.kind), CODES.get(part.component, len(CODES))
