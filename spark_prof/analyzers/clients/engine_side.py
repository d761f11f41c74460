"""Where a run lies on the recording's time line, and what its requests saw and the steps took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_prof.analyzers.token_time import given_tokens
from spark_prof.arrays import Flags, Floats
from spark_prof.traces.benchmarks.load_test import BenchmarkRun, ClientRequest

_ZONE_NS = 900_000_000_000  # time zones are whole quarters of an hour from UTC

_ZONES = (-48, 56)  # from UTC-12 to UTC+14, in quarters of an hour

_WRITTEN_WITHIN_NS = 90_000_000_000  # a result is written this soon after its run


class Placement(NamedTuple):
    """A run's stretch of time by the recording's clock."""

    offset_ns: int  # what to add to the run's times
    begin_ns: int
    end_ns: int


def place(
    run: BenchmarkRun, facts: Mapping[str, Any], first_ns: int, last_ns: int
) -> Placement | str:
    """Where a run lies by a recording's clock; a sentence where nothing relates the two.

    Args:
        facts: of a recorded process; `time_ns` and `monotonic_ns` are the same moment.
    """
    if run.start_ns is None or run.duration_s is None or run.clock == "none":
        return "The result does not say when it was measured."
    offset = 0
    if run.clock == "monotonic":
        epoch, boot = facts.get("time_ns"), facts.get("monotonic_ns")
        if not isinstance(epoch, int) or not isinstance(boot, int):
            return (
                "The result's times count from the boot of a host, and the recording does not "
                "relate that clock to its own."
            )
        offset = epoch - boot
    begin = run.start_ns + offset
    end = begin + round(run.duration_s * 1e9)
    if run.clock == "monotonic" and run.local_end_ns and not _plausible(run.local_end_ns, end):
        return (
            "The result's date contradicts its times by this host's clock: it was measured on "
            "another host or after another boot."
        )
    if end <= first_ns or begin >= last_ns:
        apart, word = (first_ns - end, "before") if end <= first_ns else (begin - last_ns, "after")
        host = ", if both ran on one host" if run.clock == "monotonic" else ""
        return f"The run lies {apart / 1e9:,.1f} s {word} the recorded steps{host}."
    return Placement(offset, begin, end)


def _plausible(local_ns: int, end_ns: int) -> bool:
    """Whether a local wall clock could show that time when the run ended."""
    quarters = round((local_ns - end_ns) / _ZONE_NS)
    apart = abs(local_ns - end_ns - quarters * _ZONE_NS)
    return apart <= _WRITTEN_WITHIN_NS and _ZONES[0] <= quarters <= _ZONES[1]


_SAME_LENGTH = 1.5  # prompts whose lengths differ by no more than this factor are about as long

_STALL = 20  # so many times the median is no step's usual work

_FEW = 4  # fewer steps have no median to speak of


@dataclass(frozen=True)
class EngineSide:
    """The engine's side of a comparison; None where no step tells."""

    steps: int  # with decoding requests
    token_us: float | None  # time per output token of a decoding request
    step_us: float | None  # time of a step as a decoding request meets it
    prefill_us: float | None  # of the steps that read a prompt, all where it takes several
    tokens: float | None  # how many all steps generated
    # Steps that took many times as long as their like, as where a kernel is compiled. They are in
    # these means: a client waits for them, too.
    stalls_us: tuple[float, ...] = ()
    token_us_without: float | None = None  # `token_us` without those
    # Medians over steps, each counted for every request that decodes in it.
    median_token_us: float | None = None
    median_step_us: float | None = None
    median_prefill_us: float | None = None


