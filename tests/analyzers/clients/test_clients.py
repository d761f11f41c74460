"""Both sides of a comparison, from requests and steps that a simulated server made.

Where a run lies on a recording's time line.

Whether client and engine agree: on a real run, and on what a simulated server did.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from spark_prof.analyzers.clients.client_comparison import AGREES, clients_of
from spark_prof.analyzers.clients.client_rows import BASES, VERDICTS, ClientRow
from spark_prof.analyzers.clients.engine_side import (
    EngineSide,
    Placement,
    engine_side,
    in_window,
    place,
)
from spark_prof.analyzers.overhead import Overhead
from spark_prof.analyzers.windows import step_windows
from spark_prof.traces.benchmarks.load_test import BenchmarkRun, Latency, Request
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.bundle import Bundle
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


EPOCH = 1_800_000_000_000_000_001
BOOT = 1_799_999_000_000_000_007
"""When the host booted: its monotonic clock counts from there."""
FACTS = {"time_ns": EPOCH, "monotonic_ns": EPOCH - BOOT}
SECOND = 1_000_000_000
FIRST, LAST = EPOCH + 100 * SECOND, EPOCH + 110 * SECOND
RUN = BenchmarkRun("tool", start_ns=FIRST - BOOT - 5, clock="monotonic", duration_s=60.0)


def test_a_monotonic_clock_is_moved_without_losing_a_digit() -> None:
    found = place(RUN, FACTS, FIRST, LAST)
    assert found == Placement(BOOT, FIRST - 5, FIRST - 5 + 60 * SECOND)


def test_an_epoch_clock_is_taken_as_it_is() -> None:
    found = place(replace(RUN, start_ns=FIRST - 5, clock="epoch"), {}, FIRST, LAST)
    assert found == Placement(0, FIRST - 5, FIRST - 5 + 60 * SECOND)


@each_row(
    ("change", "facts", "word"),
    [
        ({"clock": "none"}, FACTS, "does not say when"),
        ({"start_ns": None}, FACTS, "does not say when"),
        ({"duration_s": None}, FACTS, "does not say when"),
        ({}, {}, "does not relate"),
        ({}, {"time_ns": "x", "monotonic_ns": 1.5}, "does not relate"),
        ({"duration_s": 0.0}, FACTS, "before"),
        ({"start_ns": LAST - BOOT + 1}, FACTS, "after"),
        ({"local_end_ns": FIRST + 68 * SECOND + 400 * SECOND}, FACTS, "another host"),
        ({"local_end_ns": FIRST + 60 * SECOND + 40 * 3600 * SECOND}, FACTS, "another host"),
    ],
)
def test_why_nothing_relates_them(
    change: dict[str, object], facts: dict[str, object], word: str
) -> None:
    found = place(replace(RUN, **change), facts, FIRST, LAST)  # type: ignore[arg-type]
    assert isinstance(found, str)
    assert word in found


@each_row("hours", [-12.0, -3.5, 0.0, 5.75, 14.0])
def test_the_date_may_be_of_any_time_zone(hours: float) -> None:
    written = FIRST + 62 * SECOND + round(hours * 3600) * SECOND
    assert isinstance(place(replace(RUN, local_end_ns=written), FACTS, FIRST, LAST), Placement)


DATA = Path(__file__).parents[2] / "data" / "benchmarks"
DECODE = steps(*[(10.0, 2, 0, 0, 2.0, 2.0)] * 20)
SERVED = BenchmarkRun(
    "tool", concurrency=2, ttft=Latency(30_000), tpot=Latency(10_500), itl=Latency(10_500)
)


def compare(run: BenchmarkRun, frame: object = DECODE, *overhead: Overhead) -> ClientRow:
    [row] = clients_of([run], frame, {}, overhead)  # type: ignore[arg-type]
    assert row.basis in BASES
    assert row.verdict in VERDICTS
    assert all(sentence.endswith(".") for sentence in row.sentences)
    return row


def test_a_real_run_agrees_with_the_steps_of_its_server() -> None:
    bundle = Bundle(DATA / "vllm-serve-bundle")
    frame = step_windows(bundle, 0, bundle.frame("kernels", 0, ["step", "end_ns"]))
    frame = frame.assign(step_us=(frame["finish_ns"] - frame["begin_ns"]) / 1e3)
    runs = read_benchmark(DATA / "vllm-serve-detailed.json").runs
    [row] = clients_of(runs, frame, bundle.facts(0))
    assert (row.basis, row.verdict) == ("window", "agrees")
    assert row.steps == 98
    assert row.requests == 6
    token, chunk, first = row.comparisons
    assert abs(token.difference) < 0.01
    assert abs(chunk.difference) < 0.01
    assert first.client > first.engine, "queueing and HTTP come on top"

    assert "received 196 tokens while the engine generated 196." in " ".join(row.sentences)

    # Over the whole run they do not: what was not recorded took longer.
    assert runs[0].tpot.mean is not None
    assert runs[0].tpot.mean > 1.2 * token.engine


def test_the_same_result_without_its_times_is_compared_by_batch_size() -> None:
    bundle = Bundle(DATA / "vllm-serve-bundle")
    frame = step_windows(bundle, 0, bundle.frame("kernels", 0, ["step", "end_ns"]))
    frame = frame.assign(step_us=(frame["finish_ns"] - frame["begin_ns"]) / 1e3)
    [row] = clients_of(read_benchmark(DATA / "vllm-serve.txt").runs, frame, bundle.facts(0))
    assert (row.basis, row.verdict, row.steps) == ("steps", "slower", 96)
    assert "few long waits" in " ".join(row.sentences), "the median chunk took a step"


@each_row(
    ("tpot", "verdict"),
    [
        (10_000, "agrees"),
        (10_999, "agrees"),
        (9_001, "agrees"),
        (11_001, "slower"),
        (8_999, "faster"),
        (20_001, "unknown"),
        (4_999, "unknown"),
    ],
)
def test_the_verdict(tpot: float, verdict: str) -> None:
    row = compare(replace(SERVED, tpot=Latency(tpot)))
    assert (row.basis, row.verdict) == ("steps", verdict)
    assert row.comparisons[0].difference == pytest.approx(tpot / 10_000 - 1)
    assert (abs(row.comparisons[0].difference) <= AGREES) == (verdict == "agrees")


def test_a_median_is_said_to_be_one() -> None:
    row = compare(replace(SERVED, tpot=Latency(median=10_000.0)))
    assert [c.statistic for c in row.comparisons] == ["median", "mean"]


@each_row(
    ("run", "frame", "word"),
    [
        (replace(SERVED, concurrency=64), DECODE, "64 in flight"),
        (replace(SERVED, concurrency=None), steps(*[(10.0, n, 0, 0, n, n) for n in range(1, 9)]),
         "how many requests"),
        (SERVED, steps((10.0, 0, 1, 128, 1.0, 1.0)), "No recorded step decodes"),
        (SERVED, steps(), "No recorded step decodes"),
        (replace(SERVED, tpot=Latency(), itl=Latency(), ttft=Latency()), DECODE,
         "no time per output"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said(run: BenchmarkRun, frame: object, word: str) -> None:
    row = compare(run, frame)
    assert (row.basis, row.verdict, row.comparisons) == ("none", "unknown", ())
    assert word in " ".join(row.sentences)


def test_steps_of_one_size_need_no_concurrency() -> None:
    row = compare(replace(SERVED, concurrency=None))
    assert row.verdict == "agrees"
    assert "does not say how many" in " ".join(row.sentences)


def test_what_watching_cost_is_said() -> None:
    cost = Overhead(2, 1.25, 1.2, 1.3, 4, 12_500.0, 10_000.0, 1.1)
    assert "1.250 times" in " ".join(compare(SERVED, DECODE, cost).sentences)
    assert "times as long" not in " ".join(compare(SERVED).sentences)


def test_chunks_and_tokens_are_told_apart() -> None:
    speculative = replace(SERVED, itl=Latency(25_000))
    assert "2.38 times TPOT" in " ".join(compare(speculative).sentences)
    known = replace(speculative, tokens_per_chunk=2.4)
    assert "holds 2.40 tokens" in " ".join(compare(known).sentences)


def test_an_itl_per_token_is_not_compared_with_a_step() -> None:
    quantities = [c.quantity for c in compare(replace(SERVED, itl_per_token=True)).comparisons]
    assert "chunk" not in quantities


def test_the_run_s_own_notes_are_kept() -> None:
    assert compare(replace(SERVED, notes=("A note.",))).sentences[-1] == "A note."
