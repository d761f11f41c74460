"""The section about machine code: the instructions that the kernels are made of."""

from __future__ import annotations

from spark_prof.analyzers.classify.code_rows import CodeRow
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.formats import MISSING, clean, count, microseconds
from spark_prof.dashboards.section import Column, Section

_MOST_ROWS = 15
_MOST_OPCODES = 2


def machine_code(report: Report) -> Section:
    """Lists the most expensive kernels with what tells where they run."""
    shown = report.machine_code[:_MOST_ROWS]
    rows = tuple(
        (
            microseconds(row.us),
            clean(row.target) or MISSING,
            products(row),
            _formats(row),
            count(row.registers) if row.registers else MISSING,
            count(row.local_loads + row.local_stores),
            clean(row.name),
        )
        for row in shown
    )
    columns = (
        Column("Time", "number"),
        Column("Built for"),
        Column("Tensor-core instructions"),
        Column("Converts", optional=True),
        Column("Registers", "number", optional=True),
        Column("Local memory", "number", optional=True),
        Column("Kernel", "name"),
    )
    intro = (
        "By the instructions of the code that was loaded. Local memory: instructions that load or "
        "store it, mostly registers that did not fit.",
    )
    return Section("machine-code", "Machine code", columns, rows, intro)


def products(row: CodeRow) -> str:
    """The tensor-core instructions, the most frequent first."""
    shown = [clean(product.opcode) for product in row.products[:_MOST_OPCODES]]
    more = len(row.products) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])]) or MISSING


def _formats(row: CodeRow) -> str:
    parts = (("from", row.reads), ("to", row.writes))
    found = " ".join(f"{word} {', '.join(names)}" for word, names in parts if names)
    return clean(found) or MISSING
