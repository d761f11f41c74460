"""By how much a merged bundle's times must be moved to stand on one clock."""

from __future__ import annotations

from spark_prof.analyzers.ranks.alignment import RankClock, clocks_of
from spark_prof.analyzers.ranks.layout import clock_name, layout_of
from spark_prof.analyzers.ranks.teamwork import teamwork_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.merge import Shift


def wanted_shifts(bundle: Bundle) -> dict[str, Shift]:
    """For each process on another host than the lowest rank's, what is known about its clock.

    A scheduler on such a host has the offset of the ranks there. An offset that may as well be
    none moves nothing.
    """
    shifts: dict[str, Shift] = {}
    hosts: dict[str, Shift] = {}
    for clock in _far(bundle):
        if clock.offset is None:
            continue
        offset = clock.offset
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
    return shifts


def untied(bundle: Bundle) -> tuple[str, ...]:
    """One line for each rank whose clock nothing ties to that of the lowest rank."""
    return tuple(
        f"rank {clock.rank}: nothing ties its host's clock to that of rank {clock.reference}; its "
        "times stand as they were recorded"
        for clock in _far(bundle)
        if clock.offset is None
    )


def _far(bundle: Bundle) -> list[RankClock]:
    layout = layout_of(bundle)
    clocks = clocks_of(bundle, layout, teamwork_of(bundle, layout))
    return [clock for clock in clocks if not clock.same_host]
