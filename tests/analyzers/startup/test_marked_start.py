"""A start as its processes marked it: every moment has one stage, and they add up to it."""

from __future__ import annotations

import pytest

from spark_prof.analyzers.startup.marked_start import marked_start
from spark_prof.traces.engine_starts import ProcessStart, StartMark

SECOND = 10**9


def process(name: str, started: float, *marks: tuple[str, float, float]) -> ProcessStart:
    rows = tuple(StartMark(stage, int(a * SECOND), int(b * SECOND)) for stage, a, b in marks)
    return ProcessStart(name, int(started * SECOND), marks=rows)


FRONT = process(
    "front", 100, ("imports", 100, 106), ("configuration", 106, 110), ("rest", 110, 160),
    ("server", 160, 162),
)  # fmt: skip
ENGINE = process("engine0", 111, ("imports", 111, 117), ("rest", 117, 159))
RANK = process(
    "rank0", 118, ("imports", 118, 124), ("processes", 124, 126), ("build", 127, 128),
    ("repack", 133, 135), ("load", 126, 136), ("trace", 137, 143), ("compile", 138, 142),
    ("profile", 136, 145), ("kv-cache", 146, 147), ("autotune", 147, 149), ("capture", 150, 153),
    ("recording", 154, 155), ("warm-up", 147, 155),
)  # fmt: skip


def told(*starts: ProcessStart) -> dict[str, float]:
    startup = marked_start(starts)
    assert startup is not None
    assert sum(row.seconds for row in startup.stages) == pytest.approx(startup.seconds)
    return {row.id: round(row.seconds, 6) for row in startup.stages}


def test_the_innermost_stage_counts_and_all_add_up() -> None:
    assert told(FRONT, ENGINE, RANK) == {
        "imports": 18, "configuration": 4, "processes": 2, "build": 1, "load": 2, "weights": 5,
        "repack": 2, "trace": 2, "compile": 4, "profile": 3, "kv-cache": 1, "warm-up": 2,
        "autotune": 2, "capture": 3, "recording": 1, "rest": 8, "server": 2,
    }  # fmt: skip
    startup = marked_start([FRONT, ENGINE, RANK])
    assert startup is not None
    assert (startup.seconds, startup.named_share, startup.marked) == (62, 1, True)


def test_of_two_ranks_the_slowest_counts_in_each_phase() -> None:
    slow = process(
        "rank1", 118, ("imports", 118, 123), ("load", 126, 140), ("profile", 140, 146),
        ("kv-cache", 146, 147), ("warm-up", 147, 150),
    )  # fmt: skip
    stages = told(FRONT, ENGINE, RANK, slow)
    assert (stages["load"], "repack" in stages) == (14, False)
    assert stages["capture"] == 3
    startup = marked_start([FRONT, ENGINE, RANK, slow])
    assert startup is not None
    assert startup.ranks == 2
    assert "Of 2 ranks the slowest counts" in startup.notes[0]


def test_an_engine_in_one_process_is_told_as_one_in_three() -> None:
    marks = (*FRONT.marks, StartMark("rest", 107 * SECOND, 158 * SECOND), *RANK.marks[1:])
    stages = told(ProcessStart("rank0", 100 * SECOND, marks=marks))
    assert (stages["server"], stages["autotune"], stages["weights"]) == (2, 2, 5)
    assert sum(stages.values()) == 62


def test_time_without_a_mark_has_no_name() -> None:
    late = process("engine0", 100, ("rest", 140, 150))
    assert told(late) == {"rest": 10, "": 40}
    startup = marked_start([late])
    assert startup is not None
    assert startup.named_share == pytest.approx(0.2)


def test_what_only_began_tells_no_start() -> None:
    assert marked_start([]) is None
    assert marked_start([process("front", 1, ("imports", 1, 3))]) is None
    assert marked_start([process("rank0", 1, ("imports", 1, 3), ("load", 3, 5))]) is None


def test_what_came_from_the_cache_is_told() -> None:
    compiled = {"num_compiled_artifacts_loaded": 12, "num_inductor_compiles": 3}
    startup = marked_start([FRONT, ProcessStart("rank0", 118, marks=RANK.marks, compiled=compiled)])
    assert startup is not None
    assert startup.notes == ("torch.compile read 12 parts from its cache and compiled 3.",)
