"""The books of each step: kernels - overlap + gaps + residual = step time.

Kernels are the durations of everything that the step launched; overlap is what of them ran at the
same time; gaps are the parts of the step's window in which nothing ran. The residual is what the
device's time line and the step's window disagree about: kernels of another step or of none inside
the window, or its own outside.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.analyzers.intervals import covered_in, union_by_group
from spark_prof.analyzers.model import Books, Spread
from spark_prof.vocabulary import PHASES

__all__ = ["books", "spread", "step_books"]


def step_books(windows: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The steps of `windows` with step_us, kernels_us, overlap_us, gap_us, residual_us, engine_us.

    Args:
        windows: what analyzers.windows.step_windows returned.
        kernels: step, start_ns and end_ns of every kernel of the rank.
    """
    start = kernels["start_ns"].to_numpy(np.int64)
    end = kernels["end_ns"].to_numpy(np.int64)
    position = pd.Series(np.arange(len(windows)), index=windows.index)
    group = position.reindex(kernels["step"]).fillna(-1).to_numpy(np.int64)
    mine = group >= 0
    busy = np.bincount(group[mine], weights=(end - start)[mine], minlength=len(windows))
    union = union_by_group(start[mine], end[mine], group[mine], len(windows))
    begin, finish = windows["begin_ns"].to_numpy(), windows["finish_ns"].to_numpy()
    length = finish - begin
    gap = length - covered_in(start, end, begin, finish)
    return windows.assign(
        step_us=length / 1e3,
        kernels_us=busy / 1e3,
        overlap_us=(busy - union) / 1e3,
        gap_us=gap / 1e3,
        residual_us=(length - union - gap) / 1e3,
        engine_us=windows["engine_ns"] / 1e3,
    )


def books(steps: pd.DataFrame) -> tuple[Books, ...]:
    """One `Books` for all steps, then one for each phase that occurs."""
    # The engine learns of a step's tokens when it gets round to it, with asynchronous scheduling
    # after it has started the next one: only the sum over all steps can be compared.
    found = [("all", steps)]
    found += [(p, part) for p in PHASES if len(part := steps[steps["phase"] == p])]
    return tuple(_sum(phase, part) for phase, part in found)


def spread(values: pd.Series) -> Spread | None:
    """Median, 99th percentile and mean; None of nothing."""
    known = values.dropna()
    if known.empty:
        return None
    return Spread(float(known.median()), float(known.quantile(0.99)), float(known.mean()))


def _sum(phase: str, steps: pd.DataFrame) -> Books:
    engine = steps["engine_us"]
    return Books(
        phase=phase,
        steps=len(steps),
        step_us=float(steps["step_us"].sum()),
        kernels_us=float(steps["kernels_us"].sum()),
        overlap_us=float(steps["overlap_us"].sum()),
        gap_us=float(steps["gap_us"].sum()),
        residual_us=float(steps["residual_us"].sum()),
        engine_us=float(engine.sum()) if phase == "all" and engine.notna().all() else None,
    )
