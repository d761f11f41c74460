"""The roofline of a rank: what the steps of each phase need, and which kernels do it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow, TypicalKernel
from spark_prof.analyzers.counters.counter_batches import Counters
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.recorded_run import device_of
from spark_prof.analyzers.roofline.device_ceilings import ceilings_of
from spark_prof.analyzers.roofline.launches import (
    Launch,
    StepGroup,
    attributed_work,
    drafted_work,
    groups_of,
    launches_of,
)
from spark_prof.analyzers.roofline.needs import (
    LayerWork,
    ModelShape,
    StepLoad,
    attention,
    elementwise,
    ranks_of,
    reading,
    shape_of,
    state,
)
from spark_prof.analyzers.roofline.nodes import node_shares
from spark_prof.analyzers.roofline.roofline_rows import (
    Place,
    Roofline,
    RooflinePhase,
    StreamedWeights,
    UnplacedFloor,
    totals,
)
from spark_prof.analyzers.roofline.rows import (
    Moved,
    Sum,
    by_sampling,
    by_single_kernels,
    rows_of,
)
from spark_prof.analyzers.roofline.weight_bytes import (
    Weights,
    derived_weights,
    weights_of,
    weights_of_tensors,
)
from spark_prof.analyzers.step_time import StepAccount
from spark_prof.arrays import exact
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.measured import MeasuredMachine
from spark_prof.traces.swapped import layers_of, tensors_of

_LARGE = 1 << 20
_SMALL_KERNELS = ("norm", "rope", "embedding")
_NO_PRICE = (
    "What a node of a CUDA graph costs on {gpu} was not measured: the bound is that of bytes and "
    "arithmetic. `spark-prof doctor --measure` on that machine measures it."
)


@dataclass
class StepNeeds:
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
        sentences = []
        if large := [name for name, size in self.nobody.most_common() if size >= _LARGE]:
            sentences.append(
                f"Which kernels of {phase} steps read the weights of {', '.join(large)} is not "
                "proven: these weights count in the sum of the floors only."
            )
        if self.expected:
            sentences.append(
                f"Which experts the tokens of {phase} steps chose was not recorded: only as many "
                "are counted as they need if all choose the same."
            )
        return sentences


def step_needs(
    groups: Sequence[StepGroup],
    launches: Mapping[int, Sequence[Launch]],
    weights: Sequence[Weights],
    shape: ModelShape,
    drafter: Sequence[Weights] = (),
) -> StepNeeds:
    """What the steps of those groups need, and of which kernels; `drafter` are its own weights."""
    needs = StepNeeds()
    for group in groups:
        every = launches[group.step]  # a drafter's reading of a head is none of the model's
        model_launches, drafts = (
            [run for run in every if not run.drafts],
            [run for run in every if run.drafts],
        )
        works = _works(weights, model_launches, group.load, shape)
        streamed = needs.streamed[round(group.load.tokens)] = {}
        attributed = set()
        drafted = drafted_work(drafts, (*weights, *drafter), group.load, shape)
        for place, work, share, basis in (*attributed_work(model_launches, works), *drafted):
            needs.sums.setdefault(place, Sum()).add(work, share * group.share, basis)
            streamed[place] = streamed.get(place, 0.0) + work.need.streamed * share
            attributed.add(id(work))
        pointed = any(launch.reads for launch in model_launches)
        for work in works:
            needs.expected |= work.need.expected
            # Work that no kernel was found for still has to be done; where addresses were
            # recorded, a weight that no kernel points to may be none of this step's.
            if id(work) not in attributed and not (pointed and work.weights):
                needs.nobody[work.component] += round(work.need.streamed * group.share)
    return needs


def _works(
    weights: Sequence[Weights], launches: Sequence[Launch], load: StepLoad, shape: ModelShape
) -> list[LayerWork]:
    works = [reading(entry, load, shape) for entry in weights]
    width = shape.hidden * shape.activation_bytes
    norms = Counter(w.layer for w in weights if w.component == "norm" and w.bytes >= width)
    proven = ((run.component, run.layer) for run in launches if run.proven)
    for component, layer in dict.fromkeys(proven):
        if component == "attention" and layer >= 0 and shape.kv_elements:
            works += attention(layer, load, shape)
        elif component == "ssm" and layer >= 0 and shape.state_bytes:
            works.append(state(layer, load, shape))
        elif component in _SMALL_KERNELS:
            small = elementwise(component, layer, load, shape, max(norms[layer], 1))
            works += [small] if small else []
    return works


def roofline_of(
    bundle: Bundle,
    rank: int,
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    typical: Sequence[TypicalKernel],
    kernels: Sequence[KernelRow],
    accounts: Sequence[StepAccount],
    counters: Counters | None = None,
    measured: MeasuredMachine | None = None,
) -> Roofline | None:
    """The roofline of one rank; None where no decode or prefill step is known by its tokens."""
    facts = bundle.facts(rank)
    shape = shape_of(facts)
    weights, notes = streamed_weights(bundle, rank, shape)
    drafter = weights_of_tensors(bundle.frame("tensors", rank), tied=False, drafter=True)
    ceilings = ceilings_of(*device_of(facts), measured)
    reading_us = 1e6 / ceilings.bandwidth.value if ceilings.bandwidth else None
    kernel_rows = {(row.component, row.name): row for row in kernels}
    phases: list[RooflinePhase] = []
    streamed: tuple[StreamedWeights, ...] = ()
    account_of = {row.phase: row for row in accounts if row.batch_size is None}
    for phase, counted in (("decode", counters), ("prefill", None)):
        groups = groups_of(steps, phase)
        if not groups:
            continue
        launches = launches_of(
            placed, [group.step for group in groups], bundle.frame("modules", rank)
        )
        needs = step_needs(groups, launches, weights, shape, drafter)
        count = int((steps["phase"] == phase).sum())
        launched = [kernel for kernel in typical if kernel.phase == phase]
        moved = _moved(bundle.frame("metrics", rank), count, launched, needs, counted)
        account = account_of.get(phase)
        per_step = account.steps_per_token if account else None
        ms_per_us = per_step / 1e3 if per_step else None
        nodes = node_shares(placed, steps.index[(steps["phase"] == phase).to_numpy()])
        rows = rows_of(launched, count, needs.sums, kernel_rows, moved, ceilings, ms_per_us, nodes)
        nobody = sum(needs.nobody.values())
        unplaced = tuple(
            UnplacedFloor(component, exact(size * reading_us))
            for component, size in needs.nobody.most_common()
            if size and reading_us
        )
        sizes: dict[str, Any] = totals(rows, unplaced, nobody)
        roofline_phase = RooflinePhase(
            phase=phase,
            steps=count,
            tokens=sum(group.load.tokens * group.share for group in groups),
            step_us=account.step_us if account and account.step else None,
            kernels_us=sum(kernel.kernel_us for kernel in launched),
            rows=rows,
            unplaced=unplaced,
            notes=tuple(needs.notes(phase)),
            **sizes,
        )
        phases.append(roofline_phase)
        if phase == "decode":
            streamed = _streamed(weights, groups, shape, roofline_phase.streamed_bytes)
    if not phases:
        return None
    if ceilings.bandwidth is None and any(phase.needed_bytes for phase in phases):
        notes.append(
            f"The bandwidth of {ceilings.gpu} is not known: `spark-prof doctor --measure` on that "
            "machine measures it."
        )
    if ceilings.node is None and any(phase.nodes for phase in phases):
        notes.append(_NO_PRICE.format(gpu=ceilings.gpu))
    return Roofline(ceilings, tuple(phases), streamed, tuple(notes))


def streamed_weights(
    bundle: Bundle, rank: int, shape: ModelShape
) -> tuple[list[Weights], list[str]]:
    """The model's weights, and what to know about them."""
    layers, tensors = layers_of(bundle, rank), tensors_of(bundle, rank)
    facts = bundle.facts(rank)
    config = mapping_in(facts, "model_config")
    if len(layers) or len(tensors):
        streamed = weights_of_tensors(tensors, shape.tied) or weights_of(layers, shape.tied, config)
        if any(w.among_experts for w in streamed) and not (shape.experts and shape.chosen):
            return streamed, [
                "How many experts a token is sent to is not known: all of them are counted."
            ]
        return streamed, []
    if streamed := derived_weights(config, ranks_of(facts, "tensor")):
        return streamed, [
            "Nobody looked into the live model: sizes of weights are derived from its "
            "configuration, not seen."
        ]
    return [], ["Nothing tells the sizes of the weights: their kernels have no lower bound."]


