"""Splits the time of a start into its stages: consecutive intervals, so that they add up to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from spark_prof.analyzers.startup.start_rows import StageRow, Startup
from spark_prof.analyzers.startup.starts import EngineStart, Passage, starts_of
from spark_prof.rules.start_advice import START_ADVICE
from spark_prof.rules.start_stages import STAGES, UP
from spark_prof.traces.readers.engine_log import EngineLog
from spark_prof.traces.readers.start_marks import StartMarks


def startup_of(log: EngineLog) -> Startup | None:
    """What the last start in a log that came up took, or the last one.

    None where the log holds no start of vLLM, or where its lines have no times.
    """
    marks = log.starts
    if log.load and marks.marks and log.load.first < marks.marks[0].line:
        marks = replace(marks, first=None)  # its first lines are those of an earlier server
    starts = starts_of(marks)
    if not starts:
        return _without_times(log.starts)
    start = next((one for one in reversed(starts) if one.complete), starts[-1])
    if start.backwards:
        note = f"The times go backwards at line {start.backwards:,}: they tell no stage."
        return Startup((), 0.0, None, start.complete, "", len(starts), start.ranks, notes=(note,))
    if not start.complete and log.load is not None:
        # It served, and the line that tells when it was up is missing.
        start = replace(start, last=start.passages[-1].second)
    account = _Account(start)
    total = float(start.last - start.first)
    stages = tuple(
        StageRow(
            name, STAGES.get(name, ""), seconds, seconds / total if total else None,
            account.lines[name],
        )
        for name in (*STAGES, "")
        if (seconds := account.seconds.get(name, 0.0)) > 0
    )  # fmt: skip
    named_seconds = sum(row.seconds for row in stages if row.id)
    startup = Startup(
        stages, total, named_seconds / total if total else None, start.complete,
        "" if start.complete else account.open_stage, len(starts), start.ranks,
    )  # fmt: skip
    longest = startup.longest
    advice = tuple(row for row in START_ADVICE if longest and row.stage == longest.id)
    return replace(startup, advice=advice, notes=_notes(startup, start))


def _without_times(marks: StartMarks) -> Startup | None:
    """What is said of a start whose lines have no times; None where there was no start."""
    if not any(mark.milestone in ("model-loaded", *UP) for mark in marks.marks):
        return None
    if any(mark.second is not None for mark in marks.marks):
        note = "Too few lines of the start are here to tell its stages."
    else:
        note = "The lines of the log have no times: they tell no stage of the start."
    return Startup((), 0.0, None, False, "", 0, 0, notes=(note,))


def _notes(startup: Startup, start: EngineStart) -> tuple[str, ...]:
    notes = []
    if startup.starts > 1:
        which = "the last that came up" if startup.complete else "the last"
        notes.append(f"The log holds {startup.starts:,} starts: this is {which}.")
    if not any(passage.milestone.begins for passage in start.passages):
        notes.append("The log does not hold the beginning of the start: its lines begin later.")
    if startup.ranks > 1:
        notes.append(f"Of {startup.ranks:,} ranks the slowest counts: the others wait for it.")
    return tuple(notes)


class _Account:
    """Seconds by stage, interval after interval."""

    def __init__(self, start: EngineStart) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.lines: dict[str, int] = {}
        self._longest: dict[str, float] = defaultdict(float)
        begins = start.passages[0].milestone.begins
        self.open_stage = "imports" if begins else ""  # the stage that goes on; empty for none
        self._from_cache = False  # whether what is compiled next is read from the cache
        at = start.first
        for passage in start.passages:
            if passage.milestone.through:
                self._from_cache = True
                continue
            self._interval(passage, float(passage.second - at))
            at = passage.second
            self.open_stage = passage.milestone.opens or self.open_stage
        self._add(self.open_stage, float(start.last - at), start.passages[-1].line)

    def _interval(self, passage: Passage, rest: float) -> None:
        """Splits one interval: first what bars and the line tell, then the stage that was open."""
        for stage, seconds in passage.bars.items():
            rest -= self._add(stage, min(seconds, rest), passage.line)
        milestone = passage.milestone
        stage = milestone.stage
        if stage == "compile" and (self._from_cache or self.open_stage == "compiled-before"):
            stage, self._from_cache = "compiled-before", False
        if passage.stated_seconds is not None and stage:
            rest -= self._add(stage, min(passage.stated_seconds, rest), passage.line)
        self._add(stage if milestone.whole else self.open_stage, rest, passage.line)

    def _add(self, stage: str, seconds: float, line: int) -> float:
        if seconds > 0:
            self.seconds[stage] += seconds
            if seconds > self._longest[stage]:
                self._longest[stage], self.lines[stage] = seconds, line
        return max(seconds, 0.0)
