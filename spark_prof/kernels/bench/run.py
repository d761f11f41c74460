"""One run of the benchmark: everything that was asked for, one piece of work after another.

A matrix is raced against cuBLAS in BF16, which vLLM gives BF16 weights to, and vLLM's Marlin, one
in BF16 against kernels for few tokens; a mixture of experts, from the router's logits to the
combined output, against vLLM's backends. Somebody's own kernel takes part beside them.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from spark_prof.kernels.bench.field import BenchInputs, Field, Stop
from spark_prof.kernels.bench.race import plan
from spark_prof.kernels.bench.random_weights import (
    bytes_of_expert,
    decoded,
    random_experts,
    random_weight,
    stored_bytes,
)
from spark_prof.kernels.bench.request import BenchRequest
from spark_prof.kernels.bench.results import BenchCell, UnmeasuredShape, cache_bytes
from spark_prof.kernels.bench.shapes import DenseShape, ExpertsShape, Kind, Piece, WeightFormat
from spark_prof.kernels.candidate import ExpertsLayer
from spark_prof.kernels.check.oracles import moe_oracle, routing_oracle
from spark_prof.kernels.formats import GlobalScale, quantize_nvfp4
from spark_prof.kernels.kernel_error import reason
from spark_prof.kernels.registry import ReplacementKernel
from spark_prof.kernels.tuning import TunedShape

DENSE_TOLERANCE = 0.01
"""Relative L2. Rounding a sum to BF16 gives 0.0017; a scale that is wrong in one row of a hundred
gives 0.1."""
EXPERTS_TOLERANCE = 0.02
"""What lies between the products is rounded to BF16, vLLM's routing weights too."""

_ROWS_AT_ONCE = 1 << 26
"""Elements of the weight that are multiplied in float64 at a time."""

_LARGEST_LOGIT = 4.0
_LARGEST_INPUT = 5.0
"""Of normal numbers, which an input scale then holds but for one in a million."""


def run(request: BenchRequest, device: torch.device) -> Iterator[BenchCell | UnmeasuredShape]:
    """Times everything on a GPU, and goes on after whatever fails.

    With a search, all is timed first as it is; then come, as long as there is time, the searches,
    the first where most is to be gained. Their cells take the place of the first ones.

    On a processor the package's kernels are emulated, and no time means anything.
    """
    begun = time.perf_counter()
    cells: dict[Piece, list[BenchCell]] = {}
    broken = ""
    for piece in request.pieces():
        if broken or time.perf_counter() - begun > request.seconds:
            yield UnmeasuredShape(
                _label(piece), broken or f"{request.seconds:.0f} seconds had passed"
            )
            continue
        for result in _guarded(piece, request, device, None):
            if isinstance(result, BenchCell):
                cells.setdefault(piece, []).append(result)
            yield result
        broken = _broken(device)
    if not request.tune:
        return
    order = sorted(cells, key=_expected_gain(cells), reverse=True)
    for number, piece in enumerate(order):
        left = begun + request.seconds - time.perf_counter()
        if broken or left <= 0:
            why = broken or f"no search: {request.seconds:.0f} seconds had passed"
            yield UnmeasuredShape(_label(piece), why)
            continue
        # None takes more than twice its share of what is left.
        until = time.perf_counter() + min(left, 2 * left / (len(order) - number))
        yield from _guarded(piece, request, device, partial(_passed, until))
        broken = _broken(device)


def _guarded(
    piece: Piece, request: BenchRequest, device: torch.device, stop: Stop | None
) -> Iterator[BenchCell | UnmeasuredShape]:
    shape, form = piece
    try:
        if isinstance(shape, ExpertsShape):
            yield from race_experts(shape, request, device, stop)
        else:
            yield from race_dense(shape, form, request, device, stop)
    except Exception as failure:
        yield UnmeasuredShape(_label(piece), reason(failure))


def _passed(moment: float) -> bool:
    return time.perf_counter() > moment


def _label(piece: Piece) -> str:
    shape, form = piece
    if isinstance(shape, ExpertsShape):
        return f"experts of {shape.model}"
    return f"dense {form} {shape.rows} x {shape.columns}"


_LAYERS_OF_A_MODEL = 32


def _expected_gain(cells_by_piece: Mapping[Piece, Sequence[BenchCell]]) -> Callable[[Piece], float]:
    """Microseconds of a step that a kernel takes beyond its bytes at the best rate of this run."""
    timed = [cell for cells in cells_by_piece.values() for cell in cells if cell.ours]
    rate = max((cell.bytes / cell.ours for cell in timed if cell.ours), default=1.0)

    def gain(piece: Piece) -> float:
        beyond = [cell.ours - cell.bytes / rate for cell in cells_by_piece[piece] if cell.ours]
        times = 1 if cells_by_piece[piece][0].is_lm_head else _LAYERS_OF_A_MODEL
        return times * sum(beyond) / max(len(beyond), 1)

    return gain


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


