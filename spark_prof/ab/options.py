"""What a run of `spark-prof ab` shall measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Attributes:
        folder: where everything goes.
        batch_sizes: requests that decode at a time, one measurement each.
        prefill: lengths of prompts whose prefill is measured.
        seconds: to spend on one measurement.
        context: tokens of each prompt when decoding is measured.
        gate_tokens: that each request generates for the correctness gate; None for as many as make
            the gate's positions enough.
        record: kernels of both sides are recorded, for where the gain comes from.
        starts: of engines, where the sides need one each; a multiple of four.
        timeout: seconds after which an engine that neither answers nor logs is given up.
        time_anyway: times are taken after a failed gate, too; they do not count.
    """

    folder: Path
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    prefill: tuple[int, ...] = (128, 1024)
    seconds: float = 20.0
    context: int = 128
    gate_tokens: int | None = None
    record: bool = True
    starts: int = 4
    timeout: float = 600.0
    time_anyway: bool = False
