"""Takes the typical step's time apart once more, from its lower bound to what was measured.

The parts are those of `analyzers.step_time`: launch gaps, host and copies as they stand there, and
each kernel's part of its component. What a kernel needs at least, its bytes at the memory's
bandwidth or its arithmetic at the peak, is in the lower bound, and what a node of a CUDA graph
costs in the nodes, where that is known; what it takes beyond both is in the first of these that it
belongs to: conversions, the drafter, collectives, small kernels, and else its component. A kernel
of which nothing tells what it needs has no lower bound. Where kernels overlap, the lower bound of
one may be longer than its part of the step: what is counted twice so is taken off again in a part
of its own, the rest, which is no time and may be negative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import ENOUGH_KNOWN, Place, RooflinePhase
from spark_prof.analyzers.step_time import COPIED, GAPS, LAUNCH_GAPS, StepAccount
from spark_prof.analyzers.token_time import TokenTime
from spark_prof.arrays import exact
from spark_prof.rules.components import DRAFTER, part_of

SMALL_US = 3.0  # a kernel whose mean call is shorter is small, as in the finding small-kernels
_SMALLEST = 0.01  # components with less of the whole above their lower bound are drawn together
_ORDER = ("component", "components", "drafter", "small", "conversion", "collective")
DIFFERENCES = ("rest", "uneven", "prompts", "unprofiled")
"""Kinds of parts that are what the others lack or have too much, and may be negative."""
_CACHE_NAME = "_waterfall"  # what a report keeps it as; `replace` leaves it behind


@dataclass(frozen=True)
class Part:
    """One step of the waterfall."""

    # Floor; nodes (the price of a graph's nodes, of the kernels' time and of the launch gaps);
    # component (what kernels of one component take above their floor), components (of
    # several with little each), drafter, small, conversion or collective (of kernels of that
    # kind); copies, rest, launch_gaps or host; of a token also uneven (what the mean step takes
    # beyond the median), prompts (what steps that read prompts add) and unprofiled (what steps that
    # were only timed take beyond profiled ones, mostly less than zero).
    kind: str
    us: float
    component: str = ""  # of a part of kind component, else empty
    calls: float = 0.0  # kernels in a step, 0 where nothing counts them
    node_us: float = 0.0  # what of its kernels' time is in the part of the nodes


@dataclass(frozen=True)
class Waterfall:
    """The parts of a token, a step or a run, in the order in which they are read.

    Its time, steps and gaps are those of the account.
    """

    # What the whole is: token, step, recording where nothing tells its steps, or run where nothing
    # tells any time.
    of: str
    account: StepAccount  # of the step that is taken apart; of a run an empty one
    parts: tuple[Part, ...]  # the floor first, where it is known; they add up to the whole
    no_floor: str  # why there is none; empty where there is one
    known: float = 0.0  # share of the kernel time of which is known what it needs

    @property
    def us(self) -> float:
        """The whole: of a run what the parts add up to."""
        if self.of == "run":
            return sum(part.us for part in self.parts)
        return (self.account.token_us or 0.0) if self.of == "token" else self.account.step_us

    @property
    def floor_us(self) -> float | None:
        """The lower bound; None where it is not known."""
        return self.parts[0].us if self.parts and self.parts[0].kind == "floor" else None


@dataclass(frozen=True)
class _WaterfallKernel:
    """All calls of one kernel for one component in a typical step, or in a run."""

    kind: str  # of the part that takes what is above its floor
    component: str
    calls: float
    us: float  # what is attributed to it
    floor_us: float | None = None  # the lower bound of all calls; None where unknown
    nodes: float = 0.0  # of CUDA graphs
    node_us: float = 0.0  # what these cost beside the lower bound

    @property
    def inside_us(self) -> float:
        """How much of the nodes' cost can be in its own time; the rest lies before it starts."""
        return min(self.node_us, max(self.us - (self.floor_us or 0.0), 0.0))


def waterfall_of(report: Report) -> Waterfall:
    """The time of an output token; of a step where none decodes, of a run that has sums alone.

    It is worked out once a report, which keeps it as one keeps a cached property.
    """
    # Where it is computed only now it is checked, by the waterfall.
    phases = report.roofline.phases if report.roofline else ()
    waterfall: Waterfall | None = vars(report).get(_CACHE_NAME)
    return waterfall or keep(report, _drawn(report, phases))


