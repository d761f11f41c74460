"""Times somebody's own kernel beside the package's and vLLM's, as `kernels bench` does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.bench.dense import DENSE_CONTESTANTS, DENSE_PEERS, MakeMultiply, race_dense
from spark_prof.kernels.bench.expert_weights import ExpertWeights
from spark_prof.kernels.bench.experts import (
    EXPERTS_CONTESTANTS,
    EXPERTS_PEERS,
    MakeMix,
    race_experts,
)
from spark_prof.kernels.bench.marlin import Multiply
from spark_prof.kernels.bench.race import clones, reason
from spark_prof.kernels.bench.results import Cell
from spark_prof.kernels.bench.run import LeftOut
from spark_prof.kernels.bench.shapes import (
    LAYERS,
    TOKENS,
    DenseShape,
    ExpertsShape,
    WeightFormat,
    chosen_experts,
    dense_shapes,
)
from spark_prof.kernels.bench.vllm_experts import MixExperts
from spark_prof.kernels.bench.weights import Weight
from spark_prof.kernels.check.weights import Bf16
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.moe import Activation
from spark_prof.swaps.check.called import Abstained
from spark_prof.swaps.layers import (
    Builder,
    ExpertsLayer,
    Layer,
    LinearLayer,
    Replacement,
    RouterLayer,
)

_FORMATS: tuple[WeightFormat, ...] = ("nvfp4", "mxfp4", "bf16")


@dataclass(frozen=True)
class OwnKernel:
    """A contestant."""

    name: str
    slot: str
    build: Builder


def race_all(
    own: OwnKernel,
    models: Sequence[str],
    tokens: Sequence[int],
    seconds: float,
    device: torch.device,
) -> Iterator[Cell | LeftOut]:
    """Times it in the layers of models, one shape after the other.

    Args:
        models: parts of the names of models, all if empty.
        tokens: rows of the activations, the usual ones if empty.
        seconds: after which no further shape is begun.
    """
    begun = time.perf_counter()
    counts = tokens or TOKENS
    tasks: list[tuple[str, Iterator[Cell]]]
    if own.slot == "moe":
        tasks = [
            (f"experts of {shape.model}", race_mixture(own, shape, counts, device))
            for shape in chosen_experts(models)
        ]
    else:
        layers = [layer for layer in LAYERS if layer.slot == own.slot]
        tasks = [
            (
                f"{form} {shape.rows} x {shape.columns}",
                race_matrix(own, shape, form, counts, device),
            )
            for shape in dense_shapes(models, layers)
            for form in _FORMATS
        ]
    for what, cells in tasks:
        if time.perf_counter() - begun > seconds:
            yield LeftOut(what, f"{seconds:.0f} seconds had passed")
            continue
        try:
            yield from cells
        except Exception as failure:  # somebody's own kernel may raise anything
            yield LeftOut(what, reason(failure))


def race_matrix(
    own: OwnKernel,
    shape: DenseShape,
    form: WeightFormat,
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.2,
) -> Iterator[Cell]:
    """Times one weight with each number of tokens, as `race_dense`."""

    def make(weight: Weight, copies: int) -> Multiply:
        replacements = [
            _built(own, _matrix(own.slot, copy, number))
            for number, copy in enumerate(clones(weight, copies))
        ]

        def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
            return _run(replacements[number], x, None)

        return multiply

    peers: dict[str, MakeMultiply] = {own.name: make, **DENSE_PEERS}
    names = (own.name, *DENSE_CONTESTANTS)
    return race_dense(shape, form, tokens, device, seconds, names, peers=peers, subject=own.name)


def race_mixture(
    own: OwnKernel,
    shape: ExpertsShape,
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.2,
) -> Iterator[Cell]:
    """Times the experts of one model with each number of tokens, as `race_experts`."""

    def make(weights: ExpertWeights, copies: int) -> MixExperts:
        replacements = [
            _built(own, _experts(each, number))
            for number, each in enumerate(clones(weights, copies))
        ]

        def mix(x: torch.Tensor, logits: torch.Tensor, number: int) -> torch.Tensor:
            return _run(replacements[number], x, logits)

        return mix

    peers: dict[str, MakeMix] = {own.name: make, **EXPERTS_PEERS}
    names = (own.name, *EXPERTS_CONTESTANTS)
    return race_experts(shape, tokens, device, seconds, names, peers=peers, subject=own.name)


def _matrix(slot: str, weight: Weight, number: int) -> LinearLayer:
    given = weight.values if isinstance(weight, Bf16) else weight
    return LinearLayer(f"model.layers.{number}.{slot}", slot, given)


def _experts(weights: ExpertWeights, number: int) -> ExpertsLayer:
    name, shape = f"model.layers.{number}.mlp", weights.shape
    swiglu = shape.activation == "swiglu"
    return ExpertsLayer(
        name,
        weights.gate_up,
        weights.down,
        weights.gate_up_bias,
        weights.down_bias,
        Activation("swiglu", weights.alpha, weights.limit) if swiglu else Activation("silu"),
        RouterLayer(name, shape.experts, shape.top_k, True, "softmax", None, 1.0),
    )


def _built(own: OwnKernel, layer: Layer) -> Replacement:
    try:
        replacement = own.build(layer)
    except KernelError as error:
        raise Abstained(str(error)) from error
    if replacement is None:
        raise Abstained("it has none for this layer")
    if replacement.bits == "changed":
        raise Abstained("it changes the weights' bits: the others compute something else")
    return replacement


def _run(replacement: Replacement, x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    if not replacement.takes(len(x)):
        raise Abstained(f"it does not take {len(x)} token{'' if len(x) == 1 else 's'}")
    result: torch.Tensor = replacement.run(x, other)
    return result
