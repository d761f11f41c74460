"""Records that cannot be are left out and told; those that only look so stay."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summarize
from spark_prof.errors import CommandError
from spark_prof.importers.sources import open_source
from tests.nsys_files import Export
from tests.rows import each_row

YEAR_US = 365 * 86_400 * 1_000_000
START = 5_901_697_101_000.0


@dataclass(frozen=True)
class K:
    """A kernel; times in us."""

    ts: Any
    dur: Any = 10
    stream: int = 7
    name: str = "volta_sgemm_64x64_tn"
    launched: float | None = None  # None for one without a launch
    number: int = -1  # of its launch; by default its place
    node: int = 0
    device: int = 0
    cat: str = "kernel"


def queue(count: int = 50, period: float = 12, dur: float = 10, **same: Any) -> list[K]:
    """Kernels of one stream, one after another, each launched 1 ms before it runs."""
    starts = [START + period * place for place in range(count)]
    return [K(ts, dur, launched=ts - 1000, **same) for ts in starts]


def trace(kernels: Sequence[K], extra: Sequence[dict[str, Any]] = (), launch: str = "") -> str:
    events: list[dict[str, Any]] = []
    numbers: set[int] = set()
    for place, k in enumerate(kernels, 2):
        number = place if k.number < 0 else k.number
        if k.launched is not None and number not in numbers:
            numbers.add(number)
            events.append({
                "ph": "X", "cat": "cuda_runtime", "name": launch or "cudaLaunchKernel", "pid": 1,
                "tid": 1, "ts": k.launched, "dur": 2, "args": {"correlation": number},
            })  # fmt: skip
        args = {"device": k.device, "stream": k.stream, "correlation": number,
                "grid": [264, 1, 1], "block": [128, 1, 1]}  # fmt: skip
        if k.node:
            args["graph node id"] = k.node
        events.append({"ph": "X", "cat": k.cat, "name": k.name, "pid": k.device, "tid": k.stream,
                       "ts": k.ts, "dur": k.dur, "args": args})  # fmt: skip
    gpu = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
    return json.dumps({"deviceProperties": [gpu], "traceEvents": [*events, *extra]})


def reported(folder: Path, text: str) -> Report:
    path = folder / "trace.json"
    path.write_text(text)
    with open_source(path) as bundle:
        return summarize(bundle)  # whole, while the import is there


def left_out(report: Report) -> str:
    return " ".join(note for note in report.notes if "impossible records:" in note)


def at(kernels: list[K], place: int, **changed: Any) -> list[K]:
    return [replace(k, **changed) if n == place else k for n, k in enumerate(kernels)]


@pytest.mark.slow
@each_row(
    ("place", "changed", "why"),
    [
        (10, {"ts": 0}, "an hour"),
        (10, {"ts": 0, "launched": None}, "an hour"),
        (10, {"ts": -5}, "an hour"),
        (10, {"ts": START - 2_000_000}, "before the launch"),
        (10, {"ts": START + YEAR_US}, "an hour"),
        (10, {"ts": START - YEAR_US}, "an hour"),
        (10, {"ts": START + 60_000_000}, "long after"),
        (10, {"dur": -3}, "usable"),
        (10, {"dur": None}, "usable"),
        (10, {"ts": None}, "usable"),
        (10, {"ts": "soon"}, "usable"),
        (10, {"ts": 1e30}, "usable"),
        (10, {"ts": float("nan")}, "usable"),
        (10, {"dur": float("inf")}, "usable"),
        (10, {"dur": 9e12}, "an hour"),
        (10, {"dur": 400}, "duration over several"),
        (10, {"ts": START + 120 - 60, "dur": 70}, "duration over several"),
        (10, {"dur": 400, "name": "the_only_one"}, "duration over several"),
        (49, {"dur": 9e12}, "an hour"),
        (0, {"ts": 0}, "an hour"),
    ],
)  # fmt: skip
def test_one_of_fifty_is_left_out_and_told(
    tmp_path: Path, place: int, changed: dict[str, Any], why: str
) -> None:
    report = reported(tmp_path, trace(at(queue(), place, **changed)))
    assert sum(row.calls for row in report.kernels) == 49
    assert sum(row.us for row in report.kernels) == pytest.approx(490)
    assert (report.wall_us or 1e9) <= 598
    assert "1 of 50 kernels and copies (2.0 %)" in left_out(report)
    assert why in left_out(report)


@each_row("by", [-3_000_000, -20_000])
def test_a_clock_that_is_set_back_keeps_the_larger_part(tmp_path: Path, by: int) -> None:
    kernels = [replace(k, ts=k.ts + by) if n >= 70 else k for n, k in enumerate(queue(100))]
    report = reported(tmp_path, trace(kernels))
    assert "30 of 100" in left_out(report)
    assert "clock was set" in left_out(report)
    assert (report.wall_us or 1e9) <= 12 * 70
    # The host's clock: launches are set forward.
    kernels = [
        replace(k, launched=(k.launched or 0) - by, ts=k.ts) if n >= 30 else k
        for n, k in enumerate(queue(100))
    ]
    assert "30 of 100" in left_out(reported(tmp_path, trace(kernels)))


@pytest.mark.slow
@each_row("seed", range(6))
def test_every_planted_overrun_is_found_and_nothing_else(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    kernels, now = [], START
    for n in range(200):
        dur = chosen.choice((2, 5, 10, 60))
        kernels.append(K(now, dur, name=f"k{n % 7}", launched=now - 500))
        now += dur + chosen.choice((-1, 0, 1, 5))  # some begin while the one before ends
    planted = chosen.sample(range(190), chosen.randint(1, 12))
    for n in planted:
        kernels[n] = replace(kernels[n], dur=chosen.choice((2_000, 50_000, 10_000_000)))
    report = reported(tmp_path, trace(kernels))
    assert f"{len(planted)} of 200" in left_out(report), planted
    assert sum(row.calls for row in report.kernels) == 200 - len(planted)


def test_what_the_trace_has_twice_counts_once(tmp_path: Path) -> None:
    kernels = queue()
    again = replace(kernels[20], number=22)
    report = reported(tmp_path, trace([*kernels, again]))
    assert sum(row.us for row in report.kernels) == pytest.approx(500)
    assert "1 of 51" in left_out(report)
    assert "twice" in left_out(report)


GRAPH = "cudaGraphLaunch"
BRANCH = [
    K(START + 100 * lap + 10 * n, 80 if n == 0 else 8, launched=START + 100 * lap - 1000,
      number=100 + lap, node=1 + n, name="shared_experts" if n == 0 else f"small_{n}")
    for lap in range(40) for n in range(9)
]  # fmt: skip
"""A branch of each graph runs beside eight kernels, all with the stream's number of the launch."""
HIDDEN = [K(k.ts - 4, k.dur, launched=k.launched) for k in queue(50, 10, 13)]
TWO_PROCESSES = sorted(
    [*queue(60, 100, 90, name="a"), *(replace(k, ts=k.ts + 37, name="b", launched=None)
                                      for k in queue(240, 25, 20))],
    key=lambda k: k.ts,
)  # fmt: skip


