"""Every format is recognised by its content and read with its own definitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.json_dialects import JSON_DIALECTS, JsonDialect
from spark_prof.traces.benchmarks.load_test import BenchmarkRun
from spark_prof.traces.benchmarks.read import TEXT_DIALECTS, TextDialect, read_benchmark, recognise
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data" / "benchmarks"
SEEDS = Path(__file__).parents[4] / "shared" / "seeds"
FILES = {
    "vllm-serve-detailed.json": "vllm bench serve",
    "vllm-serve-appended.jsonl": "vllm bench serve",
    "vllm-serve.txt": "printed serving result",
    "vllm-latency.json": "vllm bench latency",
    "vllm-latency.txt": "printed offline result",
    "vllm-throughput.json": "vllm bench throughput",
    "vllm-throughput.txt": "printed offline result",
    "vllm-log.txt": "vLLM log",
    "vllm-spec-log.txt": "vLLM log",
    "sglang.jsonl": "sglang bench_serving",
    "sglang.txt": "printed serving result",
    "llama-benchy.json": "llama-benchy",
    "llama-benchy.md": "llama-benchy table",
    "guidellm.json": "guidellm",
    "aiperf.json": "aiperf summary",
    "aiperf-records.jsonl": "aiperf records",
    "genai-perf.json": "genai-perf summary",
}


def runs(name: str) -> tuple[BenchmarkRun, ...]:
    return read_benchmark(DATA / name).runs


@each_row("known", [*JSON_DIALECTS, *TEXT_DIALECTS])
def test_each_rule_recognises_its_example(tmp_path: Path, known: JsonDialect | TextDialect) -> None:
    path = tmp_path / "file"
    path.write_text(known.example, encoding="utf-8")
    assert recognise(path) == known.name


def test_every_file_of_the_folder_is_tested() -> None:
    files = {path.name for path in DATA.iterdir() if path.is_file()}
    assert files == {*FILES, "README.md"}


@each_row(("name", "kind"), FILES.items())
def test_files_are_recognised_and_read(name: str, kind: str) -> None:
    assert recognise(DATA / name) == kind
    assert runs(name)


def test_a_detailed_result_of_vllm_agrees_with_its_own_statistics() -> None:
    [run] = runs("vllm-serve-detailed.json")
    assert (run.concurrency, run.completed, run.failed, run.clock) == (2, 8, 0, "monotonic")
    tpot = [r.tpot_us for r in run.requests if r.tpot_us is not None]
    assert run.tpot.mean == pytest.approx(sum(tpot) / len(tpot))
    assert run.ttft.mean == pytest.approx(sum(r.ttft_us or 0 for r in run.requests) / 8)
    assert run.tokens_per_chunk == 1
    for request in run.requests:
        assert request.chunks == len(request.gaps_us) + 1 == request.output_tokens == 48
        assert request.ttft_us is not None
        assert request.e2e_us == pytest.approx(request.ttft_us + sum(request.gaps_us), abs=1000)


def test_what_vllm_prints_is_what_it_writes() -> None:
    [printed], [written] = runs("vllm-serve.txt"), runs("vllm-serve-detailed.json")
    assert printed.output_throughput == pytest.approx(written.output_throughput, abs=0.01)
    assert (printed.completed, printed.output_tokens) == (8, written.output_tokens)
    for name in ("ttft", "tpot", "itl", "e2e"):
        for figure in ("mean", "median", "p90", "p99"):
            given, exact = (
                getattr(getattr(printed, name), figure),
                getattr(getattr(written, name), figure),
            )
            assert given == pytest.approx(exact, abs=10), (name, figure)


def test_the_same_of_latency_and_throughput() -> None:
    [printed], [written] = runs("vllm-latency.txt"), runs("vllm-latency.json")
    assert printed.e2e.mean == pytest.approx(written.e2e.mean)
    assert printed.e2e.p99 == pytest.approx(written.e2e.p99)
    [printed], [written] = runs("vllm-throughput.txt"), runs("vllm-throughput.json")
    assert printed.total_throughput == pytest.approx(written.total_throughput, abs=0.01)
    assert (printed.input_tokens, printed.output_tokens) == (96, 96)


def test_appended_results_are_runs_of_their_own() -> None:
    first, second = runs("vllm-serve-appended.jsonl")
    assert (first.request_rate, second.request_rate) == (None, 8.0)
    assert (second.label, second.concurrency, second.acceptance_length) == ("second", 4, 2.4)
    assert first.requests == ()


def test_sglang_s_own_endpoint_has_an_itl_per_token() -> None:
    native, openai = runs("sglang.jsonl")
    assert native.itl_per_token
    assert not openai.itl_per_token
    answered, refused = openai.requests
    assert (answered.chunks, answered.failed, refused.failed) == (3, False, True)
    assert native.mean_concurrency == 6.4
    [printed] = runs("sglang.txt")
    assert printed.itl_per_token
    assert (printed.acceptance_length, printed.concurrency) == (2.5, None)


def test_llama_benchy_has_no_tpot_but_its_speed_s_inverse() -> None:
    one, two = runs("llama-benchy.json")
    assert one.tpot.derived
    assert one.tpot.mean == pytest.approx((1e6 / 80 + 1e6 / 100) / 2)
    assert one.ttft.mean == pytest.approx(180_000), "the first token, not the first response"
    assert two.tpot.mean == pytest.approx((1e6 / 50 + 1e6 / 75) / 2), "of one request, not of all"
    assert two.output_throughput == 120


def test_llama_benchy_s_table_is_its_report() -> None:
    one, two, context = runs("llama-benchy.md")
    assert (one.label, two.label) == ("pp512, tg32", "pp512, tg32 @ d4096")
    assert (one.concurrency, two.concurrency) == (1, 2)
    assert one.tpot.mean == pytest.approx(1e6 / 90)
    assert two.tpot.mean == pytest.approx(1e6 / 62.5)
    assert two.ttft.mean == pytest.approx(210_000)
    assert (context.label, context.tpot.mean) == ("ctx_pp @ d4096", None)


def test_guidellm_s_inter_token_latency_is_the_tpot() -> None:
    [run] = runs("guidellm.json")
    assert run.tpot.mean == pytest.approx(15_000)
    assert not run.itl.known
    assert (run.clock, run.start_ns) == ("epoch", 1_760_000_000_500_000_000)
    assert [r.tpot_us for r in run.requests] == pytest.approx([500_000 / 32] * 2)
    assert run.tokens_per_chunk == pytest.approx(33 / 17)


def test_aiperf_s_records() -> None:
    [run] = runs("aiperf-records.jsonl")
    assert (run.completed, run.failed) == (2, 1), "without the warm-up"
    assert run.start_ns == 1759813207532900363, "every digit"
    assert [r.tpot_us for r in run.requests[:2]] == pytest.approx([90_000 / 6, 48_000 / 4])
    assert run.tokens_per_chunk == pytest.approx(12 / 7)
    assert run.itl.mean == pytest.approx(27_600)
    assert run.tpot.derived


def test_the_unit_tells_what_a_figure_of_genai_perf_is() -> None:
    [old], [new] = runs("genai-perf.json"), runs("aiperf.json")
    assert (old.tool, new.tool) == ("genai-perf", "aiperf")
    assert old.e2e.mean == pytest.approx(new.e2e.mean)
    assert (old.concurrency, new.concurrency) == (4, 4)
    assert new.start_ns == 1759813207_500_000_000
    assert new.itl.mean == 2 * (new.tpot.mean or 0)


@each_row(
    "config",
    [
        {"loadgen": {"concurrency": 4}},
        {"phases": {"profiling": {"concurrency": 4}}},
        {"perf_analyzer": {"stimulus": {"concurrency": 4}}},
        {"concurrency": 4},
    ],
)
def test_every_place_of_aiperf_s_concurrency(config: dict[str, object], tmp_path: Path) -> None:
    value = json.loads((DATA / "aiperf.json").read_text()) | {"input_config": config}
    path = tmp_path / "file"
    path.write_text(json.dumps(value))
    assert read_benchmark(path).runs[0].concurrency == 4


def test_lines_of_vllm_s_log() -> None:
    first, second = runs("vllm-spec-log.txt")
    assert first.tpot.median == pytest.approx(1e6 * 55 / 220), "of lines without prompt tokens"
    assert first.tpot.derived
    assert first.acceptance_length == 2.4
    assert second.label.startswith("engine 001")
    [idle] = runs("vllm-log.txt")
    assert not idle.tpot.known


@pytest.mark.skipif(not SEEDS.is_dir(), reason="../shared/seeds is not there")
@each_row(
    ("prefix", "tools", "count"),
    [
        ("000", {"vllm bench serve", "llama-benchy"}, 11),
        ("001", {"llama-benchy", "vLLM's log"}, 25),
        ("002", {"vllm bench serve"}, 4),
        ("003", {"llama-benchy"}, 6),
    ],
)
def test_what_people_pasted(prefix: str, tools: set[str], count: int) -> None:
    [path] = SEEDS.glob(f"{prefix}_*.txt")
    found = read_benchmark(path).runs
    assert {run.tool for run in found} == tools
    assert len(found) == count
    benchy = [run for run in found if run.tool == "llama-benchy"]
    assert all(run.ttft.mean and run.tpot.mean for run in benchy)
    # Pasting lost the empty cells: a TTFT taken from another column would be a speed.
    assert all(10_000 < (run.ttft.mean or 0) < 2e7 for run in benchy)


def test_a_file_with_nan_and_a_byte_order_mark(tmp_path: Path) -> None:
    value = json.loads((DATA / "vllm-serve-detailed.json").read_text())
    value["mean_itl_ms"] = float("nan")
    value["p99_itl_ms"] = float("inf")
    value["mean_tpot_ms"] = -3.0
    path = tmp_path / "result.json"
    path.write_text("\ufeff" + json.dumps(value), encoding="utf-8")
    [run] = read_benchmark(path).runs
    assert (run.itl.mean, run.itl.p99, run.tpot.mean) == (None, None, None)
    assert run.ttft.mean


def test_raw_responses_name_the_file_to_give(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.json"
    path.write_text('{"experiments": [{"requests": [{"response_timestamps": [1]}]}]}')
    with pytest.raises(CommandError, match="genai_perf"):
        read_benchmark(path)
