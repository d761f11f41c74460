"""One run of the benchmark: everything that was asked for, one piece of work after another."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.bench.dense import DENSE_CONTESTANTS, race_dense
from spark_prof.kernels.bench.experts import EXPERTS_CONTESTANTS, race_experts
from spark_prof.kernels.bench.passes import PASS_CONTESTANTS, chosen_passes, race_pass
from spark_prof.kernels.bench.race import reason
from spark_prof.kernels.bench.results import Cell, Kind
from spark_prof.kernels.bench.shapes import (
    FP4,
    TOKENS,
    WeightFormat,
    chosen_experts,
    dense_work,
    matches,
)
from spark_prof.kernels.quantized_rows import ROW_FORMATS

KINDS: tuple[Kind, ...] = ("dense", "moe", "fused")


@dataclass(frozen=True)
class Request:
    """What to time.

    Attributes:
        models: parts of model names, all models if empty.
        contestants: parts of contestants' names, all of them if empty.
        seconds: after which no further shape is begun.
        tune: search the best configuration of each piece of work before it is timed.
    """

    only: Sequence[Kind] = KINDS
    models: Sequence[str] = ()
    tokens: Sequence[int] = TOKENS
    formats: Sequence[WeightFormat] = FP4
    contestants: Sequence[str] = ()
    seconds: float = 240.0
    seconds_each: float = 0.2
    tune: bool = False


@dataclass(frozen=True)
class LeftOut:
    """A shape that there was no time for, or that failed as a whole.

    Attributes:
        what: the shape.
    """

    what: str
    why: str


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
    tokens, seconds, tune = request.tokens, request.seconds_each, request.tune

    def wanted(names: Iterable[str]) -> list[str]:
        return [name for name in names if matches(name, request.contestants)]

    if "dense" in request.only:
        for shape, form in dense_work(request.models, request.formats):
            what = f"dense {form} {shape.rows} x {shape.columns}"
            names = wanted(DENSE_CONTESTANTS)
            yield what, race_dense(shape, form, tokens, device, seconds, names, tune)
    if "moe" in request.only:
        names = wanted(EXPERTS_CONTESTANTS)
        for experts in chosen_experts(request.models):
            what = f"experts of {experts.model}"
            yield what, race_experts(experts, tokens, device, seconds, names, tune)
    if "fused" in request.only:
        names = wanted(PASS_CONTESTANTS)
        for each in chosen_passes(request.models):
            for row_format in ROW_FORMATS:
                what = f"{each.name} of {each.columns} columns to {row_format}"
                yield what, race_pass(each, row_format, tokens, device, seconds, names)


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
