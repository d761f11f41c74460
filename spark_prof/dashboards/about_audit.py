"""Sections about the audit: which kernels the layers run on, who says so, what the log tells."""

from __future__ import annotations

from spark_prof.analyzers.fallbacks.audit_rows import Audit, AuditRow, EvidenceSource
from spark_prof.dashboards.formats import MISSING, clean, count, shorten
from spark_prof.dashboards.section import Column, Section

_MOST_LINES = 60
_LONGEST = 300
_LONGEST_NAME = 60


def layers(audit: Audit | None) -> Section:
    """Compares, layer by layer, what the checkpoint asks for with what runs."""
    rows = tuple(_row(row) for row in (audit.rows if audit else ()) if row.executed != "16-bit")
    columns = (
        Column("Layers"),
        Column("Modules", "number"),
        Column("Checkpoint"),
        Column("Runs"),
        Column("Engine", optional=True),
        Column("Log", optional=True),
        Column("Trace", optional=True),
        Column("Why", "prose"),
    )
    intro = ("Weights and activations: W4A4 quantizes both to 4 bits, W4A16 the weights alone.",)
    return Section("audit", "What the checkpoint asks for, and what runs", columns, rows, intro)


def _row(row: AuditRow) -> tuple[str, ...]:
    return (
        clean(row.layer),
        count(row.modules) if row.modules else MISSING,
        clean(row.checkpoint) or MISSING,
        clean(row.executed) or MISSING,
        *(_witness(row.witnesses, who) for who in ("engine", "log", "trace")),
        clean(f"Conflict: {row.conflict}" if row.conflict else "; ".join(_reasons(row))),
    )


def _reasons(row: AuditRow) -> list[str]:
    return [part for part in (row.why, row.fix) if part]


def _witness(witnesses: tuple[EvidenceSource, ...], who: str) -> str:
    said = [w.family or shorten(clean(w.kernel), _LONGEST_NAME) for w in witnesses if w.who == who]
    return ", ".join(dict.fromkeys(said)) or MISSING


def engine(audit: Audit) -> Section:
    """How the engine was set up, as far as anything tells."""
    found = audit.engine
    yes_no = {True: "yes", False: "no", None: ""}
    fields = (
        ("vLLM", found.vllm),
        ("GPU", " ".join(filter(None, (found.gpu, found.capability and f"({found.capability})")))),
        ("Quantization", found.quantization),
        ("Eager", yes_no[found.eager]),
        ("CUDA graphs", found.graph_mode),
        ("Graph sizes", ", ".join(map(str, found.graph_sizes))),
        ("Prefix caching", yes_no[found.prefix_caching]),
        ("--moe-backend", found.moe_backend),
        ("--linear-backend", found.linear_backend),
        ("KV cache", found.kv_cache),
    )
    rows = tuple((name, shorten(clean(value), _LONGEST)) for name, value in fields if value)
    return Section("engine", "How the engine was set up", (Column(""), Column("", "prose")), rows)


def log(audit: Audit) -> Section:
    """What the lines of the log mean, in the order in which they were written."""
    shown = audit.log[:_MOST_LINES]
    rows = tuple(
        (
            count(row.line),
            count(row.count),
            clean(row.topic),
            shorten(clean(" ".join(filter(None, (row.layer, row.format)))), 30) or MISSING,
            shorten(clean(row.value), _LONGEST_NAME) or MISSING,
            clean(row.means),
        )
        for row in shown
    )
    columns = (
        Column("Line", "number"),
        Column("Times", "number", optional=True),
        Column("About"),
        Column("Layers"),
        Column("Says"),
        Column("Meaning", "prose"),
    )
    rest = len(audit.log) - len(shown)
    intro = (f"{count(rest)} more are in the JSON.",) if rest else ()
    return Section("log", "What the log says", columns, rows, intro)


def notes(audit: Audit) -> Section:
    """What could not be told."""
    rows = tuple((shorten(clean(note), _LONGEST),) for note in audit.notes)
    return Section("audit-notes", "What could not be told", (Column("", "prose"),), rows)
