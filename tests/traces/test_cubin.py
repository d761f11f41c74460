"""Reading which functions a cubin holds, from real ones and from damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.readers.cubin import Function, read_functions
from tests.rows import each_row
from tests.traces.cubins import SM_90, SM_121

pytestmark = pytest.mark.timeout(120)

SECTIONS_AT, SECTION_SIZE, SECTION_COUNT, NAMES_AT = 40, 58, 60, 62
"""Offsets in the ELF header."""


def words(code: bytes, at: int, form: str) -> int:
    return int(struct.unpack_from(form, code, at)[0])


def sections(code: bytes) -> dict[str, int]:
    """Where the header of each named section begins."""
    first, count = words(code, SECTIONS_AT, "<Q"), words(code, SECTION_COUNT, "<H")
    headers = [first + 64 * number for number in range(count)]
    names = words(code, headers[words(code, NAMES_AT, "<H")] + 24, "<Q")
    found = {}
    for at in headers:
        begin = names + words(code, at, "<I")
        found[code[begin : code.index(b"\0", begin)].decode()] = at
    return found


def patched(code: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(code)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


def functions(folder: Path, code: bytes) -> dict[str, int]:
    path = folder / "a.cubin"
    path.write_bytes(code)
    return {found.symbol: found.registers for found in read_functions(path)}


@pytest.mark.parametrize(("path", "mix"), [(SM_90, 32), (SM_121, 40)])
def test_functions_and_their_registers_as_the_compiler_told_them(path: Path, mix: int) -> None:
    assert read_functions(path) == [
        Function("_Z3addIiEvPT_S0_", 8), Function("mix", mix), Function("scale", 8),
    ]  # fmt: skip


def test_registers_where_older_compilers_wrote_them(tmp_path: Path) -> None:
    """In the upper byte of the section's info."""
    code = SM_90.read_bytes()
    at = sections(code)[".text.mix"] + 44
    older = patched(code, at, "<I", 77 << 24 | words(code, at, "<I"))
    assert functions(tmp_path, older)["mix"] == 77


def test_registers_that_nothing_tells_are_0(tmp_path: Path) -> None:
    code = SM_90.read_bytes()
    empty = patched(code, sections(code)[".nv.info"] + 32, "<Q", 0)
    assert functions(tmp_path, empty) == {"_Z3addIiEvPT_S0_": 0, "mix": 0, "scale": 0}


def test_more_sections_than_the_header_can_count(tmp_path: Path) -> None:
    """Their number and the names' section are in the first section then."""
    code = SM_90.read_bytes()
    first = words(code, SECTIONS_AT, "<Q")
    many = patched(code, first + 32, "<Q", words(code, SECTION_COUNT, "<H"))
    many = patched(many, first + 40, "<I", words(code, NAMES_AT, "<H"))
    many = patched(patched(many, SECTION_COUNT, "<H", 0), NAMES_AT, "<H", 0xFFFF)
    assert functions(tmp_path, many) == functions(tmp_path, code)


@each_row(
    ("at", "form", "value"),
    [
        (0, "<I", 0),
        (4, "<B", 1),  # 32 bits
        (18, "<H", 62),  # x86-64
        (SECTIONS_AT, "<Q", 1 << 63),
        (SECTIONS_AT, "<Q", (1 << 64) - 64),
        (SECTION_SIZE, "<H", 40),
        (SECTION_COUNT, "<H", 0xFFFF),
        (NAMES_AT, "<H", 0xFFFE),
    ],
)
def test_other_files_are_refused(tmp_path: Path, at: int, form: str, value: int) -> None:
    with pytest.raises(CommandError, match=r"a\.cubin is no whole cubin"):
        functions(tmp_path, patched(SM_90.read_bytes(), at, form, value))


def test_a_file_as_large_as_no_cubin_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.cubin"
    with path.open("wb") as file:
        file.truncate(2 << 30)  # takes no room on the disk
    with pytest.raises(CommandError, match="larger than any cubin"):
        read_functions(path)
