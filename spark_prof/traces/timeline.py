"""What was open at a moment: the step, module and layer around a launch.

The recorder logs when a module was entered and left, on one thread. Between two such events the
state does not change, so that the state at any time is one binary search away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PREPARE, FINISH, SAMPLE, FIRST_MODULE = 0, 1, 2, 3
"""Module numbers of what runs outside the model, and the first one of a module of the model."""

PHASE_MODULES = (
    ("step.prepare", "attention"),
    ("step.finish", "lm_head"),
    ("step.sample", "sampler"),
)
"""What runs outside the model, as modules 0 to 2 of every recording, with its component.

Preparation builds positions, block tables, sequence lengths and slots, which attention consumes;
what follows the model inside execute_model gathers the rows for the logits.
"""

MODEL_PATH = "model"
"""Path of the model itself among the marked modules."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Call:
    """One call of a module: entered, left."""

    module: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Timeline:
    """Times at which the state changed, and the innermost module and layer from then on."""

    times: Int64s
    module: Int64s
    layer: Int64s

    def at(self, times: Int64s) -> tuple[Int64s, Int64s]:
        """Innermost module and layer at each time in ns; -1 where nothing was open."""
        if not len(self.times):
            nothing = np.full(len(times), -1, np.int64)
            return nothing, nothing
        index = np.searchsorted(self.times, times, side="right") - 1
        before = index < 0
        index = np.maximum(index, 0)
        module, layer = self.module[index], self.layer[index]
        return np.where(before, -1, module), np.where(before, -1, layer)


def replay(
    events: npt.NDArray[Any], layers: Sequence[int], model: int | None
) -> tuple[Timeline, list[Call]]:
    """Replays a log of traces.pieces.EVENT_DTYPE.

    Args:
        events: the log, in order of time.
        layers: decoder layer of each module, -1 for none; such a module has its caller's layer.
        model: number of the module that is the model itself; after it is left, the rest of
            execute_model counts as FINISH.
    """
    stack: list[tuple[int, int, int]] = []
    calls: list[Call] = []
    modules_out = np.empty(len(events), np.int64)
    layers_out = np.empty(len(events), np.int64)
    times = events["time_ns"].astype(np.int64)
    for index, (now, code) in enumerate(zip(times.tolist(), events["code"].tolist(), strict=True)):
        if code > 0:
            module = code - 1
            layer = layers[module] if module < len(layers) else -1
            if layer < 0 and stack:
                layer = stack[-1][1]
            stack.append((module, layer, now))
        else:
            left = -code - 1
            if code == 0 or any(open_module == left for open_module, _, _ in stack):
                while stack:
                    module, _, start = stack.pop()
                    calls.append(Call(module, start, now))
                    if module == left:
                        break
            if left == model and stack and stack[-1][0] == PREPARE:
                _, layer, start = stack.pop()
                calls.append(Call(PREPARE, start, now))
                stack.append((FINISH, layer, now))
            if code == -(PREPARE + 1) and stack and stack[-1][0] == FINISH:
                module, _, start = stack.pop()
                calls.append(Call(module, start, now))
        modules_out[index], layers_out[index] = stack[-1][:2] if stack else (-1, -1)
    if (np.diff(times) < 0).any():
        # The clock was set back: what is looked up by time has to ascend.
        order = np.argsort(times, kind="stable")
        times, modules_out, layers_out = times[order], modules_out[order], layers_out[order]
    return Timeline(times, modules_out, layers_out), calls
