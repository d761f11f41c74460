"""What a reader must know about the figures of a parallel run: one rule a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.ranks.alignment import RankClock
from spark_prof.analyzers.ranks.layout import Layout
from spark_prof.analyzers.ranks.teamwork import Teamwork


def remarks(
    layout: Layout, works: Sequence[Teamwork], clocks: Sequence[RankClock], contradictory: int
) -> tuple[str, ...]:
    """The sentences, those about what is missing first."""
    found = []
    if layout.missing:
        found.append(
            f"Ranks {_few(layout.missing)} of the run are not in this bundle. Where they were "
            "recorded on another host, spark-prof merge joins both; where their group has other "
            "ranks here, waits are lower bounds."
        )
    if layout.crosses_replicas:
        found.append(
            "Experts are spread over data-parallel replicas, whose batches differ: collectives "
            + ("were matched by the time at which they ended." if works else "were not matched.")
        )
    if layout.pipeline > 1:
        found.append(
            "Ranks are compared within a pipeline stage only. Sends and receives between stages "
            "are not matched."
        )
    if unequal := sum(work.matched.unequal_steps for work in works):
        found.append(
            f"In {_counted(unequal, 'step')} the ranks ran different numbers of a collective: "
            "nothing there was matched."
        )
    if apart := sum(work.most_steps - len(work.matched.steps) for work in works):
        found.append(f"Not on every rank of the group, so left out: {_counted(apart, 'step')}.")
    if contradictory:
        found.append(
            f"Left out: {_counted(contradictory, 'call')} in which one rank was done before "
            "another had begun. They do not belong together, or the clocks are wrong."
        )
    far = [clock for clock in clocks if not clock.same_host]
    if blind := [clock.rank for clock in far if clock.offset is None]:
        found.append(
            f"Nothing ties the clock of ranks {_few(blind)} to that of rank {far[0].reference}, "
            "or what does contradicts itself: their times cannot be compared."
        )
    if wrong := [clock.rank for clock in clocks if clock.contradicts]:
        found.append(
            f"Ranks {_few(wrong)} share a clock with rank {clocks[0].reference}, but their "
            "timestamps disagree by more than collectives allow."
        )
    return tuple(found)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _few(ranks: Sequence[int]) -> str:
    """At most eight numbers."""
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
