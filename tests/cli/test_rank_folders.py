"""A folder of ranks is one run for every command, and a folder of recordings is several."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.explorer.entries import find_entries
from spark_prof.mcp_server.allowed_folders import AllowedFolders
from tests.cli.conftest import Refuses, Run
from tests.support import event, kernel

COMMAND = ""
ALL_REDUCE = "void (anonymous namespace)::all_reduce_two_shot_kernel<__nv_bfloat16, 2u>(Data)"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNN"
STEPS, REDUCED = 6, 3
LATE = 20_000


def rank_trace(folder: Path, name: str, rank: int, world: int | None, late: int = 0) -> None:
    """A trace of some decode steps, each with all-reduces that the second rank stays longer in."""
    events: list[Any] = []
    now = 5_000_000
    for step in range(STEPS):
        begin = 1_000_000 + 420_000 * step
        events.append(event("user_annotation", "step[DECODE bs=4]", begin, begin + 400_000, 1))
        for place in range(REDUCED):
            number = 10 * step + 2 * place + 1
            launch = begin + 10_000 * place
            events += kernel(GEMM, now, now + 25_000, number, launch, tid=1)
            end = now + 26_000 + 6_000 + late
            events += kernel(ALL_REDUCE, now + 26_000, end, number + 1, launch + 5_000, tid=1)
            now = end + 1_000
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}]}
    if world:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    folder.mkdir(exist_ok=True)
    text = json.dumps(head | {"traceEvents": events})
    (folder / name).write_bytes(gzip.compress(text.encode()))


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    """`run` has the two ranks of a run, `part` two of eight, `several` two recordings."""
    for rank in range(2):
        rank_trace(tmp_path / "run", f"bs4-TP-{rank}.trace.json.gz", rank, 2, LATE * rank)
        rank_trace(tmp_path / "part", f"x{rank}.trace.json.gz", 3 * rank, 8)
        rank_trace(tmp_path / "several", f"x{rank}.trace.json.gz", rank, None)


def as_json(run: Run, *words: str) -> Any:
    code, out, said = run(*words, "--format", "json")
    assert code == 0, said
    return json.loads(out)


@pytest.mark.slow
def test_ranks_are_one_run_for_every_command(run: Run, tmp_path: Path) -> None:
    report = as_json(run, "report", "run")
    parallel = {"rank": 0, "ranks": [0, 1], "missing": [], "world": 2}
    assert report["parallel"] == parallel | dict.fromkeys(("tensor", "pipeline", "data"))
    assert [row["rank"] for row in report["ranks"]] == [0, 1]
    assert run("import", "run", "-o", "made")[0] == 0
    for source in ("run", "made"):
        rows = as_json(run, "query", source, "SELECT DISTINCT rank FROM kernels ORDER BY 1")
        assert [row["rank"] for row in rows] == [0, 1]
    assert run("export", "run", "-o", "out", "--format", "csv")[0] == 0
    assert [path.name for path in sorted((tmp_path / "out").glob("steps*"))][1:] != []
    assert len(find_entries(str(tmp_path / "run"))[0]) == 1
    assert "parallel in other ways" not in run("compare", "run", "made")[1]
    code, said, _ = run("compare", "run", "part")
    assert code == 0
    assert "parallel in other ways: 2 ranks against 8 ranks" in " ".join(said.split())
    rows, _ = AllowedFolders.of([tmp_path]).recordings()
    assert {row["recording"] for row in rows} == {
        "made", "run", "part", "several/x0.trace.json.gz", "several/x1.trace.json.gz"
    }  # fmt: skip


def test_collectives_are_matched_and_who_waits_is_told(run: Run) -> None:
    """18 a rank; the second stays 20 us longer in each, and no clock fits both."""
    report = as_json(run, "report", "run")
    found = report["collectives"]
    assert (found["matched"], found["unmatched"]) == (STEPS * REDUCED, 0)
    waits = [row["wait_us"] for row in report["ranks"]]
    assert waits == pytest.approx([0, STEPS * REDUCED * LATE / 1e3])
    assert any("timestamps disagree" in note for note in found["notes"])


def test_what_is_not_matched_stands_beside_waiting(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run" / "bs4-TP-1.trace.json.gz"
    whole = json.loads(gzip.decompress(path.read_bytes()))
    reduced = [e for e in whole["traceEvents"] if e["name"] == ALL_REDUCE]
    whole["traceEvents"].remove(reduced[0])  # of the first step nothing can be matched
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    _, out, _ = run("report", "run", "--section", "ranks")
    assert "Not matched" in out
    assert "of the time in collectives, of which nothing tells how much was waiting" in " ".join(
        out.split()
    )


def test_ranks_that_are_not_here_are_told_first(run: Run) -> None:
    _, out, _ = run("report", "part")
    assert "Rank 0 of 8, rank 3 is here too (--rank); ranks 1 and 2, 4 to 7 are not here" in out
    assert as_json(run, "report", "part")["parallel"]["missing"] == [1, 2, 4, 5, 6, 7]
    _, out, _ = run("report", "part/x0.trace.json.gz")
    assert "Rank 0 of 8; ranks 1 to 7 are not here" in out


@pytest.mark.slow
def test_recordings_are_several_for_every_command(run: Run, refuses: Refuses) -> None:
    assert len(as_json(run, "report", "several")["recordings"]) == 2
    rows = as_json(run, "query", "several", "SELECT DISTINCT bundle FROM bundles")
    assert len(rows) == 2
    for words in ("import several -o whole", "export several -o x.json", "compare several run"):
        assert "holds 2 recordings" in refuses(words)
    assert run("import", "several/x0.trace.json.gz", "several/x1.trace.json.gz", "-o", "w")[0] == 0
