"""Keeps the machine code that a recording loaded, and says of which instructions it is made.

A kernel's record has a function's name and its registers, a cubin has both. Compilers give many
kernels the same name: where more than one cubin fits, the kernel ran one of them and points at all.

Functions that ran are disassembled once, bounded in time, and reduced to counts of their opcodes.
Opcodes whose modifiers tell what was computed keep them, loads keep their width, all others are
counted by their first word. What was disassembled is kept in the user's cache under the hash of the
instructions and their architecture: what a file calls itself decides nothing, so nobody else's
bundle can put something wrong into it. A cache that cannot be read or written is done without.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.files import cache_folder, sync
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.compressed import is_zip_with, unpacked_member
from spark_prof.traces.cuda_tools import (
    ToolError,
    count_opcodes,
    find_tool,
    missing_tool,
    needed_tool,
    run_tool,
)
from spark_prof.traces.demangle import demangled
from spark_prof.traces.readers.cubin import Code, read_code
from spark_prof.traces.tables import TABLES, empty_frame

CUBINS_FOLDER = "cubins"  # in the bundle: the machine code of kernels that ran, ``<hash>.cubin``


def copy_cubins(bundle: Path, target: Path) -> None:
    """Copies the machine code of a bundle, as long as it is files and no links to elsewhere.

    It is named by its content: the same name is the same file.
    """
    source = bundle / CUBINS_FOLDER
    if source.is_dir() and not source.is_symlink():
        (target / CUBINS_FOLDER).mkdir(exist_ok=True)
        for path in source.glob("*.cubin"):
            if path.is_file() and not path.is_symlink():
                shutil.copyfile(path, target / CUBINS_FOLDER / path.name)


DRIVER = "driver"  # source of a cubin that the driver handed over when it loaded it

_HASH_DIGITS = 16


@dataclass
class _Cubin:
    path: Path
    source: str
    bytes: int
    executed_symbols: set[str] = field(default_factory=set)


class Cubins:
    """The machine code that one recording loaded, each piece of it once."""

    def __init__(self, folder: Path) -> None:
        self._cubins: dict[str, _Cubin] = {}
        self._functions: dict[str, dict[str, int]] = {}
        self.lost: list[str] = []
        for path in sorted(folder.glob("*.cubin")):
            first = path.stem.partition("-")[0]
            self._add(path, DRIVER if first.isdecimal() else first)

    def find(self, symbol: str, registers: int) -> tuple[str, ...]:
        """The hashes of the cubins whose function of that name fits; empty where none is known."""
        registers_of = self._functions.get(symbol, {})
        fitting = [key for key, count in registers_of.items() if count in (0, registers)] or list(
            registers_of
        )
        for key in fitting:
            self._cubins[key].executed_symbols.add(symbol)
        return tuple(fitting)

    def of_kernels(self, kernels: pd.DataFrame, symbols: Mapping[str, str]) -> list[str]:
        """The `cubin` column for these kernels; `symbols` has the function of each name."""
        pairs = kernels[["name", "registers"]].astype({"name": object})
        hashes = {
            (name, registers): " ".join(self.find(symbols[name], int(registers)))
            for name, registers in pairs.drop_duplicates().itertuples(index=False)
            if name in symbols
        }
        return [hashes.get(pair, "") for pair in pairs.itertuples(index=False, name=None)]

    def keep(self, bundle: Path) -> pd.DataFrame:
        """Copies the cubins that ran into the bundle; the rows of the `cubins` table."""
        rows = []
        for key, cubin in self._cubins.items():
            if cubin.executed_symbols:
                target = bundle / CUBINS_FOLDER
                target.mkdir(exist_ok=True)
                shutil.copyfile(cubin.path, target / f"{key}.cubin")
                sync(target / f"{key}.cubin")
            functions = "\n".join(sorted(cubin.executed_symbols))
            rows.append((key, cubin.bytes, cubin.source, functions))
        if (bundle / CUBINS_FOLDER).is_dir():
            sync(bundle / CUBINS_FOLDER)
        return pd.DataFrame(rows, columns=["hash", "bytes", "source", "functions"])

    def _add(self, path: Path, source: str) -> None:
        try:
            functions = read_code(path, ())
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


_VERSION = 1  # raised when other counts are kept; it is part of the file's name
_MOST_ROWS = 200_000
_AT_ONCE = 500
_PATIENCE_S = 2.0
_TABLE = "CREATE TABLE IF NOT EXISTS functions (key TEXT PRIMARY KEY, opcodes TEXT NOT NULL)"


def function_key(architecture: str, instructions: bytes) -> str:
    """What a function's code is kept under."""
    return hashlib.sha256(architecture.encode() + b"\0" + instructions).hexdigest()[:32]


