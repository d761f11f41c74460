"""The clock of every rank against the lowest rank's, and how far a merged bundle's times move.

Nobody can leave a collective before the last participant has entered it. For a participant on
each side this bounds the offset from above (ended there - started here) and from below (started
there - ended here), however long anybody waited: the tightest bounds of all collectives hold for
any network. Inside them the offset is taken from the ends, which lie near together. Where no
collective joins two hosts, the scheduler's record gives bounds of the same kind: no worker begins
a step before it is scheduled, and none whose result is awaited ends it after it was taken in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.rank_layout import RankLayout, clock_name, layout_of
from spark_prof.analyzers.ranks.align_ranks import Teamwork, teamwork_of
from spark_prof.arrays import Floats, Int64s
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.merge_ranks import Shift

_BLOCKS = 32
_FEWEST_BLOCKS = 8
_DRIFT_SPAN_NS = 100_000_000
_LARGEST_DRIFT = 1e-3
_STRETCHES = 8
_FEWEST_IN_STRETCH = 16
TIMER_NS = 2_000  # by how much device times of one host may disagree: the driver converts GPU ticks


@dataclass(frozen=True)
class Offset:
    """A clock against the reference clock, in ns: positive where it is ahead."""

    ns: float  # the offset at `at_ns`
    drift: float  # by how much it grows, in ns per ns
    at_ns: int  # a time by that clock
    uncertainty_ns: float  # the true offset lies no further away, at any time of the recording
    events: int  # collectives or steps that it stands on
    basis: str  # collectives or scheduler

    def at(self, time_ns: Int64s) -> Int64s:
        """What to take from times by that clock to get times by the reference clock."""
        drifted = self.drift * (time_ns - self.at_ns).astype(np.float64)
        correction: Int64s = np.rint(self.ns + drifted).astype(np.int64)
        return correction


def offset_of_collectives(
    here_start: Int64s, here_end: Int64s, there_start: Int64s, there_end: Int64s
) -> Offset | None:
    """The offset of the clock `there`; None where the bounds contradict each other.

    For each collective the latest start and the earliest end by the reference clock, and those by
    the other one.
    """
    if not len(here_start):
        return None
    origin = int(there_end[0] - here_end[0])
    at_ns = int(np.median(there_end))
    time = (there_end - at_ns).astype(np.float64)
    between_ends = (there_end - here_end - origin).astype(np.float64)
    drift = _drift(time, between_ends)
    upper = (there_end - here_start - origin) - drift * time
    lower = (there_start - here_end - origin) - drift * time
    middle = float(np.median(between_ends - drift * time))
    # The tightest bounds of each stretch of time: drift that is left shows between stretches.
    stretches = max(min(_STRETCHES, len(time) // _FEWEST_IN_STRETCH), 1)
    parts = np.array_split(np.argsort(time, kind="stable"), stretches)
    bounds = [(float(lower[part].max()), float(upper[part].min())) for part in parts]
    return _within(bounds, middle, origin, drift, at_ns, len(time), "collectives")


def offset_of_steps(
    scheduled: Int64s, start: Int64s, updated: Int64s, end: Int64s
) -> Offset | None:
    """The offset of a worker's clock against its scheduler's; None where the bounds contradict.

    A step was scheduled before its worker started it. An awaited one, which the other two times
    are of, was updated by the scheduler after the worker had ended it.
    """
    if not len(scheduled) or not len(updated):
        return None
    origin = int(start[0] - scheduled[0])
    upper = float((start - scheduled - origin).min())
    lower = float((end - updated - origin).max())
    at_ns = int(np.median(start))
    return _within(
        [(lower, upper)], (lower + upper) / 2, origin, 0.0, at_ns, len(scheduled), "scheduler"
    )


def _within(
    bounds: Sequence[tuple[float, float]],
    middle: float,
    origin: int,
    drift: float,
    at_ns: int,
    events: int,
    basis: str,
) -> Offset | None:
    """The offset nearest to `middle` that all bounds allow; None where a stretch allows none."""
    if any(lower > upper + TIMER_NS for lower, upper in bounds):
        return None
    least, most = max(lower for lower, _ in bounds), min(upper for _, upper in bounds)
    offset = min(max(middle, least), most) if least <= most else middle
    # The timers' own error is on both sides of the bounds.
    wide = max(max(upper - offset, offset - lower) for lower, upper in bounds) + TIMER_NS
    return Offset(origin + offset, drift, at_ns, wide, events, basis)


def _drift(time: Floats, between_ends: Floats) -> float:
    """Slope of the ends' distance over time; 0 where the recording is too short to tell.

    The median slope between medians of blocks: single late ends change nothing.
    """
    order = np.argsort(time, kind="stable")
    blocks = [b for b in np.array_split(order, min(_BLOCKS, len(order))) if len(b)]
    if len(blocks) < _FEWEST_BLOCKS or np.ptp(time) < _DRIFT_SPAN_NS:
        return 0.0
    x = np.array([np.median(time[b]) for b in blocks])
    y = np.array([np.median(between_ends[b]) for b in blocks])
    left, right = np.triu_indices(len(blocks), 1)
    apart = x[right] - x[left]
    slopes = (y[right] - y[left])[apart > 0] / apart[apart > 0]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    noise = float(np.median(np.abs(y - slope * x - np.median(y - slope * x))))
    significant = abs(slope) * float(np.ptp(x)) > 3 * noise
    return slope if significant and abs(slope) < _LARGEST_DRIFT else 0.0


@dataclass(frozen=True)
class RankClock:
    """One rank's clock; `offset` is None where nothing tells it, or what does contradicts itself.

    On the reference's own host (`same_host`) the offset is only a check of the timestamps. `met`
    is how many collectives its host ran together with the reference's.
    """

    rank: int
    reference: int
    same_host: bool
    offset: Offset | None
    met: int

    @property
    def blind(self) -> bool:
        """Whether no clock joins its times to the reference's, though both met."""
        return self.offset is None and (self.met > 0 or not self.same_host)

    @property
    def contradicts(self) -> bool:
        """Whether ranks of one host disagree about the time although they share the clock."""
        if self.offset is None:
            return self.same_host and self.met > 0
        return self.same_host and abs(self.offset.ns) > self.offset.uncertainty_ns


