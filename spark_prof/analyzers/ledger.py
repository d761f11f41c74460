"""The books of each step: kernels + copies - overlap + gaps + residual = step time.

Kernels and copies are the durations of what the step launched; overlap is what of them ran at the
same time as each other or as what an earlier step launched, so that unions of steps add up to the
union over the window; gaps are the parts of the step's window in which nothing ran. The residual is
what the device's time line and the step's window disagree about: kernels of another step or of none
inside the window, or its own outside.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from spark_prof.analyzers.blocks import at_once
from spark_prof.analyzers.intervals import covered_in, sum_by_group, union_by_group
from spark_prof.analyzers.lookup import NameColumn, positions
from spark_prof.analyzers.model import Books, Spread
from spark_prof.analyzers.placement import COPIES
from spark_prof.vocabulary import PHASES


def step_books(windows: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The steps with the parts of their books.

    Args:
        windows: what analyzers.windows.step_windows returned.
        kernels: kind, step, start_ns and end_ns of every kernel and copy of the rank.

    Returns:
        `windows` with step_us, kernels_us, union_us (of the kernels alone), copies_us, overlap_us,
        gap_us, residual_us and engine_us.
    """
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    step = positions(windows.index.to_numpy(), kernels["step"].to_numpy())
    copies = NameColumn(kernels["kind"]).flags(lambda kind: kind in COPIES)
    begin, finish = windows["begin_ns"].to_numpy(), windows["finish_ns"].to_numpy()
    # Cut down to nothing, a copy takes no part in what only kernels add up to.
    ends = (end, np.where(copies, start, end)) if copies.any() else (end,)
    covered, *summed = at_once(
        lambda: covered_in(start, end, begin, finish),
        *(partial(sum_by_group, start, last, step, len(windows)) for last in ends),
        *(partial(union_by_group, start, last, step, len(windows)) for last in ends),
    )
    everything, kernels_ns, busy, union = summed if len(ends) > 1 else np.repeat(summed, 2, axis=0)
    length = finish - begin
    gap = length - covered
    return windows.assign(
        step_us=length / 1e3,
        kernels_us=kernels_ns / 1e3,
        union_us=union / 1e3,
        copies_us=(everything - kernels_ns) / 1e3,
        overlap_us=(everything - busy) / 1e3,
        gap_us=gap / 1e3,
        residual_us=(length - busy - gap) / 1e3,
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
        union_us=float(steps["union_us"].sum()),
        copies_us=float(steps["copies_us"].sum()),
        overlap_us=float(steps["overlap_us"].sum()),
        gap_us=float(steps["gap_us"].sum()),
        residual_us=float(steps["residual_us"].sum()),
        engine_us=float(engine.sum()) if phase == "all" and engine.notna().all() else None,
    )
