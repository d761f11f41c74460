"""Starts and memory as processes told them, read from a bundle: whole, damaged, of two hosts."""

from __future__ import annotations

from pathlib import Path

from spark_prof.traces.assemble import assemble
from spark_prof.traces.chunks import STARTS, start_name, write_json
from spark_prof.traces.engine_starts import (
    ProcessStart,
    memory_at_end,
    memory_in,
    of_first_host,
    starts_in,
)
from tests.support import Recorded, eager_decode

ROW = {"process": "rank0", "started_ns": 5, "pid": 7, "boot": "a", "run": "r"}


def test_the_starts_of_all_processes_come_into_the_bundle(tmp_path: Path) -> None:
    recorded = Recorded({1: [eager_decode()], 0: [eager_decode()]}, settings={"run": "r"})
    folder = recorded.write(tmp_path / "b")
    for number, process in enumerate(("engine0", "front", "rank0")):
        row = ROW | {"process": process, "started_ns": 9 - number, "pid": number}
        write_json(folder, start_name(f"{number}"), row)
    write_json(folder, start_name("other"), ROW | {"run": "another"})
    (folder / start_name("cut")).write_text('{"process": "fr')
    bundle = assemble(tmp_path / "b", state="complete")
    starts = starts_in(bundle)
    assert [start.process for start in starts] == ["rank0", "front", "engine0"]
    assert [start.is_rank for start in starts] == [True, False, False]
    assert STARTS in bundle.facts(0)
    assert STARTS not in bundle.facts(1)


def test_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    backwards = ROW | {"pid": 8, "marks": [{"stage": "load", "begin_ns": 5, "end_ns": 3}]}
    facts = {STARTS: [ROW, ROW, backwards, 3, {"process": 1}], "memory": [], "memory_at_end": {}}
    bundle = Recorded({0: [eager_decode()]}, facts=facts).assemble(tmp_path / "b")
    assert starts_in(bundle) == (ProcessStart("rank0", 5, 7, "a"),)
    assert memory_in(bundle, 0) is None
    assert memory_at_end(bundle, 0) is None


def test_what_a_rank_held_at_the_end_comes_from_its_last_words(tmp_path: Path) -> None:
    folder = Recorded({0: [eager_decode()]}, facts={"memory": {"rss": 3}}).write(tmp_path / "b")
    write_json(folder, "rank0.progress.json", {"memory_at_end": {"rss": 9}, "pauses": "x"})
    bundle = assemble(tmp_path / "b", state="complete")
    first, last = memory_in(bundle, 0), memory_at_end(bundle, 0)
    assert first is not None
    assert last is not None
    assert (first.rss, last.rss) == (3, 9)


def test_clocks_of_two_hosts_are_not_mixed() -> None:
    starts = (ProcessStart("rank0", 5, boot="a"), ProcessStart("rank1", 2, boot="b"))
    assert of_first_host(starts) == starts[:1]
    assert of_first_host(()) == ()
