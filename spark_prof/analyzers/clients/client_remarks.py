"""What a run's requests saw while steps were recorded, and the sentences of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.clients.client_rows import ClientRow, Comparison
from spark_prof.traces.benchmarks.load_test import Request

_ENOUGH = 0.5
"""A request without single chunks counts when this share of its tokens' time is inside."""


@dataclass(frozen=True)
class InWindow:
    """Means over what lies inside; None where nothing does."""

    token_us: float | None  # time per output token of a request
    chunk_us: float | None  # time between two chunks of a request
    # Time to the first token, of requests that were sent and answered inside.
    first_us: float | None
    tokens: float | None  # how many arrived; None where a request's single chunks are unknown
    requests: int  # how many requests were in flight
    whole_requests: bool  # whether `token_us` is of whole requests, for want of single chunks


def in_window(requests: Sequence[Request], offset_ns: int, begin_ns: int, end_ns: int) -> InWindow:
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


NO_DECODE = "No recorded step decodes: nothing can be compared."
NO_TPOT = "The result has no time per output token that could be compared with a step's."

_MORE = 1.2
"""So many times the client's tokens are not all on their way to it."""

_SEVERAL = 1.05
"""More tokens a chunk than this are several."""


def verdict(token: Comparison, word: str, basis: str) -> str:
    """Whether the client sees the engine's time per token, and where the rest may be."""
    client, engine = token.client / 1e3, token.engine / 1e3
    times = f"{client:,.2f} ms per token at the client, {engine:,.2f} ms in the engine"
    rest = f"{abs(client - engine):,.2f} ms ({100 * token.difference:+.1f} %)"
    if word == "unknown":
        return f"Hardly the same server, model or load: {times}."
    if word == "agrees":
        return f"They agree: {times}; {rest} between them."
    if word == "slower":
        where = "in the API server, tokenizer or network, or between the engine's steps"
        other = "" if basis == "window" else ", if both are of the same server and load"
        return f"The client is slower: {times}; {rest} pass {where}{other}."
    if basis == "window":
        why = "the requests that were matched are not those of these steps"
    else:
        why = "watching costs time, or the recorded steps had another load"
    return f"The client is faster than the recorded steps: {times}; {rest}. Either {why}."


def long_waits(median_us: float) -> str:
    """The mean is not what most chunks took."""
    return (
        f"Half of the chunks came within {median_us / 1e3:,.2f} ms, which is what a step takes: a "
        "few long waits make the difference."
    )


def same_time(duration_s: float | None, recorded_s: float, seen: InWindow) -> str:
    """What of the run was recorded."""
    part = f"{recorded_s:,.2f} s of the run's {duration_s or 0:,.2f} s were recorded, with "
    count = f"{seen.requests} of its requests in flight"
    whole = " Its single chunks are unknown: whole requests are compared."
    return f"{part}{count}; only these are compared.{whole if seen.whole_requests else ''}"


def same_load(seen: InWindow, generated: float | None) -> str:
    """Whether the engine worked for this client alone; empty where that is unknown."""
    if seen.tokens is None or not generated:
        return ""
    counts = (
        f"The client received {seen.tokens:,.0f} tokens while the engine generated {generated:,.0f}"
    )
    if generated > _MORE * seen.tokens:
        return f"{counts}: other clients were there."
    return f"{counts}."


def no_token(requests: int) -> str:
    """The clocks agree, but no request tells."""
    if not requests:
        return "No request with its times was in flight while the steps were recorded."
    return "No request spent most of its time in the recorded steps."


def alike(wanted: int | None, low: int) -> str:
    """What was compared when the clocks do not help."""
    if wanted is None:
        return (
            "The result does not say how many requests ran at a time; the recorded steps had "
            f"{low}. Compared are its statistics with those steps."
        )
    requests = "1 request" if wanted == 1 else f"{wanted} requests"
    return f"Compared are the run's statistics with the recorded steps of {requests}."


def unknown_batch(low: int, high: int) -> str:
    """Nobody knows which steps to take."""
    return (
        "The result does not say how many requests ran at a time, and the recorded steps had "
        f"{low} to {high}: nothing can be compared."
    )


def other_batch(wanted: int, low: int, high: int) -> str:
    """The steps are of another load."""
    had = f"{low}" if low == high else f"{low} to {high}"
    return (
        f"The client had {wanted} in flight, the recorded steps had {had}: too few steps are of "
        "that load to be compared."
    )


def watching(ratio: float, token_us: float) -> str:
    """What watching cost the steps that the client's run did not pay."""
    return (
        f"Watching made these steps {ratio:.3f} times as long; without it a token would have "
        f"taken {token_us / ratio / 1e3:,.2f} ms."
    )


def stalls(times_us: Sequence[float]) -> str:
    """What is left out of the engine's side; empty if nothing is."""
    if not times_us:
        return ""
    steps = "1 step" if len(times_us) == 1 else f"{len(times_us)} steps"
    return (
        f"Left out of the engine's side: {steps} of up to {max(times_us) / 1e3:,.0f} ms, many "
        "times the usual, which a client may meet as time to a first token."
    )


def chunks(row: ClientRow) -> str | None:
    """Says where TPOT and ITL are not the same thing."""
    several = row.tokens_per_chunk
    if several is None and row.itl.mean and row.tpot.mean:
        several = row.itl.mean / row.tpot.mean
        if several > _SEVERAL:
            return (
                f"ITL is {several:.2f} times TPOT: a chunk of the stream seems to hold several "
                "tokens, so compare TPOT."
            )
    if several is not None and several > _SEVERAL:
        return (
            f"A chunk of the stream holds {several:.2f} tokens: ITL is per chunk, TPOT per token."
        )
    return None
