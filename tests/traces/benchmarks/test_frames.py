"""A result goes into a bundle's tables and comes back as it was, but for the single gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spark_prof.traces.benchmarks.frames import client_frames, imported_runs
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.bundle import Bundle, Meta
from spark_prof.traces.table_files import TableFiles
from tests.rows import each_row

from .test_read import DATA, FILES


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
