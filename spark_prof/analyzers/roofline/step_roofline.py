"""The roofline of a rank: what the steps of each phase need, and which kernels do it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.counters.counter_rows import Counters
from spark_prof.analyzers.fallbacks.checkpoint_schemes import CheckpointSchemes, bits_of
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.roofline.device_ceilings import ceilings_of, device_of
from spark_prof.analyzers.roofline.launches import Group, Launch, charges_of, groups_of, launches_of
from spark_prof.analyzers.roofline.needs import (
    Work,
    attention,
    elementwise,
    need_of,
    reading,
    state,
)
from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Place,
    Roofline,
    RooflinePhase,
    StreamedWeights,
    UnplacedFloor,
)
from spark_prof.analyzers.roofline.rows import (
    Moved,
    Sum,
    add_up,
    by_sampling,
    by_single_kernels,
    rows_of,
)
from spark_prof.analyzers.roofline.shape import Shape, shape_of
from spark_prof.analyzers.roofline.weight_bytes import (
    Weights,
    derived_weights,
    weights_of,
    weights_of_tensors,
)
from spark_prof.analyzers.step_accounting import Spread, Steps
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.measured import Measured

_LARGE = 1 << 20
_SMALL_KERNELS = ("norm", "rope", "embedding")


@dataclass
class Wanted:
    """What the steps of a phase need."""

    sums: dict[Place, Sum] = field(default_factory=dict)  # of each kernel, in a mean step
    # By tokens of a step, what each kernel streams in such a step.
    streamed: dict[int, dict[Place, float]] = field(default_factory=dict)
    # By component, bytes of a mean step for which no kernel was found.
    nobody: Counter[str] = field(default_factory=Counter)
    # Whether more is to be expected, as nobody recorded what the router chose.
    expected: bool = False

    def notes(self, phase: str) -> list[str]:
        """What the reader must know about it."""
        said = []
        if large := [name for name, size in self.nobody.most_common() if size >= _LARGE]:
            said.append(
                f"Which kernels of {phase} steps read the weights of {', '.join(large)} is not "
                "proven: these weights count in the sum of the floors only."
            )
        if self.expected:
            said.append(
                f"Which experts the tokens of {phase} steps chose was not recorded: only as many "
                "are counted as they need if all choose the same."
            )
        return said


def wanted_of(
    groups: Sequence[Group],
    launches: Mapping[int, Sequence[Launch]],
    weights: Sequence[Weights],
    shape: Shape,
) -> Wanted:
    """What the steps of those groups need, and of which kernels."""
    wanted = Wanted()
    for group in groups:
        works = _works(weights, launches[group.step], shape)
        charges = charges_of(launches[group.step], works)
        needs = [need_of(charge.work, group.load, shape) for charge in charges]
        add_up(wanted.sums, charges, needs, group.share)
        of_this: dict[Place, Sum] = {}
        add_up(of_this, charges, needs, 1.0)
        streamed = {place: found.streamed for place, found in of_this.items()}
        wanted.streamed[round(group.load.tokens)] = streamed
        done = {id(charge.work) for charge in charges}
        pointed = any(launch.reads for launch in launches[group.step])
        for work in works:
            need = need_of(work, group.load, shape)
            wanted.expected |= need.expected
            # Work that no kernel was found for still has to be done; where addresses were
            # recorded, a weight that no kernel points to may be none of this step's.
            if id(work) not in done and not (pointed and work.weights):
                wanted.nobody[work.component] += round(need.streamed * group.share)
    return wanted


def phase_of(
    phase: str,
    groups: Sequence[Group],
    steps: int,
    times: pd.DataFrame,
    wanted: Wanted,
    kernels: Mapping[tuple[str, str], KernelRow],
    moved: Mapping[Place, Moved],
    ceilings: Ceilings,
    step_us: Spread | None,
    tpot_us: Spread | None,
) -> RooflinePhase:
    """Holds what the steps of a phase need against what they took.

    Args:
        times: name, component, role, basis, ns and calls of their kernels.
        tpot_us: time per output token, where the steps give such.
    """
    ms_per_us = None
    if step_us and step_us.median and tpot_us:
        ms_per_us = tpot_us.median / step_us.median / 1e3
    rows = rows_of(times, steps, wanted.sums, kernels, moved, ceilings, ms_per_us)
    nobody = sum(wanted.nobody.values())
    floor_us: float | None = None
    unplaced: tuple[UnplacedFloor, ...] = ()
    if ceilings.bandwidth is not None:
        unplaced = tuple(
            UnplacedFloor(component, size / ceilings.bandwidth.value * 1e6)
            for component, size in wanted.nobody.most_common()
            if size
        )
        floors = [row.floor_us * row.calls for row in rows if row.floor_us is not None]
        floors += [floor.us for floor in unplaced]
        floor_us = sum(floors) if any(floors) else None
    return RooflinePhase(
        phase=phase,
        steps=steps,
        tokens=sum(group.load.tokens * group.share for group in groups),
        step_us=step_us.median if step_us else None,
        kernels_us=float(times["ns"].sum()) / 1e3 / steps,
        placed_us=sum(row.us * row.calls for row in rows if row.needed_bytes is not None),
        floor_us=floor_us,
        needed_bytes=sum((row.needed_bytes or 0.0) * row.calls for row in rows) + nobody,
        streamed_bytes=sum(row.streamed_bytes * row.calls for row in rows) + nobody,
        operations=sum(row.operations * row.calls for row in rows),
        rows=rows,
        unplaced=unplaced,
        notes=tuple(wanted.notes(phase)),
    )


def _works(weights: Sequence[Weights], launches: Sequence[Launch], shape: Shape) -> list[Work]:
    """Everything that a step does of which the needs are known."""
    works = [reading(entry) for entry in weights]
    width = shape.hidden * shape.activation_bytes
    norms = Counter(w.layer for w in weights if w.component == "norm" and w.bytes >= width)
    ran = ((run.component, run.layer) for run in launches if run.proven)
    for component, layer in dict.fromkeys(ran):
        if component == "attention" and layer >= 0 and shape.kv_elements:
            works += attention(layer, shape)
        elif component == "ssm" and layer >= 0 and shape.state_bytes:
            works.append(state(layer))
        elif component in _SMALL_KERNELS:
            small = elementwise(component, layer, shape, max(norms[layer], 1))
            works += [small] if small else []
    return works


@dataclass(frozen=True)
class Recorded:
    """What was recorded of a rank."""

    kernels: pd.DataFrame  # what `launches_of` takes
    steps: pd.DataFrame  # the watched steps, indexed by step
    sums: pd.DataFrame  # what analyzers.breakdown.sums_of says of the kernels
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
    ranks = mapping_in(recorded.facts, "parallel").get("tensor")
    config = mapping_in(recorded.facts, "model_config")
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
    schemes = CheckpointSchemes(mapping_in(recorded.facts, "model_config"))
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
