"""Which configuration of a kernel to run for a piece of work, or none where another one is faster.

The rule, in this order:

1. Only measurements on the same architecture count, of the same kernel and weight format, and for
   experts of the same number and top-k.
2. Of those the nearest weight shape counts. The distance of two shapes is the factor between their
   rows times the factor between their columns; beyond a factor of two nothing is known.
3. Of that shape those on a GPU of this name count, this machine's own first; another GPU's only if
   these do not know the number of tokens.
4. For a number of tokens between two measured ones both neighbours count; the configuration is that
   of the larger one. Outside of the measured numbers nothing is known.
5. The kernel is chosen if it was no slower than its fallback in all that count (`Tuned.wins`); on
   another GPU it has to have been faster by what such GPUs differ.

What nobody measured goes to the fallback, unless the caller insists.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import Tuned, TunedShape, TuningRun, known_runs

FARTHEST = 2.0
"""The largest factor between a shape and the measured one that speaks for it."""


Config = TypeVar("Config")


@dataclass(frozen=True)
class DispatchChoice(Generic[Config]):
    """What a call runs: the kernel in a configuration, or the fallback."""

    # None to run the fallback. As measured, fields of `dense.LinearConfig` or `moe.MoeConfig` by
    # name, none for the default; or such a configuration.
    config: Config | None
    why: str


def choose(
    kernel: str,
    format: str,  # noqa: A002 - the word of the formats
    rows: int,
    columns: int,
    tokens: int,
    architecture: str,
    *,
    experts: int = 1,
    top_k: int = 1,
    insist: bool = False,
    runs: Sequence[TuningRun] | None = None,
    gpu: str | None = None,
) -> DispatchChoice[Mapping[str, int]]:
    """Chooses between a kernel and its fallback by what was measured.

    Args:
        format: of the weights, such as nvfp4.
        rows: of the weight; of experts those of gate and up together.
        architecture: what the kernel is compiled for here, such as sm_90a.
        experts: how many there are; 1 for a dense layer.
        top_k: experts a token; 1 for a dense layer.
        insist: run the kernel where nobody measured it. What was measured to be slower stays so.
        runs: the measurements; by default the package's and the user's own.
        gpu: the name of the GPU, empty for any; by default torch's current one.

    Raises:
        KernelError: a file of measurements is damaged.
    """
    work = TunedShape(kernel, format, rows, columns, tokens, experts, top_k)
    runs = known_runs() if runs is None else runs
    here = [run for run in runs if run.architecture == architecture]
    if not here:
        return _unknown(f"nothing was measured on {architecture}", insist)
    nearest = _nearest(work, _rows_of_work(work, here))
    if not nearest:
        return _unknown(f"no {kernel} of {format} near {rows} x {columns} was measured", insist)
    gpu = _this_gpu() if gpu is None else gpu
    on_this_gpu = [pair for pair in nearest if pair[1].machine == gpu]
    neighbours = _neighbours(tokens, on_this_gpu) or _neighbours(tokens, nearest)
    if not neighbours:
        counts = sorted(row.work.tokens for row, _ in nearest)
        return _unknown(f"{tokens} tokens are outside of {counts[0]} to {counts[-1]}", insist)
    for row, run in neighbours:
        if row.ratio is None:
            why = f"no fallback was measured beside {_measurement_text(row, run)}"
            return _unknown(why, insist, neighbours[-1][0].config)
        if not row.wins:
            return DispatchChoice(None, f"{row.fallback} is faster: {_measurement_text(row, run)}")
        if not run.speaks_for(row, gpu):
            why = (
                f"{gpu} may differ, and {row.ratio:.2f} x is little: {_measurement_text(row, run)}"
            )
            return _unknown(why, insist, neighbours[-1][0].config)
    row, run = neighbours[-1]
    return DispatchChoice(row.config, _measurement_text(row, run))


def _this_gpu() -> str:
    """The name of torch's current GPU; empty where nothing uses torch or it finds none."""
    torch = sys.modules.get("torch")
    here = torch is not None and torch.cuda.is_available()
    return str(torch.cuda.get_device_name()) if torch is not None and here else ""


