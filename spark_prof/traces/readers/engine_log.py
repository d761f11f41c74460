"""Reads what an inference engine's log says about kernels, formats, settings and execution.

Only lines that hold one of some words are looked at, in bounded memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from spark_prof.redact import redacted_text
from spark_prof.rules.engine_log_lines import LINE_RULES, WORDS, LineRule
from spark_prof.traces.readers import log_errors, start_marks
from spark_prof.traces.readers.log_errors import EngineFailure, ErrorWatch
from spark_prof.traces.readers.log_lines import LogLine, UnknownLine, UnknownWatch, log_lines
from spark_prof.traces.readers.log_text import LogText
from spark_prof.traces.readers.start_marks import StartMarks, StartWatch

_WORD = b"Waiting: "
_STATUS = re.compile(
    rb"Running: (\d{1,9}) reqs?, Waiting: (\d{1,9}) reqs?,(.{0,300}?)KV cache usage: "
    rb"(\d{1,3}(?:\.\d+)?)%"
)
_PREEMPTIONS = re.compile(rb"Preemptions: (\d{1,12})")
_SMALL = 1 << 18  # a piece of fewer bytes is looked at whole
_MOST = 32  # lines of a larger one
_LONGEST = 2000

FULL = 95.0  # per cent of the KV cache from which on no further request fits


@dataclass(frozen=True)
class LoggedLoad:
    """What the status lines say that were looked at."""

    lines: int  # how many were looked at
    busy: int  # of them those with a request that runs
    # Of them those with a full KV cache and requests that wait, or that were put back for it.
    full: int
    running: int  # the most requests that ran: of the full lines, where there are any
    waiting: int  # the most that waited, of the same lines
    usage: float  # per cent of the KV cache, the most
    preemptions: int  # the most that a line tells, since the line before it
    first: int  # number of the first line of the log that was looked at
    last: int


class LoadWatch:
    """Looks at the status lines of a log, piece after piece."""

    def __init__(self) -> None:
        self._first = 0  # the number of the first one
        # The piece with the last one, the number of its first line, and where that one begins.
        self._last = (b"", 0, 0)
        self._statuses = self._busy = self._full = self._preemptions = 0
        self._usage = 0.0
        self._most = (0, 0)
        self._most_full = (0, 0)

    def look(self, data: bytes, first: int) -> None:
        """Looks at whole lines, of which the first has that number."""
        step = 0 if len(data) < _SMALL else len(data) // _MOST
        at = data.find(_WORD)
        begins: list[int] = []
        while at >= 0:
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            if match := _STATUS.search(data, begin, min(end, begin + _LONGEST)):
                begins = [*begins[:1], begin]
                self._line(match)
            at = data.find(_WORD, max(end, at + step))
        if begins:
            self._first = self._first or first + data.count(b"\n", 0, begins[0])
            self._last = (data, first, begins[-1])

    def _line(self, match: re.Match[bytes]) -> None:
        running, waiting, usage = int(match[1]), int(match[2]), float(match[4])
        self._statuses += 1
        self._busy += running > 0
        self._usage = max(self._usage, usage)
        self._most = _larger(self._most, (running, waiting))
        preempted = _PREEMPTIONS.search(match[3])
        if preempted:
            self._preemptions = max(self._preemptions, int(preempted[1]))
        if (usage >= FULL and waiting > 0) or preempted:
            self._full += 1
            self._most_full = _larger(self._most_full, (running, waiting))

    @property
    def load(self) -> LoggedLoad | None:
        """The load that the status lines tell; None where there was no such line."""
        if not self._first:
            return None
        data, first, begin = self._last
        running, waiting = self._most_full if self._full else self._most
        return LoggedLoad(
            self._statuses, self._busy, self._full, running, waiting, self._usage,
            self._preemptions, self._first, first + data.count(b"\n", 0, begin),
        )  # fmt: skip


def _larger(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])


_WARNING_WORDS = (
    b"WARN", b"ERROR", b"CRITICAL", b"FATAL", b"Warning: ", b"[Auto", b"[W", b"[E", b"[F",
)  # fmt: skip
"""What stands in lines that warn, whether a rule knows them or not."""

_SIGNS_OF_LIFE = ("graphs-captured-in", "engine-ready")
"""Rules of lines that only an engine writes whose start goes on."""

_SGLANG = b"sglang"
_LOOKED_FOR = tuple(
    dict.fromkeys((*WORDS, *log_errors.WORDS, *start_marks.WORDS, *_WARNING_WORDS, _SGLANG))
)

_LONGEST_DETAIL = 32 << 10
_LONGEST_MESSAGE = 2048  # what of a line is matched

_LONG = ("engine-config", "arguments", "sglang-arguments")
"""Rules of lines that hold a whole configuration."""

_LONGEST_TEXT = 400
_MOST_STATEMENTS = 2000
_MOST_REMEMBERED = 10_000
_OFTEN_ENOUGH = 8
_NO_DIGITS = str.maketrans("", "", "0123456789")
_BY_WORD = tuple((rule.word.decode(), rule) for rule in LINE_RULES)


@dataclass(frozen=True)
class Statement:
    """What the lines say that match one rule alike."""

    rule: LineRule
    value: str  # the kernel, backend, variable or size that they name
    format: str  # the weights' format, lower case, such as nvfp4; empty where they do not tell
    layer: str  # linear, moe or another kind; empty where they do not tell
    detail: str
    line: int  # number of the first such line, from 1
    count: int
    text: str


@dataclass(frozen=True)
class EngineLog:
    """One log: what it says, in the order of its lines, and what could not be read."""

    path: str
    lines: int
    statements: tuple[Statement, ...]
    lost: tuple[str, ...] = ()
    failure: EngineFailure | None = None  # how its last engine that failed did
    load: LoggedLoad | None = None  # how busy its server was
    # Warnings and errors that no rule knows: each kind once, and how many there are of all.
    unknown: tuple[UnknownLine, ...] = ()
    unknown_count: int = 0
    writer: str = ""  # vLLM or SGLang; empty where nothing tells
    # When its engines passed which stage of their start.
    starts: StartMarks = field(default_factory=StartMarks)

    def of(self, *rules: str) -> tuple[Statement, ...]:
        """The statements of these rules."""
        return tuple(statement for statement in self.statements if statement.rule.id in rules)

    @property
    def is_of_engine(self) -> bool:
        """Whether anything in it is an engine's."""
        return bool(self.statements or self.load or self.failure)


