"""A roofline as plain data. Times are microseconds, bandwidths bytes per second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_prof.arrays import exact
from spark_prof.rules.gpus import SourcedFigure
from spark_prof.rules.node_prices import NodePrice


class Place(NamedTuple):
    """Where the time and the needs of a kernel count; the role is empty where it is not known."""

    component: str
    role: str
    name: str


@dataclass(frozen=True)
class Ceilings:
    """What the GPU allows."""

    gpu: str
    data_sheet: SourcedFigure | None = None  # of its memory; None where the GPU is not known
    # What a kernel that only reads reached: measured on this machine, else measured or reported for
    # such a GPU; None where unknown.
    reached: SourcedFigure | None = None
    peaks: tuple[tuple[str, float], ...] = ()  # operations per second by precision
    peak_source: str = ""  # whose peaks those are
    clocks: str = ""  # how the clocks stood when it was measured, empty where it was not
    smallest_kernel_us: float | None = None  # an empty one in a CUDA graph, where measured
    l2_bytes: int | None = None  # of its level-2 cache
    peaks_measured: bool = False  # whether those peaks were, which a better kernel may pass
    node: NodePrice | None = None  # of a CUDA graph's nodes; None where nobody measured it

    @property
    def bandwidth(self) -> SourcedFigure | None:
        """The one that lower bounds use: what was reached, else that of the data sheet."""
        return self.reached or self.data_sheet

    def peak(self, precision: str | None) -> float | None:
        """Operations per second in that precision, None where unknown."""
        return dict(self.peaks).get(precision or "")


def starts_early(us: float, ahead_us: float) -> bool:
    """Whether a twentieth of a call lies before its own time: what it reads there nobody sees."""
    return ahead_us > 0.05 * (us + ahead_us)


@dataclass(frozen=True)
class RooflineRow:
    """All calls of one kernel in one role of a component, in the steps of one phase.

    A figure is None where it is unknown. What one call needs is a mean over the calls.
    """

    name: str
    component: str
    calls: float  # calls in a step
    # Time of all calls in a step, as the facts have it; JSON has that of one.
    step_us: float = field(metadata={"json": "us"})
    needed_bytes: float | None  # that a call has to move: weights, KV cache and activations once
    streamed_bytes: float  # what of it must come from memory: weights and KV cache
    operations: float  # arithmetic operations of one call, a multiply-add counted as two
    what: str  # what it moves, such as "w13: at least 4 of 32 experts"
    basis: str  # how that was found to be this kernel's work; empty where nothing was
    expected: bool  # whether more bytes are to be expected: of experts that nobody saw chosen
    bandwidth: float | None  # needed bytes over time
    of_data_sheet: float | None  # share of the data sheet's bandwidth
    of_reached: float | None  # share of the measured read bandwidth
    floor_us: float | None  # lower bound of a call: its bytes or operations at the roofline
    # Memory or arithmetic, latency where the smallest kernel takes longer, or exchange where a
    # product waits for other ranks as well; what it misses of its bound nobody knows then.
    limiter: str | None
    left_us: float | None  # time above the lower bound, of all calls of a step
    left_ms_per_token: float | None
    read_bytes: float | None = None  # that one call really read from memory, by counters
    read_by: str = ""  # which counters: PM sampling or Nsight Compute
    amplification: float | None = None  # bytes read over those that had to be, where counted
    role: str = ""  # path of their module, without its layer; empty where it is not known
    owner_basis: str = "none"  # of component and role: the weakest of the bases of its calls
    # How long before its time a call was seen to start while the kernel before it ran. Where it
    # `starts_early`, bandwidth and shares are not known.
    ahead_us: float = 0.0
    product: str = ""  # which of its component's products it computes, such as w13; else empty
    weights: tuple[str, ...] = ()  # the names of those that it reads, such as w13 and w2
    nodes: float = 0.0  # its nodes of CUDA graphs in a step, as `analyzers.roofline.nodes` has them
    node_us: float | None = None  # what these cost beside the floor; None where that is not known

    @property
    def place(self) -> Place:
        """The key of the row among those of its phase."""
        return Place(self.component, self.role, self.name)

    @property
    def us(self) -> float:
        """Time of one call."""
        return self.step_us / self.calls if self.calls else 0.0

    @property
    def bound_us(self) -> float | None:
        """Their lower bound by bytes and operations."""
        return None if self.floor_us is None else exact(self.floor_us * self.calls)

    @property
    def inside_us(self) -> float:
        """What of the nodes' price can be in the kernels' time; the rest lies before they start."""
        return min(self.node_us or 0.0, max(self.step_us - (self.bound_us or 0.0), 0.0))

    @property
    def least_us(self) -> float | None:
        """Their lower bound with that."""
        return None if self.bound_us is None else self.bound_us + self.inside_us

    @property
    def of_bound(self) -> float | None:
        """Its share of their time: at most 1, where a floor is no longer than its call."""
        return None if self.least_us is None or not self.us else self.least_us / self.step_us


@dataclass(frozen=True)
class UnplacedFloor:
    """The lower bound of one component's weights that no kernel is proven to read."""

    component: str
    us: float


