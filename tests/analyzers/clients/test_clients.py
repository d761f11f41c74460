"""Both sides of a comparison, where a run lies, and whether client and engine agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from spark_prof.analyzers.clients.client_comparison import (
    AGREES,
    BASES,
    VERDICTS,
    ClientRow,
    clients_of,
)
from spark_prof.analyzers.clients.engine_side import (
    EngineSide,
    Placement,
    engine_side,
    in_window,
    place,
)
from spark_prof.analyzers.overhead import Overhead
from spark_prof.analyzers.windows import timed_windows
from spark_prof.traces.benchmarks.load_test import BenchmarkRun, ClientRequest, Latency
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.bundle import Bundle
from tests.rows import each_row

ORIGIN = 1_800_000_000_000_000_001
MS = 1_000_000


def request(start_ms: float, ttft_ms: float, gaps_ms: list[float], **more: object) -> ClientRequest:
    e2e = 1e3 * (ttft_ms + sum(gaps_ms))
    usual = {
        "start_ns": round(start_ms * MS), "ttft_us": 1e3 * ttft_ms, "e2e_us": e2e,
        "output_tokens": len(gaps_ms) + 1, "chunks": len(gaps_ms) + 1,
        "gaps_us": tuple(1e3 * gap for gap in gaps_ms),
    }  # fmt: skip
    return ClientRequest(**(usual | more))  # type: ignore[arg-type]


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


BARE = {"chunks": None, "gaps_us": ()}
NOTHING = {"requests": 0, "token_us": None, "first_us": None}


@each_row(
    ("requests", "begin_ms", "end_ms", "wanted"),
    [
        # Only gaps inside the stretch: the first token and two more.
        ([request(0, 10, [5, 5, 100, 5])], 10, 21,
         {"chunk_us": 5e3, "token_us": 5e3, "tokens": 3, "requests": 1, "whole_requests": False}),
        # A chunk with several tokens is no token.
        ([request(0, 10, [20, 20, 20], output_tokens=8)], 0, 100,
         {"chunk_us": 2e4, "token_us": 1e4, "tokens": 8}),
        # Without chunks whole requests are compared when most of them is inside.
        ([request(0, 10, [10, 10, 10, 10], **BARE), request(45, 10, [30, 30], **BARE)], 0, 60,
         {"token_us": 1e4, "whole_requests": True, "requests": 2, "tokens": None}),
        # The first token counts when its request was sent inside.
        ([request(-5, 10, [1]), request(5, 20, [1])], 0, 60, {"first_us": 2e4}),
        ([request(0, 10, [1], failed=True), request(500, 10, [1]), ClientRequest(ttft_us=1.0)], 0,
         60,
         NOTHING),
    ],
)  # fmt: skip
def test_what_requests_saw_in_a_stretch(
    requests: list[ClientRequest], begin_ms: int, end_ms: int, wanted: dict[str, object]
) -> None:
    found = in_window(requests, ORIGIN, ORIGIN + begin_ms * MS, ORIGIN + end_ms * MS)
    assert {name: getattr(found, name) for name in wanted} == pytest.approx(wanted)


USUAL = [(10, 4, 0, 0, 4, 4)] * 20
READ = [(50, 0, 1, 512, 0, 0), (50, 1, 1, 512, 1, 1)]
NAN = float("nan")


@each_row(
    ("rows", "prompt", "same", "wanted"),
    [
        # A step counts once for each request that waits for it.
        ([(10, 1, 0, 0, 1, 1), (40, 3, 0, 0, 3, 3)], None, True,
         {"step_us": 32.5e3, "token_us": 32.5e3}),
        # Speculative steps give several tokens; unknown ones are taken for one a request.
        ([(30, 2, 0, 0, 6, 2)] * 2, None, True, {"step_us": 3e4, "token_us": 1e4, "tokens": 12}),
        ([(30, 2, 0, 0, NAN, NAN)], None, True, {"token_us": 3e4}),
        # A long prompt takes several steps; steps of other prompts tell only about alike ones.
        *((READ, prompt, True, {"prefill_us": us})
          for prompt, us in ((512, 5e4), (513, 10e4), (None, 5e4))),
        *((READ[:1], prompt, False, {"prefill_us": us})
          for prompt, us in ((512, 5e4), (700, 5e4), (350, 5e4), (1024, None), (None, None))),
        ([], 100.0, True, vars(EngineSide(0, None, None, None, None))),
        # A step of many times the usual is no step's work, beside those of its kind.
        ([*USUAL, (190, 4, 0, 0, 4, 4)], None, True, {"steps": 21, "stalls_us": ()}),
        ([*USUAL, (900, 4, 0, 0, 4, 4)], None, True,
         {"steps": 21, "token_us": 1.1e6 / 21, "token_us_without": 1e4, "median_token_us": 1e4,
          "tokens": 84, "stalls_us": (9e5,)}),
        ([*USUAL, *[(300, 0, 1, 64, 1, 1)] * 5], 64, True, {"prefill_us": 3e5, "stalls_us": ()}),
    ],
)  # fmt: skip
def test_what_steps_took(
    rows: list[tuple[float, int, int, int, float, float]],
    prompt: float | None,
    same: bool,
    wanted: dict[str, object],
) -> None:
    found = engine_side(steps(*rows), prompt, same_requests=same)
    assert {name: getattr(found, name) for name in wanted} == wanted


EPOCH = 1_800_000_000_000_000_001
BOOT = 1_799_999_000_000_000_007
"""When the host booted: its monotonic clock counts from there."""
FACTS = {"time_ns": EPOCH, "monotonic_ns": EPOCH - BOOT}
SECOND = 1_000_000_000
FIRST, LAST = EPOCH + 100 * SECOND, EPOCH + 110 * SECOND
RUN = BenchmarkRun("tool", start_ns=FIRST - BOOT - 5, clock="monotonic", duration_s=60.0)


def test_a_clock_is_moved_without_losing_a_digit_or_taken_as_it_is() -> None:
    when = FIRST - 5, FIRST - 5 + 60 * SECOND
    assert place(RUN, FACTS, FIRST, LAST) == Placement(BOOT, *when)
    epoch = replace(RUN, start_ns=FIRST - 5, clock="epoch")
    assert place(epoch, {}, FIRST, LAST) == Placement(0, *when)


@each_row(
    ("change", "facts", "word"),
    [
        ({"clock": "none"}, FACTS, "does not say when"),
        ({"start_ns": None}, FACTS, "does not say when"),
        ({"duration_s": None}, FACTS, "does not say when"),
        ({}, {}, "does not relate"),
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
    frame = timed_windows(
        bundle, 0, bundle.frame("kernels", 0, ["step", "start_ns", "end_ns"])
    ).steps
    frame = frame.assign(step_us=(frame["finish_ns"] - frame["begin_ns"]) / 1e3)
    runs = read_benchmark(DATA / "vllm-serve-detailed.json").runs
    [row] = clients_of(runs, frame, bundle.facts(0))
    assert (row.basis, row.verdict, row.steps, row.requests) == ("window", "agrees", 98, 6)
    token, chunk, first = row.comparisons
    assert abs(token.difference) < 0.01
    assert abs(chunk.difference) < 0.01
    assert first.client > first.engine, "queueing and HTTP come on top"
    assert "received 196 tokens while the engine generated 196." in " ".join(row.sentences)
    # Over the whole run they do not: what was not recorded took longer.
    assert runs[0].tpot.mean is not None
    assert runs[0].tpot.mean > 1.2 * token.engine
    # The same result without its times is compared by batch size.
    [row] = clients_of(read_benchmark(DATA / "vllm-serve.txt").runs, frame, bundle.facts(0))
    assert (row.basis, row.verdict, row.steps) == ("steps", "slower", 96)
    assert "few long waits" in " ".join(row.sentences), "the median chunk took a step"


@each_row(
    ("tpot", "verdict"),
    [
        (10_000, "agrees"), (10_999, "agrees"), (9_001, "agrees"), (11_001, "slower"),
        (8_999, "faster"), (20_001, "unknown"), (4_999, "unknown"),
    ],
)  # fmt: skip
def test_the_verdict(tpot: float, verdict: str) -> None:
    row = compare(replace(SERVED, tpot=Latency(tpot)))
    assert (row.basis, row.verdict) == ("steps", verdict)
    assert row.comparisons[0].difference == pytest.approx(tpot / 10_000 - 1)
    assert (abs(row.comparisons[0].difference) <= AGREES) == (verdict == "agrees")


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


def test_what_is_compared_of_a_run() -> None:
    alike = compare(replace(SERVED, tpot=Latency(median=10_000.0))).comparisons
    assert [each.statistic for each in alike] == ["median", "mean"]
    per_token = compare(replace(SERVED, itl_per_token=True)).comparisons
    assert "chunk" not in [each.quantity for each in per_token]


@each_row(("prompt", "compared"), [(512, True), (1024, False)])
def test_steps_of_other_prompts_tell_only_about_ones_as_long(prompt: int, compared: bool) -> None:
    frame = steps(*[(10.0, 2, 0, 0, 2.0, 2.0)] * 20, *[(50.0, 1, 1, 512, 1.0, 1.0)] * 3)
    row = compare(replace(SERVED, input_tokens=10 * prompt, completed=10), frame)
    assert row.basis == "steps"
    assert ("first_token" in {each.quantity for each in row.comparisons}) == compared


def test_pauses_of_the_recording_are_no_time_of_the_api_server() -> None:
    """Forty steps of 10 ms, and 100 ms before every tenth in which a piece was written."""
    paused = [100 if number and number % 10 == 0 else 0 for number in range(40)]
    frame = steps(*[(10, 2, 0, 0, 2, 2)] * 40)
    shift = pd.Series(paused).cumsum() * MS
    frame = frame.assign(paused_ns=[ms * MS for ms in paused])
    frame = frame.assign(begin_ns=frame["begin_ns"] + shift, finish_ns=frame["finish_ns"] + shift)
    gaps = [float(10 + ms) for ms in paused]
    base = ORIGIN - 10 * MS
    requests = tuple(replace(request(0, 10, gaps), start_ns=base) for _ in range(2))
    run = BenchmarkRun(
        "tool", clock="epoch", start_ns=base, duration_s=1.0, requests=requests, completed=2
    )
    [row] = clients_of([run], frame, {})
    [token, *_] = [each for each in row.comparisons if each.quantity == "output_token"]
    assert row.basis == "window"
    assert token.engine == pytest.approx(17.5e3, rel=0.01)
    assert row.verdict == "agrees"
    assert any("7.50 ms per token in which it stood still" in text for text in row.sentences)
    [bare] = clients_of([run], frame.assign(paused_ns=0), {})
    assert bare.verdict == "slower"


USUAL_STEPS = [(16.0, 4, 0, 0, 4.0, 4.0)] * 60
LONG = [(900.0, 4, 0, 0, 4.0, 4.0)] * 2
"""Two steps of the engine that stood still; every client waited for them."""


def served(frame: pd.DataFrame) -> BenchmarkRun:
    """Four clients that got a token at the end of every step, by the recording's own clock."""
    gaps = frame["ms"].tolist()
    first, rest = float(gaps[0]), [float(gap) for gap in gaps[1:]]
    made = tuple(request(0, first, rest) for _ in range(4))
    made = tuple(replace(each, start_ns=ORIGIN) for each in made)
    length = float(frame["ms"].sum()) / 1e3
    mean = 1e3 * sum(rest) / len(rest)
    return BenchmarkRun(
        "tool", concurrency=4, start_ns=ORIGIN, clock="epoch", duration_s=length + 1e-3,
        requests=made, tpot=Latency(mean, median=16_000.0),
    )  # fmt: skip


