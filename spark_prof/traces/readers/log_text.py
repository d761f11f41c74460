"""The lines of a log as a file has them: any encoding, compressed, with colours, in bounded memory.

Only lines that hold one of some words are given, and those that go on with what they say.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import open_stream

_LONGEST_LINE = 1 << 16
_SAMPLE = 4096
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_DIGITS = b"0123456789"
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))
_MOST_CONTROLS = 0.05
"""Share of control characters from which on a file is no text; a log may hold some by accident."""

GOES_ON = (b"Reasons:", b"Reason:", b"unavailable reasons", b"Error: ")
"""What stands in lines whose next ones go on with what they say."""
_FOLLOWING = 6

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
    _owed: int = 0  # lines of the next piece that go on with what one before them says

    def holding(
        self, words: Sequence[bytes], watch: Callable[[bytes, int], None] | None = None
    ) -> Iterator[tuple[int, str]]:
        """The number from 1 and the text of each line in which one of the ASCII words stands.

        Args:
            watch: is given all whole lines, in large pieces, with the number of the first.
        """
        rest = b""
        whole = True  # whether `rest` is the beginning of its line
        with open_stream(self.path) as blocks:
            for block in self._utf8(blocks):
                data = rest + block
                end = data.rfind(b"\n") + 1
                if end:
                    rest, data = data[end:], data[:end]
                    if watch:
                        watch(data, self.lines + 1)
                    yield from self._lines(data, words, whole)
                    whole = True
                else:
                    rest = data
                if len(rest) > _LONGEST_LINE:
                    if whole:
                        self.cut += 1
                        yield from self._line(self.lines + 1, rest[:_LONGEST_LINE], words)
                    rest, whole = b"", False
        if rest or not whole:
            if watch:
                watch(rest + b"\n", self.lines + 1)
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
        kinds = _kinds(data)
        begins: dict[int, Sequence[bytes]] = {
            begin: words for word in _possible_words(kinds, words) for begin in _begins(data, word)
        }
        for begin in self._following(data, kinds):
            begins.setdefault(begin, ())
        counted = 0
        for begin in sorted(begins):
            self.lines += data.count(b"\n", counted, begin)
            counted = begin
            if begin == 0 and not whole:
                continue
            line = data[begin : data.find(b"\n", begin)]
            # The word may stand in what is cut off.
            looked_for: Sequence[bytes] = ()
            if len(line) > _LONGEST_LINE:
                self.cut += 1
                line, looked_for = line[:_LONGEST_LINE], begins[begin]
            yield from self._line(self.lines + 1, line, looked_for)
        self.lines += data.count(b"\n", counted)

    def _following(self, data: bytes, kinds: bytes) -> Iterator[int]:
        """Where the lines begin that go on with what one before them says."""
        at = 0
        while self._owed and at < len(data):
            yield at
            self._owed -= 1
            at = data.find(b"\n", at) + 1
        for mark in _possible_words(kinds, GOES_ON):
            for begin in _begins(data, mark):
                at = data.find(b"\n", begin) + 1
                for left in range(_FOLLOWING, 0, -1):
                    if at >= len(data):
                        self._owed = max(self._owed, left)
                        break
                    yield at
                    at = data.find(b"\n", at) + 1

    def _line(self, number: int, line: bytes, words: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        if words and not any(word in line for word in words):
            return
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self.foreign += 1
            text = line.decode("latin-1")
        yield number, _ESCAPES.sub("", text)


def _begins(data: bytes, word: bytes) -> Iterator[int]:
    """Where the lines begin in which the word stands."""
    at = data.find(word)
    while at >= 0:
        yield data.rfind(b"\n", 0, at) + 1
        at = data.find(word, data.find(b"\n", at))


def _kinds(data: bytes) -> bytes:
    """The lines of a text without digits, each once: few where lines differ in numbers."""
    return b"\n".join(set(data.translate(None, _DIGITS).split(b"\n")))


def _possible_words(kinds: bytes, words: Sequence[bytes]) -> list[bytes]:
    """Those words that may stand in a text of these kinds of lines."""
    return [word for word in words if word.translate(None, _DIGITS) in kinds]


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
