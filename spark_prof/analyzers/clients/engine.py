"""What the recorded steps took for a request, as means that a client's can be compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

_ALIKE = 1.5
"""Prompts whose lengths differ by no more than this factor are about as long."""

_STALL = 20
"""So many times the median is no step's usual work."""

_FEW = 4
"""Fewer steps have no median to speak of."""


@dataclass(frozen=True)
class EngineSide:
    """The engine's side of a comparison; None where no step tells.

    Attributes:
        steps: how many steps with decoding requests it stands on.
        token_us: time per output token of a decoding request.
        step_us: time of a step as a decoding request meets it.
        prefill_us: time of the steps that read a prompt, all of them where it takes several.
        tokens: how many all steps generated.
        stalls_us: the steps that are left out because they took many times as long as their like:
            the first use of a kernel compiles it.
    """

    steps: int
    token_us: float | None
    step_us: float | None
    prefill_us: float | None
    tokens: float | None
    stalls_us: tuple[float, ...] = ()


def engine_side(
    steps: pd.DataFrame, prompt_tokens: float | None, *, same_requests: bool
) -> EngineSide:
    """Means over some of a recording's steps.

    Args:
        steps: what analyzers.windows.step_windows returned, with `step_us`, or a part of it.
        prompt_tokens: the client's mean prompt, None where it is unknown.
        same_requests: whether the steps worked for these very prompts, so that one that is longer
            than what a step reads was read in several.
    """
    output = steps["output_tokens"]
    tokens = float(output.sum()) if len(steps) and output.notna().all() else None
    # One such step outweighs hundreds, and a client may meet it before its first token.
    stalls = _stalls(steps)
    stalled, steps = steps[stalls], steps[~stalls]
    # A step counts once for each request that decodes in it, as each has a client that waits.
    decoding = steps[steps["decode_requests"] > 0]
    weights = decoding["decode_requests"].to_numpy(np.float64)
    each = decoding["output_tokens"] / decoding["output_requests"].replace(0, np.nan)
    time = float((weights * decoding["step_us"]).sum())
    # Without the scheduler's record every decoding request is taken to get one token.
    given = float((weights * each.fillna(1.0)).sum())
    return EngineSide(
        steps=len(decoding),
        token_us=time / given if given else None,
        step_us=time / float(weights.sum()) if len(decoding) else None,
        prefill_us=_prefill(steps[steps["prefill_requests"] > 0], prompt_tokens, same_requests),
        tokens=tokens,
        stalls_us=tuple(stalled["step_us"]),
    )


def _stalls(steps: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The steps that took many times the median of those that read prompts, or do not."""
    stalls = np.zeros(len(steps), bool)
    reads = (steps["prefill_requests"] > 0).to_numpy()
    time = steps["step_us"].to_numpy(np.float64)
    for kind in (reads, ~reads):
        if kind.sum() >= _FEW:
            stalls |= kind & (time > _STALL * np.median(time[kind]))
    return stalls


def _prefill(steps: pd.DataFrame, prompt_tokens: float | None, same: bool) -> float | None:
    if steps.empty:
        return None
    mean = float(steps["step_us"].mean())
    at_once = float(steps["prefill_tokens"].sum() / steps["prefill_requests"].sum())
    if same:
        return mean * max(math.ceil((prompt_tokens or 0.0) / at_once), 1) if at_once else mean
    # Steps that read other prompts say something about these only if they are about as long.
    alike = prompt_tokens is not None and at_once / _ALIKE <= prompt_tokens <= at_once * _ALIKE
    return mean if alike else None
