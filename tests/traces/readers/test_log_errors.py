"""Failures, loads and unknown warnings of a log: what is counted, and what is not."""

from __future__ import annotations

from pathlib import Path

from spark_prof.traces.readers.engine_log import FULL, EngineLog, read_engine_log
from tests.rows import each_row

CONFIG = (
    "(EngineCore pid=2) INFO 06-08 10:00:01 [core.py:107] Initializing a V1 LLM engine (v0.33.0) "
    "with config: model='m', enforce_eager=False"
)
ERROR = "(EngineCore pid=2) ERROR 06-08 10:00:20 [core.py:1584] "
UP = "(APIServer pid=1) INFO:     Application startup complete."
STATUS = (
    "(APIServer pid=1) INFO 06-08 10:03:11 [loggers.py:329] Engine 000: Avg prompt throughput: 0.0 "
    "tokens/s, Avg generation throughput: 31.5 tokens/s, Running: {} reqs, Waiting: {} reqs, GPU "
    "KV cache usage: {}%, Prefix cache hit rate: 0.0%"
)


def read(tmp_path: Path, *lines: str) -> EngineLog:
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines))
    return read_engine_log(path)


def test_the_error_that_was_raised_in_the_place_of_another_counts(tmp_path: Path) -> None:
    failure = read(
        tmp_path, CONFIG, f"{ERROR}EngineCore failed to start.",
        f"{ERROR}Traceback (most recent call last):", f"{ERROR}KeyError: 'x'", ERROR,
        f"{ERROR}During handling of the above exception, another exception occurred:", ERROR,
        f"{ERROR}Traceback (most recent call last):",
        f'{ERROR}  File "/x/vllm/model_executor/layers/linear.py", line 3, in apply',
        f"{ERROR}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
    ).failure  # fmt: skip
    assert failure is not None
    assert (failure.error, failure.line, failure.process) == ("OutOfMemoryError", 10, "EngineCore")
    assert failure.frames == ("/x/vllm/model_executor/layers/linear.py apply",)
    assert (failure.serving, failure.recovered) == (False, False)


@each_row(
    ("lines", "serving", "recovered"),
    [
        ([CONFIG, f"{ERROR}EngineCore failed to start."], False, False),
        ([CONFIG, f"{ERROR}EngineCore failed to start.", CONFIG, UP], False, True),
        ([CONFIG, UP, f"{ERROR}EngineCore encountered a fatal error."], True, False),
        ([CONFIG, f"{ERROR}EngineCore encountered a fatal error."], True, False),
        ([CONFIG, UP, f"{ERROR}EngineCore encountered a fatal error.", CONFIG, UP], True, True),
        ([f"{ERROR}EngineCore encountered a fatal error."], True, False),
    ],
)
def test_when_an_engine_ended(
    tmp_path: Path, lines: list[str], serving: bool, recovered: bool
) -> None:
    failure = read(tmp_path, *lines).failure
    assert failure is not None
    assert (failure.serving, failure.recovered) == (serving, recovered)


@each_row(
    "lines",
    [
        [CONFIG, UP, "(APIServer pid=1) Traceback (most recent call last):", "ValueError: bad"],
        [CONFIG, "Exception ignored in: <function f>", "Traceback (most recent call last):",
         "TypeError: 'NoneType' object is not callable", UP],
        ["Traceback (most recent call last):", "ImportError: no extra", CONFIG, UP],
        [CONFIG, UP, "KeyboardInterrupt: "],
        ["(APIServer pid=1) ERROR:    Odd", "(APIServer pid=1) Traceback (most recent call last):",
         '(APIServer pid=1)   File "/x/y.py", line 3, in f', "(APIServer pid=1) ValueError: bad"],
        [CONFIG, "INFO 06-08 10:00:20 [a.py:1] RuntimeError: told and survived", UP],
    ],
)  # fmt: skip
def test_what_ends_no_engine(tmp_path: Path, lines: list[str]) -> None:
    assert read(tmp_path, *lines).failure is None


def test_the_load_is_that_of_the_full_lines(tmp_path: Path) -> None:
    load = read(
        tmp_path, CONFIG, STATUS.format(90, 0, 60.0), STATUS.format(55, 35, 99.5),
        STATUS.format(54, 40, 98.5), STATUS.format(0, 0, 0.0),
    ).load  # fmt: skip
    assert load is not None
    assert (load.lines, load.busy, load.full) == (4, 3, 2)
    assert (load.running, load.waiting, load.usage) == (55, 40, 99.5)
    assert (load.first, load.last) == (2, 5)


