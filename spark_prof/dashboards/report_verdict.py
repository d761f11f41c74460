"""The first line of a report: what a token takes, what most of it is, and what to try first."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import Part, Waterfall, waterfall_of
from spark_prof.dashboards.sections.run_section import on_cpu
from spark_prof.dashboards.sections.waterfall_section import name_of
from spark_prof.dashboards.units import clean, count, counted, microseconds, share, shorten

MOST_FINDINGS = 3
"""Findings on the one screen, of which one is named first."""
_FEW_STEPS = 8
_MOST = 0.5
_LONGEST_SIDE = 90
_NO_PART = ("rest",)


def verdict_of(report: Report) -> str:
    """The answer in one sentence, of figures that the report has below it.

    "A token takes 2.27 ms at batch 1; the largest part is launch gaps, 602.7 us (26.5 %); first
    try moe=spark_prof (at most 547.6 us of a token; ab would tell)."
    """
    waterfall = waterfall_of(report)
    if not waterfall.us:
        return "Nothing in this recording tells a time."
    clauses = filter(None, (_takes(report, waterfall), _largest(waterfall), _first(report)))
    return clean(f"{'; '.join(clauses)}.")


def shown_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of the one screen: of several with one command the largest, which names them."""
    distinct = {finding.command or finding.text: finding for finding in reversed(findings)}
    return [finding for finding in findings if finding in distinct.values()][:MOST_FINDINGS]


def _takes(report: Report, waterfall: Waterfall) -> str:
    where = " on this processor" if on_cpu(report) else ""
    if waterfall.of in ("run", "recording"):
        subject = "The kernels of this run take" if waterfall.of == "run" else "The recording lasts"
        return f"{subject} {microseconds(waterfall.us)}{where}"
    token = waterfall.account.token
    batch = "" if token is None or token.batch is None else f" at batch {count(token.batch)}"
    few = ""
    if waterfall.account.phase == "decode" and 0 < report.steps.decode < _FEW_STEPS:
        few = f", by only {counted(report.steps.decode, 'decode step')}"
    if waterfall.of == "token":
        return f"A token takes {microseconds(waterfall.us)}{batch}{where}{few}"
    step = "training step" if report.run.training else f"{waterfall.account.phase} step"
    step = "step" if waterfall.account.phase == "unknown" and not report.run.training else step
    return f"A {step} takes {microseconds(waterfall.us)}{batch}{where}{few}"


def _largest(waterfall: Waterfall) -> str:
    """The largest part, and the lower bound where that is larger still."""
    parts = [part for part in waterfall.parts if part.kind not in _NO_PART and part.us > 0]
    if not parts:
        return "nothing tells what that is spent on"
    floor = waterfall.floor_us
    beyond = [part for part in parts if part.kind != "floor"]
    if floor is not None and (not beyond or floor >= max(part.us for part in beyond)):
        first = f"its lower bound is {microseconds(floor)} of that ({share(floor / waterfall.us)})"
        return f"{first}, and {_named(beyond, waterfall, 'beyond it')}" if beyond else first
    return _named(beyond, waterfall)


def _named(parts: Sequence[Part], waterfall: Waterfall, where: str = "") -> str:
    most = max(parts, key=lambda part: part.us)
    size = f"{microseconds(most.us)} ({share(most.us / waterfall.us)})"
    name = name_of(most, waterfall.of)
    name = f"{name} kernels" if name == "other" else name
    if most.us > _MOST * waterfall.us:
        return f"most of it, {size}, is {name}"
    subject = f"the largest part {where}" if where else "its largest part"
    return f"{subject} is {name}, {size}"


def _first(report: Report) -> str:
    """What to try first: the first A/B of the findings that are shown, else where to look."""
    findings = shown_findings(report.findings)
    if not findings:
        looked = report.steps.decode and not on_cpu(report)  # few rules are about operators
        return "nothing worth changing was found" if looked else ""
    trial = next((f for f in findings if f.action and f.action.verb == "ab"), None)
    if trial is None:
        first = findings[0]
        return f"look first at {first.key}{_worth(first)}; no A/B of it is known"
    worth = _worth(trial, "ab would tell its gain")
    return f"first try {_side(trial)}{worth}"


def _side(finding: Finding) -> str:
    """What the A/B of a finding tries."""
    assert finding.action is not None
    tried = finding.action.options[-1].removeprefix("--b=")
    return shorten(tried if tried != "stock" else finding.action.side, _LONGEST_SIDE)


def _worth(finding: Finding, remark: str = "") -> str:
    gain = ""
    if finding.ms_per_token is not None:
        gain = f"at most {microseconds(1000 * finding.ms_per_token)} of a token"
    text = "; ".join(filter(None, (gain, remark)))
    return f" ({text})" if text else ""
