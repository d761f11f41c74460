"""What a run's requests saw in the stretch of time that the recorded steps cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.traces.benchmarks.result import Request

_ENOUGH = 0.5
"""A request without single chunks counts when this share of its tokens' time is inside."""


@dataclass(frozen=True)
class InWindow:
    """Means over what lies inside; None where nothing does.

    Attributes:
        token_us: time per output token of a request.
        chunk_us: time between two chunks of a request.
        first_us: time to the first token, of requests that were sent and answered inside.
        tokens: how many arrived; None where a request's single chunks are unknown.
        requests: how many requests were in flight.
        whole_requests: whether `token_us` is of whole requests, for want of single chunks.
    """

    token_us: float | None
    chunk_us: float | None
    first_us: float | None
    tokens: float | None
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
    flying, arrived, counted = 0, 0.0, True
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
        if request.gaps_us and request.chunks and request.output_tokens:
            # Every chunk is taken to hold as many tokens as the others of its request.
            size = request.output_tokens / request.chunks
            ends = answered + 1e3 * np.cumsum((0.0, *request.gaps_us))
            inside = (ends >= 0) & (ends <= length)
            arrived += size * float(inside.sum())
            between = np.array(request.gaps_us)[inside[1:] & inside[:-1]]
            gaps.append(between)
            tokens.append(between / size)
        else:
            counted = False
        covered = min(done, length) - max(answered, 0)
        if request.tpot_us is not None and covered > _ENOUGH * (done - answered):
            whole.append(request.tpot_us)
    single = _mean(np.concatenate(tokens)) if tokens else None
    return InWindow(
        token_us=_mean(np.array(whole)) if single is None else single,
        chunk_us=_mean(np.concatenate(gaps)) if gaps else None,
        first_us=_mean(np.array(first)),
        tokens=arrived if counted and flying else None,
        requests=flying,
        whole_requests=single is None,
    )


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None
