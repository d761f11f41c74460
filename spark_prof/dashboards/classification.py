"""What `spark-prof classify` found: as a table, or as JSON for scripts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spark_prof.analyzers.classify.classifier import kernel_id
from spark_prof.analyzers.classify.listing import Classified
from spark_prof.dashboards import cells
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section, document, table
from spark_prof.dashboards.sections.kernel_section import products, ran_on
from spark_prof.dashboards.units import count, share, shorten

_LONGEST_TITLE = 120


def render_classification(source: str, rows: Sequence[Classified], layout: Layout) -> str:
    """Draws the kernels of a source in a format."""
    return draw(lambda: _document(source, rows), lambda: [*map(_record, rows)], layout)


def _document(source: str, rows: Sequence[Classified]) -> Document:
    engines = Counter(sorted(row.engine for row in rows))
    headline = {"kernel" if len(rows) == 1 else "kernels": count(len(rows))}
    headline |= {name: count(n) for name, n in engines.items()}
    title = f"spark-prof: {shorten(source, _LONGEST_TITLE)}"
    return document(title, headline.items(), [_section(rows)], verdict=_verdict(rows))


_UNITS = {"tensor-core": "on tensor cores", "cuda-core": "on CUDA cores", "copy": "of copies"}


def _verdict(rows: Sequence[Classified]) -> str:
    """The share of the time on tensor cores, by precision; empty where nothing tells times.

    "77.1 % of the kernel time is on tensor cores (bf16 77.1 %; 54.0 % with fp4 weights), 22.9 % on
    CUDA cores."
    """
    whole = sum(row.us or 0.0 for row in rows)
    if not whole:
        return ""
    clauses: list[str] = []
    for unit, us in sorted(
        _sums(rows, lambda row: row.engine).items(), key=lambda unit_us: -unit_us[1]
    ):
        unit_rows = [row for row in rows if row.engine == unit]
        name = _UNITS.get(unit, "where nothing tells its unit")
        text = f"{share(us / whole)}{'' if clauses else ' of the kernel time is'} {name}"
        precisions = _of_whole(unit_rows, lambda row: row.precision or "precision unknown", whole)
        narrow = [row for row in unit_rows if row.weights]
        weights = _of_whole(narrow, lambda row: f"{row.weights} weights", whole)
        if unit == "tensor-core":
            clauses.append(f"{text} ({'; '.join(filter(None, (precisions, weights)))})")
        else:
            clauses.append(text)
    return f"{', '.join(clauses)}."


def _sums(rows: Iterable[Classified], key: Callable[[Classified], str]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.us:
            sums[key(row)] += row.us
    return sums


def _of_whole(rows: Iterable[Classified], key: Callable[[Classified], str], whole: float) -> str:
    ranked = sorted(_sums(rows, key).items(), key=lambda name_us: -name_us[1])
    return ", ".join(f"{name} {share(us / whole)}" for name, us in ranked)


def _section(rows: Sequence[Classified]) -> Section:
    called = cells.called(row.name for row in rows)
    whole = sum(row.us or 0.0 for row in rows)
    columns = (
        cells.Time("Time", "us", missing=""),
        cells.Share(
            "Share",
            lambda row: row.us / whole if row.us and whole else None,
            missing="",
            optional=True,
        ),
        cells.Text("Execution unit", lambda row: ran_on(row.engine, row.precision)),
        cells.Text("Weights", "weights", optional=True),
        cells.Text("Evidence", "evidence"),
        cells.Text("Component", "component", optional=True),
        cells.Text("Conversion", _conversion, optional=True),
        cells.Text("Code", _code, optional=True),
        cells.Text(
            "Instructions that tell", lambda row: row.code and products(row.code), optional=True
        ),
        cells.Name("Kernel", lambda row: called[row.name]),
    )
    intro = []
    if whole:
        intro.append(
            "Time of all calls in the whole recording, what they overlap with others included; the "
            "longest first."
        )
    conflicts = [
        f"{shorten(row.name, 80)}: its name says {c.by_name}, {c.evidence} {c.found} ({c.basis})."
        for row in rows
        if (c := row.conflict)
    ]
    return table("kernels", "Kernels", rows, columns, intro + conflicts)


def _conversion(row: Classified) -> str | None:
    fused = row.fused_conversion
    return row.conversion or (f"{fused} (fused)" if fused else None)


def _code(row: Classified) -> str:
    if row.code:
        return row.code.target
    return f"{row.compiled_from} PTX, compiled by the driver" if row.compiled_from else ""


def _record(row: Classified) -> dict[str, Any]:
    """The keys of the contract, then what else is known."""
    keys = (
        "name", "component", "engine", "precision", "evidence", "conversion", "weights",
        "fused_conversion", "load_time",
    )  # fmt: skip
    record: dict[str, Any] = {key: getattr(row, key) for key in keys}
    record["kernel_id"] = kernel_id(row.name)
    if row.us is not None:
        record["us"] = row.us
    if row.compiled_from:
        record["compiled_by_driver_from"] = row.compiled_from
    if row.conflict:
        conflict_keys = ("by_name", "found", "evidence", "basis")
        record["conflict"] = {key: getattr(row.conflict, key) for key in conflict_keys}
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