def _moved(
    metrics: pd.DataFrame,
    steps: int,
    typical: Sequence[TypicalKernel],
    needs: StepNeeds,
    counters: Counters | None,
) -> dict[Place, Moved]:
    """What kernels really read: sampled in the run, else measured alone."""
    calls: Counter[Place] = Counter()
    for kernel in typical:
        calls[Place(kernel.component, kernel.role, kernel.name)] += kernel.all_calls
    bytes_of_call = {
        place: total.streamed * steps / calls[place]
        for place, total in needs.sums.items()
        if calls.get(place)
    }
    return by_single_kernels(metrics, bytes_of_call) | by_sampling(counters, needs.streamed, calls)


def _streamed(
    weights: Sequence[Weights], groups: Sequence[StepGroup], shape: ModelShape, total: float
) -> tuple[StreamedWeights, ...]:
    sizes: dict[tuple[str, str, bool], float] = defaultdict(float)
    parts: dict[tuple[str, str, bool], str] = {}
    for entry in weights:
        key = (entry.component, entry.dtype, entry.quantized)
        for group in groups:
            need = reading(entry, group.load, shape).need
            sizes[key] += need.streamed * group.share
            parts[key] = need.part if len(groups) == 1 else ""
    return tuple(
        StreamedWeights(*key, size, size / total if total else 0.0, parts[key])
        for key, size in sorted(sizes.items(), key=lambda item: -item[1])
        if size
    )
