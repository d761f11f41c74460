"""What a cubin holds, which machine code a kernel ran, and what of it a bundle keeps."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

import pandas as pd
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.chunks import cached_cubin_name
from spark_prof.traces.machine_code import CUBINS_FOLDER, Cubins
from spark_prof.traces.readers.cubin import read_code
from tests.rows import each_row
from tests.traces.cubins import ADD, SM_90, SM_121

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
    return {found.symbol: found.registers for found in read_code(path, ())}


@pytest.mark.parametrize(("path", "mix"), [(SM_90, 32), (SM_121, 40)])
def test_functions_and_their_registers_as_the_compiler_told_them(path: Path, mix: int) -> None:
    found = [(code.symbol, code.registers) for code in read_code(path, ())]
    assert found == [("_Z3addIiEvPT_S0_", 8), ("mix", mix), ("scale", 8)]


def test_registers_where_older_compilers_wrote_them(tmp_path: Path) -> None:
    """In the upper byte of the section's info."""
    code = SM_90.read_bytes()
    at = sections(code)[".text.mix"] + 44
    older = patched(code, at, "<I", 77 << 24 | words(code, at, "<I"))
    assert functions(tmp_path, older)["mix"] == 77


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
        read_code(path, ())


def key(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


HOPPER, SPARK = key(SM_90), key(SM_121)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "loaded"
    made.mkdir()
    return made


def test_which_of_the_functions_of_a_name_ran(folder: Path) -> None:
    shutil.copy(SM_90, folder / "42-0.cubin")
    one = Cubins(folder)
    assert one.find("mix", 32) == (HOPPER,)
    # The driver may give a kernel more than it was compiled with.
    assert one.find("mix", 64) == (HOPPER,)
    assert one.find("nosuch", 32) == ()
    shutil.copy(SM_121, folder / "42-1.cubin")
    two = Cubins(folder)
    assert (two.find("mix", 32), two.find("mix", 40)) == ((HOPPER,), (SPARK,))
    # Both have 8 registers; and with others, neither is better than the other.
    for registers in (8, 0, 33):
        for name in ("scale", ADD):
            assert two.find(name, registers) == (HOPPER, SPARK)


def test_the_same_code_of_two_sources_is_one(folder: Path, tmp_path: Path) -> None:
    for name in ("42-0.cubin", "42-7.cubin", "43-0.cubin", cached_cubin_name("triton", 5)):
        shutil.copy(SM_90, folder / name)
    cubins = Cubins(folder)
    assert cubins.find("scale", 8) == (HOPPER,)
    rows = cubins.keep(tmp_path)
    assert rows[["hash", "source"]].to_numpy().tolist() == [[HOPPER, "driver"]]


def test_what_ran_is_kept_and_the_rest_is_listed(folder: Path, tmp_path: Path) -> None:
    shutil.copy(SM_90, folder / "42-0.cubin")
    shutil.copy(SM_121, folder / cached_cubin_name("flashinfer", 3))
    cubins = Cubins(folder)
    for registers in (40, 40):
        cubins.find("mix", registers)
    rows = cubins.keep(tmp_path)
    assert rows.to_numpy().tolist() == [
        [HOPPER, SM_90.stat().st_size, "driver", ""],
        [SPARK, SM_121.stat().st_size, "flashinfer", "mix"],
    ]
    kept = list((tmp_path / CUBINS_FOLDER).iterdir())
    assert [path.name for path in kept] == [f"{SPARK}.cubin"]
    assert kept[0].read_bytes() == SM_121.read_bytes()


def kernels(*rows: tuple[str, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["name", "registers"])
    return frame.astype({"name": "category"})


def test_the_column_of_the_kernels(folder: Path) -> None:
    shutil.copy(SM_90, folder / "42-0.cubin")
    shutil.copy(SM_121, folder / "42-1.cubin")
    symbols = {"void add<int>(int*, int)": ADD, "mix": "mix"}
    found = Cubins(folder).of_kernels(
        kernels(
            ("mix", 40), ("mix", 32), ("void add<int>(int*, int)", 8), ("mix", 40), ("scale", 8)
        ),
        symbols,
    )
    assert found == [SPARK, HOPPER, f"{HOPPER} {SPARK}", SPARK, ""]
    assert Cubins(folder).of_kernels(kernels(), symbols) == []
