"""Times dense layers: this project's product beside cuBLAS in BF16 and vLLM's Marlin.

BF16 weights are what cuBLAS is given by vLLM; Marlin takes no part there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from spark_prof.kernels.bench.candidates import bf16_candidates
from spark_prof.kernels.bench.configurations import best_config, best_of, known_config
from spark_prof.kernels.bench.marlin import Multiply, marlin
from spark_prof.kernels.bench.race import (
    Contestant,
    Setting,
    clones,
    largest_relative_l2,
    plan,
    prepared,
    race,
)
from spark_prof.kernels.bench.repeated import Call, Output, cache_bytes
from spark_prof.kernels.bench.results import OURS, Cell, Result
from spark_prof.kernels.bench.shapes import DenseShape, WeightFormat
from spark_prof.kernels.bench.weights import Weight, decoded, random_weight, stored_bytes
from spark_prof.kernels.check.weights import Bf16
from spark_prof.kernels.dense import LinearConfig, default_config, linear
from spark_prof.kernels.operands import architecture, multiprocessors
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.tuning import Work

CUBLAS = "cuBLAS BF16"

_TOLERANCE = 0.01
"""Relative L2. Rounding a sum to BF16 gives 0.0017; a scale that is wrong in one row of a hundred
gives 0.1."""

_ROWS_AT_ONCE = 1 << 26
"""Elements of the weight that are multiplied in float64 at a time."""


def _cublas(weight: Weight, copies: int) -> Multiply:
    transposed = [matrix.t() for matrix in clones(decoded(weight), copies)]
    return lambda x, number: torch.mm(x, transposed[number])


_MARLIN = "vLLM Marlin"
MakeMultiply = Callable[[Weight, int], Multiply]
"""Makes copies of a weight, and what multiplies by them."""

DENSE_PEERS: Mapping[str, MakeMultiply] = {CUBLAS: _cublas, _MARLIN: marlin}

DENSE_CONTESTANTS = (OURS, *DENSE_PEERS)


@dataclass(frozen=True)
class _Activations:
    """Of all calls with one number of tokens, each [calls, M, K]."""

    source: torch.Tensor
    written: torch.Tensor

    def write(self, number: int) -> None:
        self.written[number].copy_(self.source[number])


def race_dense(
    shape: DenseShape,
    format: WeightFormat,  # noqa: A002 - the word of the formats
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.5,
    contestants: Sequence[str] = DENSE_CONTESTANTS,
    tune: bool = False,
    peers: Mapping[str, MakeMultiply] = DENSE_PEERS,
    subject: str = OURS,
) -> Iterator[Cell]:
    """Times one weight with each number of tokens.

    Args:
        tune: search the best configuration first, in place of a known one.
    """
    weight = random_weight(format, (shape.rows, shape.columns), device)
    size = stored_bytes(weight)
    planned = plan(size, cache_bytes(device))
    copies = planned.copies
    unpacked = weight.values if isinstance(weight, Bf16) else weight
    ours = clones(pack_linear(unpacked), copies) if OURS in contestants else []
    ready = {
        name: prepared(name, partial(peers[name], weight, copies))
        for name in contestants
        if name in peers and not (format == "bf16" and name == _MARLIN)
    }
    exact = decoded(weight)
    for count in tokens:
        activations = _activations(planned.calls, count, shape.columns, device)
        expected = _products(activations.source, exact)

        def error(outputs: Sequence[Output], expected: torch.Tensor = expected) -> float:
            return largest_relative_l2(outputs, expected)

        setting = Setting(planned.calls, activations.write, error, _TOLERANCE, device)
        work = Work("dense", format, shape.rows, shape.columns, count)
        config = default_config(shape.rows, shape.columns, count, format)
        entered: list[Contestant | Result] = []
        if ours:

            def call_of(config: LinearConfig, x: torch.Tensor = activations.written) -> Call:
                return lambda number: linear(x[number], ours[number % copies], config=config)

            if tune and format == "bf16":
                tried = bf16_candidates(shape.rows, shape.columns, count, multiprocessors(device))
                config = best_of((config, *tried), call_of, setting)
            elif tune:
                config = best_config(config, call_of, setting)
            else:
                config = known_config(config, work, architecture(device))
            entered.append(Contestant(OURS, call_of(config)))
        entered += [
            multiply
            if isinstance(multiply, Result)
            else Contestant(name, _calls(multiply, activations.written, copies))
            for name, multiply in ready.items()
        ]
        yield Cell(
            kind="dense",
            work=work,
            label=shape.label,
            weight_bytes=size,
            bytes=size + 2 * count * (shape.rows + shape.columns),
            is_lm_head=shape.is_lm_head,
            results=race(entered, setting, seconds),
            config=asdict(config) if ours else {},
            subject=subject,
        )


def _calls(multiply: Multiply, x: torch.Tensor, copies: int) -> Call:
    return lambda number: multiply(x[number], number % copies)


def _activations(calls: int, tokens: int, columns: int, device: torch.device) -> _Activations:
    dice = torch.Generator(device).manual_seed(tokens)
    size = (calls, tokens, columns)
    source = torch.randn(size, dtype=torch.bfloat16, device=device, generator=dice)
    return _Activations(source, torch.empty_like(source))


def _products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The float64 products of all calls' activations, kept as float32."""
    rows, columns = weight.shape
    flat = x.flatten(0, 1).to(torch.float64)
    out = torch.empty((flat.shape[0], rows), dtype=torch.float32, device=x.device)
    step = max(1, _ROWS_AT_ONCE // columns)
    for begin in range(0, rows, step):
        out[:, begin : begin + step] = flat @ weight[begin : begin + step].to(torch.float64).t()
    return out.unflatten(0, x.shape[:2])
