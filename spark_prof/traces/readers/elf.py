"""Reads the sections of a 64-bit ELF file: NVIDIA's cubins are such files.

Format: ELF64, elf.h. CUDA's machine number is 190.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

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
_CUDA_MACHINE = 190
_LARGEST = 1 << 30


@dataclass(frozen=True)
class Section:
    """One section: its name, where its content lies, and `sh_info`."""

    name: str
    offset: int
    size: int
    info: int


class Elf:
    """A cubin, read into memory.

    Args:
        path: the file.

    Attributes:
        abi: `EI_OSABI`, which CUDA counts up when its layout changes.
        flags: `e_flags`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no ELF file for CUDA, or is cut off.
    """

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

    def sections(self) -> Iterator[Section]:
        """The sections in file order."""
        for row in self._sections:
            start = int(row["name"])
            name = self._names[start : self._names.index(b"\0", start)].decode()
            yield Section(name, int(row["offset"]), int(row["size"]), int(row["info"]))

    def read(self, section: Section) -> bytes:
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