def test_long_steps_are_on_both_sides_of_the_same_stretch_of_time() -> None:
    frame = steps(*USUAL_STEPS, *LONG, *USUAL_STEPS)
    row = compare(served(frame), frame)
    assert (row.basis, row.verdict) == ("window", "agrees")
    assert abs(row.comparisons[0].difference) < 0.02
    said = " ".join(row.sentences)
    assert "2 steps of up to 900 ms" in said
    assert "API server" not in said


@each_row(
    ("tpot", "verdict", "statistic"),
    [
        (Latency(mean=30_300.0, median=16_000.0), "agrees", "median"),
        (Latency(mean=30_300.0), "unknown", "mean"),
        (Latency(mean=16_100.0), "unknown", "mean"),
        (Latency(mean=45_000.0), "unknown", "mean"),
    ],
)
def test_long_steps_that_only_one_side_may_have(
    tpot: Latency, verdict: str, statistic: str
) -> None:
    """Another stretch of time: medians beside medians, and without them no guess."""
    frame = steps(*USUAL_STEPS, *LONG, *USUAL_STEPS)
    row = compare(replace(SERVED, concurrency=4, tpot=tpot, itl=Latency()), frame)
    assert row.basis == "steps"
    token = row.comparisons[0]
    assert (row.verdict, token.statistic) == (verdict, statistic)
    if verdict == "unknown":
        assert "API server" not in " ".join(row.sentences)