def engine_side(
    steps: pd.DataFrame, prompt_tokens: float | None, *, same_requests: bool
) -> EngineSide:
    """Means and medians over some of a recording's steps.

    Args:
        same_requests: whether the steps worked for these very prompts, so that one that is longer
            than what a step reads was read in several.
    """
    output = steps["output_tokens"]
    tokens = float(output.sum()) if len(steps) and output.notna().all() else None
    stalls = _stalls(steps)
    decoding = steps[steps["decode_requests"] > 0]
    took = decoding["step_us"].to_numpy(np.float64)
    sequences, token_counts = given_tokens(decoding)
    per_token = _over(sequences.sum(), token_counts.sum())
    reads = steps[steps["prefill_requests"] > 0]
    prefill = partial(_prefill, reads, prompt_tokens, same_requests)
    return EngineSide(
        steps=len(decoding),
        token_us=_over(float((sequences * took).sum()), token_counts.sum()),
        step_us=_over(float((sequences * took).sum()), sequences.sum()),
        prefill_us=prefill(float(reads["step_us"].mean())),
        tokens=tokens,
        stalls_us=tuple(steps["step_us"][stalls]),
        token_us_without=_without(steps[~stalls]),
        median_token_us=per_token and _median(took, sequences) * per_token,
        median_step_us=_median(took, sequences) if len(decoding) else None,
        median_prefill_us=prefill(float(reads["step_us"].median())),
    )


def _without(steps: pd.DataFrame) -> float | None:
    decoding = steps[steps["decode_requests"] > 0]
    sequences, token_counts = given_tokens(decoding)
    return _over(
        float((sequences * decoding["step_us"].to_numpy(np.float64)).sum()), token_counts.sum()
    )


def _over(a: float, b: float) -> float | None:
    return float(a / b) if b else None


def _median(values: Floats, weights: Floats) -> float:
    """The value that half of the weight is not above."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or not reached[-1]:
        return 0.0
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _stalls(steps: pd.DataFrame) -> Flags:
    """The steps that took many times the median of those that read prompts, or do not."""
    stalls = np.zeros(len(steps), bool)
    reads = (steps["prefill_requests"] > 0).to_numpy()
    time = steps["step_us"].to_numpy(np.float64)
    for kind in (reads, ~reads):
        if kind.sum() >= _FEW:
            stalls |= kind & (time > _STALL * np.median(time[kind]))
    return stalls


def _prefill(
    steps: pd.DataFrame, prompt_tokens: float | None, same: bool, mean: float
) -> float | None:
    if steps.empty:
        return None
    at_once = float(steps["prefill_tokens"].sum() / steps["prefill_requests"].sum())
    if same:
        return mean * max(math.ceil((prompt_tokens or 0.0) / at_once), 1) if at_once else mean
    # Steps that read other prompts say something about these only if they are about as long.
    similar = (
        prompt_tokens is not None
        and at_once / _SAME_LENGTH <= prompt_tokens <= at_once * _SAME_LENGTH
    )
    return mean if similar else None


_ENOUGH = 0.5
"""A request without single chunks counts when this share of its tokens' time is inside."""


@dataclass(frozen=True)
class InWindow:
    """Means over what lies inside; None where nothing does."""

    token_us: float | None  # time per output token of a request
    chunk_us: float | None  # time between two chunks of a request
    first_us: float | None  # until the first token, of requests sent and answered inside
    tokens: float | None  # how many arrived; None where a request's single chunks are unknown
    requests: int  # in flight
    whole_requests: bool  # whether `token_us` is of whole requests, for want of single chunks


def in_window(
    requests: Sequence[ClientRequest], offset_ns: int, begin_ns: int, end_ns: int
) -> InWindow:
    """Looks at the requests between two moments of the recording."""
    gaps, tokens, whole, first = [], [], [], []
    flying, arrived, counted = 0, 0.0, True
    for request in requests:
        if request.failed or request.start_ns is None or request.ttft_us is None:
            continue
        # Relative to the stretch, so that a float holds every digit of a time.
        start = request.start_ns + offset_ns - begin_ns
        length = end_ns - begin_ns
        answered = start + 1e3 * request.ttft_us
        finish = start + 1e3 * (request.e2e_us or request.ttft_us)
        if finish <= 0 or start >= length:
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
        covered = min(finish, length) - max(answered, 0)
        if request.tpot_us is not None and covered > _ENOUGH * (finish - answered):
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


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
