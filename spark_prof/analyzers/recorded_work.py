"""The matrices and experts of a recorded run: what `spark-prof kernels bench --from` races.

Shapes and formats come from the live model's own account of its modules, experts' sizes from its
configuration. What a layer ran for a matrix are the products of its component, where there are as
many of them as weights; for experts all kernels from the router's logits on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, get_args

from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.classify.classifier import finishes_gemm, is_gemm
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.recorded_run import model_folder
from spark_prof.analyzers.roofline.launches import Launch, launches_of
from spark_prof.analyzers.roofline.needs import ModelShape, ranks_of, shape_of
from spark_prof.analyzers.roofline.step_roofline import streamed_weights
from spark_prof.analyzers.roofline.weight_bytes import PRODUCTS, Weights
from spark_prof.analyzers.summary import summary_of
from spark_prof.errors import CommandError
from spark_prof.kernels.bench.shapes import (
    DenseShape,
    ExpertsShape,
    Layer,
    Piece,
    Recorded,
    Slot,
    WeightFormat,
)
from spark_prof.traces.bundle import Bundle

_SLOTS: Mapping[tuple[str, int], Slot] = {
    ("qkv", 0): "qkv", ("o_proj", 0): "o", ("o_proj", 1): "o", ("router", 0): "router",
    ("lm_head", 0): "lm_head", ("mlp", 0): "mlp", ("mlp", 1): "mlp", ("shared_experts", 0): "mlp",
    ("shared_experts", 1): "mlp", ("ssm", 0): "qkv", ("ssm", 1): "o",
}  # fmt: skip
"""The slot of a component's first or second product."""
_TO_HIDDEN = ("o_proj", "o")
"""Whose rows are the residual stream, as are those of any second product."""
_MOST_TOKENS = 16
_MOST_COUNTS = 4
_MOST_PADDING = 1.35
"""Elements of experts' weights as an engine lays them out, over those of the configuration."""


@dataclass(frozen=True)
class RecordedWork:
    """A matrix, or the experts, of some layers of a run."""

    shape: DenseShape | ExpertsShape
    format: WeightFormat
    layers: int  # that have it
    recordings: Mapping[int, Recorded]  # by number of tokens; without those of which nothing tells

    @property
    def slots(self) -> frozenset[str]:
        """The slots of kernels that can take its place."""
        return self.shape.slots if isinstance(self.shape, DenseShape) else frozenset({"moe"})


class UnplacedKernels(NamedTuple):
    """Kernels of a step that no piece of work stands for."""

    component: str
    kernels: float  # of a step, as mean
    why: str


@dataclass(frozen=True)
class RecordedRun:
    """All that one run computed with matrices and experts."""

    model: str
    gpu: str
    compute_capability: str  # such as 9.0, empty where unknown
    multiprocessors: int  # 0 where unknown
    tokens: tuple[int, ...]  # of its decode steps, the most frequent first; at most 16
    work: tuple[RecordedWork, ...]
    kernels: float  # of a step, copies left out; a mean
    left_out: tuple[UnplacedKernels, ...]


def recorded_work(bundle: Bundle) -> RecordedRun:
    """What the lowest rank of a recording computed.

    Raises:
        CommandError: it has no decode step of up to 16 tokens, or no work whose shape is known.
    """
    summary, rank = summary_of(bundle), min(bundle.ranks, default=0)
    facts = bundle.facts(rank)
    shape = shape_of(facts)
    steps = summary.steps[summary.steps["phase"] == "decode"]
    counts = Counter(int(n) for n in steps["decode_tokens"] if 1 <= n <= _MOST_TOKENS)
    source = bundle.named or bundle.path
    if not counts:
        raise CommandError(f"{source} has no decode step of 1 to {_MOST_TOKENS} tokens")
    tokens = tuple(count for count, _ in counts.most_common(_MOST_COUNTS))
    numbers = {count: steps.index[steps["decode_tokens"] == count] for count in tokens}
    modules = bundle.frame("modules", rank)
    launches = {count: launches_of(summary.kernels, [*numbers[count]], modules) for count in tokens}
    by_place = {count: _by_place(of) for count, of in launches.items()}
    attributed: Counter[str] = Counter()
    work, unknown = [], dict[str, str]()
    for piece, places in _pieces(streamed_weights(bundle, rank, shape)[0], facts, shape).items():
        if isinstance(piece, _Unknown):
            unknown[piece.component] = piece.why
        else:
            recordings = dict(_recordings(places, by_place, attributed))
            work.append(RecordedWork(*piece, len(places), recordings))
    if not work:
        why = "; ".join(f"{name}: {reason}" for name, reason in unknown.items())
        raise CommandError(f"{source} has no layer whose shape is known ({why or 'it has none'})")
    every = (launches_of_step for of in launches.values() for launches_of_step in of.values())
    of_all = Counter(launch.component for launches_of_step in every for launch in launches_of_step)
    step_count = sum(map(len, numbers.values()))
    gpu = summary.report.gpu
    return RecordedRun(
        model_folder(facts, "model"),
        gpu.name,
        gpu.compute_capability or "",
        int(mapping_in(facts, "gpu").get("multiprocessors") or 0),
        tokens,
        tuple(work),
        sum(of_all.values()) / step_count,
        tuple(_left_out(of_all, attributed, unknown, step_count)),
    )


class _Unknown(NamedTuple):
    component: str
    why: str


class _WeightLocation(NamedTuple):
    """Where a weight is multiplied with."""

    component: str
    layer: int
    number: int  # of the product among those of the component in that layer
    products: int  # how many there are; 0 for experts


