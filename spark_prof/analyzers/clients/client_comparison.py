"""Puts the runs of load generators beside the steps of a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from spark_prof.analyzers.clients import client_remarks
from spark_prof.analyzers.clients.client_remarks import in_window
from spark_prof.analyzers.clients.client_rows import ClientRow, Comparison
from spark_prof.analyzers.clients.engine_side import Placement, engine_side, place
from spark_prof.analyzers.overhead import Overhead
from spark_prof.traces.benchmarks.load_test import BenchmarkRun, Latency

AGREES = 0.1
"""Client and engine agree when their times per token differ by no more than this fraction."""

SAME_SERVER = 2.0
"""Beyond this factor client and engine were hardly measured on the same server and load."""

_FEWEST = 5
"""Fewer steps with decoding requests say nothing about a mean."""


def clients_of(
    runs: Sequence[BenchmarkRun],
    steps: pd.DataFrame,
    facts: Mapping[str, Any],
    overhead: Sequence[Overhead] = (),
) -> tuple[ClientRow, ...]:
    """One row for each run, compared with the steps where they can be.

    Args:
        steps: what analyzers.windows.step_windows returned, with `step_us`.
        facts: of the process that recorded the steps, for its clocks.
        overhead: what watching cost, by batch size.
    """
    return tuple(_compared(run, steps, facts, overhead) for run in runs)


def client_row(run: BenchmarkRun, sentences: tuple[str, ...] = ()) -> ClientRow:
    """A run alone, without anything to compare it with."""
    return ClientRow(
        tool=run.tool,
        model=run.model,
        label=run.label,
        concurrency=run.concurrency,
        mean_concurrency=run.mean_concurrency,
        request_rate=run.request_rate,
        duration_s=run.duration_s,
        completed=run.completed,
        failed=run.failed,
        output_throughput=run.output_throughput,
        ttft=run.ttft,
        tpot=run.tpot,
        itl=run.itl,
        e2e=run.e2e,
        tokens_per_chunk=run.tokens_per_chunk,
        acceptance_length=run.acceptance_length,
        sentences=(*filter(None, sentences), *run.notes),
    )


def _compared(
    run: BenchmarkRun,
    steps: pd.DataFrame,
    facts: Mapping[str, Any],
    overhead: Sequence[Overhead],
) -> ClientRow:
    if steps.empty:
        return client_row(run, (client_remarks.NO_DECODE,))
    first, last = int(steps["begin_ns"].min()), int(steps["finish_ns"].max())
    placed = place(run, facts, first, last)
    if placed.offset_ns is not None:
        return _by_window(run, steps, placed, placed.offset_ns)
    return _by_steps(run, steps, placed.reason, overhead)


def _by_window(
    run: BenchmarkRun, steps: pd.DataFrame, placed: Placement, offset_ns: int
) -> ClientRow:
    """Both sides of the same stretch of time."""
    shared = steps[(steps["begin_ns"] >= placed.begin_ns) & (steps["finish_ns"] <= placed.end_ns)]
    if (shared["decode_requests"] > 0).sum() < _FEWEST:
        return _by_steps(run, steps, "Too few recorded steps lie inside the run.", ())
    begin, end = int(shared["begin_ns"].min()), int(shared["finish_ns"].max())
    seen = in_window(run.requests, offset_ns, begin, end)
    if seen.token_us is None:
        return _by_steps(run, shared, client_remarks.no_token(seen.requests), ())
    engine = engine_side(shared, _prompt_tokens(run), same_requests=True)
    pairs = (
        ("output_token", seen.token_us, engine.token_us),
        ("chunk", seen.chunk_us, engine.step_us),
        ("first_token", seen.first_us, engine.prefill_us),
    )
    compared = [Comparison(q, "mean", c, e) for q, c, e in pairs if c and e]
    said = [
        client_remarks.same_time(run.duration_s, (end - begin) / 1e9, seen),
        client_remarks.same_load(seen, engine.tokens),
        client_remarks.stalls(engine.stalls_us),
    ]
    return _with(client_row(run), "window", compared, engine.steps, said, seen.requests)


def _by_steps(
    run: BenchmarkRun, steps: pd.DataFrame, reason: str, overhead: Sequence[Overhead]
) -> ClientRow:
    """The run's statistics beside recorded steps of as many requests."""
    batch = steps["decode_requests"] + steps["prefill_requests"]
    decoding = batch[steps["decode_requests"] > 0]
    if decoding.empty:
        return client_row(run, (reason, client_remarks.NO_DECODE))
    low, high = int(decoding.min()), int(decoding.max())
    wanted = _concurrency(run)
    if wanted is None and low != high:
        return client_row(run, (reason, client_remarks.unknown_batch(low, high)))
    alike = steps[batch == (wanted or low)]
    if (alike["decode_requests"] > 0).sum() < _FEWEST:
        return client_row(run, (reason, client_remarks.other_batch(wanted or low, low, high)))
    engine = engine_side(alike, _prompt_tokens(run), same_requests=False)
    pairs = (
        ("output_token", run.tpot, engine.token_us),
        ("chunk", Latency() if run.itl_per_token else run.itl, engine.step_us),
        ("first_token", run.ttft, engine.prefill_us),
    )
    compared = [
        Comparison(quantity, _statistic(client), client.typical, mean)
        for quantity, client, mean in pairs
        if client.typical and mean
    ]
    said = [reason, client_remarks.alike(wanted, low), client_remarks.stalls(engine.stalls_us)]
    cost = next((row for row in overhead if row.batch_size == (wanted or low)), None)
    if cost is not None and engine.token_us:
        said.append(client_remarks.watching(cost.ratio, engine.token_us))
    return _with(client_row(run), "steps", compared, engine.steps, said, 0)


