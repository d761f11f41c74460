"""Puts the roofline of a rank together from its weights, steps and kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from spark_prof.analyzers.counters.counter_rows import Counters
from spark_prof.analyzers.fallbacks.checkpoint_schemes import CheckpointSchemes, bits_of
from spark_prof.analyzers.model import KernelRow, Steps
from spark_prof.analyzers.roofline.ceilings import ceilings_of, device_of
from spark_prof.analyzers.roofline.model import (
    Place,
    Roofline,
    RooflinePhase,
    StreamedWeights,
)
from spark_prof.analyzers.roofline.moved import Moved, by_sampling, by_single_kernels
from spark_prof.analyzers.roofline.needs import need_of, reading
from spark_prof.analyzers.roofline.phases import Wanted, phase_of, wanted_of
from spark_prof.analyzers.roofline.shape import Shape, shape_of
from spark_prof.analyzers.roofline.steps import Group, groups_of, launches_of
from spark_prof.analyzers.roofline.tensors import weights_of_tensors
from spark_prof.analyzers.roofline.weights import Weights, derived_weights, weights_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.measured import Measured


@dataclass(frozen=True)
class Recorded:
    """What was recorded of a rank.

    Attributes:
        kernels: what `launches_of` takes.
        steps: the watched steps, indexed by step.
        sums: what analyzers.breakdown.sums_of says of the kernels.
        layers: the `layers` table.
        metrics: the `metrics` table.
        facts: of the rank.
        tensors: the `tensors` table.
        modules: the `modules` table.
    """

    kernels: pd.DataFrame
    steps: pd.DataFrame
    sums: pd.DataFrame
    layers: pd.DataFrame
    metrics: pd.DataFrame
    facts: Mapping[str, Any]
    tensors: pd.DataFrame
    modules: pd.DataFrame

    @classmethod
    def of(
        cls, bundle: Bundle, rank: int, kernels: pd.DataFrame, steps: pd.DataFrame,
        sums: pd.DataFrame,
    ) -> Recorded:  # fmt: skip
        """The same with the tables of the bundle."""
        layers, metrics = bundle.frame("layers", rank), bundle.frame("metrics", rank)
        tensors, modules = bundle.frame("tensors", rank), bundle.frame("modules", rank)
        return cls(kernels, steps, sums, layers, metrics, bundle.facts(rank), tensors, modules)


def roofline_of(
    recorded: Recorded,
    kernels: Sequence[KernelRow],
    summary: Steps,
    counters: Counters | None = None,
    measured: Measured | None = None,
) -> Roofline | None:
    """The roofline of one rank; None where no decode or prefill step is known by its tokens.

    Args:
        recorded: the rank.
        kernels: what is known about its kernels.
        summary: of its steps.
        counters: what the sampled counters say.
        measured: ceilings that were measured; those of another GPU are not used.
    """
    shape = shape_of(recorded.facts)
    weights, notes = _weights(recorded, shape)
    ceilings = ceilings_of(*device_of(recorded.facts), measured)
    known = {(row.component, row.name): row for row in kernels}
    phases: list[RooflinePhase] = []
    streamed: tuple[StreamedWeights, ...] = ()
    for phase in ("decode", "prefill"):
        groups = groups_of(recorded.steps, phase)
        if not groups:
            continue
        decodes = phase == "decode"
        launches = launches_of(recorded.kernels, [group.step for group in groups], recorded.modules)
        wanted = wanted_of(groups, launches, weights, shape)
        steps = int((recorded.steps["phase"] == phase).sum())
        times = recorded.sums[(recorded.sums["phase"] == phase).to_numpy()]
        moved = _moved(recorded.metrics, steps, times, wanted, counters if decodes else None)
        found = phase_of(
            phase, groups, steps, times, wanted, known, moved, ceilings,
            summary.decode_us if decodes else summary.prefill_us,
            summary.tpot_us if decodes else None,
        )  # fmt: skip
        phases.append(found)
        if decodes:
            streamed = _streamed(weights, groups, shape, found.streamed_bytes)
    if not phases:
        return None
    if ceilings.bandwidth is None and any(phase.needed_bytes for phase in phases):
        notes.append(
            f"The bandwidth of {ceilings.gpu} is not known: `spark-prof doctor --measure` on that "
            "machine measures it."
        )
    return Roofline(ceilings, tuple(phases), streamed, tuple(notes))


def _weights(recorded: Recorded, shape: Shape) -> tuple[list[Weights], list[str]]:
    """The model's weights, and what to know about them."""
    if len(recorded.layers) or len(recorded.tensors):
        found = weights_of_tensors(recorded.tensors, shape) or _of_layers(recorded, shape)
        if any(w.among_experts for w in found) and not (shape.experts and shape.chosen):
            return found, [
                "How many experts a token is sent to is not known: all of them are counted."
            ]
        return found, []
    ranks = _object(recorded.facts, "parallel").get("tensor")
    config = _object(recorded.facts, "model_config")
    found = derived_weights(config, ranks if isinstance(ranks, int) else 1)
    if found:
        return found, [
            "Nobody looked into the live model: sizes of weights are derived from its "
            "configuration, not seen."
        ]
    return [], ["Nothing tells the sizes of the weights: their kernels have no floor."]


def _of_layers(recorded: Recorded, shape: Shape) -> list[Weights]:
    """The weights of the `layers` table, in the formats that the checkpoint's configuration says.

    The table has types such as int32, into which narrow numbers are packed.
    """
    schemes = CheckpointSchemes(_object(recorded.facts, "model_config"))
    return [
        replace(w, dtype=form)
        if w.quantized and (bits_of(form := schemes.of(w.path)[0]) or 16) < 16
        else w
        for w in weights_of(recorded.layers, shape)
    ]


def _moved(
    metrics: pd.DataFrame,
    steps: int,
    times: pd.DataFrame,
    wanted: Wanted,
    counters: Counters | None,
) -> dict[Place, Moved]:
    """What kernels really read: sampled in the run, else measured alone."""
    calls: dict[Place, int] = defaultdict(int)
    columns = (times[name] for name in ("component", "role", "name", "calls"))
    for component, role, name, count in zip(*columns, strict=True):
        calls[Place(str(component), str(role), str(name))] += int(count)
    each = {
        place: found.streamed * steps / calls[place]
        for place, found in wanted.sums.items()
        if calls.get(place)
    }
    return by_single_kernels(metrics, each) | by_sampling(counters, wanted.streamed, calls)


def _streamed(
    weights: Sequence[Weights], groups: Sequence[Group], shape: Shape, total: float
) -> tuple[StreamedWeights, ...]:
    """What a decode step streams, by component and storage type, the most first."""
    sizes: dict[tuple[str, str, bool], float] = defaultdict(float)
    parts: dict[tuple[str, str, bool], str] = {}
    for entry in weights:
        key = (entry.component, entry.dtype, entry.quantized)
        for group in groups:
            need = need_of(reading(entry), group.load, shape)
            sizes[key] += need.streamed * group.share
            parts[key] = need.part if len(groups) == 1 else ""
    return tuple(
        StreamedWeights(*key, size, size / total if total else 0.0, parts[key])
        for key, size in sorted(sizes.items(), key=lambda item: -item[1])
        if size
    )


def _object(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = source.get(name)
    return value if isinstance(value, Mapping) else {}