def cached(keys: Sequence[str]) -> dict[str, str]:
    """The opcodes of those functions that are known, by key."""
    opcodes: dict[str, str] = {}
    with suppress(sqlite3.Error, OSError), _open() as connection:
        for at in range(0, len(keys), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, opcodes FROM functions WHERE key IN ({marks})"
            opcodes |= {
                key: text
                for key, text in connection.execute(query, part)
                if isinstance(key, str) and isinstance(text, str)
            }
    return opcodes


def remember(opcodes: Mapping[str, str]) -> None:
    """Keeps the opcodes of functions by key; the oldest ones make room."""
    with suppress(sqlite3.Error, OSError), _open() as connection, connection:
        connection.executemany("REPLACE INTO functions VALUES (?, ?)", opcodes.items())
        connection.execute(
            "DELETE FROM functions WHERE rowid <= (SELECT max(rowid) FROM functions) - ?",
            (_MOST_ROWS,),
        )


@contextmanager
def _open() -> Iterator[sqlite3.Connection]:
    """The cache; one that is damaged is removed, so that the next use begins anew."""
    folder = cache_folder()
    if folder is None:
        raise OSError("no home folder is known")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"opcodes-{_VERSION}.sqlite"
    with closing(sqlite3.connect(path, timeout=_PATIENCE_S)) as connection:
        try:
            connection.execute(_TABLE)
            connection.execute("SELECT key, opcodes FROM functions LIMIT 1").fetchall()
        except sqlite3.OperationalError:
            raise  # busy, or read only
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)
            raise
        yield connection


MOST_SECONDS = 60.0  # how long functions are disassembled for one recording

_BATCH_BYTES = 32 << 20
_WHOLE = re.compile(
    r"(?:[A-Z]*MMA|U?F2FP|F2F|F2I|FRND|I2F|I2FP|IDP|MOVM|CALL)(?:\.|$)|HFMA2\.(?:MMA|BF16)"
)
"""Opcodes whose modifiers are kept."""
_LOADS = re.compile(r"(?:LDG|LDL|LDS|STG|STL|STS|LD|ST)\.")
_WIDTH = re.compile(r"\.([SU]?(?:8|16|64|128|256))(?=\.|$)")
_HASH = re.compile(r"[0-9a-f]{16}")


@dataclass
class MachineCode:
    """Rows of the `functions` table, and what could not be read, one line each."""

    rows: pd.DataFrame = field(default_factory=lambda: empty_frame("functions"))
    lost: list[str] = field(default_factory=list)


def machine_code_of(bundle: Bundle) -> MachineCode:
    """The functions of a bundle that ran; those that its table lacks are read from its cubins."""
    functions_table = bundle.frame("functions", 0)
    cubins = bundle.frame("cubins", 0, ["hash", "functions"])
    disassembled = set(zip(functions_table["hash"], functions_table["function"], strict=True))
    missing_symbols: dict[Path, set[str]] = {}
    for key, functions in cubins.itertuples(index=False):
        missing = {
            name for name in functions.split("\n") if name and (key, name) not in disassembled
        }
        path = bundle.path / CUBINS_FOLDER / f"{key}.cubin"
        if missing and _HASH.fullmatch(key) and path.is_file():
            missing_symbols[path] = missing
    code = read_machine_code(missing_symbols)
    if len(code.rows):
        code.rows = (
            pd.concat([functions_table, code.rows], ignore_index=True)
            if len(functions_table)
            else code.rows
        )
    else:
        code.rows = functions_table
    return code


def read_machine_code(
    symbols_of: Mapping[Path, Collection[str] | None], seconds: float = MOST_SECONDS
) -> MachineCode:
    """Reads these symbols, all if None, of the cubins, which are named after their hash."""
    result = MachineCode()
    codes: list[tuple[str, Code]] = []
    for path, symbols in symbols_of.items():
        try:
            codes += [(path.stem, c) for c in read_code(path, symbols) if c.instructions]
        except CommandError as error:
            result.lost.append(f"machine code: {error}")
    opcodes = _opcodes([code for _, code in codes], time.monotonic() + seconds, result.lost)
    names = demangled(code.symbol for _, code in codes)
    rows = [
        (
            key, code.symbol, name, code.architecture, code.suffix,
            code.registers, len(code.instructions) // 16, text,
        )
        for (key, code), name, text in zip(codes, names, opcodes, strict=True)
        if text
    ]  # fmt: skip
    result.rows = pd.DataFrame(rows, columns=TABLES["functions"].schema.names)
    return result


def _opcodes(codes: list[Code], until: float, lost: list[str]) -> list[str]:
    """The opcodes of each function as text, from the cache or disassembled; empty if unknown."""
    keys = [function_key(code.architecture, code.instructions) for code in codes]
    opcodes = cached(keys)
    new = {key: code for key, code in zip(keys, codes, strict=True) if key not in opcodes}
    tool = find_tool("nvdisasm") if new else None
    if new and tool is None:
        lost.append(f"machine code of {_kernels(new)} was not read: {missing_tool('nvdisasm')}")
    elif tool is not None:
        opcodes |= _disassembled(tool, new, until, lost)
    return [opcodes.get(key, "") for key in keys]


