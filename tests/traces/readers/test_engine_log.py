"""Logs as files: encodings, compression, damage, size."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from spark_prof.rules.engine_log_lines import LINE_RULES, LineRule
from spark_prof.traces.readers.engine_log import read_engine_log
from spark_prof.traces.readers.log_text import LogText
from tests.rows import each_row
from tests.support import refusal

LINES = [
    "(EngineCore pid=1) INFO 06-01 21:36:09 [core.py:109] Initializing a V1 LLM engine (v0.22.0) "
    "with config: model='m', enforce_eager=False",
    "(EngineCore pid=1) INFO 06-01 21:36:10 [nvfp4.py:231] Using 'MARLIN' NvFp4 MoE backend out of "
    "potential backends: ['MARLIN'].",
    "Loading safetensors checkpoint shards: 100% Completed | 3/3 [00:02<00:00, 1.31it/s]",
    "(EngineCore pid=1) WARNING 06-01 21:40:20 [marlin.py:34] Your GPU does not have native "
    "support for FP4 computation but FP4 quantization is being used.",
]
SAID = ["engine-config", "moe-backend", "marlin-linear"]


def write(folder: Path, data: bytes, name: str = "log.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@each_row("end", ["\n", "\r\n"])
@each_row("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_any_encoding(tmp_path: Path, encoding: str, end: str) -> None:
    log = read_engine_log(write(tmp_path, end.join([*LINES, ""]).encode(encoding)))
    assert [said.rule.id for said in log.statements] == SAID
    assert [said.line for said in log.statements] == [1, 2, 4]
    assert log.lines == len(LINES)
    assert log.lost == ()


def test_latin_1_and_broken_bytes_are_read_and_told(tmp_path: Path) -> None:
    text = "\n".join(LINES).encode().replace(b"'m'", b"'mod\xe8le'")
    log = read_engine_log(write(tmp_path, text))
    assert [said.rule.id for said in log.statements] == SAID
    assert "modèle" in log.statements[0].detail
    assert "not UTF-8" in log.lost[0]


@pytest.mark.parametrize(
    "colour", ["\x1b[33;1m{}\x1b[0m", "\\u001b[33m{}\\u001b[0m", "^[[33m{}^[[0m"]
)
def test_colours(tmp_path: Path, colour: str) -> None:
    lines = [line.replace("WARNING", colour.format("WARNING")) for line in LINES]
    lines = [line.replace("INFO", colour.format("INFO")) for line in lines]
    log = read_engine_log(write(tmp_path, "\n".join(lines).encode()))
    assert [said.rule.id for said in log.statements] == SAID
    assert all("[33" not in said.text for said in log.statements)


def test_a_line_that_is_longer_than_any_is_cut(tmp_path: Path) -> None:
    filler = "x" * (3 << 20)
    data = "\n".join([LINES[0] + filler, filler + LINES[1], LINES[3]])
    log = read_engine_log(write(tmp_path, data.encode()))
    assert [said.rule.id for said in log.statements] == ["engine-config", "marlin-linear"]
    assert log.statements[1].line == 3
    assert log.lines == 3
    assert "64 KiB" in log.lost[0]


@each_row("size", [1, 7, 1000, 1 << 20, (1 << 20) + 1])
def test_blocks_may_end_anywhere(tmp_path: Path, size: int) -> None:
    """Lines around the border between two blocks keep their text and number."""
    filler = ("a" * 99 + "\n") * (size // 100) + "b" * (size % 100) + "\n"
    log = read_engine_log(write(tmp_path, (filler + "\n".join(LINES)).encode()))
    assert [said.rule.id for said in log.statements] == SAID
    assert log.statements[0].line == size // 100 + 2


def test_what_a_line_goes_on_with_is_given_wherever_a_block_ends(tmp_path: Path) -> None:
    """Six lines after such a mark, once each, and no other; a block is 1 MiB."""
    tail = b"Reasons:\n" + b"".join(b"line %d\n" % number for number in range(9))
    for before in range(0, len(tail) + 1, 3):
        filler = b"a" * 99 + b"\n"
        whole = filler * ((1 << 20) // 100)
        whole += b"b" * ((1 << 20) - len(whole) - before - 1) + b"\n"
        log = LogText(write(tmp_path, whole + tail))
        lines = list(log.holding((b"nothing",)))
        first = whole.count(b"\n") + 2
        assert lines == [(first + number, f"line {number}") for number in range(6)], before
        assert log.lines == whole.count(b"\n") + 10


@each_row(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\x7fELF" + bytes(400), "is no text"),
        (bytes(range(256)) * 20, "is no text"),
        (gzip.compress("\n".join(LINES).encode(), mtime=0)[:60], "log.txt"),
        (b"PK\x03\x04" + bytes(100), "zip"),
    ],
)
def test_what_is_no_log_is_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    with refusal(words):
        read_engine_log(write(tmp_path, data))


def test_progress_bars_hide_nothing_of_a_line(tmp_path: Path) -> None:
    bars = "\r".join(f"Loading shards: {i}% [00:00<00:01, {'#' * 60}]" for i in range(100))
    log = read_engine_log(write(tmp_path, f"{bars}\r{LINES[1]}\n{LINES[3]}".encode()))
    assert [(said.rule.id, said.line) for said in log.statements] == [
        ("moe-backend", 1), ("marlin-linear", 2),
    ]  # fmt: skip


@pytest.mark.slow
@each_row("rule", LINE_RULES)
def test_lines_made_to_be_slow_end(tmp_path: Path, rule: LineRule) -> None:
    """Repeated beginnings, which make careless expressions take the square of a line's length."""
    parts = [example[:cut] for example in rule.examples for cut in (12, 25, 40, -1)]
    data = "\n".join((part * 300)[:3000] for part in parts)
    read_engine_log(write(tmp_path, data.encode()))


def test_ever_new_statements_stay_bounded(tmp_path: Path) -> None:
    lines = (f"Unknown vLLM environment variable detected: VLLM_{i}" for i in range(5000))
    log = read_engine_log(write(tmp_path, "\n".join(lines).encode()))
    assert len(log.statements) == 2000
    assert "3,000 statements" in log.lost[0]
