"""Every format is recognised by its content and read; damaged results are read or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_prof.analyzers.clients.client_comparison import clients_of
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks import read
from spark_prof.traces.benchmarks.json_dialects import JSON_DIALECTS, JsonDialect
from spark_prof.traces.benchmarks.load_test import BenchmarkRun, client_frames, imported_runs
from spark_prof.traces.benchmarks.read import TEXT_DIALECTS, TextDialect, read_benchmark, recognise
from spark_prof.traces.bundle import Bundle, Meta, TableFiles
from spark_prof.traces.tables import TABLES
from tests.analyzers.clients.test_clients import ORIGIN, steps
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data" / "benchmarks"
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
    "sglang-one-batch.jsonl": "sglang bench_one_batch_server",
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


def test_the_requests_of_every_format_that_has_them() -> None:
    """The figures of the runs themselves are in tests/golden."""
    native, openai = runs("sglang.jsonl")
    answered, refused = openai.requests
    assert (answered.chunks, answered.failed, refused.failed) == (3, False, True)
    assert native.itl_per_token
    [guidellm] = runs("guidellm.json")
    assert (guidellm.clock, guidellm.start_ns) == ("epoch", 1_760_000_000_500_000_000)
    assert [r.tpot_us for r in guidellm.requests] == pytest.approx([500_000 / 32] * 2)
    [aiperf] = runs("aiperf-records.jsonl")
    assert aiperf.start_ns == 1759813207532900363, "every digit"
    assert [r.tpot_us for r in aiperf.requests[:2]] == pytest.approx([90_000 / 6, 48_000 / 4])
    [summary] = runs("aiperf.json")
    assert summary.start_ns == 1759813207_500_000_000
    [throughput] = runs("vllm-throughput.txt")
    assert (throughput.input_tokens, throughput.output_tokens) == (96, 96)
    for name, off in (("vllm-latency.json", 1e-6), ("vllm-latency.txt", 1e-3)):
        [latency] = runs(name)
        assert latency.e2e.mean == pytest.approx(129_231.9, rel=off), name


@each_row(
    ("unit", "us"),
    [("ns", 0.001), ("us", 1), ("µs", 1), ("ms", 1000), ("s", 1e6), ("sec", 1e6), ("h", None)],
)
def test_every_unit_of_aiperf(unit: str, us: float | None, tmp_path: Path) -> None:
    result = json.loads((DATA / "aiperf.json").read_text())
    result["time_to_first_token"] |= {"unit": unit, "avg": 8.0}
    path = tmp_path / "file"
    path.write_text(json.dumps(result))
    [run] = read_benchmark(path).runs
    assert run.ttft.mean == (pytest.approx(8 * us) if us else None)


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


def test_a_table_that_lost_its_empty_cells_when_it_was_pasted(tmp_path: Path) -> None:
    path = tmp_path / "post.txt"
    path.write_text(
        "Look at this:\nmodel test t/s peak t/s ttfr (ms) est_ppt (ms) e2e_ttft (ms)\n"
        "m/x\tpp2048\t2700.50 ± 12.10\t760.20 ± 3.40\t758.10 ± 3.40\t762.30 ± 3.50\n"
        "m/x\ttg32\t35.20 ± 0.10\t36.00 ± 0.00\n"
    )
    [run] = read_benchmark(path).runs
    # A TTFT taken from another column would be a speed.
    assert (run.model, run.label, run.ttft.mean) == ("m/x", "pp2048, tg32", 762_300)
    assert run.tpot.mean == pytest.approx(1e6 / 35.2)


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


STEPS = steps(*[(10.0, 2, 0, 0, 2.0, 2.0)] * 20)
FACTS = {"time_ns": ORIGIN, "monotonic_ns": 23_349_000_000_000}
"""So that the runs of vLLM's real result overlap with the steps."""


def survives(path: Path) -> None:
    """Reads a file as an import would."""
    recognise(path)
    refusal = ""
    try:
        result = read_benchmark(path)
        assert result.runs
        for table, frame in client_frames(result, 0).items():
            schema = TABLES[table].schema
            assert pa.Table.from_pandas(frame, schema, preserve_index=False).num_rows == len(frame)
        clients_of(result.runs, STEPS, FACTS)
    except CommandError as error:
        refusal = str(error)
    assert "\n" not in refusal


@each_row(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\x00" * 100, b'{"a": 1}', b"[" * 100_000, b"PK\x03\x04",
        b'{"traceEvents": []}', b"\xff" * 1000,
        b'{"latency_mode": "api", "benchmarks": []}',
        b'{"request_throughput": 1, "total_token_throughput": 1}\n{"request_throughput": 1',
    ],
)  # fmt: skip
def test_files_that_are_no_result(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=str(path)):
        read_benchmark(path)


@each_row(
    "field",
    [
        '"model_id": "\\ud800", "mean_itl_ms": NaN', '"date": "99991231-235959"',
        '"duration": 1e308, "start_times": [1e308], "ttfts": [1e308]', '"max_concurrency": -1',
        '"duration": 1e14, "start_times": [23348.0], "ttfts": [0.1], "itls": [[1e9]]',
        '"itls": [[-1, 0, 1e300]], "ttfts": [1]', '"start_times": [0, -1, null], "errors": [null]',
        '"ttfts": [0.1], "output_lens": [0], "itls": [[]], "start_times": [23349.0]',
        '"completed": "many"', f'"completed": 1{"0" * 60}', '"ttfts": [[0.1], "x"], "itls": 3',
    ],
)  # fmt: skip
def test_figures_that_nobody_measured(field: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f'{{"request_throughput": 1, "total_token_throughput": 1, {field}}}')
    survives(path)
    assert read_benchmark(path).runs


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nosuch"):
        assert recognise(path) is None
        with pytest.raises(CommandError, match="cannot read"):
            read_benchmark(path)


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LARGEST", 1000)
    with pytest.raises(CommandError, match="larger"):
        read_benchmark(DATA / "vllm-serve-detailed.json")


@each_row("name", FILES)
def test_a_round_trip(name: str, tmp_path: Path) -> None:
    result = read_benchmark(DATA / name)
    with TableFiles(tmp_path) as files:
        for table, frame in client_frames(result, 0).items():
            files.add(table, 0, frame)
    meta = Meta(1, "0", "complete", (), "2026-11-21T00:00:00+00:00", "import", tables=files.rows)
    meta.write(tmp_path)
    expected = tuple(
        replace(run, requests=tuple(replace(r, gaps_us=()) for r in run.requests))
        for run in result.runs
    )
    assert imported_runs(Bundle(tmp_path)) == expected


def test_a_second_result_goes_on_counting() -> None:
    result = read_benchmark(DATA / "vllm-serve-detailed.json")
    frames = client_frames(result, first_run=7)
    assert frames["clients"]["run"].tolist() == [7]
    assert set(frames["requests"]["run"]) == {7}


def test_a_batch_of_sglang_is_read_as_its_requests() -> None:
    first, second = runs("sglang-one-batch.jsonl")
    assert (first.concurrency, first.completed, first.output_tokens) == (16, 16, 16 * 2048)
    assert (first.output_throughput, first.ttft.mean, first.e2e.mean) == (3900.0, 170_000, 8.5e6)
    assert first.tpot.mean == pytest.approx(1e6 * 16 / 3900)
    assert (first.acceptance_length, second.acceptance_length) == (None, 2.5)
