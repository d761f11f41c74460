"""What the counters say of kernels, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CounterRow:
    """All calls of one kernel that work for one component.

    A figure is None where it was not sampled or where the samples do not determine it.
    """

    name: str
    component: str
    calls: float  # calls in a step, or all calls where steps were not folded
    us: float  # time of one call, in microseconds
    read_bytes: float | None  # bytes that one call reads from DRAM
    read_error: float | None
    """Its standard error, with the part that comes from not knowing the course within a kernel."""
    write_bytes: float | None
    write_error: float | None
    bandwidth: float | None  # bytes read and written over the time of a call, in bytes a second
    tensor_active: float | None
    warps_active: float | None
    sm_active: float | None
    resolved: float  # share of its time in calls that the samples determine


@dataclass(frozen=True)
class WeightRow:
    """What the kernels of one component read in a step, against its weights."""

    component: str
    read_bytes: float
    read_error: float | None
    weight_bytes: float  # bytes of the weights that one step needs
    part: str
    """Which of the component's weights those are, such as "4 of 32 experts"; empty for all."""

    @property
    def ratio(self) -> float:
        """Bytes read over weight bytes."""
        return self.read_bytes / self.weight_bytes


@dataclass(frozen=True)
class CounterBatch:
    """Decode steps of one batch size, folded onto one another."""

    tokens: int  # scheduled tokens of a step
    steps: int  # steps that were sampled
    by_node: bool
    """Whether every node of the graph has an amount of its own; else all calls of a kernel for a
    component share one."""
    lag_us: float  # by how much the samples' clock was found to be late against the kernels'
    conserved: float  # bytes of the kernels and of idle time over bytes sampled
    idle_bytes_per_us: float | None
    rows: tuple[CounterRow, ...]
    weights: tuple[WeightRow, ...]


@dataclass(frozen=True)
class Counters:
    """Everything that the counters say about one rank."""

    interval_us: float
    samples: int
    sampled_us: float
    batches: tuple[CounterBatch, ...]
    long: tuple[CounterRow, ...]
    """Kernels of other steps, as far as they last so many samples that they need no folding."""
    notes: tuple[str, ...]  # what could not be said, and why
