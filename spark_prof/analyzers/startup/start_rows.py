"""The accounts of a start: its stages that add up to its time, and the parts of its memory."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.rules.start_advice import StartAdvice


@dataclass(frozen=True)
class StageRow:
    """What one stage took, all its intervals together."""

    id: str  # of `rules.start_stages.STAGES`; empty for time that no line names
    what: str  # what the engine does in it; empty where no line names it
    seconds: float
    share: float | None  # of the whole start; None where that took no second
    line: int  # of the log, from 1: where its longest interval ends


@dataclass(frozen=True)
class Startup:
    """What a start took: the stages add up to the time between its first and last line."""

    stages: tuple[StageRow, ...]  # in the order of a start; time without a name stands last
    seconds: float  # from the first line to the one that tells that the engine is up
    named_share: float | None  # of that time; None where it took no second
    complete: bool  # whether it came up
    last_stage: str  # what it did where the log ends, by id; empty where it came up
    starts: int  # in the log; this is the last that came up, or the last
    ranks: int  # processes that wrote the same lines: the slowest counts
    advice: tuple[StartAdvice, ...] = ()  # on the longest stage, where something helps for certain
    notes: tuple[str, ...] = ()  # what could not be told, and which of several is told
    marked: bool = False  # whether a recording marked it, to the microsecond, and no log tells it

    @property
    def longest(self) -> StageRow | None:
        """The stage that took most, of those with a name."""
        named = [row for row in self.stages if row.id]
        return max(named, key=lambda row: row.seconds, default=None)


@dataclass(frozen=True)
class MemoryRow:
    """One part of the memory that an engine takes."""

    id: str  # of `rules.start_memory.MEMORY_PARTS`; empty for what no line names
    what: str  # the part in words; empty for what no line names
    gib: float  # in units of 2^30 bytes
    share: float | None  # of what the engine may take; None where the log does not tell that
    line: int  # of the log, from 1; 0 for what no line names


@dataclass(frozen=True)
class StartMemory:
    """What takes the GPU's memory after the start, as the log tells it; figures in GiB."""

    parts: tuple[MemoryRow, ...]
    budget: float | None  # what vLLM may take in all; None where the log does not tell
    named_gib: float  # the parts' sum
    free_before: float | None  # on the GPU before the start
    device: float | None  # the GPU's memory
    named_share: float | None  # of the budget
    with_drafter: bool  # whether the weights are those of a drafter, too
    ranks: int  # processes that tell it: the one with the most weights counts


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory that was measured."""

    id: str  # of `rules.start_memory.HELD_PARTS`, a process's name, or empty for what has no name
    what: str
    bytes: int
    share: float | None  # of the account's total


@dataclass(frozen=True)
class MemoryAccount:
    """What takes one memory when a recording begins: parts that add up to a measured total."""

    of: str  # "gpu" of a rank, "process" of a rank's host memory, or "host" for the whole machine
    rank: int | None  # None for the machine
    parts: tuple[MemoryPart, ...]  # the largest names first; what has no name stands last
    total: int  # bytes
    source: str  # of `rules.start_memory.TOLD_BY`: who tells the total
    named_share: float | None  # of the total; None where that is 0
    capacity: int | None = None  # bytes of the GPU or the host; None where nothing tells
    free: int | None = None  # of the capacity
    peak: int | None = None  # the most of it so far: of torch's allocator, or of the process
    at_end: int | None = None  # the same total when the recording ended
    shared: bool = False  # whether GPU and host share the memory
