"""A line of a log in its parts: what stands before it, which process wrote it, its level, its text.

Known are vLLM's own form and its JSON, those of uvicorn, FlashInfer, torch, SGLang and Python's
warnings, and what docker, compose, journald, Kubernetes and Ray put before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from spark_prof.redact import redacted_text

_LEVELS = r"DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL"

_BEFORE = re.compile(
    r"(?:\w[\w.-]{0,80} *\| ?(?=\S| )"  # docker compose
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,100} [\w.@/-]{1,100}(?:\[\d+\])?: "  # journald
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?: \| | )"
    r"|(?:stdout|stderr) [FP] "  # Kubernetes
    r"|\[[\w.-]+/[\w./-]+\] "
    r"|\[rank\d+\]: ?)"  # torch, before what a rank prints of its end
)
"""What other programs put before a line; there may be several."""

_PROCESS = re.compile(r"\((?P<name>\w[\w.:-]{0,60}) pid=\d+(?:, ip=[\w.:]+)?\) ?")
_VLLM = re.compile(
    rf"^.*?\b(?P<level>{_LEVELS})\s+\d\d-\d\d \d\d:\d\d:\d\d (?=(?P<place>\[[^\]]*\]))"
)
"""Everything up to vLLM's own level and time, whatever wrote it before; the place stays."""

_LEVEL = re.compile(
    rf"(?:(?P<first>{_LEVELS})(?::| {{1,4}}(?=\S))\s*"
    rf"|- (?:[\w.]+ - )?(?P<dashed>{_LEVELS}) - "
    rf"|\[(?P<boxed>{_LEVELS})\]\s*"
    rf"|\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{{0,40}}\] (?:(?P<sglang>{_LEVELS}):? )?"
    r"|\[?(?P<letter>[WEF])\d{4} \d\d:\d\d:\d\d)"
)
_LETTERS = {"W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_PYTHON = re.compile(r"(?:^|\.py:\d+: |\s)(?:[A-Z]\w{0,60}Warning|Warning|UserWarning): ")
_TUNER = re.compile(r"\[Auto[Tt]uner\]")

_LONGEST_BEFORE = 400  # no line has more before its message
_MOST_BEFORE = 4


@dataclass(frozen=True)
class LogLine:
    """One line, or a part of one between carriage returns."""

    number: int  # in the file, from 1
    process: str  # as vLLM or Ray call it, such as EngineCore_DP0; empty where nothing tells
    level: str  # WARNING, ERROR or another; empty where the line has none
    # What its logger put before the message, so that lines of one record have the same.
    head: str
    text: str  # the message, and before it the place in the source where vLLM names one
    body: str  # the message alone


def log_lines(lines: Iterable[tuple[int, str]]) -> Iterator[LogLine]:
    """The lines in their parts; those with progress bars before them are taken apart, and JSON."""
    for number, line in lines:
        for piece in line.split("\r") if "\r" in line else (line,):
            if piece.endswith("}") and (record := _record(piece)):
                yield from (parsed(number, text) for text in record.split("\n"))
            elif piece or piece == line:
                yield parsed(number, piece)


def parsed(number: int, line: str) -> LogLine:
    """A line in its parts.

    parsed(1, "(EngineCore pid=7) WARNING 06-01 21:40:20 [a.py:1] Oh").body == "Oh"
    """
    vllm = _VLLM.match(line) if "[" in line else None
    if vllm:
        text = line[vllm.end() :]
        names = _PROCESS.findall(vllm[0][-_LONGEST_BEFORE:])
        head = vllm[0][vllm.start("level") :] + vllm["place"]
        return LogLine(
            number, names[-1] if names else "", vllm["level"], head, text,
            text[len(vllm["place"]) :].removeprefix(" "),
        )  # fmt: skip
    body, process = _without_what_is_before(line)
    match = _LEVEL.match(body)
    level = ""
    if match:
        level = next(filter(None, match.group("first", "dashed", "boxed", "sglang")), "")
        level = level or _LETTERS.get(match["letter"] or "", "")
        head, body = match[0], body[match.end() :]
    else:
        head = ""
    level = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(level, level)
    begin = body[:_LONGEST_BEFORE]
    if not level and (_PYTHON.search(begin) or _TUNER.search(begin)):
        level = "WARNING"
    return LogLine(number, process, level, head, line, body)


def _without_what_is_before(line: str) -> tuple[str, str]:
    """The rest of a line, and the process that is named before it."""
    at, process = 0, ""
    for _ in range(_MOST_BEFORE):
        match = _BEFORE.match(line, at)
        if match:
            at = match.end()
        elif named := _PROCESS.match(line, at):
            at, process = named.end(), named["name"]
        else:
            break
    return line[at:], process


def _record(line: str) -> str:
    """The text that a record of JSON stands for; empty where the line is none.

    vLLM has levelname and message in it, Docker's files have the line itself as log.
    """
    begin = line.find('{"')
    if not 0 <= begin <= _LONGEST_BEFORE:
        return ""
    try:
        record = json.loads(line[begin:])
    except (ValueError, RecursionError):
        return ""
    if not isinstance(record, Mapping):
        return ""
    if isinstance(record.get("log"), str):
        return str(record["log"]).rstrip("\n")
    message = record.get("message", record.get("msg", record.get("event")))
    level = str(record.get("levelname", record.get("level", record.get("severity", "")))).upper()
    if not isinstance(message, str) or not re.fullmatch(_LEVELS, level):
        return ""
    place = f"{record.get('filename') or record.get('name') or 'log'}:{record.get('lineno') or 0}"
    process = str(record.get("processName") or "")
    name = f"({process} pid={record.get('process') or 0}) " if process else ""
    when = re.search(r"(\d\d-\d\d)[T ](\d\d:\d\d:\d\d)", str(record.get("asctime") or ""))
    at = f"{when[1]} {when[2]}" if when else "01-01 00:00:00"
    stamp = f"{name}{level} {at} [{place.replace(']', '')}] "
    text = f"{message}\n{record['exc_info']}" if record.get("exc_info") else message
    return "\n".join(stamp + part for part in text.split("\n"))


_COUNTED = ("WARNING", "ERROR", "CRITICAL")
_VALUES = re.compile(
    r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27,}|'[^']{0,200}'|\"[^\"]{0,200}\"|\d+(?:[.,:]\d+)*", re.I
)
_PLACE = re.compile(r"\[([^\]\s]{1,100})\]")
_GOES_ON = (" ", "\t", "-", ")", "]", "}", "|")
_OPENS = (":", ": ", "(", "[", "{")
_TRACEBACK = "Traceback (most recent"
_LONGEST_TEXT = 300
_MOST_KINDS = 200


