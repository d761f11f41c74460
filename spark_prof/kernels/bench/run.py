"""One run of the benchmark: everything that was asked for, one piece of work after another.

A matrix is raced against cuBLAS in BF16, which vLLM gives BF16 weights to, and vLLM's Marlin; a
mixture of experts, from the router's logits to the combined output, against vLLM's backends.
Somebody's own kernel takes part beside the package's.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from spark_prof.kernels.bench.configurations import (
    best_config,
    best_of,
    bf16_candidates,
    known_config,
)
from spark_prof.kernels.bench.race import (
    Call,
    Contestant,
    Output,
    Setting,
    clones,
    largest_relative_l2,
    plan,
    prepared,
    race,
    reason,
)
from spark_prof.kernels.bench.random_weights import (
    ExpertWeights,
    decoded,
    random_experts,
    random_weight,
    stored_bytes,
)
from spark_prof.kernels.bench.results import OURS, Cell, Kind, LeftOut, Result, cache_bytes
from spark_prof.kernels.bench.shapes import (
    FP4,
    LAYERS,
    TOKENS,
    DenseShape,
    ExpertsShape,
    WeightFormat,
    chosen_experts,
    dense_work,
    matches,
)
from spark_prof.kernels.bench.vllm_peers import marlin, marlin_experts, triton_experts
from spark_prof.kernels.candidate import (
    Abstained,
    Candidate,
    ExpertsLayer,
    Layer,
    LinearLayer,
    Replacement,
    RouterLayer,
    check_taken,
)
from spark_prof.kernels.check.inputs import Bf16, Weight
from spark_prof.kernels.check.oracles import moe_oracle, routing_oracle
from spark_prof.kernels.dense import default_config, linear
from spark_prof.kernels.moe import default_config as default_moe_config
from spark_prof.kernels.moe import moe, pack_experts
from spark_prof.kernels.operands import architecture, multiprocessors
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.tuning import Work

KINDS: tuple[Kind, ...] = ("dense", "moe")

CUBLAS, MARLIN = "cuBLAS BF16", "vLLM Marlin"

Make = Callable[[Any, int], Callable[..., torch.Tensor]]
"""Makes copies of weights, and what computes with the copy of a number, its last argument."""


def _cublas(weight: Weight, copies: int) -> Callable[..., torch.Tensor]:
    transposed = [matrix.t() for matrix in clones(decoded(weight), copies)]
    return lambda x, number: torch.mm(x, transposed[number])


PEERS: Mapping[Kind, Mapping[str, Make]] = {
    "dense": {CUBLAS: _cublas, MARLIN: marlin},
    "moe": {MARLIN: marlin_experts, "vLLM Triton": triton_experts},
}
"""The other implementations of each kind of work."""

CONTESTANTS: Mapping[Kind, tuple[str, ...]] = {
    "dense": (OURS, *PEERS["dense"]),
    "moe": (OURS, *PEERS["moe"]),
}

_TOLERANCE = 0.01
"""Relative L2. Rounding a sum to BF16 gives 0.0017; a scale that is wrong in one row of a hundred
gives 0.1."""
_EXPERTS_TOLERANCE = 0.02
"""What lies between the products is rounded to BF16, vLLM's routing weights too."""

_ROWS_AT_ONCE = 1 << 26
"""Elements of the weight that are multiplied in float64 at a time."""

_LARGEST_LOGIT = 4.0
_OWN_FORMATS: tuple[WeightFormat, ...] = ("nvfp4", "mxfp4", "bf16")


@dataclass(frozen=True)
class Request:
    """What to time."""

    only: Sequence[Kind] = KINDS
    models: Sequence[str] = ()  # parts of model names, all models if empty
    tokens: Sequence[int] = TOKENS
    formats: Sequence[WeightFormat] = FP4
    contestants: Sequence[str] = ()  # parts of contestants' names, all of them if empty
    seconds: float = 240.0
    seconds_each: float = 0.2
    tune: bool = False
    # Somebody's own kernel, for a matrix or experts, which the others are held against; the kinds
    # and formats are then those of its slot.
    own: Candidate | None = None

    def names(self, kind: Kind) -> list[str]:
        """The contestants of a kind of work that take part."""
        return [name for name in CONTESTANTS[kind] if matches(name, self.contestants)]