def _disassembled(
    tool: Path, codes: Mapping[str, Code], until: float, lost: list[str]
) -> dict[str, str]:
    opcodes: dict[str, str] = {}
    for architecture, keys in _batches(codes):
        if not architecture:
            lost.append(f"machine code of {_kernels(keys)} names no architecture")
            continue
        left = until - time.monotonic()
        try:
            if left <= 0:
                raise ToolError("there was no time left")
            texts = count_opcodes(tool, architecture, [codes[k].instructions for k in keys], left)
        except ToolError as error:
            lost.append(f"machine code of {_kernels(keys)} for {architecture}: {error}")
            continue
        part = {key: _text(counts) for key, counts in zip(keys, texts, strict=True) if counts}
        if len(part) < len(keys):
            unread = [codes[key].symbol for key in keys if key not in part]
            lost.append(
                f"machine code of {_kernels(unread)} is damaged or newer than nvdisasm, such as "
                f"{unread[0]:.60}"
            )
        remember(part)
        opcodes |= part
    return opcodes


def _kernels(kernels: Sized) -> str:
    return f"{len(kernels)} kernel{'s' * (len(kernels) > 1)}"


def _batches(codes: Mapping[str, Code]) -> Iterable[tuple[str, list[str]]]:
    """Keys of functions of one architecture, not too many at a time."""
    batches: dict[tuple[str, int], list[str]] = {}
    sizes: Counter[str] = Counter()
    for key, code in codes.items():
        sizes[code.architecture] += len(code.instructions)
        number = sizes[code.architecture] // _BATCH_BYTES
        batches.setdefault((code.architecture, number), []).append(key)
    return ((architecture, keys) for (architecture, _), keys in sorted(batches.items()))


def _text(counts: Mapping[str, int]) -> str:
    """One line an opcode with its count, the most frequent first."""
    short: Counter[str] = Counter()
    for opcode, count in counts.items():
        short[short_opcode(opcode)] += count
    return "\n".join(
        f"{name} {n}" for name, n in sorted(short.items(), key=lambda i: (-i[1], i[0]))
    )


def short_opcode(opcode: str) -> str:
    """An opcode as it is counted: with all modifiers, with its width, or without either."""
    if _WHOLE.match(opcode):
        return opcode
    base = opcode.partition(".")[0]
    width = _WIDTH.search(opcode) if _LOADS.match(opcode) else None
    return f"{base}.{width[1]}" if width else base


_LARGEST_LISTED = 4 << 20
"""Bytes of a function that is listed; the largest of vLLM's have half a megabyte."""
_LISTING_S = 10.0
_LINE = re.compile(
    rb"\s*/\*([0-9a-f]{4,8})\*/\s+((?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)[^;]{0,400});", re.IGNORECASE
)


@dataclass(frozen=True)
class Instruction:
    """One line of a listing."""

    address: int  # in the function, in bytes
    opcode: str  # with its modifiers, such as HMMA.16816.F32.BF16
    text: str  # predicate, opcode and operands


def keeps_cubin(source: Path, cubin: str) -> bool:
    """Whether a bundle, or the zip of one, keeps the machine code of that hash."""
    name = f"{CUBINS_FOLDER}/{cubin}.cubin"
    if not _HASH.fullmatch(cubin):
        return False
    return (source / name).is_file() or (source.is_file() and is_zip_with(source, name))


@contextmanager
def _kept_cubin(source: Path, cubin: str) -> Iterator[Path]:
    """The file of that hash, taken out of a zip for as long as it is needed."""
    if not keeps_cubin(source, cubin):
        raise CommandError(f"the recording does not keep {CUBINS_FOLDER}/{cubin:.16}.cubin")
    if source.is_dir():
        yield source / CUBINS_FOLDER / f"{cubin}.cubin"
        return
    with temporary_folder() as folder:
        path = folder / f"{cubin}.cubin"
        unpacked_member(source, f"{CUBINS_FOLDER}/{path.name}", path)
        yield path


def list_function(bundle: Path, cubin: str, function: str) -> tuple[Instruction, ...]:
    """The instructions of a function of a cubin that the bundle, or its zip, keeps, in order.

    Only the bytes of the one function are given to nvdisasm, as a raw binary, never the ELF file,
    which anybody may have made. Branches name the address that they lead to; what the loader would
    fill in, such as the address of a called function, reads as it stands in the file.

    list_function(Path("my-run"), row.cubin, row.function)
    """
    with _kept_cubin(bundle, cubin) as path:
        code = next((c for c in read_code(path, {function}) if c.symbol == function), None)
    if code is None or not code.instructions:
        raise CommandError(f"{path.name} holds no {function:.60}")
    if not code.architecture or len(code.instructions) > _LARGEST_LISTED:
        raise CommandError(f"{path.name} names no architecture, or the kernel is too large to list")
    tool = needed_tool("nvdisasm")
    lines: list[Instruction] = []

    def note(line: bytes) -> None:
        if match := _LINE.match(line):
            text = " ".join(match[2].decode("ascii", "replace").split())
            lines.append(Instruction(int(match[1], 16), match[3].decode(), text))

    with temporary_folder() as folder:
        file = folder / "instructions.bin"
        file.write_bytes(code.instructions)
        run_tool([tool, "--binary", code.architecture.replace("sm_", "SM"), file], _LISTING_S, note)
    return tuple(lines)
