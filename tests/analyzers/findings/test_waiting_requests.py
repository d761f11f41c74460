"""Findings of requests that waited: a queue behind --max-num-seqs, and a full KV cache."""

from __future__ import annotations

from typing import Any

import pytest

from spark_prof.analyzers.findings.waiting_requests import _kv, _queue
from spark_prof.analyzers.requests.request_times import LimitRow
from tests.analyzers.requests.samples import LOADED, report_of

KV = (LimitRow("kv", 60, 0.6), LimitRow("sequences", 40, 0.4))


def test_a_queue_while_the_most_requests_run_is_found() -> None:
    [found] = _queue.find(report_of(LOADED))
    assert "610.0 ms are spent in the queue, while 16 requests ran" in found.text
    assert found.fix.startswith("Raise --max-num-seqs: the KV cache was never more than 50% full.")


@pytest.mark.parametrize(
    "changed",
    [
        {"limits": (LimitRow("none", 90, 0.9), LimitRow("sequences", 10, 0.1))},
        {"parts": ()},
        {"max_num_seqs": None},
    ],
)
def test_where_it_is_not_clear_nothing_is_found(changed: dict[str, Any]) -> None:
    assert list(_queue.find(report_of(LOADED, **changed))) == []


def test_a_full_kv_cache_is_found_and_not_taken_for_another_limit() -> None:
    report = report_of(LOADED, limits=KV, kv_most_used=1.0)
    [found] = _kv.find(report)
    assert "up to 100% full, bound 60% of the batches" in found.text
    assert list(_queue.find(report)) == []
    assert list(_kv.find(report_of(LOADED))) == []


def test_without_recorded_requests_nothing_is_found() -> None:
    assert list(_queue.find(report_of(None))) == list(_kv.find(report_of(None))) == []
