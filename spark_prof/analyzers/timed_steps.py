"""The steps that a recording only timed, between the profiled ones.

Their time is that from their begin to the next one's, as the worker saw them. The first two of a
stretch feel the switch, the last one contains it; a step after which no work was left contains
waiting for a request. None of these counts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.analyzers.token_time import SETTLING
from spark_prof.analyzers.windows import engine_rows
from spark_prof.traces.bundle import Bundle


def timed_steps(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The steps that were only timed, with `step_us` and the scheduler's figures."""
    steps = bundle.frame("steps", rank).sort_values("step").set_index("step", drop=False)
    watched = steps["watched"].to_numpy(bool)
    if watched.all() or not steps.index.is_unique:
        return steps[:0].assign(step_us=0.0, output_tokens=0.0, output_requests=0.0)
    steps = steps.join(engine_rows(bundle, steps))
    number, start = (steps[name].to_numpy(np.int64) for name in ("step", "start_ns"))
    follows = np.append(False, (np.diff(number) == 1) & (watched[1:] == watched[:-1]))
    stretch = np.cumsum(~follows)
    within = pd.Series(stretch).groupby(stretch).cumcount().to_numpy()
    took = np.append(np.diff(start), 0)
    settled = ~watched & np.append(follows[1:], False) & (within >= SETTLING) & (took > 0)
    unfinished = steps["unfinished"].to_numpy(np.float64)
    settled &= np.isnan(unfinished) | (unfinished > 0)
    steady: pd.DataFrame = steps.assign(step_us=took / 1e3)[settled]
    return steady
