"""Reads which functions a cubin holds, and their code: NVIDIA's GPU machine code in an ELF file.

Formats: ELF64, elf.h; CUDA's machine number is 190. A function `f` is the section ``.text.f``,
whose `sh_info` is its symbol; ``.nv.info`` holds attributes as (format u8, attribute u8, size u16),
and EIATTR_REGCOUNT (0x2f) with (symbol u32, registers u32), as `cuobjdump -elf` prints them.
`e_flags` names the architecture without its suffix; ``.note.nv.tkinfo`` holds ptxas' command line,
the only place that tells ``sm_121`` from ``sm_121a`` and ``sm_121f``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spark_prof.errors import CommandError

_HEADER = np.dtype(
    [
        ("ident", "V16"), ("type", "<u2"), ("machine", "<u2"), ("version", "<u4"),
        ("entry", "<u8"), ("program_offset", "<u8"), ("section_offset", "<u8"), ("flags", "<u4"),
        ("size", "<u2"), ("program_size", "<u2"), ("programs", "<u2"),
        ("section_size", "<u2"), ("sections", "<u2"), ("names", "<u2"),
    ]
)  # fmt: skip
_SECTION = np.dtype(
    [
        ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
        ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
    ]
)  # fmt: skip
# pyelftools reads the same, but takes 30 times as long, 5 ms in place of 0.15 ms for 26 sections; a
# process that runs vLLM loads 76 cubins with thousands.
_CUDA_MACHINE = 190
_LARGEST = 1 << 30


@dataclass(frozen=True)
class CubinSection:
    """One section: its name, where its content lies, and `sh_info`."""

    name: str
    offset: int
    size: int
    info: int


class Elf:
    """A cubin, read into memory."""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than any cubin")
        self._data = np.fromfile(path, np.uint8)
        header = self._take(0, _HEADER, 1)[0]
        ident = header["ident"].tobytes()
        if not ident.startswith(b"\x7fELF\x02\x01") or header["machine"] != _CUDA_MACHINE:
            raise ValueError("it has no ELF header for CUDA")
        if header["section_size"] != _SECTION.itemsize:
            raise ValueError("its sections have an unknown layout")
        self.abi, self.flags = ident[7], int(header["flags"])
        offset = int(header["section_offset"])
        first = self._take(offset, _SECTION, 1)[0]
        # Files with more sections than fit keep number and names in the first one.
        count = int(header["sections"]) or int(first["size"])
        self._sections = self._take(offset, _SECTION, count)
        index = int(header["names"])
        names = self._sections[int(first["link"]) if index == 0xFFFF else index]
        self._names = self._bytes(int(names["offset"]), int(names["size"]))

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._data)

    def sections(self) -> Iterator[CubinSection]:
        """The sections in file order."""
        for row in self._sections:
            start = int(row["name"])
            name = self._names[start : self._names.index(b"\0", start)].decode()
            yield CubinSection(name, int(row["offset"]), int(row["size"]), int(row["info"]))

    def read(self, section: CubinSection) -> bytes:
        """A section's content."""
        return self._bytes(section.offset, section.size)

    def _bytes(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise ValueError("it is cut off")
        return self._data[offset : offset + size].tobytes()

    def _take(self, offset: int, kind: np.dtype[np.void], count: int) -> npt.NDArray[np.void]:
        end = offset + kind.itemsize * count
        if not 0 <= offset <= end <= len(self._data):
            raise ValueError("it is cut off")
        return self._data[offset:end].view(kind)


_FOUR_BYTES_OR_NONE, _SIZED = (1, 2, 3), 4
_REGISTERS = 0x2F
_FIRST_ABI = 0x33
"""Up to CUDA 12 the lowest byte of `e_flags` is the architecture, later the second one."""
_TARGET = re.compile(rb"(?:-arch|--?gpu-name|-code)[ =](sm_\d{2,4})([af]?)\b")
_ARCHITECTURE_CODES = range(10, 256)


@dataclass(frozen=True)
class Code:
    """One function, a kernel, and its code."""

    symbol: str
    registers: int  # per thread, 0 where unknown
    architecture: str  # such as sm_121, empty where the file names none
    # What it was built for beyond that: a (this architecture only), f (its family), plain, or empty
    # where nothing tells.
    suffix: str
    instructions: bytes


def read_code(path: Path, symbols: Collection[str] | None = None) -> list[Code]:
    """The functions of a cubin, those that are wanted (all if None) with their code."""
    try:
        elf = Elf(path)
        sections = list(elf.sections())
        registers = _register_counts(elf, [s for s in sections if s.name == ".nv.info"])
        if sum(s.size for s in sections if s.name.startswith(".text.")) > elf.size:
            raise ValueError("its functions overlap")
        architecture, suffix = _target(elf, [s for s in sections if s.name == ".note.nv.tkinfo"])
        return [
            Code(
                symbol=symbol,
                # Before CUDA 13 the upper byte of a section's info held the registers.
                registers=section.info >> 24 or registers.get(section.info & 0xFFFFFF, 0),
                architecture=architecture,
                suffix=suffix,
                instructions=elf.read(section) if symbols is None or symbol in symbols else b"",
            )
            for section in sections
            if section.name.startswith(".text.")
            for symbol in [section.name.removeprefix(".text.")]
        ]
    except (OSError, ValueError, IndexError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is no whole cubin ({error})") from error


def _target(elf: Elf, notes: list[CubinSection]) -> tuple[str, str]:
    """Architecture and suffix."""
    matches = [match for note in notes for match in _TARGET.finditer(elf.read(note))]
    if matches:
        return matches[0][1].decode(), matches[0][2].decode() or "plain"
    number = elf.flags & 0xFF if elf.abi == _FIRST_ABI else elf.flags >> 8 & 0xFF
    return (f"sm_{number}", "") if number in _ARCHITECTURE_CODES else ("", "")


def _register_counts(elf: Elf, sections: list[CubinSection]) -> dict[int, int]:
    """Registers per thread by symbol number."""
    counts: dict[int, int] = {}
    for section in sections:
        content = elf.read(section)
        at = 0
        while at + 4 <= len(content):
            kind, attribute = content[at], content[at + 1]
            size = int.from_bytes(content[at + 2 : at + 4], "little")
            if kind == _SIZED and attribute == _REGISTERS and size >= 8:
                symbol = int.from_bytes(content[at + 4 : at + 8], "little")
                counts[symbol] = int.from_bytes(content[at + 8 : at + 12], "little")
            elif kind not in (*_FOUR_BYTES_OR_NONE, _SIZED):
                break
            at += 4 + (size if kind == _SIZED else 0)
    return counts
