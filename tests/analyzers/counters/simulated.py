"""A GPU that replays kernels of known traffic while something samples it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.counters.folding import Calls

EVEN = ((0.0, 0.0), (1.0, 1.0))
SLOW_ENDS = ((0.0, 0.0), (0.2, 0.1), (0.9, 0.97), (1.0, 1.0))
"""Share of a kernel's bytes that it has moved after a share of its time."""


@dataclass(frozen=True)
class Simulated:
    """What was sampled, the kernels that ran and the truth."""

    begin: npt.NDArray[np.int64]
    finish: npt.NDArray[np.int64]
    sampled: npt.NDArray[np.float64]
    calls: Calls
    bytes: npt.NDArray[np.float64]
    duration_ns: npt.NDArray[np.float64]

    def samples(self) -> pd.DataFrame:
        """The rows of the `counters` table."""
        nothing = np.full(len(self.begin), np.nan)
        return pd.DataFrame(
            {
                "start_ns": self.begin,
                "end_ns": self.finish,
                "dram_read_bytes": self.sampled,
                "dram_write_bytes": self.sampled / 4,
                "tensor_active": np.full(len(self.begin), 0.25),
                "sm_active": nothing,
                "warps_active": nothing,
            }
        )


def simulate(
    seed: int,
    *,
    kernels: int = 60,
    replays: int = 40,
    interval_ns: int = 2_000,
    lowest_us: float = 2.0,
    longest_us: float = 50.0,
    jitter: float = 0.03,
    noise: float = 0.0,
    course: tuple[tuple[float, float], ...] = EVEN,
    late_ns: int = 0,
    idle_rate: float = 0.0,
    period_ns: int = 0,
) -> Simulated:
    """Replays random kernels and samples them at a random phase.

    Args:
        jitter: standard deviation of a call's duration, as a share of it; of a sample, `noise`.
        late_ns: by how much the samples' clock is ahead of the kernels'.
        idle_rate: bytes a nanosecond without any kernel.
        period_ns: if given, replays begin exactly that far apart, with gaps that never change.
    """
    random = np.random.default_rng(seed)
    duration = 1e3 * np.exp(random.uniform(np.log(lowest_us), np.log(longest_us), kernels))
    # A third of the kernels hardly touches memory, the others stream.
    rate = np.where(random.random(kernels) < 0.3, 20.0, random.uniform(500, 3000, kernels))
    truth = rate * duration
    gaps = random.uniform(300, 1500, kernels)
    start, end = [], []
    clock = 10_000.0
    for replay in range(replays):
        if period_ns:
            clock = 10_000.0 + replay * period_ns
        for number in range(kernels):
            clock += gaps[number] if period_ns else random.uniform(300, 1500)
            start.append(clock)
            clock += duration[number] * (1 + jitter * random.standard_normal())
            end.append(clock)
        clock += random.uniform(20_000, 200_000)
    starts, ends = np.array(start), np.array(end)
    moved = np.tile(truth, replays)
    before = np.cumsum(moved) - moved
    times = np.stack([starts + share * (ends - starts) for share, _ in course], 1).ravel()
    amounts = np.stack([before + share * moved for _, share in course], 1).ravel()
    phase = 0.0 if period_ns else random.uniform(0, interval_ns)
    edges = np.arange(phase, ends[-1] + 50_000, interval_ns)
    total = np.interp(edges - late_ns, times, amounts)
    busy = np.interp(
        edges - late_ns,
        np.stack([starts, ends], 1).ravel(),
        np.stack([np.cumsum(ends - starts) - (ends - starts), np.cumsum(ends - starts)], 1).ravel(),
    )
    sampled = np.diff(total) + idle_rate * (np.diff(edges) - np.diff(busy))
    sampled *= 1 + noise * random.standard_normal(len(sampled))
    whole = np.round(edges).astype(np.int64)
    calls = Calls(
        np.round(starts).astype(np.int64),
        np.round(ends).astype(np.int64),
        np.tile(np.arange(kernels), replays),
        np.repeat(np.arange(replays), kernels),
    )
    return Simulated(whole[:-1], whole[1:], sampled, calls, truth, duration)
