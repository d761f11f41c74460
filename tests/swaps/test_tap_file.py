"""The file of recorded logits: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from spark_prof.errors import CommandError
from spark_prof.swaps.tap_file import RecordedLogits, TappedRow, write_logits
from tests.rows import each_row


def rows(dtype: torch.dtype = torch.bfloat16, count: int = 6) -> list[TappedRow]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(count, 40, generator=generator).to(dtype)
    logits[0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
    return [
        TappedRow(number % 2, number // 2, number, 0xFFFFFFFF - number % 2, row)
        for number, row in enumerate(logits)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_written_is_read_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    written = rows(dtype)
    write_logits(tmp_path / "a", written)
    found = RecordedLogits(tmp_path / "a")
    assert found.vocabulary == 40
    for row in written:
        number, token = found.find(row.request, row.step, row.prompt)
        assert token == row.token
        read = found.logits([number])
        assert read.dtype == dtype
        integers = torch.int32 if dtype == torch.float32 else torch.int16
        assert read[0].view(integers).equal(row.logits.view(integers))


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="float64 cannot be recorded"):
        write_logits(tmp_path / "a", rows(torch.float64))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(CommandError, match="cannot be written"):
        write_logits(tmp_path / "a", rows())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def _saved(array: np.ndarray[tuple[int, ...], np.dtype[np.void]]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\0" * 10_000_000)
    return stream.getvalue()


KEYS = [("request", "<i4"), ("step", "<i4"), ("token", "<i4"), ("prompt", "<u4")]
RECORD = np.dtype([*KEYS, ("bfloat16", "<i2", (4,))])
DAMAGED = {
    "empty": b"",
    "text": b"not an array",
    "an archive": _zip(),
    "a pickle": _saved(np.array([{}], dtype=object)),
    "numbers": _saved(np.arange(5)),  # type: ignore[arg-type]
    "a matrix": _saved(np.zeros((2, 2), RECORD)),
    "another field": _saved(np.zeros(2, np.dtype([*KEYS, ("logits", "<i2", (4,))]))),
    "one logit": _saved(np.zeros(2, np.dtype([*KEYS, ("bfloat16", "<i2")]))),
    "a table of logits": _saved(np.zeros(2, np.dtype([*KEYS, ("bfloat16", "<i2", (4, 4))]))),
    "another order": _saved(np.zeros(2, np.dtype([*KEYS[::-1], ("bfloat16", "<i2", (4,))]))),
    "the same token twice": _saved(np.zeros(2, RECORD)),
    "a token beyond": _saved(np.array([(0, 0, 4, 0, [0] * 4)], RECORD)),
    "a negative token": _saved(np.array([(0, 0, -1, 0, [0] * 4)], RECORD)),
    "a declared size": _header(
        f"{{'descr': {RECORD.descr}, 'fortran_order': False, 'shape': (10**15,)}}"
    ),
    "a large size": _header(
        f"{{'descr': {RECORD.descr}, 'fortran_order': False, 'shape': ({10**30},)}}"
    ),
    "code": _header("__import__('os').abort()"),
    "brackets": _header("(" * 9000),
}


@each_row("content", DAMAGED.values())
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CommandError) as caught:
        RecordedLogits(tmp_path / "a")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandError, match="cannot be read as recorded logits"):
        RecordedLogits(tmp_path / name)


@each_row("seed", range(60))
def test_damage_is_refused_or_harmless(tmp_path: Path, seed: int) -> None:
    """Cut or with flipped bits: never another exception than the one."""
    chance = random.Random(seed)
    write_logits(tmp_path / "a", rows())
    content = bytearray((tmp_path / "a").read_bytes())
    if seed % 3 == 0:
        del content[chance.randrange(len(content)) :]
    for _ in range(chance.randint(1, 4) if content else 0):
        content[chance.randrange(min(len(content), 400))] ^= 1 << chance.randrange(8)
    (tmp_path / "a").write_bytes(content)
    try:
        found = RecordedLogits(tmp_path / "a")
        for row in rows():
            number, token = found.find(row.request, row.step, row.prompt)
            assert 0 <= token < found.vocabulary
            assert found.logits([number]).shape == (1, found.vocabulary)
    except CommandError:
        pass
