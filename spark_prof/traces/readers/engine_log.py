"""Reads what an inference engine's log says about kernels, formats, settings and execution.

Only lines that hold one of some words are looked at, in bounded memory.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.redact import redacted_text
from spark_prof.rules.engine_log_lines import LINE_RULES, WORDS, LineRule
from spark_prof.traces.compressed import open_stream

_LONGEST_LINE = 1 << 16
_SAMPLE = 4096
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_DIGITS = b"0123456789"
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))
_MOST_CONTROLS = 0.05
"""Share of control characters from which on a file is no text; a log may hold some by accident."""

_ESCAPES = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033|\^\[)\[[0-9;?]*[A-Za-z]")
"""Colours as a terminal gets them, and as JSON, `cat -v` and shells write them."""


@dataclass
class LogText:
    """The lines of one log; what was found out about it stands here once they have been read."""

    path: Path
    lines: int = 0
    # How many of them were longer than 64 KiB; of those only the first part is looked at.
    cut: int = 0
    encoding: str = "utf-8"
    foreign: int = 0  # lines among the given ones that are not valid in it

    def holding(self, words: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        """The number from 1 and the text of each line in which one of the ASCII words stands."""
        rest = b""
        whole = True  # whether `rest` is the beginning of its line
        with open_stream(self.path) as blocks:
            for block in self._utf8(blocks):
                data = rest + block
                end = data.rfind(b"\n") + 1
                if end:
                    yield from self._lines(data[:end], words, whole)
                    rest, whole = data[end:], True
                else:
                    rest = data
                if len(rest) > _LONGEST_LINE:
                    if whole:
                        self.cut += 1
                        yield from self._line(self.lines + 1, rest[:_LONGEST_LINE], words)
                    rest, whole = b"", False
        if rest or not whole:
            yield from self._lines(rest + b"\n", words, whole)
        if not self.lines:
            raise CommandError(f"{self.path} is empty; give what the engine printed")

    def _utf8(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        first = next(blocks, b"")
        self.encoding = _encoding(first[:_SAMPLE])
        if self.encoding == "utf-8" and _is_binary(first[:_SAMPLE]):
            raise CommandError(f"{self.path} is no text; give what the engine printed")
        if self.encoding == "utf-8":
            yield first.removeprefix(codecs.BOM_UTF8)
            yield from blocks
            return
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        yield decoder.decode(first).removeprefix("\ufeff").encode("utf-8", "replace")
        for block in blocks:
            yield decoder.decode(block).encode("utf-8", "replace")

    def _lines(self, data: bytes, words: Sequence[bytes], whole: bool) -> Iterator[tuple[int, str]]:
        """Lines of `data`, which ends with one; the first one was given already if not `whole`."""
        begins = set()
        for word in words if _may_hold(data, words) else ():
            at = data.find(word)
            while at >= 0:
                begin = data.rfind(b"\n", 0, at) + 1
                begins.add(begin)
                at = data.find(word, data.find(b"\n", at))
        counted = 0
        for begin in sorted(begins):
            self.lines += data.count(b"\n", counted, begin)
            counted = begin
            if begin == 0 and not whole:
                continue
            line = data[begin : data.find(b"\n", begin)]
            if len(line) > _LONGEST_LINE:
                self.cut += 1
                line = line[:_LONGEST_LINE]
            yield from self._line(self.lines + 1, line, words)
        self.lines += data.count(b"\n", counted)

    def _line(self, number: int, line: bytes, words: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        if not any(word in line for word in words):
            return
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self.foreign += 1
            text = line.decode("latin-1")
        yield number, _ESCAPES.sub("", text)


def _may_hold(data: bytes, words: Sequence[bytes]) -> bool:
    """Whether one of the words may stand in a text; it is quick where lines differ in numbers."""
    kinds = b"\n".join(set(data.translate(None, _DIGITS).split(b"\n")))
    return any(word in kinds for word in {word.translate(None, _DIGITS) for word in words})


def _is_binary(sample: bytes) -> bool:
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    return controls > _MOST_CONTROLS * len(sample)


def _encoding(sample: bytes) -> str:
    for mark, name in _MARKS:
        if sample.startswith(mark):
            return name
    # Without a mark: in UTF-16 every other byte of English is zero.
    pairs = len(sample) // 2
    if pairs > 1:
        if sample[1::2].count(0) > 0.6 * pairs and sample[::2].count(0) < 0.1 * pairs:
            return "utf-16-le"
        if sample[::2].count(0) > 0.6 * pairs and sample[1::2].count(0) < 0.1 * pairs:
            return "utf-16-be"
    return "utf-8"


_PREFIX = re.compile(
    r"^.*?\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d (?=\[[^\]]*\])"
)
"""Everything up to vLLM's own level and time, whatever wrote it before; the place stays."""

_LONGEST_DETAIL = 32 << 10
_LONGEST_MESSAGE = 2048  # what of a line is matched

_LONG = ("engine-config", "arguments", "sglang-arguments")
"""Rules of lines that hold a whole configuration."""

_LONGEST_TEXT = 400
_MOST_STATEMENTS = 2000
_MOST_REMEMBERED = 10_000


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

    def of(self, *rules: str) -> tuple[Statement, ...]:
        """The statements of these rules."""
        return tuple(said for said in self.statements if said.rule.id in rules)


def read_engine_log(path: Path) -> EngineLog:
    """Reads a log as a stream: plain or compressed, with any prefixes, in bounded memory."""
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
