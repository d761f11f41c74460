"""The roofline of the steps of one phase: what they need, and which kernels do it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from spark_prof.analyzers.model import KernelRow
from spark_prof.analyzers.roofline.launches import Launch, charges_of
from spark_prof.analyzers.roofline.model import Ceilings, Place, RooflinePhase, UnplacedFloor
from spark_prof.analyzers.roofline.moved import Moved
from spark_prof.analyzers.roofline.needs import (
    Work,
    attention,
    elementwise,
    need_of,
    reading,
    state,
)
from spark_prof.analyzers.roofline.rows import Sum, add_up, rows_of
from spark_prof.analyzers.roofline.shape import Shape
from spark_prof.analyzers.roofline.steps import Group
from spark_prof.analyzers.roofline.weights import Weights
from spark_prof.analyzers.step_accounting import Spread

_LARGE = 1 << 20
_SMALL_KERNELS = ("norm", "rope", "embedding")


@dataclass
class Wanted:
    """What the steps of a phase need.

    Attributes:
        sums: of each kernel, in a mean step.
        streamed: by tokens of a step, what each kernel streams in such a step.
        nobody: by component, bytes of a mean step for which no kernel was found.
        expected: whether more is to be expected, as nobody recorded what the router chose.
    """

    sums: dict[Place, Sum] = field(default_factory=dict)
    streamed: dict[int, dict[Place, float]] = field(default_factory=dict)
    nobody: Counter[str] = field(default_factory=Counter)
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
    """What the steps of those groups need, and of which kernels.

    Args:
        groups: steps that are alike.
        launches: the kernels of the step that stands for each.
        weights: of the model.
        shape: of the model.
    """
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
        phase: decode or prefill.
        groups: its steps.
        steps: how many they are.
        times: name, component, role, basis, ns and calls of their kernels.
        wanted: what they need.
        kernels: what is known about the kernels, by component and name.
        moved: what the kernels really read.
        ceilings: of the GPU.
        step_us: how long the steps took.
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
