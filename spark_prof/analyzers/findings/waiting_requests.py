"""Rules about requests that waited for their first token."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.findings.rule import Observation, rule
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.requests.request_rows import RequestSummary
from spark_prof.rules import thresholds

_FEWEST = thresholds.QUEUE_REQUESTS.value
_MUCH = thresholds.QUEUE_SHARE.value
_OFTEN = thresholds.BOUND_BATCHES.value
_FULL = thresholds.KV_FULL.value


@rule("requests-queue", "steps",
      "half of the time to the first token is spent in the queue while --max-num-seqs is "
      "reached")  # fmt: skip
def _queue(report: Report) -> Iterator[Observation]:
    served, queued = report.requests, _queued(report.requests)
    if served is None or not queued or served.limited("sequences") < _OFTEN:
        return
    if (served.kv_most_used or 0.0) > _FULL or served.max_num_seqs is None:
        return
    yield Observation(None,
        f"{queued}, while {served.max_num_seqs} requests ran: --max-num-seqs bound "
        f"{served.limited('sequences'):.0%} of the batches.",
        f"Raise --max-num-seqs: the KV cache was never more than {served.kv_most_used:.0%} full. "
        "More requests at a time make each token take longer."
        if served.kv_most_used is not None
        else "Raise --max-num-seqs. More requests at a time make each token take longer.",
        _evidence(served),
    )  # fmt: skip


@rule("kv-cache-bound", "steps",
      "half of the time to the first token is spent in the queue while the KV cache is "
      "full")  # fmt: skip
def _kv(report: Report) -> Iterator[Observation]:
    served, queued = report.requests, _queued(report.requests)
    if served is None or not queued or served.limited("kv") < _OFTEN:
        return
    used = f", up to {served.kv_most_used:.0%} full," if served.kv_most_used else ""
    yield Observation(None,
        f"{queued}: the KV cache{used} bound {served.limited('kv'):.0%} of the batches.",
        "--kv-cache-dtype fp8 halves what a token takes; a higher --gpu-memory-utilization gives "
        "it more memory.",
        _evidence(served),
    )  # fmt: skip


def _queued(served: RequestSummary | None) -> str:
    """What the queue takes of a first token's time; empty where that is not most of it."""
    queue, ttft = (served.part("queue"), served.ttft) if served else (None, None)
    if served is None or queue is None or ttft is None or served.whole < _FEWEST:
        return ""
    if not queue.p50 >= _MUCH * ttft.p50 > 0:
        return ""
    return (
        f"Of the median {ttft.p50 / 1e3:,.1f} ms to the first token {queue.p50 / 1e3:,.1f} ms are "
        "spent in the queue"
    )


def _evidence(served: RequestSummary) -> tuple[str, ...]:
    return (
        f"{served.whole} requests from their arrival to their end, by the scheduler's own record.",
    )
