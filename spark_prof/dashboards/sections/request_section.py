"""The requests of the scheduler: where their first tokens went, and what bound its batches."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.requests.request_times import FirstTokenPart, Percentiles, RequestSummary
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.units import count, counted, figure, microseconds, share

_LEAST_REQUESTS, _LEAST_RUNNING = 8, 1.5
"""From so many requests, and so many at a time, a server counts as under load."""
_NAMED_PARTS = 3  # on the one screen; the others stand together
_NAMES = {
    "front_end": "front end",
    "queue": "queued",
    "preempted": "preempted",
    "own": "reading its prompt",
    "shared": "others in its batches",
    "between": "between its batches",
    "output": "handing over",
}
_MEANINGS = {
    "front_end": "Until the scheduler has the request: HTTP, tokenizing, between processes.",
    "queue": "In the scheduler's queue, until its first batch.",
    "preempted": "It had lost its place in the KV cache.",
    "own": "Its share, by tokens, of the batches that read its prompt.",
    "shared": "The rest of these batches: tokens of other requests in them.",
    "between": "None of its batches ran: those of others did, or the host was at work.",
    "output": "From the worker's sampled token until the scheduler has it.",
    "ttft": "The sum; what the client waits beyond it is HTTP and detokenizing.",
    "tpot": "From a request's first token to its last, over the tokens after the first.",
    "itl": "Between two batches that give a request tokens.",
}
_LIMITS = {
    "none": "nothing",
    "tokens": "the token budget (--max-num-batched-tokens)",
    "sequences": "--max-num-seqs",
    "kv": "the KV cache",
    "other": "something else",
}
_Row = tuple[str, str, FirstTokenPart | Percentiles]


def requests(report: Report) -> Section:
    """Says what the requests waited for."""
    served = report.requests
    columns = (
        cells.Text("", lambda row: row[0]),
        cells.Time("Median", lambda row: row[2].p50),
        cells.Time("90th percentile", lambda row: row[2].p90, optional=True),
        cells.Time("99th percentile", lambda row: row[2].p99),
        cells.Time("Mean", lambda row: row[2].mean, optional=True),
        cells.Prose("What it is", lambda row: _MEANINGS.get(row[1], "")),
    )
    rows = list(_rows(served)) if served else []
    intro = list(_intro(served)) if served else []
    return table("requests", "What requests waited for", rows, columns, intro)


def in_a_line(report: Report) -> Iterator[str]:
    """The parts of the first token's time, where a server was under load."""
    served = report.requests
    if served is None or served.ttft is None or served.whole < _LEAST_REQUESTS:
        return
    if (served.running or 0.0) < _LEAST_RUNNING or not served.ttft.p50:
        return
    parts = sorted(served.parts, key=lambda part: -part.p50)
    named = [f"{microseconds(p.p50)} {_called(p)}" for p in parts[:_NAMED_PARTS] if p.p50]
    rest = sum(part.p50 for part in parts[_NAMED_PARTS:])
    if rest > 0:
        named.append(f"{microseconds(rest)} else")
    tokens = f"; TPOT {microseconds(served.tpot.p50)}" if served.tpot else ""
    yield (
        f"TTFT {microseconds(served.ttft.p50)} (median of {count(served.whole)} requests): "
        f"{', '.join(named)}{tokens}."
    )


def _called(part: FirstTokenPart) -> str:
    return _NAMES.get(part.name, "other")


def _rows(served: RequestSummary) -> Iterator[_Row]:
    for part in served.parts:
        yield _called(part), part.name, part
    for title, name, one in (
        ("TTFT", "ttft", served.ttft), ("TPOT", "tpot", served.tpot), ("ITL", "itl", served.itl),
    ):  # fmt: skip
        if one is not None:
            yield title, name, one


def _intro(served: RequestSummary) -> Iterator[str]:
    left_out = [
        f"{count(number)} {outcome}"
        for number, outcome in (
            (served.aborted, "aborted"),
            (served.failed, "failed"),
            (served.cut, "cut off by the recording's begin or end"),
            (served.tokenless, "without a token"),
        )
        if number
    ]
    without = f" The figures leave out {', '.join(left_out)}." if left_out else ""
    yield f"{counted(served.requests, 'request')}, {count(served.whole)} seen as a whole.{without}"
    if served.parts:
        yield (
            "A percentile's parts are those of the requests around it, and add up to it. A batch "
            "is shared among its tokens, as if each took the same time."
        )
    if served.prefix_caching is False:
        yield "Prefix caching is off."
    elif served.cached_tokens is not None and served.prompt_tokens:
        hits = share(served.cached_tokens / served.prompt_tokens)
        yield f"Of {counted(served.prompt_tokens, 'prompt token')} {hits} were in the prefix cache."
    if served.running is not None and served.waiting is not None:
        most = f" of {count(served.max_num_seqs)}" if served.max_num_seqs else ""
        yield (
            f"{figure(served.running, '.1f')} requests ran at a time, up to "
            f"{count(served.most_running or 0)}{most}, and {figure(served.waiting, '.1f')} waited, "
            f"up to {count(served.most_waiting or 0)}."
        )
    if served.kv_used is not None:
        preempted = f"; {counted(served.preemptions, 'preemption')}" if served.preemptions else ""
        yield (
            f"{share(served.kv_used)} of the KV cache was in use, up to "
            f"{share(served.kv_most_used)}{preempted}."
        )
    if served.limits:
        bound = ", ".join(
            f"{_LIMITS.get(row.limit, _LIMITS['other'])} {share(row.share)}"
            for row in served.limits
        )
        yield f"What kept more out of the batches: {bound}."
