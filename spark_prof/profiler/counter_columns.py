"""Which of libcupti's metrics fill the columns of the `counters` table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spark_prof.profiler.pm_sampling import Samples
from spark_prof.traces.pieces import COUNTER_DTYPE

__all__ = ["METRICS", "SETS", "counter_rows"]

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
        samples: one value a column in each sample.
        columns: the columns that were sampled.
        offset_ns: what to add to CUPTI's clock to get the system's.
    """
    rows = np.zeros(len(samples.start_ns), COUNTER_DTYPE)
    for name in METRICS:
        rows[name] = np.nan
    rows["start_ns"], rows["end_ns"] = samples.start_ns + offset_ns, samples.end_ns + offset_ns
    for index, name in enumerate(columns):
        rows[name] = samples.values[:, index] * METRICS[name][1]
    return rows
