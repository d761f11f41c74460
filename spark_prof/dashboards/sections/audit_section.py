"""The audit: which kernels the layers run on, who says so, what the log and the settings tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_prof.analyzers.fallbacks.audit_rows import Audit, AuditRow, EngineSetup, KnownIssue
from spark_prof.analyzers.finding import commented
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, commands, listed, pairs, table
from spark_prof.dashboards.units import MISSING, count, shorten
from spark_prof.dashboards.verdict_sentence import unknown_sentence

_MOST_LINES = 60
_LONGEST = 300
_LONGEST_NAME = 60
_MOST_UNKNOWN = 20


def layers(audit: Audit | None) -> Section:
    """Compares, layer by layer, what the checkpoint asks for with what runs."""
    rows = [row for row in (audit.rows if audit else ()) if row.is_told]
    columns = (
        cells.Text("Layers", "layer"),
        cells.SomeCount("Modules", "modules"),
        cells.Text("Checkpoint", "checkpoint", missing=MISSING),
        cells.Text("Runs", "executed", missing=MISSING),
        cells.Text(
            "Engine", lambda row: _source_names(row, "engine"), optional=True, missing=MISSING
        ),
        cells.Text("Log", lambda row: _source_names(row, "log"), optional=True, missing=MISSING),
        cells.Text(
            "Trace", lambda row: _source_names(row, "trace"), optional=True, missing=MISSING
        ),
        cells.Prose("Why", _why),
    )
    intro = ("Weights and activations: W4A4 quantizes both to 4 bits, W4A16 the weights alone.",)
    return table("audit", "What the checkpoint asks for, and what runs", rows, columns, intro)


def _why(row: AuditRow) -> str:
    if row.conflict:
        return f"Conflict: {row.conflict}"
    return "; ".join(filter(None, (row.why, row.fix)))


def _source_names(row: AuditRow, who: str) -> str:
    names = (w.family or shorten(w.kernel, _LONGEST_NAME) for w in row.witnesses if w.who == who)
    return ", ".join(dict.fromkeys(names))


def engine(audit: Audit) -> Section:
    """How the engine was set up, as far as anything tells."""
    engine = audit.engine
    yes_no = {True: "yes", False: "no", None: ""}
    fields = (
        ("vLLM", engine.vllm),
        (
            "GPU",
            " ".join(filter(None, (engine.gpu, engine.capability and f"({engine.capability})"))),
        ),
        ("Quantization", engine.quantization),
        ("Eager", yes_no[engine.eager]),
        ("CUDA graphs", _graphs(engine)),
        ("Graph sizes", ", ".join(map(str, engine.graph_sizes))),
        ("Prefix caching", yes_no[engine.prefix_caching]),
        ("--moe-backend", engine.moe_backend),
        ("--linear-backend", engine.linear_backend),
        ("KV cache", engine.kv_cache),
    )
    return pairs("engine", "How the engine was set up", fields, _LONGEST)


def _graphs(engine: EngineSetup) -> str:
    breakable = "breakable" if engine.breakable_graphs else ""
    return ", ".join(filter(None, (engine.graph_mode, breakable)))


def log(audit: Audit) -> Section:
    """What the lines of the log mean, in the order in which they were written."""
    columns = (
        cells.Count("Line", "line"),
        cells.Count("Times", "count", optional=True),
        cells.Text("About", "topic"),
        cells.Text("Layers", lambda row: f"{row.layer} {row.format}", longest=30, missing=MISSING),
        cells.Text("Says", "value", longest=_LONGEST_NAME, missing=MISSING),
        cells.Prose("Meaning", "means"),
    )
    rows = [row for row in audit.log if row.topic != "harmless"][:_MOST_LINES]
    rest = len(audit.log) - len(rows)
    intro = (f"{count(rest)} more {'are' if rest > 1 else 'is'} in the JSON.",) if rest else ()
    return table("log", "What the log says", rows, columns, intro)


def unknown(audit: Audit) -> Section:
    """Lists the warnings and errors that no rule knows, each kind once."""
    columns = (
        cells.Count("Line", "line"),
        cells.Count("Times", "count"),
        cells.Text("Level", "level", optional=True),
        cells.Prose("Text of the log", "text", longest=_LONGEST),
    )
    rows = audit.unknown[:_MOST_UNKNOWN]
    title = unknown_sentence(audit.unknown_count)
    rest = len(audit.unknown) - len(rows)
    intro = (f"{count(rest)} more are in the JSON.",) if rest > 0 else ()
    return table("unknown-lines", title, rows, columns, intro)


def notes(audit: Audit) -> Section:
    """What could not be told."""
    return listed("audit-notes", "What could not be told", audit.notes, _LONGEST)


def settings(audit: Audit) -> Section:
    """Lists settings that were made and do nothing, or soon will not."""
    columns = (
        cells.Name("Setting", "name", longest=_LONGEST_NAME),
        cells.Name("Value", "value", longest=_LONGEST_NAME, missing=MISSING),
        cells.Text("Status", "status"),
        cells.Prose("Why", "why", longest=_LONGEST),
        cells.Prose("Instead", "instead", longest=_LONGEST, missing=MISSING),
    )
    return table("settings", "Settings that do nothing", audit.settings, columns)


def batches(audit: Audit) -> Section:
    """Sets the sizes of decode steps beside the CUDA graphs that they are padded to."""
    columns = (
        cells.Count("Tokens of a step", "tokens"),
        cells.Count("Steps", "steps"),
        cells.Count("Captured graph", "graph"),
        cells.Share(
            "Padding", lambda row: None if row.graph is None else 1 - row.tokens / max(row.graph, 1)
        ),
    )
    rows = audit.batches if audit.engine.graph_sizes else ()
    return table("graph-sizes", "Decode steps and their CUDA graphs", rows, columns)


_LONGEST_ISSUE = 1200
_MOST_SHORT, _LONGEST_SHORT = 2, 150


def known_issues(audit: Audit | None) -> tuple[Section, ...]:
    """What is known of this version on this GPU, and what proves on this machine what helps."""
    issues = audit.known_issues if audit else ()
    title = "Known issues of this version"
    typed = (commented(row.command, row.issue) for row in issues if row.command)
    return (
        listed("known-issues", title, map(_issue_text, issues), _LONGEST_ISSUE),
        commands("known-issues-ab", "What proves it on this machine", typed),
    )


def short_known_issues(audit: Audit | None) -> Section:
    """The same on a line each; their section tells more."""
    issues = audit.known_issues if audit else ()
    lines = [
        shorten(f"In the window of {row.issue}: {row.what}", _LONGEST_SHORT)
        for row in issues[:_MOST_SHORT]
    ]
    if lines:
        left = len(issues) - len(lines)
        rest = f"{left} more, and what to try" if left else "What to try"
        lines.append(f"{rest}: --section known-issues")
    return listed("known-issues", "Known issues of this version", lines)


def window(row: KnownIssue) -> str:
    """The versions that have an issue, in words."""
    span = row.since if row.since == row.last else f"{row.since} to {row.last}"
    return f"{span}, fixed in {row.fixed}" if row.fixed else f"{span}, open"


def attempt(row: KnownIssue) -> str:
    """What to try."""
    return "; ".join(filter(None, (row.side, row.remedy)))


def _issue_text(row: KnownIssue) -> str:
    gpus = f"; {row.gpus}" if row.gpus else ""
    return (
        f"You are in the window of {row.issue} ({row.date}; vLLM {window(row)}{gpus}): {row.what}. "
        f"Expect, as reported there: {row.effect}. Try: {attempt(row)}. "
        f"Shown by: {'; '.join(row.evidence)}."
    )


def every_issue(rows: Sequence[KnownIssue]) -> Iterable[Section]:
    """The table, with a list of the addresses below it."""
    columns = (
        cells.Text("Issue", "issue"),
        cells.Text("Reported", "date"),
        cells.Text("Harms", "kind"),
        cells.Text("vLLM", window),
        cells.Text("GPUs", lambda row: row.gpus or "any"),
        cells.Prose("What is the case", "what"),
        cells.Prose("As reported", "effect"),
        cells.Prose("Try", attempt),
    )
    yield table("known-issues", f"Known issues ({len(rows)})", rows, columns, (_as_of(rows),))
    addresses = (f"{row.issue}: {', '.join(row.reported)}" for row in rows)
    yield listed("known-issues-reported", "Where they were reported", addresses)


def issue_list(rows: Sequence[KnownIssue]) -> Iterable[Section]:
    """The known issues as a list, a paragraph an issue, for a page of any width."""
    texts = (
        f"{number}. {row.issue} ({row.date}, {row.kind}; vLLM {window(row)}; "
        f"{row.gpus or 'any GPU'}): {row.what}. As reported: {row.effect}. Try: {attempt(row)}. "
        f"{', '.join(row.reported)}"
        for number, row in enumerate(rows, 1)
    )
    section = listed("known-issues", f"Known issues ({len(rows)})", texts, _LONGEST_ISSUE)
    yield replace(section, intro=(_as_of(rows),))


def _as_of(rows: Sequence[KnownIssue]) -> str:
    checked = max((row.as_of for row in rows), default="")
    return (
        f"As of {checked}. Of versions beyond the last that is named nothing is known; figures "
        "are those of the reports, on their machines."
    )
