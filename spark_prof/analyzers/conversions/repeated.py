"""Finds activations that are quantized once for each consumer, in the kernels of one step.

After a norm all products read the same input until something else computes with it: q, k and v;
the first products of an MLP; the first ones of experts, shared experts and router. One
quantization serves them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_prof.analyzers.conversions.model import RepeatedQuantization

_NEW_INPUT = frozenset(
    {"norm", "rope", "kv_write", "attention", "ssm", "embedding", "lm_head", "sampler"}
)
"""Kernels of these components end what reads the same input."""


@dataclass(frozen=True)
class StepKernel:
    """One kernel of a step.

    Attributes:
        name: as recorded.
        component: where it was placed.
        role: what conversions.roles.role_of says.
        conversion: what it converts, None for nothing.
        us: how long it ran.
    """

    name: str
    component: str
    role: str
    conversion: str | None
    us: float


@dataclass
class _Input:
    """What reads one input: by component of the product, each quantization's kernel and time."""

    read: dict[str, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))
    activated: set[str] = field(default_factory=set)

    def repeated(self) -> Iterable[tuple[str, list[tuple[str, float]]]]:
        """Kernel, and the components and times of its calls, where there are several."""
        calls: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for component, quantized in self.read.items():
            # Two products of one component may follow each other, unless an activation came later.
            parallel = component == "qkv" or component in self.activated
            for name, us in quantized if parallel else quantized[:1]:
                calls[name].append((component, us))
        return ((name, found) for name, found in calls.items() if len(found) > 1)


def repeated_quantizations(
    kernels: Iterable[StepKernel], step: int
) -> tuple[RepeatedQuantization, ...]:
    """What is quantized several times, the most expensive first.

    Args:
        kernels: of one step, in order of start.
        step: its number.
    """
    found: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for source in _inputs(kernels):
        for name, calls in source.repeated():
            components = tuple(dict.fromkeys(component for component, _ in calls))
            total = found[name, components]
            total[0] += len(calls)
            total[1] += len(calls) - 1
            total[2] += sum(us for _, us in calls) * (len(calls) - 1) / len(calls)
    rows = (
        RepeatedQuantization(name, components, int(calls), int(extra), us, step)
        for (name, components), (calls, extra, us) in found.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.extra_us))


def _inputs(kernels: Iterable[StepKernel]) -> Iterable[_Input]:
    source = _Input()
    pending: list[tuple[str, float]] = []
    for kernel in kernels:
        if kernel.conversion == "quantize":
            pending.append((kernel.name, kernel.us))
        elif kernel.role == "product":
            if kernel.component not in source.activated:
                source.read[kernel.component] += pending
            pending = []
        elif kernel.role == "activation":
            source.activated.add(kernel.component)
            pending = []
        elif kernel.component in _NEW_INPUT and kernel.conversion is None:
            yield source
            source, pending = _Input(), []
    yield source
