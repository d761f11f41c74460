"""Reads which functions a cubin holds: NVIDIA's GPU machine code in an ELF file.

Formats: ELF64 (elf.h); a function `f` is the section ``.text.f``, whose `sh_info` is its symbol;
``.nv.info`` holds attributes as (format u8, attribute u8, size u16), and EIATTR_REGCOUNT (0x2f)
with (symbol u32, registers u32), as `cuobjdump -elf` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spark_prof.errors import CommandError

__all__ = ["Function", "read_functions"]

_HEADER = np.dtype(
    [
        ("ident", "S16"), ("type", "<u2"), ("machine", "<u2"), ("version", "<u4"),
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
_CUDA_MACHINE = 190
_FOUR_BYTES_OR_NONE, _SIZED = (1, 2, 3), 4
_REGISTERS = 0x2F
_LARGEST = 1 << 30


@dataclass(frozen=True)
class Function:
    """One kernel of a cubin: its symbol, and registers per thread, 0 where unknown."""

    symbol: str
    registers: int


def read_functions(path: Path) -> list[Function]:
    """The kernels of a cubin.

    Raises:
        CommandError: the file is no cubin or is damaged.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than any cubin")
        data = np.fromfile(path, np.uint8)
        return _functions(data)
    except (OSError, ValueError, IndexError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is no whole cubin ({error})") from error


def _functions(data: npt.NDArray[np.uint8]) -> list[Function]:
    header = _take(data, 0, _HEADER, 1)[0]
    if not header["ident"].startswith(b"\x7fELF\x02\x01") or header["machine"] != _CUDA_MACHINE:
        raise ValueError("it has no ELF header for CUDA")
    if header["section_size"] != _SECTION.itemsize:
        raise ValueError("its sections have an unknown layout")
    first = _take(data, int(header["section_offset"]), _SECTION, 1)[0]
    # Files with more sections than fit keep number and names in the first one.
    count = int(header["sections"]) or int(first["size"])
    sections = _take(data, int(header["section_offset"]), _SECTION, count)
    index = int(header["names"])
    names = _content(data, sections[int(first["link"]) if index == 0xFFFF else index])
    named = [(_string(names, int(s["name"])), s) for s in sections]
    registers = _register_counts(data, [s for name, s in named if name == ".nv.info"])
    return [
        Function(name.removeprefix(".text."), _registers(int(section["info"]), registers))
        for name, section in named
        if name.startswith(".text.")
    ]


def _registers(info: int, counts: dict[int, int]) -> int:
    """Before CUDA 13 the upper byte of a section's info held the registers."""
    return info >> 24 or counts.get(info & 0xFFFFFF, 0)


def _register_counts(data: npt.NDArray[np.uint8], sections: list[np.void]) -> dict[int, int]:
    """Registers per thread by symbol number."""
    counts: dict[int, int] = {}
    for section in sections:
        content = _content(data, section)
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


def _take(
    data: npt.NDArray[np.uint8], offset: int, kind: np.dtype[np.void], count: int
) -> npt.NDArray[np.void]:
    end = offset + kind.itemsize * count
    if not 0 <= offset <= end <= len(data):
        raise ValueError("it is cut off")
    return data[offset:end].view(kind)


def _content(data: npt.NDArray[np.uint8], section: np.void) -> bytes:
    offset, size = int(section["offset"]), int(section["size"])
    if offset + size > len(data):
        raise ValueError("it is cut off")
    return data[offset : offset + size].tobytes()


def _string(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()