def read_engine_log(path: Path, name: str = "") -> EngineLog:
    """Reads a log as a stream: plain or compressed, with any prefixes, in bounded memory.

    Args:
        path: the file.
        name: what it is called in what is said of it; by default its path.
    """
    name = name or str(path)
    text, busy, reader = LogText(path), LoadWatch(), _Reader()

    def look(piece: bytes, first_line: int) -> None:
        busy.look(piece, first_line)
        reader.start.look(piece)

    reader.read(text.holding(_LOOKED_FOR, look))
    load = busy.load
    failure = reader.errors.failure(*((load.first, load.last) if load else ()))
    log = EngineLog(
        name, text.lines, tuple(reader.statements_by_key.values()), (), failure, load,
        reader.unknown.lines, reader.unknown.count, reader.writer, reader.start.starts,
    )  # fmt: skip
    lost = []
    if not log.is_of_engine:
        lost.append(
            f"{name}: none of its {text.lines:,} lines is known from vLLM or SGLang; give the log "
            "from the engine's start on"
        )
    # The replicas of one engine say it once each.
    if (starts := max(reader.starts.values(), default=0)) > 1:
        lost.append(f"{name} holds {starts:,} starts of an engine: their lines are read together")
    if text.cut:
        lost.append(f"{name}: of {text.cut:,} lines only the first 64 KiB were looked at")
    if text.foreign:
        lost.append(f"{name}: {text.foreign:,} lines are not UTF-8 and were read as Latin-1")
    if reader.dropped:
        lost.append(
            f"{name}: {reader.dropped:,} statements beyond {_MOST_STATEMENTS:,} were left out"
        )
    return replace(log, lost=tuple(lost))


