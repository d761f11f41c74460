"""Reads what `spark-prof doctor --model` was asked, and answers it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.ceilings import Ceilings, Question
    from spark_prof.rules.gpus import Gpu
    from spark_prof.traces.measured import Measured

_MOST = 1_000_000_000
_MOST_REASONS = 2


def question_of(
    *, batch: int, context: int, drafts: int, accepted: float | None, ranks: int
) -> Question:
    """The use that the ceilings are for.

    Args:
        batch: sequences that decode at a time.
        context: tokens that each has in the KV cache, 0 for the weights alone.
        drafts: tokens drafted for each of them in a step.
        accepted: tokens that a step yields a sequence; None if all drafts are accepted.
        ranks: GPUs of tensor parallelism.

    Raises:
        CommandError: one of these cannot be.
    """
    from spark_prof.analyzers.ceilings import Question

    limits = (("--batch", batch, 1), ("--context", context, 0), ("--drafts", drafts, 0))
    for name, value, least in (*limits, ("--tensor-parallel", ranks, 1)):
        if not least <= value <= _MOST:
            raise CommandError(f"{name} {value} cannot be; it is a whole number from {least} on")
    yielded = 1.0 + drafts if accepted is None else accepted
    if not (math.isfinite(yielded) and 1 <= yielded <= 1 + drafts):
        raise CommandError(
            f"--tokens-per-step {yielded:g} cannot be with --drafts {drafts}: a step yields 1 to "
            f"{1 + drafts} tokens"
        )
    return Question(batch, context, 1 + drafts, yielded, ranks)


def model_ceilings(
    folder: Path, question: Question, first: Gpu | None, measured: Measured | None
) -> Ceilings:
    """The ceilings of the model in a folder.

    Args:
        folder: as `traces.checkpoint.read_checkpoint` takes it.
        question: the use that they are for.
        first: the GPU to show first.
        measured: what a machine reached; its GPU is shown first and read at that bandwidth.

    Raises:
        CommandError: the folder tells no weights.
    """
    from spark_prof.analyzers.ceilings import ceilings_of
    from spark_prof.rules.gpus import GPUS, Figure, find_gpu
    from spark_prof.traces.checkpoint import read_checkpoint

    here = find_gpu(measured.device, measured.compute_capability) if measured else None
    read = measured.value("read") if measured else None
    gpus = [first] if first else []
    if measured and here and read:
        figure = Figure(read, f"measured on this machine, {measured.taken}")
        gpus = [replace(here, read_bandwidth=figure), *(gpu for gpu in gpus if gpu != here)]
    shown = {gpu.short for gpu in gpus}
    gpus += [gpu for gpu in GPUS if gpu.short not in shown]
    found = ceilings_of(read_checkpoint(folder), question, gpus)
    if not found.choices[0].step.read:
        why = [line.rstrip(".") for line in found.model.lost[:_MOST_REASONS]]
        raise CommandError(f"{folder} tells no weights: {'; '.join(why) or 'it holds none'}")
    return found
