"""Draws what `spark-prof kernels check` found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_prof.dashboards.formats import MISSING, clean, count, counted, share
from spark_prof.dashboards.outline import without_empty_columns
from spark_prof.dashboards.section import Column, Document, Section
from spark_prof.kernels.registry import ReplacementKernel

if TYPE_CHECKING:
    from spark_prof.kernels.check.verdict import Verdict

_SCHEMA = 1
_MOST_FAILURES = 8
"""That a page shows: the others are in the JSON."""


@dataclass(frozen=True)
class Checked:
    """One run of the checks.

    Attributes:
        kernels: what was asked for.
        where: on what it ran, in words.
        device: cpu or cuda.
        verdicts: one a case.
    """

    kernels: tuple[ReplacementKernel, ...]
    where: str
    device: str
    verdicts: tuple[Verdict, ...]

    def number(self, status: str, check: str | None = None) -> int:
        """How many cases ended like that, of all kernels or those of one name in `check`."""
        wanted = (v for v in self.verdicts if check in (None, v.kernel))
        return sum(verdict.status == status for verdict in wanted)


def render_checks(found: Checked, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a run of the checks.

    Args:
        found: what was checked.
        kind: text, md or json.
        width: columns of the text.
        color: whether the text is coloured.
    """
    if kind == "json":
        from spark_prof.dashboards import json_report

        return json_report.write(_record(found))
    from spark_prof.dashboards import markdown, text

    sections = (_failed(found), _summary(found), _skipped(found))
    document = Document(
        f"spark-prof kernels check: {clean(found.where)}",
        tuple((name, count(found.number(name))) for name in ("passed", "failed", "skipped")),
        tuple(without_empty_columns(section) for section in sections if section.rows),
    )
    return markdown.draw(document) if kind == "md" else text.draw(document, width, color)


def _summary(found: Checked) -> Section:
    columns = (
        Column("Cases of"),
        Column("Passed", "number"),
        Column("Failed", "number"),
        Column("Skipped", "number"),
        Column("Error used", "number"),
        Column("Stand for", "prose"),
    )
    rows = tuple(
        (
            check,
            *(count(found.number(status, check)) for status in ("passed", "failed", "skipped")),
            _used([v.used for v in found.verdicts if v.kernel == check]),
            ", ".join(kernel.name for kernel in found.kernels if kernel.check == check),
        )
        for check in dict.fromkeys(verdict.kernel for verdict in found.verdicts)
    )
    intro = (
        "Error used: the largest error of an element, as a share of what its sum allows; 0.0 % is "
        f"the exact result rounded everywhere. Where it says {MISSING}, bits have to be equal."
    )
    bounded = any(verdict.used is not None for verdict in found.verdicts)
    return Section("checks", "Cases", columns, rows, (intro,) if bounded else ())


def _used(shares: Sequence[float | None]) -> str:
    known = [value for value in shares if value is not None]
    return share(max(known)) if known else MISSING


def _failed(found: Checked) -> Section:
    """What went wrong, each once: where a kernel does not compile all its cases say the same."""
    columns = (
        Column("Failed"),
        Column("Times", "number"),
        Column("First case", "prose"),
        Column("What is wrong", "prose"),
    )
    alike: dict[tuple[str, str], list[str]] = {}
    for verdict in found.verdicts:
        if verdict.status == "failed":
            alike.setdefault((verdict.kernel, verdict.detail), []).append(verdict.case)
    rows = tuple(
        (clean(kernel), count(len(cases)), clean(cases[0]), clean(detail))
        for (kernel, detail), cases in alike.items()
    )
    more = len(rows) - _MOST_FAILURES
    told = (
        (f"The first {_MOST_FAILURES} of {len(rows)}; --format json has all.",) if more > 0 else ()
    )
    return Section("failed", "Failures", columns, rows[:_MOST_FAILURES], told)


def _skipped(found: Checked) -> Section:
    why = [clean(verdict.detail) for verdict in found.verdicts if verdict.status == "skipped"]
    columns = (Column("Skipped"), Column("Why", "prose"))
    rows = tuple((counted(why.count(reason), "case"), reason) for reason in dict.fromkeys(why))
    return Section("skipped", "Not checked", columns, rows)


def _record(found: Checked) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "device": found.device,
        "where": found.where,
        **{status: found.number(status) for status in ("passed", "failed", "skipped")},
        "cases": [asdict(verdict) for verdict in found.verdicts],
    }
