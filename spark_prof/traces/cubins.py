"""Keeps the machine code that a recording loaded, and says which of it each kernel ran.

A kernel's record has a function's name and its registers, a cubin has both. Compilers give many
kernels the same name: where more than one cubin fits, the kernel ran one of them and points at all.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.files import sync
from spark_prof.traces.chunk_files import json_files
from spark_prof.traces.readers.cubin import read_functions

CUBINS_FOLDER = "cubins"
"""In the bundle: the machine code of kernels that ran, ``<hash>.cubin``."""

DRIVER = "driver"
"""Source of a cubin that the driver handed over when it loaded it."""

_HASH_DIGITS = 16


@dataclass
class _Cubin:
    path: Path
    source: str
    bytes: int
    ran: set[str] = field(default_factory=set)


class Cubins:
    """The machine code that one recording loaded, each piece of it once.

    Args:
        folder: the cubins that the driver handed over, and those found in JIT caches.
    """

    def __init__(self, folder: Path) -> None:
        self._cubins: dict[str, _Cubin] = {}
        self._functions: dict[str, dict[str, int]] = {}
        self.lost: list[str] = []
        for path in sorted(folder.glob("*.cubin")):
            first = path.stem.partition("-")[0]
            self._add(path, DRIVER if first.isdecimal() else first)

    def find(self, symbol: str, registers: int) -> tuple[str, ...]:
        """The hashes of the cubins whose function of that name fits; empty where none is known."""
        found = self._functions.get(symbol, {})
        fitting = [key for key, count in found.items() if count in (0, registers)] or list(found)
        for key in fitting:
            self._cubins[key].ran.add(symbol)
        return tuple(fitting)

    def of_kernels(self, kernels: pd.DataFrame, symbols: Mapping[str, str]) -> list[str]:
        """The `cubin` column for these kernels; `symbols` has the function of each name."""
        pairs = kernels[["name", "registers"]].astype({"name": object})
        known = {
            (name, registers): " ".join(self.find(symbols[name], int(registers)))
            for name, registers in pairs.drop_duplicates().itertuples(index=False)
            if name in symbols
        }
        return [known.get(pair, "") for pair in pairs.itertuples(index=False, name=None)]

    def keep(self, bundle: Path) -> pd.DataFrame:
        """Copies the cubins that ran into the bundle; the rows of the `cubins` table."""
        rows = []
        for key, cubin in self._cubins.items():
            if cubin.ran:
                target = bundle / CUBINS_FOLDER
                target.mkdir(exist_ok=True)
                shutil.copyfile(cubin.path, target / f"{key}.cubin")
                sync(target / f"{key}.cubin")
            functions = "\n".join(sorted(cubin.ran))
            rows.append((key, cubin.bytes, cubin.source, functions))
        if (bundle / CUBINS_FOLDER).is_dir():
            sync(bundle / CUBINS_FOLDER)
        return pd.DataFrame(rows, columns=["hash", "bytes", "source", "functions"])

    def _add(self, path: Path, source: str) -> None:
        try:
            functions = read_functions(path)
            content = path.read_bytes()
        except (CommandError, OSError) as error:
            self.lost.append(f"machine code: {error}")
            return
        key = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
        if key in self._cubins:
            return
        self._cubins[key] = _Cubin(path, source, len(content))
        for function in functions:
            self._functions.setdefault(function.symbol, {})[key] = function.registers


def function_symbols(names: Path) -> dict[str, str]:
    """The function of each kernel name, from the file of names that belongs to a piece."""
    functions: dict[str, str] = next(json_files(names.parent, names.name), {}).get("functions", {})
    return functions
