"""Rules about requests: those that waited, and what their context costs."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.context.context_rows import ContextCost, LayerKindCost
from spark_prof.analyzers.findings.rule import Observation, rule
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.requests.request_times import RequestSummary
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


_FAR = 0.6  # share of the slope that is bytes below which it is far above them
_MATTERS = 0.04  # of a step at the longest context
_NAMES = {"full": "full attention", "window": "a sliding window", "mla": "MLA",
          "sparse": "sparse attention", "gdn": "a state", "mamba": "a state"}  # fmt: skip


@rule("context-slope", "steps",
      "by its interval, attention's time grows with context so that bytes are under 60 % of that, "
      "or grows where its bytes do not, 4 % of a step at the longest recorded context")  # fmt: skip
def _slope(report: Report) -> Iterator[Observation]:
    cost = report.context
    if cost is None or cost.speed is None or cost.bandwidth is None:
        return
    for kind in cost.kinds:
        if kind.slope_low_us is None or kind.slope_us is None or kind.bound_us is None:
            continue
        bound_us = kind.bound_us if kind.grows else 0.0
        if kind.slope_low_us <= 0 or bound_us >= _FAR * kind.slope_low_us:
            continue
        span = (kind.longest - kind.shortest) / 1e3
        above_us = (kind.slope_us - bound_us) * span
        if above_us < _MATTERS * cost.speed.longest_us:
            continue
        yield Observation(
            _gain(report, cost, kind, kind.slope_us - bound_us),
            f"Layers with {_NAMES.get(kind.kind, kind.kind)} take {kind.slope_us:,.2f} us more of "
            f"a decode step for 1,000 tokens of context, their bytes {bound_us:,.2f} us: between "
            f"{kind.shortest:,.0f} and {kind.longest:,.0f} tokens that is {above_us:,.1f} us "
            "beyond the bytes.",
            "Try another attention backend (--attention-backend), and compare at that context.",
            (f"The slope's 95 % interval is {kind.slope_low_us:,.2f} to {kind.slope_high_us:,.2f} "
             f"us; the bound is {kind.bytes_per_token:,.0f} bytes a token at "
             f"{cost.bandwidth / 1e9:,.0f} GB/s.",),
            components=("attention",),
            subject=kind.kind,
        )  # fmt: skip


def _gain(report: Report, cost: ContextCost, kind: LayerKindCost, slope_us: float) -> float | None:
    """The gain in ms a token at the mean recorded context; None where a token is of other steps."""
    headline = report.steps.headline_and_screen
    if headline is None or headline.screen.batch != cost.batch or cost.speed is None:
        return None
    return slope_us * min(cost.mean, kind.longest) / 1e3 / cost.speed.tokens / 1e3
