"""Draws what `spark-prof classify` found: as a table, or as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spark_prof.analyzers.classify.listing import Classified
from spark_prof.dashboards.about_machine_code import products
from spark_prof.dashboards.formats import clean, count, shorten
from spark_prof.dashboards.outline import without_empty_columns
from spark_prof.dashboards.section import Column, Document, Section

_LONGEST_TITLE = 120


def render_classification(
    source: str, rows: Sequence[Classified], kind: str, width: int = 100
) -> str:
    """Draws the kernels of a source.

    Args:
        source: what was asked for.
        rows: its kernels.
        kind: text, md or json.
        width: of the text, in characters.
    """
    if kind == "json":
        from spark_prof.dashboards import json_report

        return json_report.write([_record(row) for row in rows])
    from spark_prof.dashboards import markdown, text

    title = f"spark-prof: {shorten(clean(source), _LONGEST_TITLE)}"
    headline = (
        ("kernels", count(len(rows))),
        *((engine, count(number)) for engine, number in _engines(rows)),
    )
    section = without_empty_columns(_section(rows))
    document = Document(title, headline, (section,) if section.rows else ())
    return markdown.draw(document) if kind == "md" else text.draw(document, width)


def _engines(rows: Iterable[Classified]) -> list[tuple[str, int]]:
    engines = [row.engine for row in rows]
    return [(engine, engines.count(engine)) for engine in dict.fromkeys(sorted(engines))]


def _section(rows: Sequence[Classified]) -> Section:
    columns = (
        Column("Ran on"),
        Column("Weights"),
        Column("Known by"),
        Column("Component"),
        Column("Conversion"),
        Column("Code"),
        Column("Instructions that tell", optional=True),
        Column("Kernel", "name"),
    )
    cells = tuple(
        (
            clean(" ".join(filter(None, (row.engine, row.precision)))),
            row.weights or "",
            clean(row.evidence),
            row.component or "",
            row.conversion or (f"{row.fused_conversion} (fused)" if row.fused_conversion else ""),
            clean(row.code.target if row.code else _from_ptx(row)),
            products(row.code) if row.code else "",
            clean(row.name),
        )
        for row in rows
    )
    conflicts = [
        f"{shorten(clean(row.name), 80)}: its name says {c.by_name}, {c.evidence} {c.found} "
        f"({c.basis})."
        for row in rows
        if (c := row.conflict)
    ]
    return Section("kernels", "Kernels", columns, cells, tuple(conflicts))


def _from_ptx(row: Classified) -> str:
    return f"{row.compiled_from} PTX, compiled by the driver" if row.compiled_from else ""


def _record(row: Classified) -> dict[str, Any]:
    """The keys of the contract, then what else is known."""
    record: dict[str, Any] = {
        "name": row.name,
        "component": row.component,
        "engine": row.engine,
        "precision": row.precision,
        "evidence": row.evidence,
        "conversion": row.conversion,
        "weights": row.weights,
        "fused_conversion": row.fused_conversion,
        "load_time": row.load_time,
    }
    if row.compiled_from:
        record["compiled_by_driver_from"] = row.compiled_from
    if row.conflict:
        conflict = row.conflict
        record["conflict"] = {
            "by_name": conflict.by_name, "found": conflict.found, "evidence": conflict.evidence,
            "basis": conflict.basis,
        }  # fmt: skip
    if code := row.code:
        record["code"] = {
            "function": code.function,
            "file": code.cubin,
            "architecture": code.target or None,
            "suffix": code.suffix or None,
            "registers": code.registers,
            "instructions": code.instructions,
            "local_loads": code.local_loads,
            "local_stores": code.local_stores,
            "tensor_core": {product.opcode: product.count for product in code.products},
            "reads": list(code.reads),
            "writes": list(code.writes),
        }
    return record
