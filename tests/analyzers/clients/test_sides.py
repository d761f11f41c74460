"""Both sides of a comparison, from requests and steps that a simulated server made."""

from __future__ import annotations

import pandas as pd
import pytest

from spark_prof.analyzers.clients.client_remarks import in_window
from spark_prof.analyzers.clients.engine_side import EngineSide, engine_side
from spark_prof.traces.benchmarks.result import Request
from tests.rows import each_row

ORIGIN = 1_800_000_000_000_000_001
MS = 1_000_000


def request(start_ms: float, ttft_ms: float, gaps_ms: list[float], **more: object) -> Request:
    e2e = 1e3 * (ttft_ms + sum(gaps_ms))
    usual = {
        "start_ns": round(start_ms * MS), "ttft_us": 1e3 * ttft_ms, "e2e_us": e2e,
        "output_tokens": len(gaps_ms) + 1, "chunks": len(gaps_ms) + 1,
        "gaps_us": tuple(1e3 * gap for gap in gaps_ms),
    }  # fmt: skip
    return Request(**(usual | more))  # type: ignore[arg-type]


def steps(*rows: tuple[float, int, int, int, float, float]) -> pd.DataFrame:
    """Rows of (ms, decoding, prefilling, prompt tokens, output tokens, output requests)."""
    names = [
        "ms", "decode_requests", "prefill_requests", "prefill_tokens", "output_tokens",
        "output_requests",
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=names)
    finish = ORIGIN + (frame["ms"].cumsum() * MS).astype("int64")
    begin = finish - (frame["ms"] * MS).astype("int64")
    return frame.assign(begin_ns=begin, finish_ns=finish, step_us=1e3 * frame["ms"])


def test_only_gaps_inside_the_stretch_count() -> None:
    found = in_window([request(0, 10, [5, 5, 100, 5])], ORIGIN, ORIGIN + 10 * MS, ORIGIN + 21 * MS)
    assert found.chunk_us == found.token_us == 5_000
    assert found.tokens == 3, "the first token and two more"
    assert found.requests == 1
    assert not found.whole_requests


def test_a_chunk_with_several_tokens_is_no_token() -> None:
    one = request(0, 10, [20, 20, 20], output_tokens=8)
    found = in_window([one], ORIGIN, ORIGIN, ORIGIN + 100 * MS)
    assert found.chunk_us == pytest.approx(20_000)
    assert found.token_us == pytest.approx(10_000)
    assert found.tokens == 8


def test_without_chunks_whole_requests_are_compared_when_most_of_them_is_inside() -> None:
    inside = request(0, 10, [10, 10, 10, 10], chunks=None, gaps_us=())
    outside = request(45, 10, [30, 30], chunks=None, gaps_us=())
    found = in_window([inside, outside], ORIGIN, ORIGIN, ORIGIN + 60 * MS)
    assert found.token_us == pytest.approx(10_000)
    assert found.whole_requests
    assert (found.requests, found.tokens) == (2, None)


def test_the_first_token_counts_when_its_request_was_sent_inside() -> None:
    early, inside = request(-5, 10, [1]), request(5, 20, [1])
    found = in_window([early, inside], ORIGIN, ORIGIN, ORIGIN + 60 * MS)
    assert found.first_us == 20_000


def test_failed_and_distant_requests_count_for_nothing() -> None:
    failed, late = request(0, 10, [1], failed=True), request(500, 10, [1])
    unknown = Request(ttft_us=1.0)
    found = in_window([failed, late, unknown], ORIGIN, ORIGIN, ORIGIN + 60 * MS)
    assert (found.requests, found.token_us, found.first_us) == (0, None, None)


def test_a_step_counts_once_for_each_request_that_waits_for_it() -> None:
    found = engine_side(steps((10, 1, 0, 0, 1, 1), (40, 3, 0, 0, 3, 3)), None, same_requests=True)
    assert found.step_us == found.token_us == pytest.approx((10 + 3 * 40) * 1e3 / 4)


def test_speculative_steps_give_several_tokens() -> None:
    found = engine_side(steps((30, 2, 0, 0, 6, 2), (30, 2, 0, 0, 6, 2)), None, same_requests=True)
    assert (found.step_us, found.token_us, found.tokens) == (30_000, 10_000, 12)


def test_unknown_tokens_are_taken_for_one_a_request() -> None:
    found = engine_side(steps((30, 2, 0, 0, float("nan"), float("nan"))), None, same_requests=True)
    assert found.token_us == 30_000


def test_a_long_prompt_takes_several_steps() -> None:
    frame = steps((50, 0, 1, 512, 0, 0), (50, 1, 1, 512, 1, 1))
    assert engine_side(frame, 512, same_requests=True).prefill_us == 50_000
    assert engine_side(frame, 513, same_requests=True).prefill_us == 100_000
    assert engine_side(frame, None, same_requests=True).prefill_us == 50_000


@each_row(
    ("prompt", "known"), [(512, True), (700, True), (350, True), (1024, False), (None, False)]
)
def test_steps_of_other_prompts_tell_only_about_alike_ones(
    prompt: float | None, known: bool
) -> None:
    frame = steps((50, 0, 1, 512, 0, 0))
    assert (engine_side(frame, prompt, same_requests=False).prefill_us == 50_000) == known


def test_no_step_says_nothing() -> None:
    nothing = EngineSide(0, None, None, None, None)
    assert engine_side(steps(), 100.0, same_requests=True) == nothing


def test_a_step_of_many_times_the_usual_is_no_step_s_work() -> None:
    usual = [(10, 4, 0, 0, 4, 4)] * 20
    found = engine_side(steps(*usual, (190, 4, 0, 0, 4, 4)), None, same_requests=True)
    assert (found.steps, found.stalls_us) == (21, ())
    found = engine_side(steps(*usual, (900, 4, 0, 0, 4, 4)), None, same_requests=True)
    assert (found.steps, found.token_us, found.tokens) == (20, 10_000, 84)
    assert found.stalls_us == (900_000,)


def test_steps_that_read_prompts_are_compared_with_their_like() -> None:
    reads = [(300, 0, 1, 64, 1, 1)] * 5
    found = engine_side(steps(*[(10, 4, 0, 0, 4, 4)] * 20, *reads), 64, same_requests=True)
    assert (found.prefill_us, found.stalls_us) == (300_000, ())
