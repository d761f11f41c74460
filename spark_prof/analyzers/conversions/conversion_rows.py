"""What is known about format conversions, as plain data. Times are microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_prof.analyzers.breakdown import KernelRow


@dataclass(frozen=True)
class AttributedConversion:
    """All calls of one conversion kernel that work for the same kernel."""

    kind: str  # one of vocabulary.CONVERSIONS
    name: str  # the kernel
    component: str  # component of its consumer; its own where nothing ran after it
    # The next kernel on its stream in the same step that converts nothing, which is taken to read
    # what it wrote; None where there is none.
    consumer: str | None
    gemm: bool  # whether the consumer is a matrix product
    # What the kernel before it did: norm, activation, attention or product; empty where that is
    # none of them or unknown.
    after: str
    layers: int  # decoder layers in which this happened, 0 for none
    calls: int  # in all steps
    us: float  # in all steps
    prefill_us: float  # in prefill steps
    decode_us: float  # in decode steps
    decode_calls: int  # in decode steps
    calls_per_step: float  # in a mean decode step
    # In the time of one token of a sequence; None where no step decodes or nothing tells how many
    # tokens a step yields.
    us_per_token: float | None


@dataclass(frozen=True)
class LayerConversions:
    """All conversions for one component of one decoder layer; layer None is outside the layers."""

    layer: int | None
    component: str
    kind: str
    calls: int
    us: float
    decode_us: float


@dataclass(frozen=True)
class FusedConversion:
    """A kernel that changes a format beside its own work: nothing tells how its time splits."""

    kind: str
    name: str
    component: str
    calls: int
    us: float
    decode_us: float


@dataclass(frozen=True)
class LoadTimeConversion:
    """Conversions that no token waits for."""

    kind: str  # one of vocabulary.CONVERSIONS
    name: str  # the kernel
    calls: int  # how many
    us: float  # their time
    # How many of the calls ran outside the analyzed steps; the others are of a kind that runs once
    # when weights are loaded.
    outside: int


@dataclass(frozen=True)
class RepeatedQuantization:
    """One input that is quantized for each of its consumers instead of once."""

    name: str  # the kernel that quantizes
    components: tuple[str, ...]  # whose products read the results
    calls: int  # in the decode step that was looked at
    extra: int  # how many of them quantize what was quantized already
    extra_us: float  # their time
    step: int  # the step


@dataclass(frozen=True)
class Conversions:
    """Kernels whose work is only changing a format, of the analyzed steps."""

    us: float
    share: float
    items: tuple[KernelRow, ...]
    us_per_token: float | None = None
    """In the time of one token of a sequence; None where nothing tells it."""
    attributed: tuple[AttributedConversion, ...] = field(default=(), metadata={"json": "charged"})
    """The same time by what it was spent for, the most expensive in decode steps first."""
    layers: tuple[LayerConversions, ...] = ()  # the same time by layer
    padding: tuple[AttributedConversion, ...] = ()
    """PyTorch's pads: fills and copies that only their order gives away; in none of the sums."""
    fused: tuple[FusedConversion, ...] = ()
    """Kernels that convert beside other work; their time is in none of the sums."""
    load_time: tuple[LoadTimeConversion, ...] = ()
    """What ran at load time or outside the steps; in none of the sums."""
    repeated: tuple[RepeatedQuantization, ...] = ()
    """Activations that are quantized once for each consumer."""
