"""Where a kernel runs and in which precision, by the instructions that it is made of.

A tensor-core instruction, however few there are, means tensor cores: a product's loop is short and
what feeds it is long. Code that has none and calls no function elsewhere runs on CUDA cores. The
precision is that of the products; where they differ, that of nine in ten, else none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import pandas as pd

from spark_prof.rules.opcodes import find_opcode


@dataclass(frozen=True)
class OpcodeCount:
    """An opcode with its modifiers, and how often it stands in the code."""

    opcode: str
    count: int


@dataclass(frozen=True, kw_only=True)
class CodeRow:
    """The machine code of one kernel."""

    name: str
    function: str = ""  # its symbol
    cubin: str = ""  # hash of the file that holds it
    architecture: str = ""  # such as sm_120, empty where nothing tells
    # `a` where it was built for this architecture only, f for its family, plain for neither; empty
    # where nothing tells.
    suffix: str = ""
    registers: int = 0  # per thread, 0 where unknown
    instructions: int = 0  # how many there are
    local_loads: int  # instructions that load local memory: spilled registers, or local arrays
    local_stores: int  # those that store it
    engine: str | None  # tensor-core or cuda-core; None where the code does not tell
    # Of the tensor-core products, or int8 of dot products; None where it does not tell or there are
    # several.
    precision: str | None
    precisions: tuple[str, ...]  # all that were found
    products: tuple[OpcodeCount, ...]  # the tensor-core instructions, the most frequent first
    reads: tuple[str, ...]  # stored formats that the hardware turns into one to compute with
    writes: tuple[str, ...]  # formats that it writes
    doubles: int  # conversions to double precision
    us: float = 0.0  # time of the kernel in the report, 0 outside of one
    decode_us: float = 0.0  # what of it belongs to decode steps

    @property
    def target(self) -> str:
        """Architecture and suffix as compilers spell them, such as sm_121a."""
        return self.architecture + (self.suffix if self.suffix in ("a", "f") else "")


@dataclass(frozen=True)
class Conflict:
    """A kernel whose name says something else than better evidence."""

    name: str
    by_name: str  # what its name says, such as tensor-core fp8
    found: str
    evidence: str  # counter or sass
    basis: str  # the metric or the instructions that tell
    us: float = 0.0  # time of the kernel in the report, 0 outside of one


_MOST = 0.9  # share of the products whose precision is the kernel's

_OUTPUT = frozenset((
    "ST", "STG", "STL", "STS", "STAS", "RED", "REDG", "REDAS", "ATOM", "ATOMG", "SUST", "SURED",
    "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED", "UREDGR",
))  # fmt: skip
"""Opcodes that leave something behind. Libraries hold empty kernels for architectures on which
the real one is not compiled: they have none."""


def code_rows(functions: pd.DataFrame) -> tuple[CodeRow, ...]:
    """What each row of the `functions` table says."""
    columns = ["name", "function", "architecture", "suffix"]
    texts = functions[[*columns, "hash", "opcodes"]].astype(str).rename(columns={"hash": "cubin"})
    numbers = functions[["registers", "instructions"]].astype(int)
    rows: Any = texts.join(numbers).to_dict("records")
    return tuple(code_row(opcode_counts(row.pop("opcodes")), **row) for row in rows)


def code_row(counts: dict[str, int], **fields: Any) -> CodeRow:
    """What the opcodes of a function say, beside fields that other tables tell, `name` at least."""
    by_use: defaultdict[str, list[str]] = defaultdict(list)
    formats: defaultdict[str, set[str]] = defaultdict(set)
    precisions: Counter[str] = Counter()
    by_word: Counter[str] = Counter()
    untold = 0
    for opcode, count in counts.items():
        by_word[opcode.partition(".")[0]] += count
        row = find_opcode(opcode)
        if row is None:
            continue
        by_use[row.does].append(opcode)
        if row.stored:
            formats[row.does].add(row.stored)
        if row.does == "product" and row.precision:
            precisions[row.precision] += count
        elif row.does == "product":
            untold += count
    calls_out = any(opcode.startswith("CALL.ABS") for opcode in counts)
    on_cuda_cores = "cuda-core" if by_word.keys() & _OUTPUT and not calls_out else None
    engine = "tensor-core" if by_use["product"] else on_cuda_cores
    precision = "int8" if engine == "cuda-core" and by_use["dot"] else None
    if precisions:
        most, frequency = precisions.most_common(1)[0]
        precision = most if frequency >= _MOST * (precisions.total() + untold) else None
    products = sorted(by_use["product"], key=lambda opcode: (-counts[opcode], opcode))
    return CodeRow(
        **fields,
        local_loads=by_word["LDL"],
        local_stores=by_word["STL"],
        engine=engine,
        precision=precision,
        precisions=tuple(sorted(precisions)),
        products=tuple(OpcodeCount(opcode, counts[opcode]) for opcode in products),
        reads=tuple(sorted(formats["reads"] | formats["product"])),
        writes=tuple(sorted(formats["writes"])),
        doubles=sum(counts[opcode] for opcode in by_use["double"]),
    )


def opcode_counts(text: str) -> dict[str, int]:
    """The counts that a row of the `functions` table holds; lines that are none are left out."""
    counts: dict[str, int] = {}
    for line in text.split("\n"):
        opcode, _, count = line.rpartition(" ")
        if opcode and count.isascii() and count.isdigit() and len(count) < 10:
            counts[opcode] = int(count)
    return counts