def run(request: Request, device: torch.device) -> Iterator[Cell | LeftOut]:
    """Times everything, and goes on after whatever fails.

    Args:
        device: a GPU; on a processor the kernels' own are emulated, and no time means anything.
    """
    begun = time.perf_counter()
    broken = ""
    for what, cells in _tasks(request, device):
        passed = time.perf_counter() - begun
        if broken or passed > request.seconds:
            yield LeftOut(what, broken or f"{request.seconds:.0f} seconds had passed")
            continue
        try:
            yield from cells
        except Exception as failure:
            yield LeftOut(what, reason(failure))
        broken = _broken(device)


def _tasks(request: Request, device: torch.device) -> Iterator[tuple[str, Iterator[Cell]]]:
    """Each shape with what times it; nothing is begun before its cells are asked for."""
    tokens, seconds, tune, own = (
        request.tokens, request.seconds_each, request.tune, request.own,
    )  # fmt: skip
    kinds, formats, layers = request.only, request.formats, None
    if own is not None:
        kinds = ("moe",) if own.slot == "moe" else ("dense",)
        formats, layers = _OWN_FORMATS, [each for each in LAYERS if each.slot == own.slot]
    if "dense" in kinds:
        for shape, form in dense_work(request.models, formats, layers):
            what = f"dense {form} {shape.rows} x {shape.columns}"
            names = request.names("dense")
            yield what, race_dense(shape, form, tokens, device, seconds, names, tune, own)
    if "moe" in kinds:
        for experts in chosen_experts(request.models):
            what = f"experts of {experts.model}"
            names = request.names("moe")
            yield what, race_experts(experts, tokens, device, seconds, names, tune, own)


def _broken(device: torch.device) -> str:
    """Frees what the last shape took; why no other can be begun, empty if one can."""
    if device.type != "cuda":
        return ""
    try:
        torch.cuda.synchronize(device)
        gc.collect()
        torch.cuda.empty_cache()
    except RuntimeError as failure:
        return f"the GPU no longer answers ({reason(failure)})"
    return ""


@dataclass(frozen=True)
class _Ours:
    """The package's kernel at one piece of work: its configurations, and the calls of one."""

    default: Any
    call_of: Callable[[Any], Call]
    # All that a search tries; None where it goes from neighbour to neighbour.
    tried: Iterator[Any] | None = None


def _measured(
    cell: Cell,
    setting: Setting,
    ours: _Ours | None,
    others: Mapping[str, Call | Result],
    tune: bool,
    seconds: float,
) -> Cell:
    """A piece of work with how all did at it: the package's kernel, in its best configuration."""
    entered: list[Contestant | Result] = []
    config = None
    if ours is not None:
        if not tune:
            config = known_config(ours.default, cell.work, architecture(setting.device))
        elif ours.tried is not None:
            config = best_of((ours.default, *ours.tried), ours.call_of, setting)
        else:
            config = best_config(ours.default, ours.call_of, setting)
        entered.append(Contestant(OURS, ours.call_of(config)))
    for name, other in others.items():
        entered.append(other if isinstance(other, Result) else Contestant(name, other))
    results = race(entered, setting, seconds)
    return replace(cell, results=results, config={} if config is None else asdict(config))


def _ready(
    kind: Kind, names: Sequence[str], own: Candidate | None, weights: Any, copies: int
) -> dict[str, Callable[..., torch.Tensor] | Result]:
    """The others, with copies of the weights; somebody's own kernel first."""
    makes: dict[str, Make] = {} if own is None else {own.name: partial(_make_own, own)}
    makes |= {name: make for name, make in PEERS[kind].items() if name in names}
    return {name: prepared(name, partial(make, weights, copies)) for name, make in makes.items()}