@each_row(
    ("running", "waiting", "usage", "full"),
    [(0, 0, 0.0, 0), (0, 2, 0.4, 0), (3, 1, FULL, 1), (3, 1, FULL - 0.1, 0), (3, 0, 100.0, 0)],
)
def test_a_cache_is_full_where_one_waits_for_it(
    tmp_path: Path, running: int, waiting: int, usage: float, full: int
) -> None:
    load = read(tmp_path, CONFIG, STATUS.format(running, waiting, usage)).load
    assert load is not None
    assert (load.lines, load.busy, load.full) == (1, int(running > 0), full)
    assert (load.running, load.waiting, load.usage) == (running, waiting, usage)
    assert (load.preemptions, load.first, load.last) == (0, 2, 2)


def test_requests_that_are_put_back_show_a_full_cache(tmp_path: Path) -> None:
    line = STATUS.format(60, 0, 93.5).replace(", GPU KV", ", Preemptions: 5, GPU KV")
    load = read(tmp_path, CONFIG, line).load
    assert load is not None
    assert (load.full, load.running, load.waiting, load.preemptions) == (1, 60, 0, 5)


def test_of_a_long_log_some_status_lines_are_looked_at(tmp_path: Path) -> None:
    load = read(tmp_path, CONFIG, *[STATUS.format(5, 1, 99.0)] * 20_000).load
    assert load is not None
    assert 100 < load.lines < 20_000
    assert load.full == load.lines
    assert load.last > 19_000


@each_row(
    ("lines", "count", "kinds"),
    [
        ([f"WARNING 06-08 10:00:0{i} [a.py:1] Request {i} of 'u{i}' at /x/{i} is odd"
          for i in range(5)], 5, 1),
        (["WARNING 06-08 10:00:01 [a.py:1] One:", "WARNING 06-08 10:00:01 [a.py:1]  - part",
          "WARNING 06-08 10:00:01 [a.py:1] end", "WARNING 06-08 10:00:02 [a.py:1] Two"], 2, 2),
        (["ERROR 06-08 10:00:01 [a.py:1] Bad", "ERROR 06-08 10:00:01 [a.py:1] Traceback (most "
          "recent call last):", 'ERROR 06-08 10:00:01 [a.py:1]   File "/x.py", line 3, in f',
          "ERROR 06-08 10:00:01 [a.py:1] KeyError: 'x'"], 1, 1),
        (["WARNING 06-08 10:00:01 [a.py:1] One", "WARNING 06-08 10:00:01 [a.py:1] Another"], 2, 2),
        (["INFO 06-08 10:00:01 [a.py:1] A WARNING that is none"], 0, 0),
        (["WARNING 06-08 10:00:01 [a.py:1] Casting torch.float32 to torch.bfloat16."], 0, 0),
        ([f"{ERROR}EngineCore failed to start.", f"{ERROR}Dumping what it had", f"{ERROR}x"], 0, 0),
    ],
)  # fmt: skip
def test_unknown_warnings_are_counted(
    tmp_path: Path, lines: list[str], count: int, kinds: int
) -> None:
    log = read(tmp_path, *lines)
    assert log.unknown_count == count
    assert len(log.unknown) == kinds


def test_unknown_warnings_stay_bounded_and_hide_secrets(tmp_path: Path) -> None:
    names = ("".join(chr(97 + int(digit)) for digit in str(i)) for i in range(5000))
    lines = [f"WARNING 06-08 10:00:01 [a.py:1] {name} is odd" for name in names]
    log = read(tmp_path, *lines, "WARNING 06-08 10:00:02 [b.py:1] token=hf_abcdefghijklmnopqrstuv")
    assert log.unknown_count == 5001
    assert len(log.unknown) == 200
    few = read(tmp_path, "WARNING 06-08 10:00:02 [b.py:1] HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz01")
    assert "hf_abc" not in few.unknown[0].text


def test_several_starts_are_told(tmp_path: Path) -> None:
    assert "2 starts of an engine" in read(tmp_path, CONFIG, UP, CONFIG).lost[0]
    replica = CONFIG.replace("EngineCore", "EngineCore_DP1")
    assert read(tmp_path, CONFIG, replica, UP).lost == ()
