"""The stages of a start add up to it, and what no line tells is not made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.startup.start_account import startup_of
from spark_prof.analyzers.startup.start_rows import Startup
from spark_prof.traces.readers.engine_log import read_engine_log
from tests.analyzers.startup import started
from tests.rows import each_row

LOGS = Path(__file__).parents[2] / "data" / "logs"
STATUS = (
    "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
    "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.0%"
)


def account(folder: Path, lines: list[str]) -> Startup:
    startup = startup_of(started.read(folder, lines))
    assert startup is not None
    assert sum(row.seconds for row in startup.stages) == pytest.approx(startup.seconds)
    return startup


def seconds(startup: Startup) -> dict[str, float]:
    return {row.id: row.seconds for row in startup.stages}


def test_stated_seconds_split_the_time_between_two_lines(tmp_path: Path) -> None:
    startup = account(tmp_path, started.lines_of(started.WHOLE))
    assert startup.complete
    assert (startup.seconds, startup.named_share, startup.starts) == (110, 1, 1)
    assert seconds(startup) == {
        "configuration": 5, "processes": 3, "build": 2, "load": 1 + 2, "weights": 30, "repack": 8,
        "trace": 5, "compile": 21, "profile": 2 + 3 + 3, "kv-cache": 5, "capture": 10, "rest": 2,
        "server": 8,
    }  # fmt: skip
    assert startup.longest is not None
    assert startup.longest.id == "weights"
    assert startup.advice == ()


def test_a_stated_time_takes_no_more_than_there_is(tmp_path: Path) -> None:
    start = ((0, started.ARGUMENTS), (1, started.LOADED), (2, "Loading weights took 99.00 seconds"))
    times = seconds(account(tmp_path, started.lines_of(start)))
    assert times == {"configuration": 1, "weights": 1}


def test_what_is_read_from_the_cache_is_not_compiled(tmp_path: Path) -> None:
    from_cache = (
        "Directly load the compiled graph(s) for compile range (1, 8) from the cache, took 2 s"
    )
    start = ((0, started.ARGUMENTS), (1, started.COMPILES), (3, started.TRACED), (6, from_cache),
             (7, "torch.compile took 6.0 s in total"), (9, started.UP))  # fmt: skip
    times = seconds(account(tmp_path, started.lines_of(start)))
    assert times == {"configuration": 1, "trace": 2, "compiled-before": 3 + 1, "profile": 2}
    whole = "Directly load AOT compilation from path /root/.cache/x"
    start = ((0, started.LOADED), (20, whole), (20, "torch.compile took 18.0 s in total"),
             (21, started.UP))  # fmt: skip
    times = seconds(account(tmp_path, started.lines_of(start)))
    assert (times["compiled-before"], times["profile"]) == (18, 3)
    assert "compile" not in times


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    fast = started.lines_of(started.WHOLE[2:12], "Worker_TP0")
    slow = [
        started.stamped(second + 40 * (second >= 43), message, "Worker_TP1")
        for second, message in started.WHOLE[2:12]
    ]
    before = started.lines_of(started.WHOLE[:2])
    after = started.lines_of(started.WHOLE[12:], later=40)
    for lines in (fast + slow, slow + fast):
        startup = account(tmp_path, [*before, *lines, *after])
        assert (startup.seconds, startup.ranks) == (150, 2)
        # Only the stated seconds are of the weights: the slow rank waited for something else.
        assert seconds(startup)["weights"] == 30
        assert seconds(startup)["load"] == 1 + 42
        assert any("2 ranks" in note for note in startup.notes)


def test_ranks_of_one_name_are_not_counted_one_after_the_other(tmp_path: Path) -> None:
    start = started.WHOLE[2:6]
    lines = [
        started.stamped(second + later, message, "RayWorkerWrapper")
        for second, message in start
        for later in (0, 1)
    ]
    whole = [*started.lines_of(started.WHOLE[:2]), *lines, *started.lines_of(started.WHOLE[12:])]
    startup = account(tmp_path, whole)
    assert startup.ranks == 2
    assert seconds(startup)["repack"] == 8


def test_of_several_starts_the_last_that_came_up_counts(tmp_path: Path) -> None:
    first = started.lines_of(started.WHOLE)
    second = [line.replace("30.00", "20.00") for line in started.lines_of(started.WHOLE, later=500)]
    failed = started.lines_of(started.WHOLE[:5], later=1000)
    startup = account(tmp_path, [*first, *second, *failed])
    assert (startup.starts, startup.complete, startup.seconds) == (3, True, 110)
    assert seconds(startup)["weights"] == 20
    assert "3 starts" in startup.notes[0]


def test_a_log_that_ends_says_where(tmp_path: Path) -> None:
    lines = started.lines_of(started.WHOLE[:8])
    startup = account(tmp_path, [*lines, started.stamped(300, "EngineCore failed to start.")])
    assert (startup.complete, startup.last_stage, startup.seconds) == (False, "compile", 300)
    assert seconds(startup)["compile"] == 300 - 58
    # A server that serves has started, whatever its log tells of that.
    server = account(tmp_path, [*lines, started.stamped(4000, STATUS, "APIServer")])
    assert server.seconds == 58


def test_what_comes_before_the_first_milestone_has_no_name(tmp_path: Path) -> None:
    lines = [started.stamped(0, "Using Triton."), *started.lines_of(started.WHOLE[4:], later=20)]
    startup = account(tmp_path, lines)
    assert seconds(startup)[""] == 33
    assert startup.named_share == pytest.approx(97 / 130)
    assert any("beginning" in note for note in startup.notes)
    with_imports = [
        "W1129 12:00:00.403000 7 torch/x.py:6] old",
        *started.lines_of(started.WHOLE, later=9),
    ]
    assert seconds(account(tmp_path, with_imports))["imports"] == 9


def test_progress_bars_split_an_interval(tmp_path: Path) -> None:
    bar = "DeepGEMM warmup:  89%|█| 7/8 [00:20<00:02]\rDeepGEMM warmup: 100%|██| 8/8 [01:10<00:00]"
    start = started.lines_of(((0, started.CACHE), (80, started.UP)))
    times = seconds(account(tmp_path, [start[0], bar, bar, start[1]]))
    assert times == {"deep-gemm": 70, "kv-cache": 10}


def test_a_new_year_is_no_way_back(tmp_path: Path) -> None:
    start = ((43_170, started.LOADED), (43_190, started.CACHE))
    old = [line.replace("11-29", "12-31") for line in started.lines_of(start)]
    new = [f"(EngineCore pid=7) INFO 01-01 00:00:10 [core.py:1] {started.UP}"]
    startup = account(tmp_path, [*old, *new])
    assert (startup.seconds, startup.complete) == (40, True)


def test_times_that_go_backwards_tell_nothing(tmp_path: Path) -> None:
    lines = started.lines_of(started.WHOLE)
    lines[4] = lines[4].replace("11-29", "11-28")
    startup = account(tmp_path, lines)
    assert (startup.stages, startup.named_share) == ((), None)
    assert "line 5" in startup.notes[0]


def test_without_times_there_are_no_stages(tmp_path: Path) -> None:
    lines = [f"INFO: {message}" for _, message in started.WHOLE]
    startup = account(tmp_path, lines)
    assert startup.stages == ()
    assert "no times" in startup.notes[0]


@each_row(
    "lines",
    [
        [started.stamped(0, STATUS, "APIServer")],
        [started.stamped(0, started.CONFIG), started.stamped(9, STATUS, "APIServer")],
        ["[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m')"],
    ],
)
def test_no_start_is_no_account(tmp_path: Path, lines: list[str]) -> None:
    assert startup_of(started.read(tmp_path, lines)) is None


@each_row("name", ["dense-fp8-block", "gpt-oss-20b-mxfp4", "qwen3-30b-a3b-nvfp4"])
def test_real_logs_agree_with_what_vllm_says_it_took(name: str) -> None:
    log = read_engine_log(LOGS / f"{name}.log")
    startup = startup_of(log)
    assert startup is not None
    assert startup.complete
    assert startup.named_share == 1
    times = seconds(startup)
    assert sum(times.values()) == pytest.approx(startup.seconds)
    before = ("imports", "configuration", "model-class", "processes", "build", "load")
    after = sum(took for stage, took in times.items() if stage not in before)
    (line,) = log.of("engine-ready")
    assert after == pytest.approx(float(line.value), abs=1.01)  # times are whole seconds
    totals = [float(row.value) for row in log.of("compile-total")]
    compiled = sum(times.get(stage, 0.0) for stage in ("trace", "compile", "compiled-before"))
    assert compiled == pytest.approx(sum(totals), abs=2.01)