ENOUGH_KNOWN = 0.5
"""Share of the kernel time whose needs must be known for a lower bound of the step."""


@dataclass(frozen=True)
class RooflinePhase:
    """The steps of one phase."""

    phase: str  # decode or prefill
    steps: int
    tokens: float  # mean of the tokens of a step
    step_us: float | None  # the account's typical step; None where the kernels have no times
    kernels_us: float  # kernel time of the typical step: that of all rows
    placed_us: float  # what of it is in kernels whose needs are known
    floor_us: float | None  # sum of a step's lower bounds; None if unknown or contradicted
    needed_bytes: float  # of a step
    streamed_bytes: float
    operations: float
    rows: tuple[RooflineRow, ...]
    unplaced: tuple[UnplacedFloor, ...] = ()  # in the sum of the lower bounds, but in no row
    notes: tuple[str, ...] = ()  # what could not be said about these steps, and why
    # What was cut off the lower bound: by how much kernels, or the whole step, were faster than
    # their bytes at the measured bandwidth, as the level-2 cache had some of them.
    over_us: float = 0.0
    nodes: float = 0.0  # of CUDA graphs in a step, of which the bound counts the price
    node_us: float | None = None  # that price; None where what a node costs is not known

    @property
    def known_us(self) -> float:
        """Kernel time of components whose needs are in the sum of the lower bounds."""
        return self.placed_us + sum(row.step_us for row in self.rows_by_component())

    @property
    def known_share(self) -> float:
        """Its share of the kernel time; a lower bound of less than ENOUGH_KNOWN says little."""
        return self.known_us / self.kernels_us if self.kernels_us else 0.0

    def rows_by_component(self) -> tuple[RooflineRow, ...]:
        """The rows without a known need that belong to a component of `unplaced`."""
        names = {floor.component for floor in self.unplaced}
        return tuple(r for r in self.rows if r.needed_bytes is None and r.component in names)

    @property
    def of_floor(self) -> float | None:
        """Share of the step that its lower bounds take: 1 is as fast as it gets."""
        if not self.step_us or self.floor_us is None:
            return None
        return self.floor_us / self.step_us

    @property
    def bound_us(self) -> float | None:
        """The lower bound with nodes: floors and price, at most the step; without a price floors.

        Floors of 475 us and 300 nodes at 0.5 us: 625 us.
        """
        if self.floor_us is None or not self.node_us:
            return self.floor_us
        with_nodes = self.floor_us + self.node_us
        return (
            with_nodes
            if self.step_us is None
            else min(with_nodes, max(self.step_us, self.floor_us))
        )

    @property
    def of_bound(self) -> float | None:
        """Share of the step that this bound takes."""
        return self.bound_us / self.step_us if self.step_us and self.bound_us else None

    @property
    def nodes_of_distance(self) -> float | None:
        """Share of what a step takes beyond its floors that is the price of its nodes."""
        if not self.node_us or not self.step_us or self.floor_us is None or self.bound_us is None:
            return None
        distance = self.step_us - self.floor_us
        return (self.bound_us - self.floor_us) / distance if distance > 0 else None


def totals(
    rows: Sequence[RooflineRow], unplaced: Iterable[UnplacedFloor], elsewhere: float
) -> dict[str, float | None]:
    """The fields of a phase that are sums over its rows, and bytes that no row has."""
    floors = [bound for row in rows if (bound := row.bound_us) is not None]
    return {
        "placed_us": sum(row.step_us for row in rows if row.needed_bytes is not None),
        "floor_us": sum([*floors, *(floor.us for floor in unplaced)]) or None,
        "needed_bytes": sum((row.needed_bytes or 0.0) * row.calls for row in rows) + elsewhere,
        "streamed_bytes": sum(row.streamed_bytes * row.calls for row in rows) + elsewhere,
        "operations": sum(row.operations * row.calls for row in rows),
        "nodes": sum(row.nodes for row in rows),
        "node_us": sum(prices)
        if (prices := [r.node_us for r in rows if r.node_us is not None])
        else None,
    }


@dataclass(frozen=True)
class StreamedWeights:
    """Weights of one component and storage type that a decode step streams."""

    component: str
    dtype: str  # of the largest weight, such as nvfp4; where nothing tells, its type in torch
    quantized: bool  # whether it holds fewer bits than BF16 does
    bytes: float  # in a step
    share: float  # of all bytes that a step streams, the KV cache among them
    part: str  # which of its weights, such as "4 of 32 experts"; empty for all


@dataclass(frozen=True)
class Roofline:
    """Everything that is said about one rank."""

    ceilings: Ceilings
    phases: tuple[RooflinePhase, ...]
    weights: tuple[StreamedWeights, ...]
    notes: tuple[str, ...] = ()  # what could not be said of any phase, and why

    @property
    def decode(self) -> RooflinePhase | None:
        """The decode steps, None where none was analyzed."""
        return next((phase for phase in self.phases if phase.phase == "decode"), None)
