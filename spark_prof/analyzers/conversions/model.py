"""What is known about format conversions, as plain data. Times are microseconds."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.analyzers.breakdown import KernelRow


@dataclass(frozen=True)
class ChargedConversion:
    """All calls of one conversion kernel that work for the same kernel.

    Attributes:
        kind: one of vocabulary.CONVERSIONS.
        name: the kernel.
        component: component of its consumer; its own where nothing ran after it.
        consumer: the next kernel on its stream in the same step that converts nothing, which is
            taken to read what it wrote; None where there is none.
        gemm: whether the consumer is a matrix product.
        after: what the kernel before it did: norm, activation, attention or product; empty where
            that is none of them or unknown.
        layers: decoder layers in which this happened, 0 for none.
        calls: in all steps.
        us: in all steps.
        prefill_us: in prefill steps.
        decode_us: in decode steps.
        decode_calls: in decode steps.
        calls_per_step: in a mean decode step.
        us_per_token: in the time of one token of a sequence; None where no step decodes or nothing
            tells how many tokens a step yields.
    """

    kind: str
    name: str
    component: str
    consumer: str | None
    gemm: bool
    after: str
    layers: int
    calls: int
    us: float
    prefill_us: float
    decode_us: float
    decode_calls: int
    calls_per_step: float
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
    """Conversions that no token waits for.

    Attributes:
        kind: one of vocabulary.CONVERSIONS.
        name: the kernel.
        calls: how many.
        us: their time.
        outside: how many of the calls ran outside the analyzed steps; the others are of a kind
            that runs once when weights are loaded.
    """

    kind: str
    name: str
    calls: int
    us: float
    outside: int


@dataclass(frozen=True)
class RepeatedQuantization:
    """One input that is quantized for each of its consumers instead of once.

    Attributes:
        name: the kernel that quantizes.
        components: whose products read the results.
        calls: in the decode step that was looked at.
        extra: how many of them quantize what was quantized already.
        extra_us: their time.
        step: the step.
    """

    name: str
    components: tuple[str, ...]
    calls: int
    extra: int
    extra_us: float
    step: int


@dataclass(frozen=True)
class Conversions:
    """Kernels whose work is only changing a format, of the analyzed steps."""

    us: float
    share: float
    items: tuple[KernelRow, ...]
    us_per_token: float | None = None
    """In the time of one token of a sequence; None where nothing tells it."""
    charged: tuple[ChargedConversion, ...] = ()
    """The same time by what it was spent for, the most expensive in decode steps first."""
    layers: tuple[LayerConversions, ...] = ()
    """The same time by layer."""
    padding: tuple[ChargedConversion, ...] = ()
    """PyTorch's pads: fills and copies that only their order gives away; in none of the sums."""
    fused: tuple[FusedConversion, ...] = ()
    """Kernels that convert beside other work; their time is in none of the sums."""
    load_time: tuple[LoadTimeConversion, ...] = ()
    """What ran at load time or outside the steps; in none of the sums."""
    repeated: tuple[RepeatedQuantization, ...] = ()
    """Activations that are quantized once for each consumer."""
