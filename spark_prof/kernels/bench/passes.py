"""Times passes that end in quantized rows beside the separate kernels that they replace.

Those are vLLM's norm, activation or shuffle and a quantization: this project's, since vLLM has none
for FP4 on Hopper, and where vLLM has one its own too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from spark_prof.kernels.activation_quantize import moved_bytes as activation_bytes
from spark_prof.kernels.bench.pass_tasks import (
    SEPARATE,
    SEPARATE_VLLM,
    PassTask,
    activation_task,
    expand_task,
    norm_task,
)
from spark_prof.kernels.bench.race import Contestant, Setting, race
from spark_prof.kernels.bench.repeated import Output, cache_bytes
from spark_prof.kernels.bench.results import OURS, Cell
from spark_prof.kernels.bench.shapes import matches
from spark_prof.kernels.expand_quantize import moved_bytes as expand_bytes
from spark_prof.kernels.formats import MxFp8, NvFp4, unswizzle_128x4
from spark_prof.kernels.norm_quantize import moved_bytes as norm_bytes
from spark_prof.kernels.quantized_rows import RowFormat
from spark_prof.kernels.tuning import Work

PASS_CONTESTANTS = (OURS, SEPARATE, SEPARATE_VLLM)

_CALLS, _FEWEST_CALLS = 64, 2
_TOLERANCE = 0.1
"""Share of bytes that differ. Kernels that round elsewhere on their way to BF16 move a few codes in
a hundred over a midpoint; wrong scales, rows or halves change most of them."""


@dataclass(frozen=True)
class Pass:
    """One pass over rows.

    Attributes:
        name: what it does before it quantizes: norm, activation or expand.
        task: makes its inputs and contestants, of a number of calls and of tokens, the columns, the
            format and the device.
        bytes: that are moved at least, of a number of tokens, the columns and the format.
        experts: to which tokens are expanded, 1 for none.
    """

    name: str
    columns: int
    models: tuple[str, ...]
    task: Callable[[int, int, int, RowFormat, torch.device], PassTask]
    bytes: Callable[[int, int, RowFormat], int]
    experts: int = 1
    top_k: int = 1


def _expand(columns: int, models: tuple[str, ...], experts: int, top_k: int) -> Pass:
    return Pass(
        "expand",
        columns,
        models,
        partial(expand_task, experts=experts, top_k=top_k),
        lambda tokens, columns, form: expand_bytes(tokens, tokens * top_k, columns, form),
        experts,
        top_k,
    )


PASSES = (
    Pass("norm", 2048, ("Qwen3-30B-A3B", "Qwen3-Next-80B-A3B"), norm_task, norm_bytes),
    Pass("norm", 2880, ("gpt-oss-20b", "gpt-oss-120b"), norm_task, norm_bytes),
    Pass("norm", 4096, ("Llama-3.1-8B", "Qwen3-8B"), norm_task, norm_bytes),
    Pass("activation", 512, ("Qwen3-Next-80B-A3B",), activation_task, activation_bytes),
    Pass("activation", 12288, ("Qwen3-8B",), activation_task, activation_bytes),
    Pass("activation", 14336, ("Llama-3.1-8B",), activation_task, activation_bytes),
    _expand(2048, ("Qwen3-30B-A3B",), 128, 8),
    _expand(2880, ("gpt-oss-20b",), 32, 4),
)


def chosen_passes(models: Sequence[str] = ()) -> list[Pass]:
    """Those of models whose names hold one of these parts, all if there is none."""
    return [each for each in PASSES if any(matches(model, models) for model in each.models)]


def race_pass(
    work: Pass,
    row_format: RowFormat,
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.5,
    contestants: Sequence[str] = PASS_CONTESTANTS,
) -> Iterator[Cell]:
    """Times one pass with each number of tokens, as `race_dense` a weight."""
    calls = _CALLS if cache_bytes(device) else _FEWEST_CALLS
    for count in tokens:
        task = work.task(calls, count, work.columns, row_format, device)
        expected = [task.expected(number) for number in range(calls)]

        def error(outputs: Sequence[Output], expected: Sequence[NvFp4 | MxFp8] = expected) -> float:
            return _wrong_bytes(outputs, expected, compare_scales=work.experts == 1)

        entered = [
            Contestant(name, call) for name, call in task.contestants.items() if name in contestants
        ]
        setting = Setting(calls, task.before, error, _TOLERANCE, device)
        yield Cell(
            kind="fused",
            work=Work(work.name, row_format, 1, work.columns, count, work.experts, work.top_k),
            label=", ".join(work.models),
            weight_bytes=2 * work.columns if work.name == "norm" else 0,
            bytes=work.bytes(count, work.columns, row_format),
            is_lm_head=False,
            results=race(entered, setting, seconds),
        )


def _wrong_bytes(
    outputs: Sequence[Output], expected: Sequence[NvFp4 | MxFp8], compare_scales: bool
) -> float:
    """The share of bytes that differ in the worst call; scales of experts are not compared.

    Those lie apart, each expert's by themselves.
    """
    shares = []
    for (codes, scales), right in zip(outputs, expected, strict=True):
        shares.append(_differing(codes, right.packed if isinstance(right, NvFp4) else right.values))
        if compare_scales:
            rows = unswizzle_128x4(scales, *right.scales.shape)
            shares.append(_differing(rows, right.scales))
    return float(torch.stack(shares).max())


def _differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one.view(torch.uint8) != other.view(torch.uint8)).to(torch.float32).mean()
