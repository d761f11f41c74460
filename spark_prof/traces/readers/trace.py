"""What every reader of kernels gives: the same frames, whatever wrote the file."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from spark_prof.traces.tables import empty_frame


@dataclass(frozen=True)
class Trace:
    """One trace as frames with the columns of the bundle's tables.

    Attributes:
        gpu: kernels, copies and memsets: the `kernels` table up to `bytes`, without what the join
            adds (part, step, module, layer).
        launches: the API calls that started them, the `host` table.
        operators: the stretches of CPU operators with their `thread`; empty on a GPU.
        overhead: what the profiler itself cost, the `overhead` table.
        markers: the NVTX ranges and marks, the `markers` table without its `step`.
        lost: what the trace lacks, one line each.
    """

    gpu: pd.DataFrame
    launches: pd.DataFrame
    operators: pd.DataFrame
    overhead: pd.DataFrame
    markers: pd.DataFrame = field(default_factory=lambda: empty_frame("markers"))
    lost: tuple[str, ...] = field(default=())
