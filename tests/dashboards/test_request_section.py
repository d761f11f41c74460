"""The section about requests, and its line on the first screen."""

from __future__ import annotations

from typing import Any

import pytest

from spark_prof.dashboards.sections.request_section import in_a_line, requests
from tests.analyzers.requests.samples import LOADED, report_of


def test_the_line_says_where_the_first_token_went() -> None:
    assert list(in_a_line(report_of(LOADED))) == [
        "TTFT 840.00 ms (median of 64 requests): 610.00 ms queued, 190.00 ms reading its prompt, "
        "36.00 ms others in its batches, 4.00 ms else; TPOT 21.00 ms."
    ]


@pytest.mark.parametrize("changed", [{"whole": 7}, {"running": 1.0}, {"ttft": None}])
def test_a_server_that_is_not_under_load_has_no_line(changed: dict[str, Any]) -> None:
    assert list(in_a_line(report_of(LOADED, **changed))) == []


def test_without_recorded_requests_nothing_is_said() -> None:
    assert list(in_a_line(report_of(None))) == []
    assert requests(report_of(None)).rows == ()


def test_the_table_has_every_part_and_the_times_of_tokens() -> None:
    found = requests(report_of(LOADED))
    assert [row[0] for row in found.rows] == [
        "front end", "queued", "reading its prompt", "others in its batches", "TTFT", "TPOT", "ITL",
    ]  # fmt: skip
    assert [str(row[1]) for row in found.rows][1] == "610.00 ms"


def test_the_text_counts_those_left_out_and_tells_the_load() -> None:
    text = " ".join(requests(report_of(LOADED)).intro)
    for said in (
        "70 requests, 64 seen as a whole. The figures leave out 4 aborted, 2 cut off",
        "Of 2,000 prompt tokens 25.0 % were in the prefix cache.",
        "15.5 requests ran at a time, up to 16 of 16, and 9.0 waited, up to 20.",
        "30.0 % of the KV cache was in use, up to 50.0 %; 3 preemptions.",
        "What kept more out of the batches: --max-num-seqs 75.0 %, nothing 25.0 %.",
    ):
        assert said in text


def test_a_prefix_cache_that_is_off_is_told() -> None:
    assert "Prefix caching is off." in requests(report_of(LOADED, prefix_caching=False)).intro
