"""What a run's requests saw in the stretch of time that the recorded steps cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.traces.benchmarks.result import Request

__all__ = ["InWindow", "in_window"]

_ENOUGH = 0.5
"""A request without single chunks counts when this share of its tokens' time is inside."""


@dataclass(frozen=True)
class InWindow:
    """Means over what lies inside; None where nothing does.

    Attributes:
        token_us: time per output token of a request.
        chunk_us: time between two chunks of a request.
        first_us: time to the first token, of requests that were sent and answered inside.
        requests: how many requests were in flight.
        whole_requests: whether `token_us` is of whole requests, for want of single chunks.
    """

    token_us: float | None
    chunk_us: float | None
    first_us: float | None
    requests: int
    whole_requests: bool


def in_window(requests: Sequence[Request], offset_ns: int, begin_ns: int, end_ns: int) -> InWindow:
    """Looks at the requests between two moments of the recording.

    Args:
        requests: with their own times.
        offset_ns: what to add to those.
        begin_ns: the stretch begins.
        end_ns: the stretch ends.
    """
    gaps, tokens, whole, first = [], [], [], []
    flying = 0
    for request in requests:
        if request.failed or request.start_ns is None or request.ttft_us is None:
            continue
        # Relative to the stretch, so that a float holds every digit of a time.
        start = request.start_ns + offset_ns - begin_ns
        length = end_ns - begin_ns
        answered = start + 1e3 * request.ttft_us
        done = start + 1e3 * (request.e2e_us or request.ttft_us)
        if done <= 0 or start >= length:
            continue
        flying += 1
        if start >= 0 and answered <= length:
            first.append(request.ttft_us)
        inside = _inside(request.gaps_us, answered, length)
        if len(inside) and request.chunks and request.output_tokens:
            # The first chunk begins the gaps; its tokens are taken to be as many as the others'.
            gaps.append(inside)
            tokens.append(inside * (request.chunks / request.output_tokens))
        covered = min(done, length) - max(answered, 0)
        if request.tpot_us is not None and covered > _ENOUGH * (done - answered):
            whole.append(request.tpot_us)
    return InWindow(
        token_us=_mean(np.concatenate(tokens)) if tokens else _mean(np.array(whole)),
        chunk_us=_mean(np.concatenate(gaps)) if gaps else None,
        first_us=_mean(np.array(first)),
        requests=flying,
        whole_requests=not tokens,
    )


def _inside(gaps_us: tuple[float, ...], answered: float, length: float) -> npt.NDArray[np.float64]:
    """The gaps that begin and end in the stretch."""
    gaps = np.array(gaps_us, np.float64)
    ends = answered + 1e3 * np.cumsum(gaps)
    return gaps[(ends - 1e3 * gaps >= 0) & (ends <= length)]


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None
