"""Puts the runs of load generators beside the steps of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd

from spark_prof.analyzers.clients.engine_side import (
    EngineSide,
    Placement,
    engine_side,
    in_window,
    place,
)
from spark_prof.analyzers.overhead import Overhead
from spark_prof.analyzers.step_time import StepAccount
from spark_prof.traces.benchmarks.load_test import BenchmarkRun, Latency, RunFigures

BASES = ("window", "steps", "none")
"""What is compared: the same stretch of time by a shared clock; the run with recorded steps of as
many requests at a time; or nothing."""

VERDICTS = ("agrees", "slower", "faster", "unknown")
"""The client's time per token against the engine's."""


@dataclass(frozen=True)
class ClientComparison:
    """One time as the client and the engine have it, in us."""

    quantity: str  # output_token, chunk or first_token
    statistic: str  # mean or median: what both are
    client: float
    engine: float

    @property
    def difference(self) -> float:
        """How far the client's figure is above the engine's, as a fraction."""
        return self.client / self.engine - 1


@dataclass(frozen=True)
class ClientRow(RunFigures):
    """One run of a load generator beside the recorded steps."""

    basis: str = "none"  # one of BASES
    verdict: str = "unknown"  # one of VERDICTS
    steps: int = 0  # the recorded steps that were compared
    requests: int = 0  # the client's requests that were in flight in them; 0 where that is unknown
    comparisons: tuple[ClientComparison, ...] = ()
    sentences: tuple[str, ...] = ()  # what follows, and what to know before believing it


@dataclass(frozen=True)
class ClientToken:
    """One client's time per token or chunk beside that of a typical decode step, in us."""

    tool: str
    label: str
    quantity: str  # output_token or chunk
    statistic: str  # mean or median: what `client_us` is
    client_us: float  # what the client waited
    batch_size: int | None  # of that step; None for decode steps of any size
    ledger_us: float  # time per token, beside a chunk the length of a step
    # What the client waited longer: its share of requests that queue, of steps that also read
    # prompts, of tokenizing and HTTP.
    beyond_us: float


def beside_clients(
    steps: tuple[StepAccount, ...], clients: Iterable[ClientRow]
) -> tuple[ClientToken, ...]:
    """The clients that can be compared, each beside the decode step of its batch size."""
    decode = [step for step in steps if step.phase == "decode"]
    if not decode:
        return ()
    sizes = {step.batch_size: step for step in decode}
    tokens = []
    for row in clients:
        step = sizes.get(row.concurrency) or decode[0]
        us_of = {"chunk": step.step_us, "output_token": step.token_us}
        for one in row.comparisons:
            if (us := us_of.get(one.quantity)) is not None:
                figures = (one.quantity, one.statistic, one.client, step.batch_size)
                tokens.append(ClientToken(row.tool, row.label, *figures, us, one.client - us))
    return tuple(tokens)


AGREES = 0.1
"""Client and engine agree when their times per token differ by no more than this fraction."""

_SAME_SERVER = 2.0
"""Beyond this factor client and engine were hardly measured on the same server and load."""

_FEWEST = 5  # fewer steps with decoding requests say nothing about a mean

_SHARED_LOAD = 1.2  # from so many times the client's tokens on, the engine had other clients too

_SEVERAL = 1.05  # more tokens a chunk than this are several

_QUANTITIES = ("output_token", "chunk", "first_token")
_NO_DECODE = "No recorded step decodes: nothing can be compared."


def clients_of(
    runs: Sequence[BenchmarkRun],
    steps: pd.DataFrame,
    facts: Mapping[str, Any],
    overhead: Sequence[Overhead] = (),
) -> tuple[ClientRow, ...]:
    """One row for each run, compared with the steps where they can be.

    Args:
        steps: what analyzers.windows.timed_windows returned, with `step_us`.
        facts: of the process that recorded the steps, for its clocks.
    """
    if steps.empty:
        return tuple(client_row(run, _NO_DECODE) for run in runs)
    first, last = int(steps["begin_ns"].min()), int(steps["finish_ns"].max())
    placed = ((run, place(run, facts, first, last)) for run in runs)
    return tuple(
        _by_window(run, steps, where)
        if isinstance(where, Placement)
        else _by_steps(run, steps, where, overhead)
        for run, where in placed
    )


def client_row(run: BenchmarkRun, *sentences: str) -> ClientRow:
    """A run alone, without anything to compare it with."""
    figures = {field.name: getattr(run, field.name) for field in fields(RunFigures)}
    return ClientRow(**figures, sentences=(*sentences, *run.notes))


