"""What the pieces that a recording has written so far say of it: figures for a screen.

Only finished pieces are read, as the explorer's page of a running recording does, by a thread of
the recorder: nothing is asked of the engine, and the reading takes a twentieth of one core at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.overhead import overhead_of_steps
from spark_prof.errors import CommandError
from spark_prof.traces.chunk_files import load_array, piece_numbers
from spark_prof.traces.chunk_tables import read_trace
from spark_prof.traces.chunks import STEP_DTYPE, activity_name, array_name, kineto_name
from spark_prof.traces.foreign import operator_rows
from spark_prof.vocabulary import PHASES

Rows = np.ndarray[Any, Any]

MOST_KERNELS = 5
_MOST_STEPS = 64  # the newest ones, which the figures are of
_MOST_PIECES = 64
_FEWEST_TIMED = 8  # steps that were only timed, before times are theirs
_MOST_BYTES = 64 << 20  # of a trace; a larger one would take seconds to read
_SECONDS = 1.0
_SHARE_OF_A_CORE = 0.05


@dataclass(frozen=True)
class LiveKernel:
    """The time of all kernels of one name."""

    name: str
    step_ns: float  # in a step
    share: float  # of the time of all kernels


@dataclass(frozen=True)
class LiveFigures:
    """What the newest steps of a rank took."""

    rank: int
    steps: int  # decode steps that the times are of; 0 where none was written yet
    profiled: bool  # whether those were profiled: a recording may have no others
    step_ns: float  # the mean, from a step's begin to the next one's
    batch: float  # sequences that decode in a step, on average
    tokens_per_s: float  # of all sequences; the drafts of speculative decoding counted in
    drafts: bool  # whether a sequence decodes more than one token in a step
    kernels: tuple[LiveKernel, ...] = ()  # the largest ones
    kernel_steps: int = 0  # profiled steps that they are of
    profiled_over_timed: float | None = None  # time of a profiled step over that of another


class LiveReader:
    """Reads the newest pieces of the lowest rank, again and again, until it is closed."""

    def __init__(self, pieces: Path) -> None:
        self.figures: LiveFigures | None = None
        self._pieces = pieces
        self._kernels: tuple[int, int, tuple[LiveKernel, ...]] = (-1, 0, ())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Reads no more; a reading that has begun ends by itself."""
        self._closed.set()

    def _read_on(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            begun = time.thread_time()
            # Whatever a file says, a recording goes on: the figures stay what they were.
            with suppress(Exception):
                self.figures = self.read() or self.figures
            pause = max(_SECONDS, (time.thread_time() - begun) / _SHARE_OF_A_CORE)

    def read(self) -> LiveFigures | None:
        """The figures of now; None while no piece is whole."""
        ranks = sorted(
            int(path.name.split(".")[0].removeprefix("rank"))
            for path in self._pieces.glob("rank*.facts.json")
        )
        if not ranks:
            return None
        name = f"rank{ranks[0]}"
        steps: dict[int, Rows] = {}
        profiled = -1
        for number in reversed(piece_numbers(self._pieces, name)[-_MOST_PIECES:]):
            with suppress(CommandError):  # its last file is not written yet
                steps[number] = load_array(
                    self._pieces / array_name(name, "steps", number), STEP_DTYPE
                )
                if profiled < 0 and steps[number]["watched"].any():
                    profiled = number
            if sum(map(len, steps.values())) >= _MOST_STEPS and profiled >= 0:
                break
        if not steps:
            return None
        if 0 <= profiled != self._kernels[0]:
            kernels, count = largest_kernels(self._pieces, name, profiled, steps[profiled])
            self._kernels = (profiled, count, kernels)
        rows = np.concatenate([steps[number] for number in sorted(steps)])
        return figures_of(rows, ranks[0], self._kernels[2], self._kernels[1])


def figures_of(
    rows: Rows, rank: int = 0, kernels: Sequence[LiveKernel] = (), kernel_steps: int = 0
) -> LiveFigures:
    """The figures of steps in order, rows of STEP_DTYPE.

    figures_of(load_array(path, STEP_DTYPE)).step_ns
    """
    decode = rows["phase"] == PHASES.index("decode")
    apart = np.diff(rows["start_ns"]) - rows["paused_ns"][1:]
    # A step after which nothing decodes contains the wait for a request.
    counts = decode[:-1] & decode[1:] & (np.diff(rows["step"]) == 1) & (apart > 0)
    counts &= np.diff(rows["decode_requests"]) == 0
    # The last step of a profiled stretch contains the switch.
    counts &= rows["watched"][:-1] == rows["watched"][1:]
    timed = counts & ~rows["watched"][:-1].astype(bool)
    profiled = int(timed.sum()) < _FEWEST_TIMED
    at = np.flatnonzero(counts if profiled else timed)[-_MOST_STEPS:]
    took, chosen = apart[at], rows[:-1][at]
    seconds = float(took.sum()) / 1e9
    overheads = overhead_of_steps(pd.DataFrame(rows).assign(
        phase=[PHASES[index] for index in rows["phase"]]
    )) if len(rows) else ()  # fmt: skip
    return LiveFigures(
        rank=rank,
        steps=len(at),
        profiled=profiled,
        step_ns=float(took.mean()) if len(at) else 0.0,
        batch=float(chosen["decode_requests"].mean()) if len(at) else 0.0,
        tokens_per_s=float(chosen["decode_tokens"].sum()) / seconds if seconds else 0.0,
        drafts=bool((chosen["decode_tokens"] > chosen["decode_requests"]).any()),
        kernels=tuple(kernels),
        kernel_steps=kernel_steps,
        profiled_over_timed=overheads[-1].ratio if overheads else None,
    )


def largest_kernels(
    pieces: Path, process: str, number: int, steps: Rows
) -> tuple[tuple[LiveKernel, ...], int]:
    """The kernels of a piece that took most time, and how many of its steps were profiled."""
    files = (pieces / activity_name(process, number), pieces / kineto_name(process, number))
    if sum(path.stat().st_size for path in files if path.exists()) > _MOST_BYTES:
        return (), 0
    trace = read_trace(pieces, process, number)
    count = int(steps["watched"].sum())
    if trace is None or not count:
        return (), 0
    rows = trace.gpu if len(trace.gpu) else operator_rows(trace.operators)
    times = (rows["end_ns"] - rows["start_ns"]).groupby(rows["name"].astype(str)).sum()
    whole = float(times.sum())
    largest = times.nlargest(MOST_KERNELS)
    return tuple(
        LiveKernel(str(name), float(spent) / count, float(spent) / whole)
        for name, spent in largest.items()
        if whole > 0
    ), count
