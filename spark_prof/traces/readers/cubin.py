"""Reads which functions a cubin holds, and their code: NVIDIA's GPU machine code in an ELF file.

Formats: a function `f` is the section ``.text.f``, whose `sh_info` is its symbol; ``.nv.info``
holds attributes as (format u8, attribute u8, size u16), and EIATTR_REGCOUNT (0x2f) with (symbol
u32, registers u32), as `cuobjdump -elf` prints them. `e_flags` names the architecture without its
suffix; ``.note.nv.tkinfo`` holds ptxas' command line, the only place that tells ``sm_121`` from
``sm_121a`` and ``sm_121f``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.readers.elf import Elf, Section

_FOUR_BYTES_OR_NONE, _SIZED = (1, 2, 3), 4
_REGISTERS = 0x2F
_FIRST_ABI = 0x33
"""Up to CUDA 12 the lowest byte of `e_flags` is the architecture, later the second one."""
_TARGET = re.compile(rb"(?:-arch|--?gpu-name|-code)[ =](sm_\d{2,4})([af]?)\b")
_ARCHITECTURE_CODES = range(10, 256)


@dataclass(frozen=True)
class Function:
    """One kernel of a cubin: its symbol, and registers per thread, 0 where unknown."""

    symbol: str
    registers: int


@dataclass(frozen=True)
class Code:
    """The code of one function.

    Attributes:
        symbol: its mangled name.
        registers: per thread, 0 where unknown.
        architecture: such as sm_121, empty where the file names none.
        suffix: what it was built for beyond that: a (this architecture only), f (its family),
            plain, or empty where nothing tells.
        instructions: as the GPU reads them.
    """

    symbol: str
    registers: int
    architecture: str
    suffix: str
    instructions: bytes


def read_functions(path: Path) -> list[Function]:
    """The kernels of a cubin.

    Raises:
        CommandError: the file is no cubin or is damaged.
    """
    return [Function(code.symbol, code.registers) for code in read_code(path, ())]


def read_code(path: Path, wanted: Collection[str] | None = None) -> list[Code]:
    """The functions of a cubin with their code.

    Args:
        path: the cubin.
        wanted: symbols of the functions whose code is read, all if None; the others come without.

    Raises:
        CommandError: the file is no cubin or is damaged.
    """
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
                registers=_registers(section.info, registers),
                architecture=architecture,
                suffix=suffix,
                instructions=elf.read(section) if wanted is None or symbol in wanted else b"",
            )
            for section in sections
            if section.name.startswith(".text.")
            for symbol in [section.name.removeprefix(".text.")]
        ]
    except (OSError, ValueError, IndexError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is no whole cubin ({error})") from error


def _target(elf: Elf, notes: list[Section]) -> tuple[str, str]:
    """Architecture and suffix."""
    found = [match for note in notes for match in _TARGET.finditer(elf.read(note))]
    if found:
        return found[0][1].decode(), found[0][2].decode() or "plain"
    number = elf.flags & 0xFF if elf.abi == _FIRST_ABI else elf.flags >> 8 & 0xFF
    return (f"sm_{number}", "") if number in _ARCHITECTURE_CODES else ("", "")


def _registers(info: int, counts: dict[int, int]) -> int:
    """Before CUDA 13 the upper byte of a section's info held the registers."""
    return info >> 24 or counts.get(info & 0xFFFFFF, 0)


def _register_counts(elf: Elf, sections: list[Section]) -> dict[int, int]:
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
