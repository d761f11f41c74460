"""What doctor draws of a start: the stages and their sum, the memory, a line where it is slow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.startup.start_account import startup_of
from spark_prof.analyzers.startup.start_memory import start_memory_of
from spark_prof.analyzers.startup.start_rows import MemoryAccount, MemoryPart, StageRow, Startup
from spark_prof.dashboards.doctor_report import Diagnosis, render_diagnosis
from spark_prof.dashboards.section import DocumentBounds, Layout
from spark_prof.dashboards.sections.startup_section import (
    duration,
    measured,
    sections,
    slow_start,
    stages,
)
from spark_prof.traces.readers.engine_log import read_engine_log
from tests.rows import each_row

LOG = read_engine_log(Path(__file__).parents[1] / "data" / "logs" / "dense-fp8-block.log")
DIAGNOSIS = Diagnosis(
    "serve.log", audit=audit_of_log(LOG), startup=startup_of(LOG), memory=start_memory_of(LOG)
)
SLOW = "The engine took 3 min 10 s to start; 84.7 % of it was DeepGEMM's warm-up."


def start(seconds: float, longest: float, *, complete: bool = True) -> Startup:
    rows = (
        StageRow("weights", "reading weights", longest, longest / seconds, 3),
        StageRow("", "", seconds - longest, 1 - longest / seconds, 9),
    )
    return Startup(rows, seconds, longest / seconds, complete, "" if complete else "weights", 1, 1)


def test_every_format_has_the_stages_and_the_memory() -> None:
    for kind in ("text", "md", "html"):
        drawn = render_diagnosis(DIAGNOSIS, Layout(kind, 160), whole=True).replace("&#39;", "'")
        for words in (SLOW, "DeepGEMM's warm-up", "161.0 s", "190.0 s", "59.58 GiB", "63.34 GiB"):
            assert words in drawn, (kind, words)
    record = json.loads(render_diagnosis(DIAGNOSIS, Layout("json")))
    assert [row["id"] for row in record["startup"]["stages"]][-1] == "deep-gemm"
    assert record["startup"]["seconds"] == 190
    assert record["startup"]["advice"][0]["what"].startswith("VLLM_DEEP_GEMM_WARMUP=skip")
    assert record["memory"]["budget"] == 63.34


def test_one_screen_has_one_line_of_it() -> None:
    screen = render_diagnosis(DIAGNOSIS, Layout("text", 100))
    assert SLOW in screen
    assert "VLLM_DEEP_GEMM_WARMUP=skip" in screen
    assert "59.58 GiB" not in screen
    quick = replace(DIAGNOSIS, startup=start(59, 50))
    assert "to start;" not in render_diagnosis(quick, Layout("text", 100))


def test_the_sections_can_be_asked_for() -> None:
    for kind in ("text", "json"):
        drawn = render_diagnosis(
            DIAGNOSIS, Layout(kind, bounds=DocumentBounds(sections=("startup",)))
        )
        assert "DeepGEMM" in drawn
        assert "59.58" not in drawn
        drawn = render_diagnosis(
            DIAGNOSIS, Layout(kind, bounds=DocumentBounds(sections=("memory",)))
        )
        assert "59.58" in drawn


@each_row(
    ("startup", "is_shown"),
    [
        (start(61, 31), True),
        (start(60, 31), False),
        (start(62, 31), False),
        (start(61, 31, complete=False), False),
    ],
)
def test_only_a_slow_start_with_a_reason_is_told(startup: Startup, is_shown: bool) -> None:
    assert bool(slow_start(startup)) is is_shown


def test_time_without_a_name_and_an_end_before_the_engine_is_up_are_shown() -> None:
    section = stages(start(100, 60, complete=False))
    assert section.intro[0] == "The log ends before the engine is up, in: reading weights."
    assert [row[0] for row in section.rows] == ["Reading weights", "Not named", "Together"]
    bare = Startup((), 0.0, None, False, "", 0, 0, notes=("No times.",))
    assert [(section.id, section.rows) for section in sections(bare, None)] == [
        ("startup-slow", ()), ("startup", (("No times.",),)),
    ]  # fmt: skip


def test_durations_are_said_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 293.2, 3600, 7325)] == [
        "0 s", "1 min 0 s", "4 min 53 s", "1 h 0 min", "2 h 2 min",
    ]  # fmt: skip


def test_a_marked_start_has_no_lines_and_no_whole_seconds() -> None:
    drawn = stages(replace(start(62.34, 50), marked=True))
    assert [column.title for column in drawn.columns] == ["Stage", "Time", "Share"]
    assert "marked its stages" in drawn.intro[0]


def account(of: str, rank: int | None, **more: object) -> MemoryAccount:
    parts = (
        MemoryPart("weights", "Weights", 3 << 30, 0.75),
        MemoryPart("", "", 1 << 30, 0.25),
    )
    whole = MemoryAccount(of, rank, parts, 4 << 30, "process", 0.75)
    return replace(whole, **more)  # type: ignore[arg-type]


def test_each_memory_has_its_table_with_what_tells_the_total() -> None:
    gpu, process, host = measured(
        [account("gpu", 0, at_end=5 << 30), account("process", 0, source="rss"),
         account("host", None, source="meminfo", shared=True)]
    )  # fmt: skip
    assert [row[:2] for row in gpu.rows] == [
        ("Weights", "3.00 GiB"), ("Not named", "1.00 GiB"), ("Together", "4.00 GiB"),
        ("When the recording ended", "5.00 GiB"),
    ]  # fmt: skip
    assert "NVML's figure of this process" in gpu.intro[0]
    assert "/proc: the resident memory" in process.intro[0]
    assert host.intro[1] == "GPU and host share one memory."


def test_two_ranks_stand_in_one_table() -> None:
    gpu = next(measured([account("gpu", 0), account("gpu", 1)]))
    assert [row[0] for row in gpu.rows] == ["0", "0", "1", "1", "0", "1"]
    assert len(gpu.intro) == 1
