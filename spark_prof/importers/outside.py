"""Places what a step runs outside the model's modules, by when it was launched.

Before the model the batch is prepared, between model and logits the rows for the logits are
gathered, after the logits tokens are sampled: the same phases that a recording marks itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.importers.modules import Modules
from spark_prof.importers.steps import Steps
from spark_prof.traces.foreign import Window
from spark_prof.traces.timeline import FINISH, PREPARE, SAMPLE

__all__ = ["outside_modules"]

Int64s = npt.NDArray[np.int64]

_AFTER_MODEL = ("lm_head", "sampler")
_ENDLESS = 1 << 62


def outside_modules(window: Window, modules: Modules, steps: Steps) -> Int64s:
    """The phase of each row of the window's `gpu` that no module launched, -1 where unknown.

    Without calls of modules in a step nothing is known about it; without one of the logits, what
    follows the model may be either phase.
    """
    calls = window.calls
    step = steps.of(calls["start_ns"].to_numpy(np.int64))
    scope = calls["scope"].to_numpy(np.int64)
    module = modules.of_scope[scope]
    components = np.append(modules.frame["component"].astype(str).to_numpy(object), "")
    logits = np.isin(components[module], _AFTER_MODEL)
    named = (module >= 0) & (step >= 0)
    begin = _per_step(calls["start_ns"], step, named & ~logits, len(steps), "min")
    leave = _per_step(calls["end_ns"], step, named & logits, len(steps), "max")
    enter = _per_step(calls["start_ns"], step, named & logits, len(steps), "min")
    number = steps.of(window.launch_ns)
    known = (window.launch_ns >= 0) & (number >= 0) & (begin[number] < _ENDLESS)
    time = window.launch_ns
    with_logits = leave[number] > -_ENDLESS
    phase = np.select(
        [time < begin[number], with_logits & (time > leave[number]),
         with_logits & (time < enter[number]) & (time > begin[number])],
        [PREPARE, SAMPLE, FINISH],
        -1,
    )  # fmt: skip
    return np.where(known, phase, -1).astype(np.int64)


def _per_step(
    times: pd.Series, step: Int64s, chosen: npt.NDArray[np.bool_], count: int, how: str
) -> Int64s:
    """The first or last of the chosen times in each step; the last entry stands for no step."""
    found = np.full(count + 1, _ENDLESS if how == "min" else -_ENDLESS, np.int64)
    values = times.to_numpy(np.int64)[chosen]
    (np.minimum if how == "min" else np.maximum).at(found, step[chosen], values)
    return found
