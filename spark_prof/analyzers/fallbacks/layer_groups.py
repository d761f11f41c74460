"""Layers that run alike, with what the engine, the log and the trace say of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.ceilings.schemes import ALGORITHMS, SIXTEEN_BIT, Formats, Schemes, label
from spark_prof.analyzers.fallbacks.audit_rows import EvidenceSource
from spark_prof.rules.backends import choice_of, family_of_kernel
from spark_prof.traces.readers.engine_log import Statement

_COMPONENTS = ("qkv", "o_proj", "mlp", "experts", "shared_experts", "ssm", "router", "lm_head")
_FORMATS = (
    ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("mxfp8", "mxfp8"), ("fp4", "nvfp4"),
    ("awq", "int4"), ("gptq", "int4"), ("wna16", "int4"), ("w4a16", "int4"), ("w4a8", "int4"),
    ("fp8", "fp8"), ("int8", "int8"), ("unquantized", SIXTEEN_BIT),
)  # fmt: skip
"""What in the name of a quantization method tells the weights' format; first match wins."""

_WEIGHTS_ALONE = ("int4", "nf4")
"""Formats that no kernel of vLLM multiplies activations in."""

_CHOOSING = ("kernel", "fallback", "warning")  # topics of lines that name a kernel

_ENOUGH = 0.2  # share of a component's known kernels from which on a family counts as running there


@dataclass
class LayerGroup:
    """Layers of one component, with the same method and kernel."""

    layer: str  # the component; linear or moe, where only a log tells
    kind: str  # linear or moe
    weights: str  # their format in the engine, or where nothing tells in the checkpoint
    checkpoint_formats: Formats  # formats of weights and activations in the checkpoint
    modules: int = 0
    sources: list[EvidenceSource] = field(default_factory=list)  # the engine's first

    @property
    def checkpoint(self) -> str:
        """The scheme that the checkpoint asks for."""
        return label(*self.checkpoint_formats)

    @property
    def formats(self) -> tuple[str, str]:
        """Formats of weights and activations that run, by the best source that has them."""
        formats = (w.activations for w in self.sources if w.activations)
        return self.weights or self.checkpoint_formats[0], next(formats, "")

    @property
    def emulated(self) -> bool:
        """Whether a kernel widens the weights and multiplies 16-bit numbers."""
        return any(w.family == "emulation" for w in self.sources)

    @property
    def executed(self) -> str:
        """The scheme that runs."""
        weights, activations = self.formats
        if self.emulated:
            return f"emulated in 16-bit, weights {weights}" if weights else "emulated in 16-bit"
        return label(weights, activations)

    @property
    def conflict(self) -> str:
        """Which sources contradict each other; empty where they agree."""
        first = self.sources[0] if self.sources else None
        choice = choice_of(first.kernel) if first else None
        if first is None or choice is None:
            return ""
        for who in ("log", "trace"):
            sources = [w for w in self.sources[1:] if w.who == who and w.family]
            allowed = {choice.family} if who == "log" else set(choice.traced)
            if sources and allowed and not any(w.family in allowed for w in sources):
                named = " and ".join(dict.fromkeys(f"{w.family} ({w.kernel})" for w in sources))
                return f"the {first.who} says {first.family} ({first.kernel}), the {who} {named}"
        return ""


def groups_of(
    layers: pd.DataFrame,
    checkpoint: Schemes | None,
    kernels: Sequence[KernelRow],
    statements: Sequence[Statement],
) -> list[LayerGroup]:
    """The groups of a recorded model, largest first within a component."""
    sizes = Counter(
        (component, method, kernel, checkpoint.of_engine(path) if checkpoint else ("", ""))
        for path, component, method, kernel in layers.itertuples(index=False, name=None)
        if component in _COMPONENTS and method
    )
    logged = groups_of_log(statements)
    groups = [_group(*key, modules) for key, modules in sizes.items()]
    for group in groups:
        # A log names kinds of layers and formats, not single layers.
        for other in logged:
            if (other.kind, other.weights) == (group.kind, group.weights):
                group.sources += other.sources
        group.sources += _of_trace(group.layer, kernels, group.weights)
    return sorted(groups, key=lambda g: (_COMPONENTS.index(g.layer), -g.modules))


