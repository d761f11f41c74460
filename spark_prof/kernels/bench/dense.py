"""Times dense layers: this project's product beside cuBLAS in BF16 and vLLM's Marlin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from spark_prof.kernels.bench.marlin import marlin
from spark_prof.kernels.bench.race import (
    Contestant,
    clones,
    plan,
    race,
    reason,
    relative_l2,
)
from spark_prof.kernels.bench.repeated import Output, cache_bytes
from spark_prof.kernels.bench.results import OURS, Cell, Result
from spark_prof.kernels.bench.shapes import DenseShape, WeightFormat
from spark_prof.kernels.bench.weights import Weight, decoded, random_weight, stored_bytes
from spark_prof.kernels.tuning import Work

__all__ = ["CUBLAS", "DENSE_CONTESTANTS", "Multiply", "race_dense"]

CUBLAS = "cuBLAS BF16"

Multiply = Callable[[torch.Tensor, int], torch.Tensor]
"""Multiplies x [M, K] by the copy of the weight of that number."""

_TOLERANCE = 0.01
"""Relative L2. Rounding a sum to BF16 gives 0.0017; a scale that is wrong in one row of a hundred
gives 0.1."""


def _ours(weight: Weight, copies: int) -> Multiply:
    from spark_prof.kernels.dense import linear
    from spark_prof.kernels.pack import pack_linear

    packed = clones(pack_linear(weight), copies)
    return lambda x, number: linear(x, packed[number])


def _cublas(weight: Weight, copies: int) -> Multiply:
    transposed = [matrix.t() for matrix in clones(decoded(weight), copies)]
    return lambda x, number: torch.mm(x, transposed[number])


DENSE_CONTESTANTS: dict[str, Callable[[Weight, int], Multiply]] = {
    OURS: _ours,
    CUBLAS: _cublas,
    "vLLM Marlin": marlin,
}
"""Who takes part: makes copies of a weight and multiplies by them."""


def race_dense(
    shape: DenseShape,
    format: WeightFormat,  # noqa: A002 - the word of the formats
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.5,
    contestants: Sequence[str] = tuple(DENSE_CONTESTANTS),
) -> Iterator[Cell]:
    """Times one weight with each number of tokens.

    Args:
        shape: of the weight.
        format: of the weight.
        tokens: rows of the activations.
        device: on which.
        seconds: roughly for each number of tokens.
        contestants: names of those who take part.
    """
    weight = random_weight(format, (shape.rows, shape.columns), device)
    size = stored_bytes(weight)
    planned = plan(size, cache_bytes(device))
    multiplies = {name: _prepared(name, weight, planned.copies) for name in contestants}
    exact = decoded(weight)
    for count in tokens:
        dice = torch.Generator(device).manual_seed(count)
        inputs = torch.randn(
            (planned.calls, count, shape.columns),
            dtype=torch.bfloat16,
            device=device,
            generator=dice,
        )
        expected = _products(inputs, exact)
        written = torch.empty_like(inputs)

        def before(
            number: int, written: torch.Tensor = written, inputs: torch.Tensor = inputs
        ) -> None:
            written[number].copy_(inputs[number])

        def error(number: int, output: Output, expected: torch.Tensor = expected) -> float:
            return relative_l2(output[0], expected[number])

        entered = [
            multiply
            if isinstance(multiply, Result)
            else Contestant(name, _calls(multiply, written, planned.copies))
            for name, multiply in multiplies.items()
        ]
        results = race(entered, planned.calls, before, error, _TOLERANCE, device, seconds)
        activations = 2 * count * (shape.rows + shape.columns)
        yield Cell(
            kind="dense",
            work=Work("dense", format, shape.rows, shape.columns, count),
            label=shape.label,
            weight_bytes=size,
            bytes=size + activations,
            is_lm_head=shape.is_lm_head,
            results=results,
        )


def _prepared(name: str, weight: Weight, copies: int) -> Multiply | Result:
    try:
        return DENSE_CONTESTANTS[name](weight, copies)
    except Exception as failure:
        return Result(name, None, None, reason(failure))


def _calls(multiply: Multiply, inputs: torch.Tensor, copies: int) -> Callable[[int], torch.Tensor]:
    return lambda number: multiply(inputs[number], number % copies)


def _products(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The float64 products of all calls' inputs, kept as float32."""
    rows = weight.shape[0]
    x = inputs.flatten(0, 1).to(torch.float64)
    out = torch.empty((x.shape[0], rows), dtype=torch.float32, device=inputs.device)
    step = max(1, (1 << 26) // weight.shape[1])
    for begin in range(0, rows, step):
        out[:, begin : begin + step] = x @ weight[begin : begin + step].to(torch.float64).t()
    return out.unflatten(0, inputs.shape[:2])