def _with(
    row: ClientRow,
    basis: str,
    compared: list[Comparison],
    steps: int,
    said: list[str],
    requests: int,
) -> ClientRow:
    """The row with its comparisons, and what they say first."""
    token = next((c for c in compared if c.quantity == "output_token"), None)
    verdict = _verdict(token, basis)
    first = (
        [client_remarks.NO_TPOT]
        if token is None
        else [client_remarks.verdict(token, verdict, basis)]
    )
    chunk = next((c for c in compared if c.quantity == "chunk"), None)
    middle = row.itl.median
    if verdict == "slower" and chunk and middle and abs(middle / chunk.engine - 1) <= AGREES:
        first.append(client_remarks.long_waits(middle))
    if (text := client_remarks.chunks(row)) is not None:
        first.append(text)
    return replace(
        row,
        basis=basis if compared else "none",
        verdict=verdict,
        steps=steps,
        requests=requests,
        comparisons=tuple(compared),
        sentences=(*first, *filter(None, said), *row.sentences),
    )


def _verdict(token: Comparison | None, basis: str) -> str:
    if token is None:
        return "unknown"
    # Without a common stretch of time nothing tells that both are of one server.
    if basis == "steps" and not 1 / SAME_SERVER <= token.client / token.engine <= SAME_SERVER:
        return "unknown"
    if abs(token.difference) <= AGREES:
        return "agrees"
    return "slower" if token.difference > 0 else "faster"


def _statistic(latency: Latency) -> str:
    return "mean" if latency.mean is not None else "median"


def _prompt_tokens(run: BenchmarkRun) -> float | None:
    return run.input_tokens / run.completed if run.input_tokens and run.completed else None


def _concurrency(run: BenchmarkRun) -> int | None:
    """How many requests ran at a time, whole."""
    if run.concurrency:
        return run.concurrency
    if run.mean_concurrency is not None:
        return max(round(run.mean_concurrency), 1)
    return 1 if run.completed == 1 else None