@pytest.mark.slow
@each_row(
    ("kernels", "launch"),
    [
        # A programmatic dependent launch: each begins before the one before it has ended.
        (HIDDEN, ""),
        # Another stream, another GPU.
        ([*queue(), K(START, 500, stream=8, launched=START - 900)], ""),
        ([*queue(), K(START, 500, device=1, launched=START - 900)], ""),
        (BRANCH, GRAPH),
        # Numbers of streams that two processes both have.
        (TWO_PROCESSES, ""),
        # Long by itself, with nothing in it.
        (at(queue(), 49, dur=5000), ""),
        # Two calls of one graph each, in which time is whole microseconds.
        ([K(START + n, 1 if n % 4 else 4, launched=START - 50) for n in range(4)], ""),
        # Before the host's first call: launched before the profiler began.
        ([K(START - 900_000, launched=None), *queue()], ""),
        # The host runs 20 s ahead.
        ([replace(k, launched=k.ts - 20_000_000) for k in queue()], ""),
        # The GPU's clock is 30 s behind in all of them.
        ([replace(k, launched=k.ts + 30_000_000) for k in queue()], ""),
        # The engine waits for a request for half an hour.
        ([*queue(), *(replace(k, ts=k.ts + 1.8e9, launched=k.ts + 1.8e9 - 50) for k in queue())],
         ""),
        # Durations below the clock's tick.
        ([K(START, 0, launched=START - 5, number=9, name="k") for _ in range(3)], GRAPH),
        ([K(START, 5)], ""),
    ],
)  # fmt: skip
def test_what_can_be_stays(tmp_path: Path, kernels: list[K], launch: str) -> None:
    report = reported(tmp_path, trace(kernels, launch=launch))
    assert not left_out(report)
    assert sum(row.calls for row in report.kernels) == len(kernels)


