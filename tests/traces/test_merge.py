"""Bundles of several hosts become one, on one clock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.ranks.rank_clocks import wanted_shifts
from spark_prof.analyzers.ranks.rank_summary import collectives_of
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.merge_ranks import (
    SHARED_TABLES,
    Shift,
    join_bundles,
    move_clocks,
    moved,
    open_parts,
)
from spark_prof.traces.tables import TABLES
from tests.analyzers.ranks.bundles import bundle, parallel, write
from tests.analyzers.ranks.play import KINDS, Play
from tests.rows import each_row
from tests.support import ORIGIN, engine

HERE = {rank: {"host": "a", "boot": "1", "run": "r"} for rank in (0, 1)}
THERE = {rank: {"host": "b", "boot": "2", "run": "r"} for rank in (2, 3)}
PARALLEL = parallel(tensor=4)


def merged(folder: Path, *parts: Bundle) -> Bundle:
    folder.mkdir()
    joined = join_bundles(open_parts([part.path for part in parts]), folder)
    return move_clocks(joined, *wanted_shifts(joined))


def two_hosts(tmp_path: Path, play: Play, **more: Any) -> tuple[Bundle, Bundle]:
    here = bundle(tmp_path / "here", play, HERE, parallel=PARALLEL, **more)
    return here, bundle(tmp_path / "there", play, THERE, parallel=PARALLEL)


def edited(part: Bundle, **fields: Any) -> Bundle:
    """The bundle with these fields in its meta."""
    path = part.path / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return Bundle(part.path)


@pytest.mark.slow
@each_row("offset", [-45_000_000, 777, 7_200_000_000_000])
@each_row("drift", [0.0, 20e-6])
def test_times_come_to_stand_on_one_clock(tmp_path: Path, offset: int, drift: float) -> None:
    slow = {step: step % 4 for step in range(40)}
    error = {2: offset, 3: offset}
    play = Play(steps=40, slow=slow, offset_ns=error, drift=dict.fromkeys(error, drift),
                compute_ns=1_000_000)  # fmt: skip
    whole = merged(tmp_path / "whole", *two_hosts(tmp_path, play))
    assert whole.ranks == (0, 1, 2, 3)
    true = play.true[play.true["rank"] == 3].sort_values("start_ns")["start_ns"].to_numpy()
    kernels = whole.frame("kernels", 3).sort_values("start_ns")
    found = kernels.loc[kernels["name"].astype(str).str.startswith("nccl"), "start_ns"]
    [shift] = whole.facts(3)["clock_shifts"]
    off = np.abs(found.to_numpy(np.int64) - ORIGIN - true)
    assert off.max() <= shift["uncertainty_ns"]
    assert shift["applied"] is (offset != 777 or drift != 0.0)
    result, _ = collectives_of(whole)
    assert result.matched == 40 * len(KINDS)
    assert {step.step: step.slowest for step in result.slow_steps} == slow
    # What is left of the offset lies within its uncertainty.
    left = [clock for clock in result.clocks if not clock.same_host]
    assert all(abs(c.offset_us or 0) <= (c.uncertainty_us or 0) + 1 for c in left)


def test_nothing_but_times_changes(tmp_path: Path) -> None:
    play = Play(offset_ns={2: 10**9, 3: 10**9})
    here, there = two_hosts(tmp_path, play)
    whole = merged(tmp_path / "whole", here, there)
    for part, ranks in ((here, (0, 1)), (there, (2, 3))):
        for rank in ranks:
            for table in TABLES:
                if table in SHARED_TABLES:
                    continue
                old, new = part.frame(table, rank), whole.frame(table, rank)
                times = [name for name in old if name.endswith("_ns") and name != "paused_ns"]
                pd.testing.assert_frame_equal(old.drop(columns=times), new.drop(columns=times))
                wanted = 10**9 if rank > 1 else 0
                for name in times:
                    assert (old[name] - new[name] - wanted).abs().lt(10**6).all(), (table, name)


def test_meta_is_that_of_all_parts(tmp_path: Path) -> None:
    here, there = two_hosts(tmp_path, Play(), engines={0: [engine(0, 0, 1)]})
    there = edited(there, lost=["rank2, piece 1: gone"], state="salvaged", command=[])
    whole = merged(tmp_path / "whole", there, here)
    assert whole.meta.state == "salvaged"
    assert whole.meta.command == here.meta.command
    assert whole.meta.lost == ("rank2, piece 1: gone",)
    assert set(whole.meta.facts) == {"engine0", "rank0", "rank1", "rank2", "rank3"}
    assert len(whole.frame("engine", 0)) == 1


def test_without_a_command_the_settings_are_those_of_the_lowest_rank(tmp_path: Path) -> None:
    here, there = (
        edited(part, command=[], settings={"steps": steps})
        for part, steps in zip(two_hosts(tmp_path, Play()), (64, 8), strict=True)
    )
    assert merged(tmp_path / "whole", there, here).meta.settings == {"steps": 64}


def test_a_folder_of_pieces_is_a_part(tmp_path: Path) -> None:
    """What a host has whose recorder ran elsewhere: no command, and ranks that had finished."""
    play = Play()
    here = bundle(tmp_path / "here", play, HERE, parallel=PARALLEL)
    pieces = write(tmp_path / "there", play, THERE, parallel=PARALLEL) / "pieces"
    (pieces / "recording.json").unlink()
    for rank in (2, 3):
        (pieces / f"rank{rank}.progress.json").write_text('{"finished": true, "pid": 1}')
    there = open_parts([tmp_path / "there"])[0]
    assert there.meta.state == "complete"
    assert merged(tmp_path / "whole", here, there).meta.state == "complete"


def test_cubins_of_both_are_kept(tmp_path: Path) -> None:
    here, there = two_hosts(tmp_path, Play())
    for part, name in ((here, "aa.cubin"), (there, "aa.cubin"), (there, "bb.cubin")):
        (part.path / "cubins").mkdir(exist_ok=True)
        (part.path / "cubins" / name).write_text(name)
    whole = merged(tmp_path / "whole", here, there)
    assert sorted(path.stem for path in (whole.path / "cubins").iterdir()) == ["aa", "bb"]


def test_of_two_readings_that_of_the_lowest_rank_stays(tmp_path: Path) -> None:
    """Both hosts ran the same machine code; one may have had another nvdisasm."""
    parts = two_hosts(tmp_path, Play())
    for part, opcodes, ran in zip(parts, ("HMMA 1", "FFMA 1"), ("a", "a\nb"), strict=True):
        meta = json.loads((part.path / "meta.json").read_text())
        rows = {
            "functions": ["aa", "k", "k", "sm_90", "", 8, 2, opcodes],
            "cubins": {"hash": "aa", "source": opcodes, "functions": ran},
        }
        for table, row in rows.items():
            names = TABLES[table].schema.names
            values = row if isinstance(row, list) else [row.get(name, 1) for name in names]
            found = pd.DataFrame([values], columns=names)
            pq.write_table(
                pa.Table.from_pandas(found, TABLES[table].schema),
                part.path / f"{table}-rank0.parquet",
            )
            meta["tables"][f"{table}-rank0.parquet"] = 1
        meta["facts"]["recorder"] = {"host": opcodes}
        (part.path / "meta.json").write_text(json.dumps(meta))
    here, there = (Bundle(part.path) for part in parts)
    whole = merged(tmp_path / "whole", there, here)
    assert whole.frame("functions", 0)["opcodes"].tolist() == ["HMMA 1"]
    assert whole.frame("cubins", 0)["source"].tolist() == ["HMMA 1"]
    assert whole.frame("cubins", 0)["functions"].tolist() == ["a\nb"]
    assert whole.meta.facts["recorder"] == {"host": "HMMA 1"}


def test_hosts_without_a_tie_are_left_alone(tmp_path: Path) -> None:
    play = Play(ranks=2, offset_ns={1: 10**9})
    stages = parallel(pipeline=2)
    here = bundle(tmp_path / "here", play, {0: HERE[0]}, parallel=stages)
    there = bundle(tmp_path / "there", play, {1: THERE[2]}, parallel=stages)
    whole = merged(tmp_path / "whole", here, there)
    pd.testing.assert_frame_equal(there.frame("kernels", 1), whole.frame("kernels", 1))
    assert any("nothing ties" in line for line in whole.meta.lost)


@each_row(
    ("change", "why"),
    [
        ({"run": "", "model": "/other"}, "model differs"),
        ({"run": "", "vllm": "0.1"}, "vllm differs"),
        ({"parallel": parallel(tensor=2)}, "parallel differs"),
    ],
)
def test_what_does_not_belong_together(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    shared = {"model": "/m", "vllm": "0.32.0", "parallel": PARALLEL}
    here = bundle(tmp_path / "here", Play(), {r: shared | f for r, f in HERE.items()})
    there = bundle(tmp_path / "there", Play(), {r: shared | f | change for r, f in THERE.items()})
    with pytest.raises(CommandError, match=why):
        open_parts([here.path, there.path])


def test_the_same_rank_twice(tmp_path: Path) -> None:
    here, _ = two_hosts(tmp_path, Play())
    shutil.copytree(here.path, tmp_path / "again")
    with pytest.raises(CommandError, match=r"both hold .* of rank 0"):
        open_parts([here.path, tmp_path / "again"])


def test_a_model_may_lie_elsewhere_on_another_host(tmp_path: Path) -> None:
    facts = {
        rank: fact
        | {"model": f"/{fact['host']}/m", "model_config": {"_name_or_path": fact["host"]}}
        for rank, fact in (HERE | THERE).items()
    }
    parts = [
        bundle(tmp_path / str(ranks), Play(), {r: facts[r] for r in ranks}, parallel=PARALLEL)
        for ranks in ((0, 1), (2, 3))
    ]
    assert merged(tmp_path / "whole", *parts).ranks == (0, 1, 2, 3)


def test_ranks_that_another_part_has_are_not_missing(tmp_path: Path) -> None:
    here, there = two_hosts(tmp_path, Play())
    for part in (here, there):
        edited(part, lost=["2 of 4 ranks left nothing here", "rank3: gone"])
    assert merged(tmp_path / "whole", here, there).meta.lost == ("rank3: gone",)


def test_a_time_that_never_came_stays_and_digits_are_kept() -> None:
    rows = pa.table({"update_ns": [0, ORIGIN], "tokens": [5, 6]})
    shift = Shift(0, 1_000_000_000.25, 1e-6, ORIGIN - 2_000_000, 1.0, "collectives", 1, True)
    found = moved(rows, shift).to_pydict()
    assert found == {"update_ns": [0, ORIGIN - 1_000_000_002], "tokens": [5, 6]}


def test_a_duration_stays_what_it_is_where_a_clock_is_moved() -> None:
    shift = Shift(0, 10.0, 0.0, 0, 1.0, "collectives", 3, True)
    rows = pa.table({"start_ns": [100, 200], "paused_ns": [0, 50]})
    assert moved(rows, shift).to_pydict() == {"start_ns": [90, 190], "paused_ns": [0, 50]}
