"""The start of an engine: what it took, stage by stage, and what takes its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_prof.analyzers.startup.start_rows import (
    MemoryAccount,
    StageRow,
    StartMemory,
    Startup,
)
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Cell, Column, Section, listed, table
from spark_prof.dashboards.units import WrittenFigure, figure, share, size
from spark_prof.rules.start_memory import MEMORY_TOTALS, TOLD_BY
from spark_prof.rules.start_stages import STAGES

SLOW_S = 60.0
"""Seconds from which on a start is worth a line on the one screen."""
_MOST_OF_IT = 0.5
_LONGEST = 600
_TITLE = "Stages of the start"
_NOT_NAMED = "Not named"
_OF_LOG = "Stages lie between lines of the log, whose times are whole seconds, and add up to {}."
_MARKED = (
    "Each process of the engine marked its stages; from the first one's start they add up to {}."
)
_ACCOUNTS = (
    ("gpu", "memory-gpu", "GPU memory"),
    ("process", "memory-process", "Host memory of the workers"),
    ("host", "memory-host", "The host's memory"),
)


def sections(startup: Startup | None, memory: StartMemory | None) -> Iterator[Section]:
    """What a log tells of its engine's start."""
    if startup is not None:
        yield listed("startup-slow", "Start-up", filter(None, (slow_start(startup),)), _LONGEST)
        yield stages(startup)
    if memory is not None:
        yield parts(memory)


def slow_start(startup: Startup) -> str:
    """A start of more than a minute in a sentence, where one stage is most of it; else nothing.

    "The engine took 3 min 10 s to start; 84.7 % of it was DeepGEMM's warm-up."
    """
    longest = startup.longest
    if not (startup.complete and startup.seconds > SLOW_S and longest):
        return ""
    if not longest.share or longest.share <= _MOST_OF_IT:
        return ""
    sentence = (
        f"The engine took {duration(startup.seconds)} to start; {share(longest.share)} of it was"
    )
    advice = (" ".join(filter(None, (row.what, row.price))) for row in startup.advice)
    return " ".join((f"{sentence} {longest.what}.", *advice))


def stages(startup: Startup) -> Section:
    """Lists what the engine did in its start, in order, and how long."""
    columns: tuple[Column, ...] = (
        cells.Text("Stage", _stage),
        cells.Formatted("Time", lambda row: _seconds(row.seconds)),
        cells.Share("Share", "share"),
    )
    if not startup.stages:
        return listed("startup", _TITLE, startup.notes, _LONGEST)
    below: tuple[Cell, ...] = ("Together", _seconds(startup.seconds), "")
    if not startup.marked:
        columns, below = (*columns, cells.Count("Line", "line")), (*below, "")
    exact = _MARKED if startup.marked else _OF_LOG
    intro = [exact.format(duration(startup.seconds)), *startup.notes]
    if not startup.complete:
        stage = STAGES.get(startup.last_stage, "")
        where = f", in: {stage}" if stage else ""
        intro.insert(0, f"The log ends before the engine is up{where}.")
    return table("startup", _TITLE, startup.stages, columns, intro, (below,))


def parts(memory: StartMemory) -> Section:
    """Lists what the log tells of the GPU's memory."""
    columns = (
        cells.Text("Part", lambda row: row.what or _NOT_NAMED),
        cells.Formatted("Memory", lambda row: _gib(row.gib)),
        cells.Share("Share", "share"),
        cells.SomeCount("Line", "line"),
    )
    totals = (("budget", memory.budget), ("free", memory.free_before), ("device", memory.device))
    below: list[tuple[Cell, ...]] = [
        (MEMORY_TOTALS[name], _gib(gib), "", "") for name, gib in totals if gib is not None
    ]
    intro = []
    if memory.budget is None:
        intro.append(
            "What is not named is unknown: the log does not tell how much vLLM may take in all."
        )
    if memory.with_drafter:
        intro.append("The weights are those of the model and its drafter together.")
    if memory.ranks > 1:
        intro.append(f"Of {memory.ranks:,} ranks this is the one with the most weights.")
    title = "GPU memory after the start"
    return table("memory", title, memory.parts, columns, intro, below)


def measured(accounts: Sequence[MemoryAccount]) -> Iterator[Section]:
    """Lists what takes the memory of each rank's GPU and process, and of the host."""
    for of, name, title in _ACCOUNTS:
        rows = [
            _HeldRow(account.rank, part.what or _NOT_NAMED, part.bytes, part.share)
            for account in accounts
            if account.of == of
            for part in account.parts
        ]
        chosen = [account for account in accounts if account.of == of]
        columns: tuple[Column, ...] = (
            cells.Text("Part", "part"),
            cells.Bytes("Memory", "bytes"),
            cells.Share("Share", "share"),
        )
        if len(chosen) > 1:
            columns = (cells.Count("Rank", "rank"), *columns)
        intro = list(dict.fromkeys(_told_by(account) for account in chosen))
        if any(account.shared for account in chosen):
            intro.append("GPU and host share one memory.")
        below = [line for account in chosen for line in _totals(account, len(columns))]
        yield table(name, title, rows, columns, intro, below)


@dataclass(frozen=True)
class _HeldRow:
    rank: int | None
    part: str
    bytes: int
    share: float | None


def _told_by(account: MemoryAccount) -> str:
    return f"When the recording began; the total is from {TOLD_BY[account.source]}."


def _totals(account: MemoryAccount, columns: int) -> Iterator[tuple[Cell, ...]]:
    rank = () if columns == 3 else (str(account.rank),)
    for label, amount in (
        ("Together", account.total),
        ("The most so far", account.peak),
        ("When the recording ended", account.at_end),
        ("Free", account.free),
        ("The memory", account.capacity),
    ):
        if amount is not None:
            yield (*rank, label, size(amount), "")


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    duration(293.2) == "4 min 53 s"
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _stage(row: StageRow) -> str:
    return f"{row.what[:1].upper()}{row.what[1:]}" if row.what else _NOT_NAMED


def _seconds(seconds: float) -> WrittenFigure:
    return WrittenFigure(f"{seconds:,.1f} s", seconds * 1e6, "s")


def _gib(gib: float) -> str:
    return figure(gib, ",.2f", " GiB")