def test_in_a_graph_a_call_has_to_be_longer_than_others_of_its_kernel(tmp_path: Path) -> None:
    # The same as a branch of the graph, but in one of its replays only.
    kernels = [replace(k, dur=8) for k in BRANCH]
    report = reported(tmp_path, trace(at(kernels, 18, dur=85), launch=GRAPH))
    assert "1 of 360" in left_out(report)


def test_on_amd_a_long_collective_beside_others_of_its_queue_stays(tmp_path: Path) -> None:
    rccl = K(START, 400, launched=START - 1000, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    text = trace([rccl, *queue()], launch="hipLaunchKernel")
    assert not left_out(reported(tmp_path, text))
    text = trace(at(queue(), 10, dur=400), launch="hipLaunchKernel")
    assert "duration over several" in left_out(reported(tmp_path, text))


def test_most_records_impossible_are_refused_in_one_line(tmp_path: Path) -> None:
    kernels = [replace(k, dur=-1) if n < 30 else k for n, k in enumerate(queue())]
    with pytest.raises(CommandError, match=r"cannot be believed; record again .*30 of 50"):
        reported(tmp_path, trace(kernels))


def test_host_records_of_another_time_are_left_out_and_told(tmp_path: Path) -> None:
    stray = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
         "ts": 0, "dur": 2, "args": {"correlation": 999}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 1, "tid": 1,
         "ts": START + YEAR_US, "dur": 2, "args": {}},
        *({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1,
           "ts": START - 1000 + 120 * n, "dur": 119, "args": {}} for n in range(5)),
    ]  # fmt: skip
    report = reported(tmp_path, trace(queue(), stray))
    assert report.steps.count == 5
    assert (report.wall_us or 1e9) < 2000
    assert "2 API calls, ranges and operators left out" in left_out(report)


def test_a_range_that_reaches_over_other_steps_swallows_none(tmp_path: Path) -> None:
    ranges = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1,
         "ts": START - 1000 + 60 * n, "dur": 900_000 if n == 3 else 59, "args": {}}
        for n in range(10)
    ]  # fmt: skip
    report = reported(tmp_path, trace(queue(), ranges))
    assert report.steps.count == 9
    assert "1 ranges of steps reach over several others" in left_out(report)


def test_rows_of_nsys_without_a_time_are_told_and_most_are_refused(tmp_path: Path) -> None:
    for wrong, path in ((1, tmp_path / "few.sqlite"), (6, tmp_path / "most.sqlite")):
        export = Export()
        for n in range(10):
            start = 1_000_000_000 + 12_000 * n
            export.launch(start - 9, n + 1)
            export.kernel("k", start, start + (-5 if n < wrong else 10_000), n + 1)
        export.write(path)
    with open_source(tmp_path / "few.sqlite") as bundle:
        assert "1 of 10 rows of CUPTI_ACTIVITY_KIND_KERNEL" in left_out(summarize(bundle))
    with (
        pytest.raises(CommandError, match="cannot be believed"),
        open_source(tmp_path / "most.sqlite"),
    ):
        pass


def test_a_trace_of_proton_is_looked_at_like_any_other(tmp_path: Path) -> None:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 12.0 * n, "dur": 400.0 if n == 7 else 10.0,
         "pid": 0, "tid": 7, "args": {"call_stack": ["ROOT", "main"]}}
        for n in range(50)
    ]  # fmt: skip
    kernels[20]["dur"] = -1.0
    (tmp_path / "t.chrome_trace").write_text(json.dumps({"traceEvents": kernels}))
    with open_source(tmp_path / "t.chrome_trace") as bundle:
        assert "2 of 50 kernels" in left_out(summarize(bundle))


def test_an_export_of_nsys_is_looked_at_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "export.sqlite"
    export = Export()
    for n in range(50):
        start = 1_000_000_000_000 + 12_000 * n
        end = start + (400_000 if n == 10 else 10_000)
        if n == 20:
            start, end = 0, 10_000
        export.launch(999_999_000_000 + n, n + 1).kernel(f"k{n % 2}", start, end, n + 1)
    export.write(path)
    with open_source(path) as bundle:
        report = summarize(bundle)
    assert sum(row.calls for row in report.kernels) == 48
    assert "2 of 50" in left_out(report)
