"""Splits the time of a recorded start into stages, by the marks of the engine's processes.

At each moment the stage counts that began last: what a worker does is within what its engine does,
and that within what the front end waits for. Of several ranks the slowest counts, phase by phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from spark_prof.analyzers.startup.start_rows import StageRow, Startup
from spark_prof.rules.start_advice import START_ADVICE
from spark_prof.rules.start_stages import STAGES
from spark_prof.traces.engine_starts import ProcessStart, StartMark, of_first_host

_PHASES = ("imports", "processes", "load", "profile", "kv-cache", "warm-up")
_AROUND = ("configuration", "rest", "server")  # of the front end and the engine's core
_WORDS = {"load": "the rest of loading the model"}  # besides the parts that have marks
_LOADED, _COMPILED = "num_compiled_artifacts_loaded", "num_inductor_compiles"


def marked_start(starts: Sequence[ProcessStart]) -> Startup | None:
    """What a start took from its first process to the moment when the engine could serve.

    None where the processes told nothing, or nothing but that they began.
    """
    starts = of_first_host(starts)
    ranks = [start for start in starts if start.is_rank]
    marks = [
        mark
        for start in starts
        for mark in start.marks
        if not start.is_rank or mark.stage in _AROUND
    ]
    ends = [mark.end_ns for mark in marks if mark.stage in _AROUND]
    marks += _slowest(ranks)
    if not ends and not any(mark.stage == "warm-up" for mark in marks):
        return None
    first = min(start.started_ns for start in starts)
    last = max(ends or (mark.end_ns for mark in marks))
    seconds = _seconds(marks, first, last)
    total = (last - first) / 1e9
    stages = tuple(
        StageRow(name, _WORDS.get(name, STAGES.get(name, "")), took, took / total, 0)
        for name in (*STAGES, "")
        if (took := seconds.get(name, 0.0)) > 0
    )
    named_share = sum(row.seconds for row in stages if row.id) / total if total else None
    startup = Startup(
        stages, total, named_share, True, "", 1, len(ranks), notes=tuple(_notes(starts)),
        marked=True,
    )  # fmt: skip
    longest = startup.longest
    advice = tuple(row for row in START_ADVICE if longest and row.stage == longest.id)
    return replace(startup, advice=advice)


def _slowest(ranks: Sequence[ProcessStart]) -> Iterator[StartMark]:
    """The marks of the rank that ended each phase last, with what is within the phase."""
    for stage in _PHASES:
        phases = [
            (_outermost(rank.marks, stage), rank)
            for rank in ranks
            if any(mark.stage == stage for mark in rank.marks)
        ]
        if phases:
            phase, rank = max(phases, key=lambda pair: pair[0].end_ns)
            yield from (
                mark
                for mark in rank.marks
                if phase.begin_ns <= mark.begin_ns and mark.end_ns <= phase.end_ns
            )


def _outermost(marks: Iterable[StartMark], stage: str) -> StartMark:
    return max(
        (mark for mark in marks if mark.stage == stage),
        key=lambda mark: mark.end_ns - mark.begin_ns,
    )


def _seconds(marks: Sequence[StartMark], first: int, last: int) -> dict[str, float]:
    """Seconds by stage between two times; those of the empty one are nobody's."""
    marks = [*marks, *_weights(marks)]
    times = sorted(
        {first, last, *(time for mark in marks for time in (mark.begin_ns, mark.end_ns))}
    )
    seconds: dict[str, float] = defaultdict(float)
    for begin, end in pairwise(times):
        if first <= begin and end <= last:
            open_marks = [mark for mark in marks if mark.begin_ns <= begin and end <= mark.end_ns]
            latest = max(open_marks, key=lambda mark: (mark.begin_ns, -mark.end_ns), default=None)
            seconds[latest.stage if latest else ""] += (end - begin) / 1e9
    return seconds


def _weights(marks: Sequence[StartMark]) -> Iterator[StartMark]:
    """Between building a model and repacking its weights a loader reads them."""
    for built in (mark for mark in marks if mark.stage == "build"):
        after = [mark.begin_ns for mark in marks if mark.begin_ns >= built.end_ns]
        load = [mark.end_ns for mark in marks if mark.stage == "load"]
        ends = [time for time in (*after, *load) if time >= built.end_ns]
        if ends:
            yield StartMark("weights", built.end_ns, min(ends))


def _notes(starts: Sequence[ProcessStart]) -> Iterator[str]:
    ranks = [start for start in starts if start.is_rank]
    if len(ranks) > 1:
        yield f"Of {len(ranks):,} ranks the slowest counts: the others wait for it."
    for start in ranks[:1]:
        loaded, compiled = (start.compiled.get(name, 0) for name in (_LOADED, _COMPILED))
        if loaded or compiled:
            yield f"torch.compile read {loaded:,} parts from its cache and compiled {compiled:,}."