def keep(report: Report, waterfall: Waterfall) -> Waterfall:
    """Has a report keep its waterfall, which was drawn of the same figures."""
    vars(report)[_CACHE_NAME] = waterfall
    return waterfall


def whole(report: Report) -> Report:
    """The report with every topic and its waterfall computed: it needs its bundle no more."""
    waterfall = waterfall_of(report)
    computed = replace(report)
    keep(computed, waterfall)
    return computed


def _drawn(report: Report, phases: Sequence[RooflinePhase]) -> Waterfall:
    account = report.drawn_step
    if account is None:
        converting = {row.name for row in report.conversions.items}
        kernels = [
            _WaterfallKernel(
                _kind_of(converting, k.name, k.component, "", call_us), k.component, k.calls, k.us
            )
            for k in report.kernels
            for call_us in [k.us / k.calls + k.ahead_us if k.calls else None]
        ]
        parts = _above_floor(kernels, sum(k.us for k in kernels))
        why = "The source has sums of kernels, without steps or times."
        return Waterfall("run", StepAccount("", None, None), parts, why)
    phase = next((candidate for candidate in phases if candidate.phase == account.phase), None)
    kernels = _of_step(report, account, phase)
    running_us = account.step_us - account.idle_us - account.us(COPIED)
    why = _no_floor(report, phase, running_us)
    floor_us = 0.0
    if why:
        kernels = [replace(kernel, floor_us=None, node_us=0.0) for kernel in kernels]
    elif phase and phase.floor_us:
        kernels, floor_us = _with_unplaced(kernels, phase), phase.floor_us
    nodes, idle = _nodes(kernels, tuple(Part(name, account.us(name)) for name in GAPS))
    if not report.run.tells_steps:
        # Of a whole recording nothing tells a launch's wait from the host's.
        idle = (Part(LAUNCH_GAPS, account.idle_us),)
    inside_us = sum(kernel.inside_us for kernel in kernels)
    parts = _above_floor(kernels, account.step_us)
    rest = running_us - floor_us - inside_us - sum(part.us for part in parts)
    parts = (
        *(() if why else (Part("floor", floor_us),)),
        *nodes,
        *parts,
        Part("copies", account.us(COPIED)),
        Part("rest", rest),
        *idle,
    )
    of = "step" if report.run.tells_steps else "recording"
    if account.token_us is not None and (token := account.token):
        of, parts = "token", _of_token(parts, token)
    known = phase.known_share if phase else 0.0
    return Waterfall(of, account, parts, why, known)


