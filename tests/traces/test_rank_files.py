"""Which traces of a folder are the ranks of one run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from spark_prof.traces.rank_files import InWorld, apart_by_name, one_run, world_of
from tests.rows import each_row

Told = tuple[int, int] | None


def trace(path: Path, told: Told, **more: object) -> Path:
    """A trace whose head tells a rank of so many, or nothing."""
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}]}
    if told:
        groups = [{"pg_name": "0", "pg_size": 9, "ranks": [0, 7]}]
        told_of = {"backend": "nccl", "rank": told[0], "world_size": told[1], "pg_config": groups}
        head["distributedInfo"] = told_of  # type: ignore[assignment]
    path.write_bytes(gzip.compress(json.dumps(head | {"traceEvents": []} | more).encode()))
    return path


@each_row(
    ("names", "one"),
    [
        (["rank0.json.gz", "rank1.json.gz"], True),
        (["h_123.456.rank0.json", "h_124.457.rank3.json"], True),
        (["bs16-TP-0.trace.json.gz", "bs16-TP-1.trace.json.gz"], True),
        (["1-TP-0-DP-0.json", "1-TP-1-DP-0.json", "1-TP-0-DP-1.json", "1-TP-1-DP-1.json"], True),
        (["dp0_pp0_tp0_rank0.json.gz", "dp1_pp0_tp0_rank0.json.gz"], True),
        (["worker0_step_12.1.pt.trace.json.gz", "worker1_step_12.2.pt.trace.json.gz"], True),
        (["monday_rank0.json.gz", "tuesday_rank0.json.gz"], False),
        (["tp2.json.gz", "tp4.json.gz"], False),  # sizes
        (["rank0_tp2.json.gz", "rank0_tp4.json.gz"], False),
        (["bs1-TP-0.json.gz", "bs16-TP-0.json.gz"], False),
        (["rank0.json.gz", "other.json.gz"], False),
        (["trace_1.json.gz", "trace_2.json.gz"], False),  # windows, or whatever
        (["http_1.json", "dump-2.json"], False),
    ],
)
def test_names(names: list[str], one: bool) -> None:
    assert apart_by_name(names) is one


@each_row(
    ("files", "one"),
    [
        ({"a.json.gz": (0, 2), "b.json.gz": (1, 2)}, True),
        ({"a.json.gz": (5, 8), "b.json.gz": (3, 8)}, True),  # others are missing
        ({"a.json.gz": (0, 2), "b.json.gz": (0, 2)}, False),
        ({"rank0.json.gz": (0, 2), "rank1.json.gz": (1, 4)}, False),  # what they hold counts
        ({"a.json.gz": (0, 1), "b.json.gz": (0, 1)}, False),
        ({"dp0_rank0.json.gz": (0, 1), "dp1_rank0.json.gz": (0, 1)}, True),  # replicas
        ({"a.json.gz": (0, 2), "b.json.gz": None}, False),
        ({"rank0.json.gz": (0, 2), "rank1.json.gz": None}, True),
        ({"a.json.gz": None, "b.json.gz": None}, False),
    ],
)
def test_what_they_hold(tmp_path: Path, files: dict[str, Told], one: bool) -> None:
    for name, told in files.items():
        trace(tmp_path / name, told)
    assert one_run(list(files), tmp_path) is one


def test_captures_of_any_name_belong_to_their_trace(tmp_path: Path) -> None:
    capture = [{"ph": "X", "name": "cudaStreamBeginCapture", "ts": 1, "dur": 1}]
    trace(tmp_path / "rank0.json.gz", (0, 1))
    trace(tmp_path / "rank0-bs1.json.gz", (0, 1), traceEvents=capture)
    assert one_run(["rank0.json.gz", "rank0-bs1.json.gz"], tmp_path)


def test_a_file_that_is_cut_off_is_for_its_reader_to_tell(tmp_path: Path) -> None:
    whole = trace(tmp_path / "a.json.gz", None, filler=list(range(50_000)))
    (tmp_path / "b.json.gz").write_bytes(whole.read_bytes()[:900])
    assert not one_run(["a.json.gz", "b.json.gz"], tmp_path)


def test_a_head_that_tells_nothing(tmp_path: Path) -> None:
    assert world_of(trace(tmp_path / "a.gz", (3, 8))) == InWorld(3, 8)
    assert world_of(trace(tmp_path / "b.gz", None)) is None
    (tmp_path / "c.gz").write_bytes(b"\x1f\x8bbroken")
    assert world_of(tmp_path / "c.gz") is None