def _pieces(
    weights: Iterable[Weights], facts: Mapping[str, Any], shape: ModelShape
) -> Mapping[Piece | _Unknown, Sequence[_WeightLocation]]:
    of_layers: dict[tuple[str, int], list[Weights]] = defaultdict(list)
    for weight in weights:
        if weight.elements and weight.component in PRODUCTS:
            of_layers[weight.component, weight.layer].append(weight)
    pieces: dict[Piece | _Unknown, list[_WeightLocation]] = defaultdict(list)
    for (component, layer), products in of_layers.items():
        if component == "experts":
            piece = _experts(products, facts, shape)
            pieces[piece].append(_WeightLocation(component, layer, 0, 0))
            continue
        products.sort(key=lambda weight: weight.order)
        for number, product in enumerate(products):
            place = _WeightLocation(component, layer, number, len(products))
            pieces[_matrix(product, shape.hidden, model_folder(facts, "model"))].append(place)
    return pieces


_ByPlace = Mapping[tuple[str, int], Mapping[int, Sequence[Launch]]]
"""Kernels by component and layer, then by step; those between router and experts count to these."""


def _by_place(launches: Mapping[int, Iterable[Launch]]) -> _ByPlace:
    by_place: dict[tuple[str, int], dict[int, list[Launch]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for step, launches_of_step in launches.items():
        for launch in launches_of_step:
            routes = launch.component == "router" and not _of_product(launch.name)
            by_place["experts" if routes else launch.component, launch.layer][step].append(launch)
    return by_place


def _of_product(name: str) -> bool:
    return is_gemm(name) or finishes_gemm(name)


def _recordings(
    places: Sequence[_WeightLocation], by_place: Mapping[int, _ByPlace], attributed: Counter[str]
) -> Iterator[tuple[int, Recorded]]:
    """What was run at each number of tokens, where that is the same in all layers."""
    for tokens, launches in by_place.items():
        calls = [
            call
            for place in places
            for launches_of_step in launches.get((place.component, place.layer), {}).values()
            if (call := _call(launches_of_step, place))
        ]
        if not calls:
            continue
        for call in calls:
            attributed.update(launch.component for launch in call)
        names = Counter(tuple(launch.name for launch in call) for call in calls)
        (usual, _), *_ = names.most_common(1)
        calls_of_usual = [call for call in calls if tuple(launch.name for launch in call) == usual]
        us = median(sum(launch.ns for launch in call) for call in calls_of_usual) / 1e3
        proven = all(launch.proven for call in calls_of_usual for launch in call)
        yield tokens, Recorded(usual, us, len(calls_of_usual), proven)


def _call(launches: Sequence[Launch], place: _WeightLocation) -> list[Launch]:
    """The kernels of one call; none where it is not known which they are."""
    if not place.products:
        return list(launches)
    groups: list[list[Launch]] = []
    for launch in launches:
        if is_gemm(launch.name):
            groups.append([launch])
        elif groups and finishes_gemm(launch.name):
            groups[-1].append(launch)
    return groups[place.number] if len(groups) == place.products else []


def _matrix(weight: Weights, hidden: int, model: str) -> Piece | _Unknown:
    form = {"bfloat16": "bf16"}.get(weight.dtype, weight.dtype)
    if form not in get_args(WeightFormat):
        return _Unknown(weight.component, f"no kernel is for {form or 'its format'}")
    slot = _SLOTS.get((weight.component, weight.order))
    if slot is None or not hidden or weight.elements % hidden:
        return _Unknown(weight.component, "its shape is not known")
    other = weight.elements // hidden
    ends = weight.order == 1 or weight.component in _TO_HIDDEN
    rows, columns = (hidden, other) if ends else (other, hidden)
    weight_format: Any = form
    return DenseShape(rows, columns, (Layer(model, slot, rows, columns),)), weight_format


def _experts(
    products: Sequence[Weights], facts: Mapping[str, Any], shape: ModelShape
) -> Piece | _Unknown:
    read = Config(mapping_in(facts, "model_config"))
    form: Any = {"bfloat16": "bf16"}.get(products[0].dtype, products[0].dtype)
    inner = read.expert_width // ranks_of(facts, "tensor")
    gpt_oss = read.family == "gpt_oss"
    elements = 3 * shape.experts * inner * shape.hidden
    why = ""
    if form not in ("nvfp4", "mxfp4", "bf16"):
        why = f"no kernel is for experts in {form or 'an unknown format'}"
    elif not (elements and shape.chosen):
        why = "the configuration does not tell the sizes of experts"
    elif shape.expert_ranks > 1:
        why = "whole experts are shared out among ranks"
    elif not gpt_oss and read.text("hidden_act", "mlp_hidden_act") != "silu":
        why = "the activation of experts is neither SiLU nor gpt-oss's SwiGLU"
    elif not 1 <= sum(weight.elements for weight in products) / elements <= _MOST_PADDING:
        why = "experts have other sizes than the configuration says"
    if why:
        return _Unknown("experts", why)
    activation: Any = "swiglu" if gpt_oss else "silu"
    sizes = (shape.experts, shape.chosen, shape.hidden, inner)
    return ExpertsShape(model_folder(facts, "model"), form, *sizes, activation, gpt_oss), form


def _left_out(
    of_all: Counter[str], attributed: Counter[str], unknown: Mapping[str, str], steps: int
) -> Iterator[UnplacedKernels]:
    for component, kernels in (of_all - attributed).most_common():
        why = unknown.get(component, "")
        if not why:
            beside = component in attributed
            why = "beside its products" if beside else "no matrix and no experts"
            if component in PRODUCTS and not beside:
                why = "which of them multiply with which weight is not known"
        yield UnplacedKernels(component, kernels / steps, why)