def groups_of_log(
    statements: Sequence[Statement], quantization: str = "", kernels: Sequence[KernelRow] = ()
) -> list[LayerGroup]:
    """The groups that a log alone tells: one a kind of layer and format."""
    groups: dict[tuple[str, str], LayerGroup] = {}
    for line in statements:
        if line.rule.topic not in _CHOOSING or line.layer not in ("linear", "moe"):
            continue
        name = line.value or ("emulation" if line.rule.id == "nvfp4-emulation" else "")
        weights = format_of(line.format) or format_of(f"{line.value} {line.detail}")
        # In a log the name of a backend does not say of which format it is, as classes do.
        choice = choice_of(f"{weights}.{name}") if name else None
        if choice is None:
            continue
        formats = _formats_in_log(statements, quantization, weights)
        group = groups.setdefault(
            (line.layer, weights), LayerGroup(line.layer, line.layer, weights, formats)
        )
        source = EvidenceSource(
            "log", name, choice.family, _activations(choice.activations, weights)
        )
        if source not in group.sources:
            group.sources.append(source)
    experts = [group for group in groups.values() if group.kind == "moe"]
    # A draft model has experts of its own, and linear layers are of several formats.
    if len(experts) == 1:
        experts[0].sources += _of_trace("experts", kernels, experts[0].weights)
    return list(groups.values())


def _formats_in_log(statements: Sequence[Statement], quantization: str, weights: str) -> Formats:
    """The scheme of a checkpoint as far as a log tells; a mixed one it does not tell apart."""
    if quantization.removeprefix("gpt_oss_") == weights == "mxfp4":
        return "mxfp4", ""
    algorithms = {line.value for line in statements if line.rule.id == "modelopt-checkpoint"}
    schemes = {ALGORITHMS.get(name, ("", "")) for name in algorithms}
    fitting = [scheme for scheme in schemes if scheme[0] == weights]
    return fitting[0] if len(fitting) == 1 else ("", "")


def _group(component: str, method: str, kernel: str, formats: Formats, modules: int) -> LayerGroup:
    weights = format_of(f"{kernel} {method}") or formats[0]
    kind = "moe" if component == "experts" else "linear"
    name = kernel or method
    choice = choice_of(name) or choice_of(method)
    family = choice.family if choice else ""
    activations = _activations(choice.activations if choice else "", weights)
    source = EvidenceSource("engine", name, family, activations)
    return LayerGroup(component, kind, weights, formats, modules, [source])


def _of_trace(component: str, kernels: Sequence[KernelRow], weights: str) -> list[EvidenceSource]:
    """What ran for a component, of which layers with weights in that format are a part."""
    families: dict[str, list[KernelRow]] = {}
    for row in kernels:
        family = family_of_kernel(row.name) if row.component == component else ""
        if family and row.engine != "cuda-core":
            families.setdefault(family, []).append(row)
    times = {family: sum(row.us for row in rows) for family, rows in families.items()}
    whole = sum(times.values())
    return [
        EvidenceSource(
            "trace", families[family][0].name, family,
            _multiplied(family, families[family], weights),
        )
        for family, us in sorted(times.items(), key=lambda item: -item[1])
        if us >= _ENOUGH * whole
    ]  # fmt: skip


def _multiplied(family: str, rows: Sequence[KernelRow], weights: str) -> str:
    """The format of activations that a family or its kernels' names tell; empty where none does.

    Other layers of the component may run kernels of the same family: those for weights in another
    format tell nothing, and none is told where one multiplies this and another that.
    """
    if family == "Marlin":
        return SIXTEEN_BIT
    if family != "Humming":
        return ""
    fitting = [row for row in rows if not weights or weights.endswith(row.weights or "")]
    precisions = {row.precision for row in fitting if row.precision}
    if precisions and precisions <= {"bf16", "fp16"}:
        return SIXTEEN_BIT
    return precisions.pop() if len(precisions) == 1 else ""


def format_of(name: str) -> str:
    """The format of weights that a name tells, such as nvfp4; empty where it tells none."""
    lowered = name.lower()
    return next((form for word, form in _FORMATS if word in lowered), "")


def _activations(activations: str, weights: str) -> str:
    if activations != "same":
        return activations
    return "" if weights in _WEIGHTS_ALONE else weights