def clocks_of(
    bundle: Bundle, layout: RankLayout, works: Sequence[Teamwork]
) -> tuple[RankClock, ...]:
    """One entry per recorded rank but the lowest, which is the reference."""
    if len(bundle.ranks) < 2:
        return ()
    names = {rank: clock_name(bundle.facts(rank)) for rank in bundle.ranks}
    reference = bundle.ranks[0]
    on_reference = {rank for rank in bundle.ranks if names[rank] == names[reference]}
    hosts: dict[str, tuple[Offset | None, int]] = {}
    for name in set(names.values()) - {names[reference]}:
        on_host = {rank for rank in bundle.ranks if names[rank] == name}
        offset, met = _by_collectives(works, on_reference, on_host)
        hosts[name] = offset if met else _by_steps(bundle, layout, names[reference], on_host), met
    clocks = []
    for rank in bundle.ranks[1:]:
        offset_and_events = (
            _by_collectives(works, {reference}, {rank})
            if rank in on_reference
            else hosts[names[rank]]
        )
        clocks.append(RankClock(rank, reference, rank in on_reference, *offset_and_events))
    return tuple(clocks)


def _by_collectives(
    works: Sequence[Teamwork], ranks: set[int], other_ranks: set[int]
) -> tuple[Offset | None, int]:
    sides = []
    for work in works:
        calls = work.matched.calls
        if not (ranks & set(work.team.ranks) and other_ranks & set(work.team.ranks)):
            continue
        ours, theirs = (
            calls[calls["rank"].isin(side)]
            .groupby("call")
            .agg({"start_ns": "max", "end_ns": "min"})
            for side in (ranks, other_ranks)
        )
        met = ours.index.intersection(theirs.index)
        sides.append(np.hstack([ours.loc[met], theirs.loc[met]]))
    if not sides:
        return None, 0
    times = np.vstack(sides).T
    return offset_of_collectives(*times), times.shape[1]


def _by_steps(bundle: Bundle, layout: RankLayout, clock: str, ranks: set[int]) -> Offset | None:
    """From the scheduler's record, where the scheduler read the reference clock."""
    workers: list[pd.DataFrame] = []
    for name, facts in bundle.meta.facts.items():
        digits = name.removeprefix("engine")
        if digits == name or not digits.isdecimal() or clock_name(facts) != clock:
            continue
        replica = int(digits)
        engine = bundle.frame("engine", replica, ["key", "schedule_ns", "update_ns"])
        engine = engine[engine["update_ns"] > 0].drop_duplicates("key", keep=False)
        size = layout.tensor * layout.pipeline
        for rank in sorted(ranks & set(range(replica * size, (replica + 1) * size))):
            steps = bundle.frame("steps", rank, ["key", "start_ns", "end_ns"])
            steps = steps.drop_duplicates("key", keep=False).merge(engine, on="key")
            workers.append(steps.assign(awaited=rank in layout.output_ranks))
    if not workers:
        return None
    rows = pd.concat(workers)
    awaited = rows[rows["awaited"]]
    return offset_of_steps(
        *(rows[name].to_numpy(np.int64) for name in ("schedule_ns", "start_ns")),
        *(awaited[name].to_numpy(np.int64) for name in ("update_ns", "end_ns")),
    )


def wanted_shifts(bundle: Bundle) -> tuple[dict[str, Shift], tuple[str, ...]]:
    """For each process on another host than the lowest rank's, what is known about its clock.

    A scheduler on such a host has the offset of the ranks there. An offset that may as well be
    none moves nothing.

    Returns:
        The shifts by process, and a line for each rank whose clock nothing ties to the lowest's.
    """
    shifts: dict[str, Shift] = {}
    hosts: dict[str, Shift] = {}
    untied = []
    layout = layout_of(bundle)
    for clock in clocks_of(bundle, layout, teamwork_of(bundle, layout)):
        offset = clock.offset
        if clock.same_host:
            continue
        if offset is None:
            untied.append(
                f"rank {clock.rank}: nothing ties its host's clock to that of rank "
                f"{clock.reference}; its times stand as they were recorded"
            )
            continue
        shift = Shift(
            reference_rank=clock.reference,
            offset_ns=offset.ns,
            drift=offset.drift,
            at_ns=offset.at_ns,
            uncertainty_ns=offset.uncertainty_ns,
            basis=offset.basis,
            events=offset.events,
            applied=abs(offset.ns) > offset.uncertainty_ns or offset.drift != 0.0,
        )
        shifts[f"rank{clock.rank}"] = hosts[clock_name(bundle.facts(clock.rank))] = shift
    for name, facts in bundle.meta.facts.items():
        if name.startswith("engine") and (shared := hosts.get(clock_name(facts))):
            shifts[name] = shared
    return shifts, tuple(untied)