@dataclass(frozen=True)
class UnknownLine:
    """Lines that differ in numbers, names and paths at most."""

    level: str  # WARNING, ERROR or CRITICAL
    text: str  # of the first one, with the place in the source where it names one
    line: int  # number of the first one
    count: int


@dataclass
class _Record:
    """The lines that a process wrote last in one call of its logger."""

    head: str
    opened: bool  # whether more lines are to come: a traceback, or a list that was begun


class UnknownWatch:
    """Counts the warnings and errors among the lines that are given to it."""

    def __init__(self) -> None:
        self.count = 0  # of all that no rule knows, also those that are not kept
        self._kinds: dict[tuple[str, str], UnknownLine] = {}
        self._records: dict[str, _Record] = {}

    def add(self, line: LogLine, *, is_explained: bool) -> None:
        """A line, in the order of the log.

        Args:
            is_explained: whether a rule knows it, or something else tells of it.
        """
        if (
            self._goes_on(line)
            or is_explained
            or line.level not in _COUNTED
            or not line.body.strip()
        ):
            return
        self.count += 1
        place = _PLACE.match(line.text)
        words = line.body[:_LONGEST_TEXT].split(" ")
        shape = _VALUES.sub("#", " ".join("#" if "/" in word else word for word in words))
        key = (place[1].split(":")[0] if place else "", shape)
        if key in self._kinds:
            self._kinds[key] = replace(self._kinds[key], count=self._kinds[key].count + 1)
        elif len(self._kinds) < _MOST_KINDS:
            text = redacted_text(line.text[: 2 * _LONGEST_TEXT]).strip()[:_LONGEST_TEXT]
            self._kinds[key] = UnknownLine(line.level, text, line.number, 1)

    def _goes_on(self, line: LogLine) -> bool:
        """Whether the line belongs to the record before it."""
        last = self._records.get(line.process)
        if not line.head:
            return False
        if last is not None and last.head == line.head and "[" in line.head:
            if last.opened or not line.body.strip() or line.body.startswith(_GOES_ON):
                last.opened = last.opened or _TRACEBACK in line.body
                return True
            if _TRACEBACK in line.body:
                last.opened = True
                return True
        if len(self._records) < _MOST_KINDS or line.process in self._records:
            opened = line.body.rstrip().endswith(_OPENS) or _TRACEBACK in line.body
            self._records[line.process] = _Record(line.head, opened)
        return False

    @property
    def lines(self) -> tuple[UnknownLine, ...]:
        """Each kind once, in the order of the log."""
        return tuple(self._kinds.values())