def statements_of(lines: Iterable[str]) -> tuple[Statement, ...]:
    """What these lines say."""
    reader = _Reader()
    reader.read(enumerate(lines, 1))
    return tuple(reader.statements_by_key.values())


class _Reader:
    """What the lines of one log say, line by line."""

    def __init__(self) -> None:
        self.statements_by_key: dict[tuple[str, ...], Statement] = {}
        self.errors = ErrorWatch()
        self.unknown = UnknownWatch()
        self.start = StartWatch()
        self.starts = Counter[str]()  # of engines, by the process that says it
        self.dropped = 0  # how many lines said more than is kept
        self._remembered: dict[str, tuple[str, ...] | None] = {}
        self._unmatched: dict[str, int] = {}  # how often lines without their digits said nothing
        self._sglang = False

    @property
    def writer(self) -> str:
        """The engine that wrote the log; empty where nothing tells."""
        if self._sglang or any(key[0] == "sglang-arguments" for key in self.statements_by_key):
            return "SGLang"
        return "vLLM" if self.statements_by_key else ""

    def read(self, lines: Iterable[tuple[int, str]]) -> None:
        """Reads all lines."""
        for line in log_lines(lines):
            self.start.add(line)
            key = self._statement(line)
            if key and key[0] == "engine-config":
                self.errors.started(line.number)
                self.starts[line.process] += 1
            if key and key[0] in _SIGNS_OF_LIFE:
                self.errors.lives(line.number)
            tells_of_error = self.errors.add(line)
            failing = self.errors.failing and line.level in ("ERROR", "CRITICAL")
            self.unknown.add(line, is_explained=bool(key) or tells_of_error or failing)
            if not key and "sglang" in line.text[:400]:
                self._sglang = True

    def _statement(self, line: LogLine) -> tuple[str, ...] | None:
        """What the line says; None where no rule knows it."""
        message = line.text
        if message in self._remembered:
            key = self._remembered[message]
            if key in self.statements_by_key:
                earlier = self.statements_by_key[key]
                self.statements_by_key[key] = replace(earlier, count=earlier.count + 1)
            return key
        shape = message.translate(_NO_DIGITS) if len(message) < 4096 else ""
        unmatched = self._unmatched.get(shape, 0)
        # What differs in numbers alone from so many lines that no rule knows is not tried again.
        said_now = _statement(line.number, message) if unmatched < _OFTEN_ENOUGH else None
        key = None
        if said_now is None and shape and (unmatched or len(self._unmatched) < _MOST_REMEMBERED):
            self._unmatched[shape] = unmatched + 1
        if said_now is not None:
            rule = said_now.rule
            key = (rule.id, said_now.value, said_now.format, said_now.layer, said_now.detail)
            if key in self.statements_by_key:
                earlier = self.statements_by_key[key]
                self.statements_by_key[key] = replace(earlier, count=earlier.count + 1)
            elif len(self.statements_by_key) < _MOST_STATEMENTS:
                self.statements_by_key[key] = said_now
            else:
                self.dropped += 1
                return key
        if len(self._remembered) < _MOST_REMEMBERED and len(message) < 4096:
            self._remembered[message] = key
        return key


def _statement(number: int, message: str) -> Statement | None:
    begin = message[:_LONGEST_MESSAGE]
    for word, rule in _BY_WORD:
        # Some older wordings are only told apart by the file that vLLM names before them.
        searched = message if rule.id in _LONG else begin
        if word not in searched:
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
