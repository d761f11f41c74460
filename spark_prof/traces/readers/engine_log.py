"""Reads what an inference engine's log says about kernels, formats, settings and execution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from spark_prof.redact import redacted_text
from spark_prof.rules.engine_log_lines import LINE_RULES, WORDS, LineRule
from spark_prof.traces.readers.log_text import LogText

_PREFIX = re.compile(
    r"^.*?\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d (?=\[[^\]]*\])"
)
"""Everything up to vLLM's own level and time, whatever wrote it before; the place stays."""

_LONGEST_DETAIL = 32 << 10
_LONGEST_MESSAGE = 2048
"""What of a line is matched."""

_LONG = ("engine-config", "arguments", "sglang-arguments")
"""Rules of lines that hold a whole configuration."""

_LONGEST_TEXT = 400
_MOST_STATEMENTS = 2000
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True)
class Statement:
    """What the lines say that match one rule alike.

    Attributes:
        rule: the rule.
        value: the kernel, backend, variable or size that they name.
        format: the weights' format, lower case, such as nvfp4; empty where they do not tell.
        layer: linear, moe or another kind; empty where they do not tell.
        detail: a reason, a file or a configuration.
        line: number of the first such line, from 1.
        count: how many there are.
        text: the first one without its prefix, shortened.
    """

    rule: LineRule
    value: str
    format: str
    layer: str
    detail: str
    line: int
    count: int
    text: str


@dataclass(frozen=True)
class EngineLog:
    """One log: what it says, in the order of its lines, and what could not be read."""

    path: str
    lines: int
    statements: tuple[Statement, ...]
    lost: tuple[str, ...] = ()

    def of(self, *rules: str) -> tuple[Statement, ...]:
        """The statements of these rules."""
        return tuple(said for said in self.statements if said.rule.id in rules)


def read_engine_log(path: Path) -> EngineLog:
    """Reads a log as a stream: plain or compressed, with any prefixes, in bounded memory.

    Raises:
        CommandError: it cannot be read, is empty or no text.
    """
    text = LogText(path)
    found, dropped = _statements(text.holding(WORDS))
    lost = []
    if not found:
        lost.append(
            f"{path}: none of its {text.lines:,} lines is known from vLLM or SGLang; give the log "
            "from the engine's start on"
        )
    if text.cut:
        lost.append(f"{path}: of {text.cut:,} lines only the first 64 KiB were looked at")
    if text.foreign:
        lost.append(f"{path}: {text.foreign:,} lines are not UTF-8 and were read as Latin-1")
    if dropped:
        lost.append(f"{path}: {dropped:,} statements beyond {_MOST_STATEMENTS:,} were left out")
    return EngineLog(str(path), text.lines, found, tuple(lost))


def statements_of(lines: Iterable[str]) -> tuple[Statement, ...]:
    """What these lines say."""
    return _statements(enumerate(lines, 1))[0]


def _statements(lines: Iterable[tuple[int, str]]) -> tuple[tuple[Statement, ...], int]:
    """The statements, and how many lines said more than are kept."""
    found: dict[tuple[str, ...], Statement] = {}
    remembered: dict[str, tuple[str, ...] | None] = {}
    dropped = 0
    for number, line in _pieces(lines):
        message = _PREFIX.sub("", line, count=1) if "[" in line else line
        if message in remembered:
            key = remembered[message]
            if key is not None:
                found[key] = replace(found[key], count=found[key].count + 1)
            continue
        said = _statement(number, message)
        key = None
        if said is not None:
            key = (said.rule.id, said.value, said.format, said.layer, said.detail)
            if key in found:
                found[key] = replace(found[key], count=found[key].count + 1)
            elif len(found) < _MOST_STATEMENTS:
                found[key] = said
            else:
                dropped += 1
                continue
        if len(remembered) < _MOST_REMEMBERED and len(message) < 4096:
            remembered[message] = key
    return tuple(found.values()), dropped


def _pieces(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines, those with progress bars before them in their parts."""
    for number, line in lines:
        for piece in line.split("\r") if "\r" in line else (line,):
            yield number, piece


def _statement(number: int, message: str) -> Statement | None:
    begin = message[:_LONGEST_MESSAGE]
    for rule in LINE_RULES:
        # Some older wordings are only told apart by the file that vLLM names before them.
        searched = message if rule.id in _LONG else begin
        if rule.word.decode() not in searched:
            continue
        if rule.pattern.search(searched) and (
            matched := rule.pattern.search(redacted_text(searched))
        ):
            groups = matched.groupdict()
            return Statement(
                rule,
                (groups.get("value") or "").strip(),
                (rule.format or groups.get("format") or "").lower(),
                (groups.get("layer") or rule.layer)[:200],
                (groups.get("detail") or "").strip()[:_LONGEST_DETAIL],
                number,
                1,
                redacted_text(begin).strip()[:_LONGEST_TEXT],
            )
    return None
