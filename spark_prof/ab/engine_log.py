"""Finds the line of an engine's log that says why it failed."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["last_words", "with_advice"]

_TAIL_BYTES = 256 << 10
_ERROR = re.compile(r"\b(\w*Error|error|Exception|out of memory|spark-prof)\b: ?\S")
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered|WorkerProc|"
    r"Worker proc|shutting down|Engine process failed|leaked shared_memory"
)
"""What vLLM says after the line that says why."""
_LOG_PREFIX = re.compile(r"^(\(.*?\) )?(\w+ [\d-]+ [\d:]+ \[[^]]*\] )?")


def last_words(log: Path) -> str:
    """The last line of a log that names an error, else its last line."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "(no log)"
    lines = [_LOG_PREFIX.sub("", line).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _CONSEQUENCE.search(line)]
    return (errors or lines or ["(nothing was logged)"])[-1][:400]


def with_advice(reason: str, logged: str) -> str:
    """The reason of a failure, with what the log says of it and the way out where memory ran out.

    Args:
        reason: as the process itself tells it.
        logged: the log's `last_words`.
    """
    if re.search(r"out of memory|OutOfMemory|No available memory", f"{reason} {logged}"):
        return f"{reason}; leave it more with a lower --max-model-len, or swap fewer slots"
    if logged not in reason and re.search(r"exit code|Engine ?[Cc]ore|EngineDead", reason):
        return f"{reason}: {logged}"
    return reason
