"""Logs of engines that start, made by hand: what was written when, by which process."""

from __future__ import annotations

from pathlib import Path

from spark_prof.traces.readers.engine_log import EngineLog, read_engine_log

ARGUMENTS = "non-default args: {'model_tag': 'm'}"
CONFIG = "Initializing a V1 LLM engine (v0.33.0) with config: model='m', speculative_config=None"
LOADS = "Loading model from scratch..."
BUILT = "Initializing model took 2.000000 seconds"
READ = "Loading weights took 30.00 seconds"
LOADED = "Model loading took 16.00 GiB memory and 40.000000 seconds"
COMPILES = "[backbone] Starting torch.compile"
TRACED = "[backbone] Dynamo bytecode transform time: 5.00 s"
COMPILED = "[backbone] Compiling a graph for compile range (1, 2048) takes 20.00 s"
COMPILE_TOTAL = "[backbone] torch.compile took 26.00 s in total"
RAN = "[backbone] Initial profiling/warmup run took 3.00 s"
CACHE = "Available KV cache memory: 40.00 GiB"
CAPTURED = "Graph capturing finished in 10 secs, took 1.00 GiB"
UP = "init engine (profile, create kv cache, warmup model) took 60.00 s (compilation: 26.00 s)"
SERVES = "Starting vLLM server on http://0.0.0.0:8000"

WHOLE = (
    (0, ARGUMENTS), (5, CONFIG), (8, LOADS), (11, BUILT), (43, READ), (51, LOADED), (53, COMPILES),
    (58, TRACED), (78, COMPILED), (79, COMPILE_TOTAL), (82, RAN), (85, CACHE), (100, CAPTURED),
    (102, UP), (110, SERVES),
)  # fmt: skip
"""A start of 110 seconds."""


def stamped(second: int, message: str, process: str = "EngineCore", day: str = "11-29") -> str:
    """A line as vLLM writes it, so many seconds after noon."""
    minute, rest = divmod(second, 60)
    hour = 12 + minute // 60
    return (
        f"({process} pid=7) INFO {day} {hour:02}:{minute % 60:02}:{rest:02} [core.py:1] {message}"
    )


def lines_of(
    start: tuple[tuple[int, str], ...], process: str = "EngineCore", later: int = 0
) -> list[str]:
    """The lines of a start, all by one process."""
    return [stamped(second + later, message, process) for second, message in start]


def read(folder: Path, lines: list[str]) -> EngineLog:
    """The log of these lines, as it is read from a file."""
    path = folder / "serve.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_engine_log(path)
