"""Kernels made by hand as plain columns, for the tests of what pages draw of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from spark_prof.analyzers.views.layer_cells import LAUNCH_COLUMNS, KernelColumns
from spark_prof.vocabulary import COMPONENTS

Call = tuple[int, int, str, str, int]
"""Step, layer (-1 for none), component, name and time in nanoseconds."""


def columns(calls: Sequence[Call], copies: Sequence[str] = ()) -> KernelColumns:
    """Kernels that run one after the other."""
    names = tuple(dict.fromkeys(name for _, _, _, name, _ in calls))
    ends = np.cumsum([took for *_, took in calls], dtype=np.int64)
    took = np.array([took for *_, took in calls], np.int64)
    return KernelColumns(
        start_ns=ends - took,
        end_ns=ends,
        step=np.array([step for step, *_ in calls], np.int32),
        layer=np.array([layer for _, layer, *_ in calls], np.int16),
        component=np.array([COMPONENTS.index(c) for _, _, c, *_ in calls], np.uint8),
        name=np.array([names.index(name) for _, _, _, name, _ in calls], np.int32),
        launch=np.zeros(len(calls), np.int32),
        names=names,
        copies=tuple(name in copies for name in names),
        launches=launched(("1,1,1", "128,1,1", 32, 0)),
    )


def launched(*shapes: tuple[str, str, int, int]) -> pd.DataFrame:
    """Shapes of launches in one stream."""
    return pd.DataFrame([(0, 7, *shape) for shape in shapes], columns=list(LAUNCH_COLUMNS))


def steps_of(numbers: Sequence[int], phase: str = "decode") -> pd.DataFrame:
    """Steps of one request each."""
    return pd.DataFrame({"step": np.array(numbers, np.int64), "phase": phase, "decode_requests": 1})