def _by_window(run: BenchmarkRun, steps: pd.DataFrame, placed: Placement) -> ClientRow:
    """The client's and the engine's figures of the same stretch of time."""
    shared = steps[(steps["begin_ns"] >= placed.begin_ns) & (steps["finish_ns"] <= placed.end_ns)]
    if (shared["decode_requests"] > 0).sum() < _FEWEST:
        return _by_steps(run, steps, "Too few recorded steps lie inside the run.", ())
    begin, end = int(shared["begin_ns"].min()), int(shared["finish_ns"].max())
    client = in_window(run.requests, placed.offset_ns, begin, end)
    if client.token_us is None:
        why = "No request spent most of its time in the recorded steps."
        if not client.requests:
            why = "No request with its times was in flight while the steps were recorded."
        return _by_steps(run, shared, why, ())
    engine, paused = _with_pauses(
        engine_side(shared, _prompt_tokens(run), same_requests=True), shared
    )
    times = [Latency(us) for us in (client.token_us, client.chunk_us, client.first_us)]
    whole = " Its single chunks are unknown: whole requests are compared."
    sentences = [
        f"{(end - begin) / 1e9:,.2f} s of the run's {run.duration_s or 0:,.2f} s were recorded, "
        f"with {client.requests} of its requests in flight; only these are compared."
        f"{whole if client.whole_requests else ''}"
    ]
    if client.tokens is not None and engine.tokens:
        remark = (
            ": other clients were there" if engine.tokens > _SHARED_LOAD * client.tokens else ""
        )
        sentences.append(
            f"The client received {client.tokens:,.0f} tokens while the engine generated "
            f"{engine.tokens:,.0f}{remark}."
        )
    if paused:
        sentences.append(
            f"In the engine's time are {paused / 1e3:,.2f} ms per token in which it stood still to "
            "write the recording; its steps do not have them."
        )
    sentences += _stalls(engine)
    # Single chunks are those of these very steps; whole requests also had others.
    return _row(
        run, "window", times, engine, sentences, client.requests, same=not client.whole_requests
    )


def _with_pauses(engine: EngineSide, steps: pd.DataFrame) -> tuple[EngineSide, float]:
    """The engine's side with the pauses between these steps, and what they are of a token."""
    if engine.token_us is None or engine.step_us is None or "paused_ns" not in steps:
        return engine, 0.0
    # Whoever decodes in the step after a pause has waited; what was before the first is outside.
    waited = steps["paused_ns"].to_numpy()[1:] / 1e3
    weights = steps["decode_requests"].to_numpy()
    step_us = float((waited * weights[1:]).sum()) / max(float(weights.sum()), 1.0)
    token_us = step_us * engine.token_us / engine.step_us
    longer = replace(engine, token_us=engine.token_us + token_us, step_us=engine.step_us + step_us)
    return longer, token_us


def _by_steps(
    run: BenchmarkRun, steps: pd.DataFrame, reason: str, overhead: Sequence[Overhead]
) -> ClientRow:
    """The run's statistics beside recorded steps of as many requests."""
    batch = steps["decode_requests"] + steps["prefill_requests"]
    decoding = batch[steps["decode_requests"] > 0]
    if decoding.empty:
        return client_row(run, reason, _NO_DECODE)
    low, high = int(decoding.min()), int(decoding.max())
    concurrency = _concurrency(run)
    unsaid = "The result does not say how many requests ran at a time"
    if concurrency is None and low != high:
        had = f"and the recorded steps had {low} to {high}: nothing can be compared."
        return client_row(run, reason, f"{unsaid}, {had}")
    size = concurrency or low
    matching = steps[batch == size]
    if (matching["decode_requests"] > 0).sum() < _FEWEST:
        had = f"{low}" if low == high else f"{low} to {high}"
        too_few = (
            f"The client had {size} in flight, the recorded steps had {had}: too few steps are of "
            "that load to be compared."
        )
        return client_row(run, reason, too_few)
    engine = engine_side(matching, _prompt_tokens(run), same_requests=False)
    times = (run.tpot, Latency() if run.itl_per_token else run.itl, run.ttft)
    requests = "1 request" if concurrency == 1 else f"{concurrency} requests"
    basis = f"Compared are the run's statistics with the recorded steps of {requests}."
    if concurrency is None:
        basis = (
            f"{unsaid}; the recorded steps had {low}. Compared are its statistics with those steps."
        )
    sentences = [reason, basis, *_stalls(engine)]
    cost = next((row for row in overhead if row.batch_size == size), None)
    if cost is not None and engine.token_us:
        sentences.append(
            f"Watching made these steps {cost.ratio:.3f} times as long; without it a token would "
            f"have taken {engine.token_us / cost.ratio / 1e3:,.2f} ms."
        )
    return _row(run, "steps", times, engine, sentences)