def _nodes(
    kernels: Iterable[_WaterfallKernel], idle: tuple[Part, ...]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The price of the nodes, none where it is not known, and what is left of the launch gaps.

    What of it cannot be in the kernels' time lies in the gaps between them.
    """
    priced = [kernel for kernel in kernels if kernel.node_us]
    if not priced:
        return (), idle
    inside = sum(kernel.inside_us for kernel in priced)
    gaps = next((part.us for part in idle if part.kind == LAUNCH_GAPS), 0.0)
    between = min(sum(kernel.node_us for kernel in priced) - inside, gaps)
    left = (replace(p, us=p.us - between) if p.kind == LAUNCH_GAPS else p for p in idle)
    nodes = sum(kernel.nodes for kernel in priced)
    return (Part("nodes", inside + between, calls=nodes),), tuple(left)


def _of_token(parts: tuple[Part, ...], token: TokenTime) -> tuple[Part, ...]:
    """A token's part of each of the typical step's, and what it takes beyond that step."""
    steps = 1.0 if token.steps_per_token is None else token.steps_per_token
    scaled = [
        replace(part, us=exact(steps * part.us), node_us=steps * part.node_us) for part in parts
    ]
    left = token.typical_us - sum(part.us for part in scaled)
    return (
        *(replace(p, us=p.us + left) if p.kind == "rest" else p for p in scaled),
        *(Part(name, us) for name, us in token.beyond.items()),
    )


def _no_floor(report: Report, phase: RooflinePhase | None, busy_us: float) -> str:
    """Why there is no lower bound; empty where there is one."""
    if not report.run.tells_steps:
        return "Nothing tells what was computed."
    if phase is None:
        return "Nothing tells how many tokens these steps computed."
    if phase.floor_us is None and (broken := report.failed("floor-step")):
        return broken[0]
    if phase.floor_us is None and phase.needed_bytes and report.run.units == "op":
        return "The bandwidth of this processor's memory is not known."
    if phase.floor_us is None or not phase.needed_bytes:
        return " ".join(report.roofline.notes) if report.roofline else ""
    if phase.known_share < ENOUGH_KNOWN:
        return f"What kernels need is known for {100 * phase.known_share:.0f} % of their time only."
    if phase.floor_us > busy_us:
        return "Their lower bound is longer than anything ran in such a step, which cannot be."
    return ""


def _kind_of(
    converting: Collection[str], name: str, component: str, role: str, call_us: float | None
) -> str:
    """What a kernel is in, by the whole duration of a call; None where nothing tells that."""
    if name in converting:
        return "conversion"
    if part_of(role) == DRAFTER:
        return DRAFTER
    if component == "collective":
        return "collective"
    return "small" if call_us is not None and call_us < SMALL_US else "component"


def _of_step(
    report: Report, account: StepAccount, phase: RooflinePhase | None
) -> list[_WaterfallKernel]:
    """The kernels of the typical step, with what they need."""
    converting = {row.name for row in report.conversions.items}
    rows = {row.place: row for row in phase.rows} if phase else {}
    kernels = []
    for kernel in report.typical:
        if kernel.phase != account.phase or not (kernel.us or kernel.calls):
            continue
        call_us = kernel.kernel_us / kernel.calls + kernel.ahead_us if kernel.calls else None
        kind = _kind_of(converting, kernel.name, kernel.component, kernel.role, call_us)
        row = rows.get(Place(kernel.component, kernel.role, kernel.name))
        needs = (row.bound_us, row.nodes, row.node_us or 0.0) if row else ()
        kernels.append(_WaterfallKernel(kind, kernel.component, kernel.calls, kernel.us, *needs))
    return kernels


def _with_unplaced(kernels: list[_WaterfallKernel], phase: RooflinePhase) -> list[_WaterfallKernel]:
    """The kernels, with the floors of work that is known by its component only."""
    times: defaultdict[str, float] = defaultdict(float)
    unknown = [k for k in kernels if k.floor_us is None and k.kind != "conversion"]
    for k in unknown:
        times[k.component] += k.us
    shares = {f.component: f.us / times[f.component] for f in phase.unplaced if times[f.component]}
    return [
        replace(k, floor_us=exact(shares[k.component] * k.us))
        if k.floor_us is None and k.kind != "conversion" and k.component in shares
        else k
        for k in kernels
    ]


def _above_floor(kernels: Iterable[_WaterfallKernel], whole_us: float) -> tuple[Part, ...]:
    """What kernels take beyond their lower bound, or at all where that is not known, by kind."""
    parts: dict[tuple[str, str], Part] = {}
    for kernel in kernels:
        key = kernel.kind, kernel.component if kernel.kind == "component" else ""
        part = parts.get(key, Part(kernel.kind, 0.0, key[1]))
        beyond = max(kernel.us - (kernel.floor_us or 0.0), 0.0) - kernel.inside_us
        parts[key] = replace(
            part,
            us=part.us + beyond,
            calls=part.calls + kernel.calls,
            node_us=part.node_us + kernel.inside_us,
        )
    little = [p for p in parts.values() if p.component and abs(p.us) < _SMALLEST * whole_us]
    bars = list(parts.values())
    if len(little) > 1:
        us, calls, node_us = (
            sum(getattr(part, name) for part in little) for name in ("us", "calls", "node_us")
        )
        together = Part("components", us, "", calls, node_us)
        bars = [*(p for p in bars if p not in little), together]
    return tuple(sorted(bars, key=_place))


def _place(part: Part) -> tuple[int, int]:
    return _ORDER.index(part.kind), CODES.get(part.component, len(CODES))
