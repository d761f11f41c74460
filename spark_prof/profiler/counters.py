"""Samples the GPU's hardware counters while a piece is recorded.

Sampling costs the GPU nothing measurable, taking the samples out costs the host tens of
microseconds each. So a piece is sampled for its first stretch only, and its samples are read after
it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spark_prof.profiler.pm_sampling import CounterError, PmSampling, Samples
from spark_prof.traces.chunks import COUNTER_DTYPE, array_name, write_array

METRICS = {
    "dram_read_bytes": ("dram__bytes_read.sum", 1.0),
    "dram_write_bytes": ("dram__bytes_write.sum", 1.0),
    "tensor_active": (
        "sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed", 0.01,
    ),
    "warps_active": ("sm__warps_active.avg.pct_of_peak_sustained_elapsed", 0.01),
    "sm_active": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed", 0.01),
}  # fmt: skip
"""For each column of the `counters` table its metric and what one unit of the metric counts."""

SETS = (
    ("dram_read_bytes", "dram_write_bytes", "tensor_active", "warps_active"),
    ("dram_read_bytes", "dram_write_bytes", "tensor_active"),
    ("dram_read_bytes", "dram_write_bytes"),
    ("tensor_active", "warps_active", "sm_active"),
    ("warps_active",),
)
"""The columns to sample together: the first that the chip takes in one pass."""


def counter_rows(samples: Samples, columns: Sequence[str], offset_ns: int) -> npt.NDArray[np.void]:
    """The samples as rows of pieces.COUNTER_DTYPE; NaN in columns that were not sampled.

    Args:
        offset_ns: what to add to CUPTI's clock to get the system's.
    """
    rows = np.zeros(len(samples.start_ns), COUNTER_DTYPE)
    for name in METRICS:
        rows[name] = np.nan
    rows["start_ns"], rows["end_ns"] = samples.start_ns + offset_ns, samples.end_ns + offset_ns
    for index, name in enumerate(columns):
        rows[name] = samples.values[:, index] * METRICS[name][1]
    return rows


_INTERVALS_NS = (2_000, 5_000, 10_000, 20_000, 50_000)
_MOST_SAMPLES, _FEWEST_SAMPLES = 2_304, 576
_BUFFER_BYTES = 36 << 20
"""Holds 9 000 samples of an H100, measured with libcupti 13.4.92: the timer may come late."""

_MISSING = 0.01
"""A larger share of the sampled time missing makes the next piece sample less often."""

_STARTING_NS, _SPARE_SAMPLES = 1_000_000, 512


class CounterSampler:
    """A backend beside the one of kernels; what fails is logged once and then left out."""

    def __init__(
        self,
        folder: Path,
        process: str,
        log: Callable[[str], None],
        device: int,
        sampling: Callable[[int], PmSampling] = PmSampling,
    ) -> None:
        self._folder, self._process, self._piece, self._log = folder, process, 0, log
        self._counters: PmSampling | None = None
        self._columns: tuple[str, ...] = ()
        self._interval, self._most = 0, _MOST_SAMPLES
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._begun = self._ended = self._offset = 0
        self._failed: CounterError | None = None
        self._open, self._device = sampling, device
        try:
            self._counters = sampling(device)
            self._choose_columns()
        except CounterError as error:
            self._give_up(error)

    @property
    def works(self) -> bool:
        """Whether there are counters to sample."""
        return self._counters is not None

    def start(self, piece: int) -> None:
        """Begins to sample, and ends by itself when enough was seen."""
        counters = self._counters
        if counters is None:
            return
        self._piece, self._ended = piece, 0
        try:
            self._offset = _clock_offset(counters)
            counters.start()
        except CounterError as error:
            self._give_up(error)
            return
        self._begun = time.time_ns()
        seconds = self._most * _INTERVALS_NS[self._interval] / 1e9
        self._timer = threading.Timer(seconds, self._halt_in_time)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Ends sampling and writes the samples, rows of pieces.COUNTER_DTYPE."""
        if self._counters is None or not self._begun:
            return
        try:
            self._halt()
            if self._failed is not None:
                raise self._failed
            interval = _INTERVALS_NS[self._interval]
            taken = (self._ended - self._begun) // interval + _SPARE_SAMPLES
            samples = self._counters.read(min(taken, 2 * self._most))
            offset = (self._offset + _clock_offset(self._counters)) // 2
            rows = counter_rows(samples, self._columns, offset)
            write_array(self._folder, array_name(self._process, "counters", self._piece), rows)
            self._judge(samples)
        except CounterError as error:
            self._give_up(error)
        self._begun = 0

    def discard(self) -> None:
        """Ends sampling and gives the counters back; there is no start after it."""
        if self._counters is None:
            return
        try:
            self._halt()
        except CounterError as error:
            self._log(f"counters: {error}")
        self._close()

    def _choose_columns(self) -> None:
        refusal: CounterError | None = None
        for columns in SETS:
            self._columns = columns
            try:
                self._configure()
            except CounterError as error:
                refusal = refusal or error
                continue
            if missing := [name for name in SETS[0] if name not in columns]:
                self._log(f"counters: this GPU does not sample {', '.join(missing)}")
            return
        raise refusal or CounterError("nothing to sample")

    def _configure(self) -> None:
        assert self._counters is not None
        metrics = [METRICS[name][0] for name in self._columns]
        self._counters.configure(metrics, _INTERVALS_NS[self._interval], _BUFFER_BYTES)

    def _halt_in_time(self) -> None:
        """Ends sampling from the timer's thread, where nobody would see it fail."""
        try:
            self._halt()
        except CounterError as error:
            self._failed = error

    def _halt(self) -> None:
        """Ends sampling once; the timer and the thread of the steps may both come here."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._counters is None or not self._begun or self._ended:
                return
            self._ended = time.time_ns()
            self._counters.stop()

    def _judge(self, samples: Samples) -> None:
        """Says what is missing and samples less often from then on."""
        assert self._counters is not None
        wanted = self._ended - self._begun
        seen = int((samples.end_ns - samples.start_ns).sum())
        missing = 1 - seen / wanted if wanted > 0 else 0.0
        # The first sample does not begin with the call that starts sampling.
        if missing <= _MISSING or wanted - seen < _STARTING_NS:
            return
        text = f"counters: {100 * missing:.0f} % of piece {self._piece}'s samples are missing"
        if samples.overflowed and self._most > _FEWEST_SAMPLES:
            self._most = max(self._most // 4, _FEWEST_SAMPLES)
            text += f" (libcupti's buffer was full); later pieces have {self._most} at most"
        elif self._interval + 1 < len(_INTERVALS_NS):
            self._interval += 1
            text += f"; later pieces are sampled every {_INTERVALS_NS[self._interval] // 1000} us"
        self._log(text)
        # After an overflow libcupti starts only counters that were opened anew.
        self._counters.close()
        self._counters = self._open(self._device)
        self._configure()

    def _give_up(self, error: CounterError) -> None:
        self._log(f"counters: none, {error}")
        self._close()

    def _close(self) -> None:
        counters, self._counters = self._counters, None
        self._begun = 0
        if self._timer is not None:
            self._timer.cancel()
        if counters is not None:
            # Whatever it has to say, the reason was given before.
            with suppress(CounterError):
                counters.close()


def _clock_offset(counters: PmSampling) -> int:
    """What must be added to CUPTI's clock to get the system's, from the closest of some pairs."""
    pairs = []
    for _ in range(16):
        before = time.time_ns()
        theirs = counters.timestamp_ns()
        after = time.time_ns()
        pairs.append((after - before, (before + after) // 2 - theirs))
    return int(min(pairs)[1])