def race_dense(
    shape: DenseShape,
    format: WeightFormat,  # noqa: A002 - the word of the formats
    request: BenchRequest,
    device: torch.device,
    stop: Stop | None = None,
) -> Iterator[BenchCell]:
    """Times one weight with each number of tokens, after a search that `stop` ends, if any."""
    weight = random_weight(format, (shape.rows, shape.columns), device)
    size = stored_bytes(weight)
    planned = plan(size, cache_bytes(device))
    exact = decoded(weight)
    for kernel in request.listed("dense", format):
        scale = None
        if kernel is not None and kernel.layer == "quantized matrix":
            scale = GlobalScale.of_amax(torch.tensor(_LARGEST_INPUT, device=device))
        field = Field(
            request, "dense", kernel, weight, planned.copies, stop,
            gate=shape.is_gate, input_scale=scale,
        )  # fmt: skip
        for count in request.tokens:
            dice = torch.Generator(device).manual_seed(count)
            size_x = (planned.calls, count, shape.columns)
            x = torch.randn(size_x, dtype=torch.bfloat16, device=device, generator=dice)
            cell = BenchCell(
                kind="dense",
                work=TunedShape(
                    _tuned_as(kernel, "dense"), format, shape.rows, shape.columns, count
                ),
                label=shape.label,
                weight_bytes=size,
                bytes=size + 2 * count * (shape.rows + shape.columns),
                is_lm_head=shape.is_lm_head,
                results=(),
                recorded=request.recorded.get(((shape, format), count)),
            )
            inputs = BenchInputs(x, (torch.empty_like(x),), planned.copies)
            rounded = None if scale is None else exact_products(_rounded(x, scale), exact)
            expected = exact_products(x, exact)
            yield field.raced(cell, inputs, expected, DENSE_TOLERANCE, rounded)


def _rounded(x: torch.Tensor, scale: GlobalScale) -> torch.Tensor:
    """The activations of all calls, rounded to NVFP4."""
    return quantize_nvfp4(x.flatten(0, 1), scale).decode().view(x.shape)


def _tuned_as(kernel: ReplacementKernel | None, kind: Kind) -> str:
    return (kernel.tuned_as or kernel.check) if kernel is not None else kind


def exact_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The float64 products of all calls' activations, kept as float32."""
    rows, columns = weight.shape
    flat = x.flatten(0, 1).to(torch.float64)
    out = torch.empty((flat.shape[0], rows), dtype=torch.float32, device=x.device)
    step = max(1, _ROWS_AT_ONCE // columns)
    for begin in range(0, rows, step):
        out[:, begin : begin + step] = flat @ weight[begin : begin + step].to(torch.float64).t()
    return out.unflatten(0, x.shape[:2])


def race_experts(
    shape: ExpertsShape, request: BenchRequest, device: torch.device, stop: Stop | None = None
) -> Iterator[BenchCell]:
    """Times the experts of one model with each number of tokens, as `race_dense` a weight."""
    layer = random_experts(shape, device)
    expert_bytes = bytes_of_expert(layer)
    all_inputs = {
        count: expert_inputs(shape, expert_bytes, count, device) for count in request.tokens
    }
    copies = max((inputs.copies for inputs in all_inputs.values()), default=1)
    references = exact_experts(layer, list(all_inputs.values()))
    for kernel in request.listed("moe", shape.format):
        field = Field(request, "moe", kernel, layer, copies, stop)
        for (count, inputs), expected in zip(all_inputs.items(), references, strict=True):
            used = round(_mean_distinct(inputs.buffers[1], shape.top_k) * expert_bytes)
            sizes = (2 * shape.intermediate, shape.hidden, count, shape.experts, shape.top_k)
            cell = BenchCell(
                kind="moe",
                work=TunedShape(_tuned_as(kernel, "moe"), shape.format, *sizes),
                label=shape.model,
                weight_bytes=used,
                bytes=used + 2 * count * (2 * shape.hidden + shape.experts),
                is_lm_head=False,
                results=(),
                recorded=request.recorded.get(((shape, shape.format), count)),
            )
            yield field.raced(cell, replace(inputs, copies=copies), expected, EXPERTS_TOLERANCE)


def expert_inputs(
    shape: ExpertsShape, expert_bytes: int, count: int, device: torch.device
) -> BenchInputs:
    """Random inputs for experts of `expert_bytes` bytes each.

    A token's logits all differ, or competitors could rightly differ in experts.
    """
    dice = torch.Generator(device).manual_seed(count)
    expected = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** count)
    planned = plan(
        math.ceil(expected * expert_bytes), cache_bytes(device), shape.experts * expert_bytes
    )
    size = (planned.calls, count, shape.hidden)
    x = torch.randn(size, dtype=torch.bfloat16, device=device, generator=dice)
    order = torch.rand((*size[:2], shape.experts), device=device, generator=dice).argsort(-1)
    steps = torch.linspace(-_LARGEST_LOGIT, _LARGEST_LOGIT, shape.experts, device=device)
    return BenchInputs(x, (torch.empty_like(x), steps.to(torch.bfloat16)[order]), planned.copies)


def exact_experts(layer: ExpertsLayer, inputs: Sequence[BenchInputs]) -> list[torch.Tensor]:
    """The exact output of all calls: [calls, M, H] for each number of tokens.

    All are computed at once, so that each expert is decoded once.
    """
    x = torch.cat([batch.source.flatten(0, 1) for batch in inputs])
    logits = torch.cat([batch.buffers[1].flatten(0, 1) for batch in inputs])
    chosen, shares = routing_oracle(logits, layer.router)
    exact = moe_oracle(x, chosen, shares, layer).value
    sizes = [batch.source.shape[:2] for batch in inputs]
    parts = exact.split([size.numel() for size in sizes])
    return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]


def _mean_distinct(logits: torch.Tensor, top_k: int) -> float:
    """How many experts a call reads."""
    chosen = logits.to(torch.float32).topk(top_k, -1).indices.flatten(1)
    return sum(len(call.unique()) for call in chosen) / len(chosen)
