"""How the processes of a recorded engine started, and what they held: as they told it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import STARTS

_Kind = TypeVar("_Kind")

_MOST = 1 << 62
MEMORY, MEMORY_AT_END = "memory", "memory_at_end"
"""Among the facts of a rank: what it held when its recording began, and when it ended."""


@dataclass(frozen=True)
class HeldMemory:
    """What a process held at a moment, in bytes; None where nothing tells."""

    rss: int = 0
    allocated: int | None = None  # of torch's allocator
    reserved: int | None = None
    used: int | None = None  # of the GPU, in all
    source: str = ""  # what tells `used` (`profiler.memory_state.MemoryGauge`)
    peak_allocated: int | None = None
    peak_reserved: int | None = None


@dataclass(frozen=True)
class RankMemory(HeldMemory):
    """What a rank held when its recording began, and the memory of its GPU and host."""

    shared: bool = False  # whether GPU and host share one memory
    weights: int | None = None  # of all tensors of the model
    kv_cache: int | None = None
    drafter: int | None = None
    gpu: int | None = None  # the device's number in the process
    device: dict[str, int] = field(default_factory=dict)  # total, used and free, from NVML
    host: dict[str, int] = field(default_factory=dict)  # of /proc/self
    machine: dict[str, Any] = field(default_factory=dict)  # of /proc/meminfo


@dataclass(frozen=True)
class StartMark:
    """A stage of a process's start; times are those of CLOCK_MONOTONIC."""

    stage: str  # of `rules.start_stages.STAGES`
    begin_ns: int
    end_ns: int
    before: HeldMemory | None = None
    after: HeldMemory | None = None


@dataclass(frozen=True)
class ProcessStart:
    """The start of one process of an engine."""

    process: str  # "front", or as its facts are named: rank0, engine0
    started_ns: int
    pid: int = 0  # of a shared recording 0
    boot: str = ""
    marks: tuple[StartMark, ...] = ()
    compiled: dict[str, int] = field(default_factory=dict)  # vLLM's counters of torch.compile
    memory: dict[str, int] | None = None  # of /proc/self when it was up

    @property
    def is_rank(self) -> bool:
        """Whether it ran a worker."""
        return self.process.startswith("rank")


def starts_in(bundle: Bundle) -> tuple[ProcessStart, ...]:
    """The starts of the engine's processes; none where none told. What is damaged is left out."""
    starts: dict[tuple[str, int, int], ProcessStart] = {}
    for facts in bundle.meta.facts.values():
        rows = facts.get(STARTS)
        for row in rows if isinstance(rows, list) else ():
            start = _converted(row, ProcessStart)
            if start is not None and _plausible(start):
                starts.setdefault((start.boot, start.pid, start.started_ns), start)
    return tuple(starts.values())


def of_first_host(starts: Sequence[ProcessStart]) -> tuple[ProcessStart, ...]:
    """Those of the host of the first of them: clocks of other hosts count from another moment."""
    return tuple(start for start in starts if start.boot == starts[0].boot)


def memory_in(bundle: Bundle, rank: int) -> RankMemory | None:
    """What a rank held when its recording began; None where it did not tell."""
    return _converted(bundle.facts(rank).get(MEMORY), RankMemory)


def memory_at_end(bundle: Bundle, rank: int) -> HeldMemory | None:
    """What a rank held when its recording ended."""
    return _converted(bundle.facts(rank).get(MEMORY_AT_END), HeldMemory)


def _plausible(start: ProcessStart) -> bool:
    return all(0 <= mark.begin_ns <= mark.end_ns < _MOST for mark in start.marks)


def _converted(value: object, kind: type[_Kind]) -> _Kind | None:
    try:
        return msgspec.convert(value, kind) if value else None
    except (msgspec.ValidationError, RecursionError):
        return None
