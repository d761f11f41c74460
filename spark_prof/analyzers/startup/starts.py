"""The starts that a log holds, each as the steps that its slowest rank took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from spark_prof.rules.start_stages import MILESTONES_BY_ID, UP, Milestone
from spark_prof.traces.readers.start_marks import Mark, StartMarks


@dataclass(frozen=True)
class Passage:
    """One milestone of a start, as the last rank passed it."""

    milestone: Milestone
    second: int
    stated_seconds: float | None
    line: int
    # Seconds that progress bars before it tell, by the stage that they are of.
    bars: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineStart:
    """One start of an engine."""

    first: int  # the second of its first line
    last: int  # of the line with which it is up, or with which the log ends
    passages: tuple[Passage, ...]  # in the order of time
    complete: bool
    ranks: int
    backwards: int = 0  # the line at which its clock goes backwards; 0 for none


_A_YEAR = 366 * 86_400
_JITTER = 2
"""Seconds by which the lines of two processes may change places on their way into a file."""


def starts_of(marks: StartMarks) -> tuple[EngineStart, ...]:
    """The starts of a log in their order; none where fewer than two of its lines have a time."""
    marks = _unrolled(marks)
    groups = [group for group in _groups(marks.marks) if _times(group)]
    starts = []
    for at, group in enumerate(groups):
        times = _times(group)
        first, last = times[0], times[-1]
        # A restart ends what came before it: what is between them is no start.
        if at == 0 and marks.first is not None:
            first = marks.first
        if at == len(groups) - 1 and marks.last is not None:
            last = marks.last
        earliest, latest = min(times), max(times)
        first = earliest if first - earliest <= _JITTER and earliest < first else first
        last = latest if latest - last <= _JITTER and last < latest else last
        starts.append(_start(group, first, last))
    return tuple(start for start in starts if len(start.passages) > 1)


def _unrolled(marks: StartMarks) -> StartMarks:
    """The marks with the times of a next year behind those of the first: lines name no year."""
    first = next(iter(_times(marks.marks)), None) if marks.first is None else marks.first
    if first is None:
        return marks

    def unrolled(second: int | None) -> int | None:
        is_next = second is not None and first - second > _A_YEAR // 2
        return second + _A_YEAR if second is not None and is_next else second

    return StartMarks(
        tuple(replace(mark, second=unrolled(mark.second)) for mark in marks.marks),
        marks.memory, marks.first, unrolled(marks.last),
    )  # fmt: skip


def _times(marks: Iterable[Mark]) -> list[int]:
    return [mark.second for mark in marks if mark.second is not None]


def _groups(marks: Iterable[Mark]) -> list[list[Mark]]:
    """The marks of each start."""
    groups: list[list[Mark]] = [[]]
    configured = set[str]()  # processes of this start that wrote their configuration
    for mark in marks:
        begins = MILESTONES_BY_ID[mark.milestone].begins
        configures = mark.milestone == "engine-config"
        if (begins and configured) or (configures and mark.process in configured):
            groups.append([])
            configured = set()
        if configures:
            configured.add(mark.process)
        groups[-1].append(mark)
    return groups


def _start(marks: Sequence[Mark], first: int, last: int) -> EngineStart:
    up = next((name for name in UP if any(mark.milestone == name for mark in marks)), "")
    if up:
        end = max(at for at, mark in enumerate(marks) if mark.milestone == up)
        marks = marks[: end + 1]
    passages = _passages(marks)
    if up and passages:
        last = passages[-1].second
    backwards = _backwards(marks, first, last)
    ranks = sum(_ranks(marks).values())
    return EngineStart(first, last, passages, bool(up), ranks, backwards)


def _ranks(marks: Iterable[Mark]) -> Counter[str]:
    """How many ranks write under the name of each process; those of Ray share one."""
    return Counter(mark.process for mark in marks if mark.milestone == "model-loaded")


def _passages(marks: Sequence[Mark]) -> tuple[Passage, ...]:
    """Each milestone once for all ranks, the last of them: the others wait for it."""
    ranks = _ranks(marks)
    occurrences = Counter[tuple[str, str]]()
    slowest: dict[tuple[str, int], Passage] = {}
    bars: dict[str, list[float]] = defaultdict(list)
    for mark in marks:
        milestone = MILESTONES_BY_ID[mark.milestone]
        if milestone.bar:
            bars[milestone.stage].append(mark.stated_seconds or 0.0)
        if mark.second is None:
            continue
        occurrence = occurrences[mark.milestone, mark.process]
        key = (mark.milestone, occurrence // max(ranks[mark.process], 1))
        occurrences[mark.milestone, mark.process] += 1
        # Bars of several ranks run at the same time.
        previous = slowest.get(key)
        longest = {stage: max(seconds) for stage, seconds in bars.items()}
        bars.clear()
        if previous is None:
            slowest[key] = Passage(milestone, mark.second, mark.stated_seconds, mark.line, longest)
        elif mark.second >= previous.second:
            slowest[key] = Passage(
                milestone, mark.second, mark.stated_seconds, mark.line, {**previous.bars, **longest}
            )
        elif longest:
            slowest[key] = replace(previous, bars={**previous.bars, **longest})
    return tuple(sorted(slowest.values(), key=lambda passage: passage.second))


def _backwards(marks: Iterable[Mark], first: int, last: int) -> int:
    """The line at which the clock of one process goes backwards; 0 for none."""
    latest: dict[str, int] = {}
    line = 0
    for mark in marks:
        if mark.second is None:
            continue
        line = mark.line
        if mark.second < latest.get(mark.process, first):
            return mark.line
        latest[mark.process] = mark.second
    return line if last < max(latest.values(), default=first) else 0
