"""Damaged results are read or refused with one line; never anything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_prof.analyzers.clients.client_comparison import clients_of
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks import read
from spark_prof.traces.benchmarks.load_test import client_frames, imported_runs
from spark_prof.traces.benchmarks.read import read_benchmark, recognise
from spark_prof.traces.bundle import Bundle, Meta, TableFiles
from spark_prof.traces.tables import TABLES
from tests.analyzers.clients.test_clients import ORIGIN, steps
from tests.rows import each_row

from .test_read import DATA, FILES

CASES = 60
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


def test_a_bundle_without_them_has_no_runs() -> None:
    assert imported_runs(Bundle(DATA / "vllm-serve-bundle")) == ()


def test_a_second_result_goes_on_counting() -> None:
    result = read_benchmark(DATA / "vllm-serve-detailed.json")
    frames = client_frames(result, first_run=7)
    assert frames["clients"]["run"].tolist() == [7]
    assert set(frames["requests"]["run"]) == {7}
