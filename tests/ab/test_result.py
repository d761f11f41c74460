"""The file of a result: what is written is read back, and anything else is refused in one line."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.ab.result import AbOutcome, from_json, read_result, to_json
from spark_prof.errors import CommandError
from spark_prof.traces.resolve import find_result
from tests.dashboards.ab_sample import AB_SAMPLES, FASTER
from tests.dashboards.filled import filled_as
from tests.rows import each_row


@each_row("sample", sorted(set(AB_SAMPLES) - {"ab_hostile"}))
def test_what_is_written_is_read_back(sample: str) -> None:
    assert from_json(to_json(AB_SAMPLES[sample])) == AB_SAMPLES[sample]


def test_every_field_is_written() -> None:
    filled = replace(filled_as(AbOutcome), kind=FASTER.kind, schema=FASTER.schema)
    assert from_json(to_json(filled)) == filled


def test_text_that_is_no_utf8_is_written_all_the_same() -> None:
    side = replace(FASTER.sides[0], environment={"A\udcff": "b\udcfe"})
    result = from_json(to_json(replace(FASTER, sides=(side, FASTER.sides[1]))))
    assert result.sides[0].environment == {"A\\udcff": "b\\udcfe"}


def _changed(**parts: object) -> bytes:
    return json.dumps(json.loads(to_json(FASTER)) | parts).encode()


@each_row(
    ("text", "said"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "Expected `object`"),
        (b"{}", "no result"),
        (b"null", "Expected `object`"),
        (_changed(kind="another"), "Invalid enum value 'another'"),
        (_changed(schema=2), "Invalid enum value 2"),
        (_changed(mode="three engines"), r"Invalid enum value 'three engines'"),
        (_changed(runs=[{"phase": "decode"}]), r"missing required field `requests`"),
        (_changed(sides=[]), "length 2"),
        (_changed(missing="text"), "Expected `array`"),
        (to_json(FASTER)[:-20], "truncated"),
    ],
)
def test_anything_else_is_refused_in_one_line(text: bytes, said: str) -> None:
    with pytest.raises(CommandError, match=said) as refused:
        from_json(text, "x.json")
    assert str(refused.value).startswith("x.json ")
    assert "\n" not in str(refused.value)


def test_damaged_files_are_refused_or_read() -> None:
    text, chance = to_json(FASTER), random.Random(7)
    for _ in range(300):
        damaged = bytearray(text)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(text))] = chance.randrange(256)
        with suppress(CommandError):
            assert isinstance(from_json(bytes(damaged)), AbOutcome)


def test_other_files_are_no_result(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b'{"schema": 1}')
    assert find_result(path) is find_result(tmp_path) is None
    assert find_result(tmp_path / "absent") is find_result(Path("\0")) is None
    with pytest.raises(CommandError, match="cannot read"):
        read_result(tmp_path)
