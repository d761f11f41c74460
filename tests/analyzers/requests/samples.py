"""Requests of a server under load, as the analyzer sums them up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.requests.request_times import (
    FirstTokenPart,
    LimitRow,
    Percentiles,
    RequestSummary,
)

LOADED = RequestSummary(
    requests=70, whole=64, aborted=4, failed=0, cut=2, tokenless=0, prompt_tokens=2000,
    cached_tokens=500, output_tokens=900, preemptions=3,
    ttft=Percentiles(64, 900e3, 840e3, 1500e3, 2000e3),
    parts=(
        FirstTokenPart("front_end", 5e3, 4e3, 9e3, 9e3),
        FirstTokenPart("queue", 650e3, 610e3, 1200e3, 1600e3),
        FirstTokenPart("own", 205e3, 190e3, 250e3, 350e3),
        FirstTokenPart("shared", 40e3, 36e3, 41e3, 41e3),
    ),
    tpot=Percentiles(64, 20e3, 21e3, 30e3, 40e3), itl=Percentiles(800, 20e3, 19e3, 30e3, 90e3),
    limits=(LimitRow("sequences", 75, 0.75), LimitRow("none", 25, 0.25)),
    running=15.5, most_running=16, waiting=9.0, most_waiting=20, kv_used=0.3, kv_most_used=0.5,
    kv_blocks=1000, max_num_seqs=16, max_num_batched_tokens=2048, prefix_caching=True,
)  # fmt: skip


def report_of(found: RequestSummary | None, **changed: Any) -> Report:
    """A report of nothing but requests."""
    report: Any = SimpleNamespace(requests=replace(found, **changed) if found else None)
    return cast(Report, report)