def _unknown(
    why: str, insist: bool, config: Mapping[str, int] | None = None
) -> DispatchChoice[Mapping[str, int]]:
    return (
        DispatchChoice(config or {}, f"{why}, but it was insisted on")
        if insist
        else DispatchChoice(None, why)
    )


def _rows_of_work(work: TunedShape, runs: Iterable[TuningRun]) -> Iterator[tuple[Tuned, TuningRun]]:
    key = (work.kernel, work.format, work.experts, work.top_k)
    for run in runs:
        for row in run.rows:
            of = row.work
            if (of.kernel, of.format, of.experts, of.top_k) == key:
                yield row, run


def _nearest(
    work: TunedShape, rows: Iterable[tuple[Tuned, TuningRun]]
) -> list[tuple[Tuned, TuningRun]]:
    """The measurements of the nearest shape; of two equally near ones the smaller."""
    shapes: dict[tuple[float, int, int], list[tuple[Tuned, TuningRun]]] = {}
    for row, run in rows:
        factor = _factor(work.rows, row.work.rows) * _factor(work.columns, row.work.columns)
        if factor <= FARTHEST:
            shapes.setdefault((factor, row.work.rows, row.work.columns), []).append((row, run))
    return shapes[min(shapes)] if shapes else []


def _factor(one: int, other: int) -> float:
    return max(one, other) / min(one, other) if min(one, other) > 0 else math.inf


def _neighbours(
    tokens: int, rows: Sequence[tuple[Tuned, TuningRun]]
) -> list[tuple[Tuned, TuningRun]]:
    """The measurements at the next smaller and the next larger number of tokens."""
    # Of several measurements of one number the last counts: runs are in order.
    latest = {row.work.tokens: (row, run) for row, run in rows}
    ordered = [latest[number] for number in sorted(latest)]
    below = [pair for pair in ordered if pair[0].work.tokens <= tokens]
    above = [pair for pair in ordered if pair[0].work.tokens >= tokens]
    if not (below and above):
        return []
    # At a measured number both are the same.
    return [above[0]] if below[-1] == above[0] else [below[-1], above[0]]


def _measurement_text(row: Tuned, run: TuningRun) -> str:
    of = row.work
    shape = f"{of.rows} x {of.columns}, {of.tokens} token{'' if of.tokens == 1 else 's'}"
    against = "" if row.fallback_us is None else f" against {row.fallback_us:.2f} of {row.fallback}"
    return f"{shape}: {row.us:.2f} us{against}, {run.machine}, {run.date[:10]}"


UNIT_COLUMNS = 128
"""Columns that a warp takes at a time: there is no more to share out."""


def configured(
    choice: DispatchChoice[Mapping[str, int]], default: Config, columns: int
) -> DispatchChoice[Config]:
    """The configuration of a choice, the default where it has none or none for these columns."""
    if not choice.config:
        return DispatchChoice(None if choice.config is None else default, choice.why)
    fields = set(vars(default))
    if choice.config.keys() != fields:
        wrong = ", ".join(sorted(fields ^ choice.config.keys()))
        raise KernelError(
            f"a measured configuration is of another version of spark-prof ({wrong}); measure "
            "again with `spark-prof kernels tune`"
        )
    # It may be a neighbouring shape's.
    config = type(default)(**choice.config) if fits(choice.config, columns) else default
    return DispatchChoice(config, choice.why)


def fits(config: Mapping[str, int], columns: int) -> bool:
    """Whether a block's warps can share out as many columns as a configuration says."""
    warps, split = config["warps"], config["split"]
    shared_out = 1 <= split <= -(-columns // UNIT_COLUMNS)
    return shared_out and warps in range(1, 33) and warps % split == 0
