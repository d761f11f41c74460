"""Whether client and engine agree: on a real run, and on what a simulated server did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.clients.model import BASES, VERDICTS, ClientRow
from spark_prof.analyzers.clients.summary import AGREES, clients_of
from spark_prof.analyzers.overhead import Overhead
from spark_prof.analyzers.windows import step_windows
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.benchmarks.result import BenchmarkRun, Latency
from spark_prof.traces.bundle import Bundle
from tests.rows import each_row

from .test_sides import steps

DATA = Path(__file__).parents[2] / "data" / "benchmarks"
DECODE = steps(*[(10.0, 2, 0, 0, 2.0, 2.0)] * 20)
RUN = BenchmarkRun(
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
    row = compare(replace(RUN, tpot=Latency(tpot)))
    assert (row.basis, row.verdict) == ("steps", verdict)
    assert row.comparisons[0].difference == pytest.approx(tpot / 10_000 - 1)
    assert (abs(row.comparisons[0].difference) <= AGREES) == (verdict == "agrees")


def test_a_median_is_said_to_be_one() -> None:
    row = compare(replace(RUN, tpot=Latency(median=10_000.0)))
    assert [c.statistic for c in row.comparisons] == ["median", "mean"]


@each_row(
    ("run", "frame", "word"),
    [
        (replace(RUN, concurrency=64), DECODE, "64 in flight"),
        (replace(RUN, concurrency=None), steps(*[(10.0, n, 0, 0, n, n) for n in range(1, 9)]),
         "how many requests"),
        (RUN, steps((10.0, 0, 1, 128, 1.0, 1.0)), "No recorded step decodes"),
        (RUN, steps(), "No recorded step decodes"),
        (replace(RUN, tpot=Latency(), itl=Latency(), ttft=Latency()), DECODE, "no time per output"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said(run: BenchmarkRun, frame: object, word: str) -> None:
    row = compare(run, frame)
    assert (row.basis, row.verdict, row.comparisons) == ("none", "unknown", ())
    assert word in " ".join(row.sentences)


def test_steps_of_one_size_need_no_concurrency() -> None:
    row = compare(replace(RUN, concurrency=None))
    assert row.verdict == "agrees"
    assert "does not say how many" in " ".join(row.sentences)


def test_what_watching_cost_is_said() -> None:
    cost = Overhead(2, 1.25, 1.2, 1.3, 4, 12_500.0, 10_000.0, 1.1)
    assert "1.250 times" in " ".join(compare(RUN, DECODE, cost).sentences)
    assert "times as long" not in " ".join(compare(RUN).sentences)


def test_chunks_and_tokens_are_told_apart() -> None:
    speculative = replace(RUN, itl=Latency(25_000))
    assert "2.38 times TPOT" in " ".join(compare(speculative).sentences)
    known = replace(speculative, tokens_per_chunk=2.4)
    assert "holds 2.40 tokens" in " ".join(compare(known).sentences)


def test_an_itl_per_token_is_not_compared_with_a_step() -> None:
    quantities = [c.quantity for c in compare(replace(RUN, itl_per_token=True)).comparisons]
    assert "chunk" not in quantities


def test_the_run_s_own_notes_are_kept() -> None:
    assert compare(replace(RUN, notes=("A note.",))).sentences[-1] == "A note."