def _setting(
    calls: int, x: torch.Tensor, written: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> Setting:
    def write(number: int) -> None:
        written[number].copy_(x[number])

    def error(outputs: Sequence[Output]) -> float:
        return largest_relative_l2(outputs, expected)

    return Setting(calls, write, error, tolerance, x.device)


def race_dense(
    shape: DenseShape,
    format: WeightFormat,  # noqa: A002 - the word of the formats
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.5,
    contestants: Sequence[str] = CONTESTANTS["dense"],
    tune: bool = False,
    own: Candidate | None = None,
) -> Iterator[Cell]:
    """Times one weight with each number of tokens.

    Args:
        own: somebody's own kernel, which the others are held against.
    """
    weight = random_weight(format, (shape.rows, shape.columns), device)
    size = stored_bytes(weight)
    planned = plan(size, cache_bytes(device))
    copies = planned.copies
    packed = clones(pack_linear(_given(weight)), copies) if OURS in contestants else []
    # BF16 weights are not Marlin's.
    names = [name for name in contestants if not (format == "bf16" and name == MARLIN)]
    ready = _ready("dense", names, own, weight, copies)
    exact = decoded(weight)
    for count in tokens:
        dice = torch.Generator(device).manual_seed(count)
        size_x = (planned.calls, count, shape.columns)
        x = torch.randn(size_x, dtype=torch.bfloat16, device=device, generator=dice)
        written = torch.empty_like(x)

        def call_of(config: Any, x: torch.Tensor = written) -> Call:
            return lambda number: linear(x[number], packed[number % copies], config=config)

        def calls(multiply: Callable[..., torch.Tensor], x: torch.Tensor = written) -> Call:
            return lambda number: multiply(x[number], number % copies)

        ours = None
        if packed:
            config = default_config(shape.rows, shape.columns, count, format)
            tried = bf16_candidates(shape.rows, shape.columns, count, multiprocessors(device))
            ours = _Ours(config, call_of, tried if format == "bf16" else None)
        yield _measured(
            Cell(
                kind="dense",
                work=Work("dense", format, shape.rows, shape.columns, count),
                label=shape.label,
                weight_bytes=size,
                bytes=size + 2 * count * (shape.rows + shape.columns),
                is_lm_head=shape.is_lm_head,
                results=(),
                subject=OURS if own is None else own.name,
            ),
            _setting(planned.calls, x, written, _products(x, exact), _TOLERANCE),
            ours,
            {name: m if isinstance(m, Result) else calls(m) for name, m in ready.items()},
            tune,
            seconds,
        )


def _products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The float64 products of all calls' activations, kept as float32."""
    rows, columns = weight.shape
    flat = x.flatten(0, 1).to(torch.float64)
    out = torch.empty((flat.shape[0], rows), dtype=torch.float32, device=x.device)
    step = max(1, _ROWS_AT_ONCE // columns)
    for begin in range(0, rows, step):
        out[:, begin : begin + step] = flat @ weight[begin : begin + step].to(torch.float64).t()
    return out.unflatten(0, x.shape[:2])


@dataclass(frozen=True)
class _Inputs:
    """Of all calls with one number of tokens: x [calls, M, H] and where it is written, logits."""

    source: torch.Tensor
    x: torch.Tensor
    logits: torch.Tensor
    copies: int


def race_experts(
    shape: ExpertsShape,
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.5,
    contestants: Sequence[str] = CONTESTANTS["moe"],
    tune: bool = False,
    own: Candidate | None = None,
) -> Iterator[Cell]:
    """Times the experts of one model with each number of tokens, as `race_dense` a weight."""
    weights = random_experts(shape, device)
    cache = cache_bytes(device)
    all_inputs = {count: _inputs(weights, count, cache, device) for count in tokens}
    copies = max((inputs.copies for inputs in all_inputs.values()), default=1)
    packed = []
    if OURS in contestants:
        biases = (weights.gate_up_bias, weights.down_bias)
        packed = clones(
            pack_experts(weights.gate_up, weights.down, *biases, weights.activation), copies
        )
    ready = _ready("moe", contestants, own, weights, copies)
    references = _references(weights, list(all_inputs.values()))
    for (count, inputs), expected in zip(all_inputs.items(), references, strict=True):

        def call_of(config: Any, its: _Inputs = inputs) -> Call:
            return lambda number: moe(
                its.x[number],
                its.logits[number],
                packed[number % copies],
                shape.top_k,
                config=config,
            )

        def calls(mix: Callable[..., torch.Tensor], its: _Inputs = inputs) -> Call:
            return lambda number: mix(its.x[number], its.logits[number], number % copies)

        config = default_moe_config(shape.hidden, count, multiprocessors(device))
        used = round(_mean_distinct(inputs.logits, shape.top_k) * weights.bytes_each)
        work = Work(
            "moe",
            shape.format,
            2 * shape.intermediate,
            shape.hidden,
            count,
            shape.experts,
            shape.top_k,
        )
        yield _measured(
            Cell(
                kind="moe",
                work=work,
                label=shape.model,
                weight_bytes=used,
                bytes=used + 2 * count * (2 * shape.hidden + shape.experts),
                is_lm_head=False,
                results=(),
                subject=OURS if own is None else own.name,
            ),
            _setting(len(inputs.x), inputs.source, inputs.x, expected, _EXPERTS_TOLERANCE),
            _Ours(config, call_of) if packed else None,
            {name: m if isinstance(m, Result) else calls(m) for name, m in ready.items()},
            tune,
            seconds,
        )


def _inputs(weights: ExpertWeights, count: int, cache: int, device: torch.device) -> _Inputs:
    """Random ones; a token's logits all differ, or contestants could rightly differ in experts."""
    shape = weights.shape
    dice = torch.Generator(device).manual_seed(count)
    expected = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** count)
    stored = shape.experts * weights.bytes_each
    planned = plan(math.ceil(expected * weights.bytes_each), cache, stored)
    size = (planned.calls, count)
    x = torch.randn((*size, shape.hidden), dtype=torch.bfloat16, device=device, generator=dice)
    order = torch.rand((*size, shape.experts), device=device, generator=dice).argsort(-1)
    steps = torch.linspace(-_LARGEST_LOGIT, _LARGEST_LOGIT, shape.experts, device=device)
    return _Inputs(x, torch.empty_like(x), steps.to(torch.bfloat16)[order], planned.copies)


def _references(weights: ExpertWeights, inputs: Sequence[_Inputs]) -> list[torch.Tensor]:
    """The exact output of all calls: [calls, M, H] for each number of tokens.

    All are computed at once, so that each expert is decoded once.
    """
    x = torch.cat([its.source.flatten(0, 1) for its in inputs])
    logits = torch.cat([its.logits.flatten(0, 1) for its in inputs])
    chosen, shares = routing_oracle(logits, weights.shape.top_k)
    exact = moe_oracle(x, chosen, shares, weights.exact()).value
    parts = exact.split([its.x.shape[0] * its.x.shape[1] for its in inputs])
    return [part.unflatten(0, its.x.shape[:2]) for part, its in zip(parts, inputs, strict=True)]


def _mean_distinct(logits: torch.Tensor, top_k: int) -> float:
    """How many experts a call reads."""
    chosen = logits.to(torch.float32).topk(top_k, -1).indices.flatten(1)
    return sum(len(call.unique()) for call in chosen) / len(chosen)


def _given(weight: Weight) -> Any:
    return weight.values if isinstance(weight, Bf16) else weight


def _make_own(own: Candidate, weights: Any, copies: int) -> Callable[..., torch.Tensor]:
    """Somebody's own kernel, built for each copy of the weights."""
    replacements: list[Replacement] = []
    for number, copy in enumerate(clones(weights, copies)):
        replacement = own.build(_layer(own, copy, number))
        if replacement.bits == "changed":
            raise Abstained("it changes the weights' bits: the others compute something else")
        replacements.append(replacement)

    def compute(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        *logits, number = rest
        check_taken(replacements[number], len(x))
        result: torch.Tensor = replacements[number].run(x, *(logits or (None,)))
        return result

    return compute


def _layer(own: Candidate, weights: Any, number: int) -> Layer:
    if not isinstance(weights, ExpertWeights):
        return LinearLayer(f"model.layers.{number}.{own.slot}", own.slot, _given(weights))
    name, shape = f"model.layers.{number}.mlp", weights.shape
    return ExpertsLayer(
        name,
        weights.gate_up,
        weights.down,
        weights.gate_up_bias,
        weights.down_bias,
        weights.activation,
        RouterLayer(name, shape.experts, shape.top_k, True, "softmax", None, 1.0),
    )