def _row(
    run: BenchmarkRun,
    basis: str,
    times: Sequence[Latency],
    engine: EngineSide,
    sentences: Sequence[str],
    requests: int = 0,
    *,
    same: bool = False,
) -> ClientRow:
    """Means beside means, medians beside medians.

    Args:
        same: whether both sides are of the same steps, so that long ones are in both.
    """
    means = (engine.token_us, engine.step_us, engine.prefill_us)
    medians = (engine.median_token_us, engine.median_step_us, engine.median_prefill_us)
    compared = {}
    for quantity, client, mean, median in zip(_QUANTITIES, times, means, medians, strict=True):
        # A few long steps outweigh hundreds: where a client may have had others, medians tell more.
        robust = client.mean is None or (bool(engine.stalls_us) and not same)
        pair = (client.median, median) if robust and client.median else (client.mean, mean)
        if pair[0] and pair[1]:
            statistic = "median" if pair[0] is client.median and robust else "mean"
            compared[quantity] = ClientComparison(quantity, statistic, pair[0], pair[1])
    token, chunk = compared.get("output_token"), compared.get("chunk")
    row = client_row(run)
    verdict = _verdict(token, basis)
    explained = False
    if token and token.statistic == "mean" and engine.stalls_us and not same:
        # With or without the long steps the answer has to be the same.
        without = replace(token, engine=engine.token_us_without or token.engine)
        explained = _verdict(without, basis) != verdict
    verdict = "unknown" if explained else verdict
    first = [_verdict_sentence(token, verdict, basis, long_steps=explained)]
    middle = row.itl.median
    if verdict == "slower" and chunk and middle and abs(middle / chunk.engine - 1) <= AGREES:
        first.append(
            f"Half of the chunks came within {middle / 1e3:,.2f} ms, which is what a step takes: "
            "a few long waits make the difference."
        )
    return replace(
        row,
        basis=basis if compared else "none",
        verdict=verdict,
        steps=engine.steps,
        requests=requests,
        comparisons=tuple(compared.values()),
        sentences=(*first, *_chunk_sentences(row), *sentences, *row.sentences),
    )


def _chunk_sentences(row: ClientRow) -> Iterator[str]:
    """That a chunk of the stream holds several tokens, where it does."""
    derived = row.itl.mean / row.tpot.mean if row.itl.mean and row.tpot.mean else 0.0
    if (row.tokens_per_chunk or 0.0) > _SEVERAL:
        yield (
            f"A chunk of the stream holds {row.tokens_per_chunk:.2f} tokens: ITL is per chunk, "
            "TPOT per token."
        )
    elif row.tokens_per_chunk is None and derived > _SEVERAL:
        yield (
            f"ITL is {derived:.2f} times TPOT: a chunk of the stream seems to hold several tokens, "
            "so compare TPOT."
        )


def _verdict(token: ClientComparison | None, basis: str) -> str:
    if token is None:
        return "unknown"
    # Without a common stretch of time nothing tells that both are of one server.
    if basis == "steps" and not 1 / _SAME_SERVER <= token.client / token.engine <= _SAME_SERVER:
        return "unknown"
    if abs(token.difference) <= AGREES:
        return "agrees"
    return "slower" if token.difference > 0 else "faster"


def _verdict_sentence(
    token: ClientComparison | None, verdict: str, basis: str, *, long_steps: bool = False
) -> str:
    """Whether the client sees the engine's time per token, and where the rest may be."""
    if token is None:
        return "The result has no time per output token that could be compared with a step's."
    client, engine = token.client / 1e3, token.engine / 1e3
    times = f"{client:,.2f} ms per token at the client, {engine:,.2f} ms in the engine"
    times += " (medians)" if token.statistic == "median" else ""
    rest = f"{abs(client - engine):,.2f} ms ({100 * token.difference:+.1f} %)"
    if long_steps:
        return (
            f"Nothing can be said: {times}; whether the client waited for the engine's long steps "
            "decides, and nothing tells."
        )
    if verdict == "unknown":
        return f"Hardly the same server, model or load: {times}."
    if verdict == "agrees":
        return f"They agree: {times}; {rest} between them."
    if verdict == "slower":
        where = "in the API server, tokenizer or network, or between the engine's steps"
        other = "" if basis == "window" else ", or in steps that were not recorded"
        return f"The client is slower: {times}; {rest} pass {where}{other}."
    why = "watching costs time, or the recorded steps had another load"
    if basis == "window":
        why = "the requests that were matched are not those of these steps"
    return f"The client is faster than the recorded steps: {times}; {rest}. Either {why}."


def _stalls(engine: EngineSide) -> list[str]:
    times_us = engine.stalls_us
    if not times_us:
        return []
    steps = "1 step" if len(times_us) == 1 else f"{len(times_us)} steps"
    without = ""
    if engine.token_us_without:
        without = f": without them a token takes {engine.token_us_without / 1e3:,.2f} ms"
    return [
        f"The engine's mean has {steps} of up to {max(times_us) / 1e3:,.0f} ms, many times the "
        f"usual{without}."
    ]


def _prompt_tokens(run: BenchmarkRun) -> float | None:
    return run.input_tokens / run.completed if run.input_tokens and run.completed else None


def _concurrency(run: BenchmarkRun) -> int | None:
    """How many requests ran at a time, whole."""
    if run.concurrency:
        return run.concurrency
    if run.mean_concurrency is not None:
        return max(round(run.mean_concurrency), 1)
    return 1 if run.completed == 1 else None
