"""The first line of a report: what a token takes, what most of it is, and what to try first."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import Part, Waterfall, waterfall_of
from spark_prof.dashboards.sections.run_section import on_cpu
from spark_prof.dashboards.sections.waterfall_section import name_of
from spark_prof.dashboards.units import clean, count, counted, microseconds, share, shorten

SHOWN = 3
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
    found = waterfall_of(report)
    if not found.us:
        return "Nothing in this recording tells a time."
    told = filter(None, (_takes(report, found), _largest(found), _first(report)))
    return clean(f"{'; '.join(told)}.")


def shown_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Those of the one screen: of several with one command the largest, which names the others."""
    distinct = {found.command or found.text: found for found in reversed(findings)}
    return [found for found in findings if found in distinct.values()][:SHOWN]


def _takes(report: Report, found: Waterfall) -> str:
    where = " on this processor" if on_cpu(report) else ""
    if found.of in ("run", "recording"):
        what = "The kernels of this run take" if found.of == "run" else "The recording lasts"
        return f"{what} {microseconds(found.us)}{where}"
    batch = "" if found.batch is None else f" at batch {count(found.batch)}"
    few = ""
    if found.phase == "decode" and 0 < report.steps.decode < _FEW_STEPS:
        few = f", by only {counted(report.steps.decode, 'decode step')}"
    if found.of == "token":
        return f"A token takes {microseconds(found.us)}{batch}{where}{few}"
    step = "training step" if report.run.training else f"{found.phase} step"
    step = "step" if found.phase == "unknown" and not report.run.training else step
    return f"A {step} takes {microseconds(found.us)}{batch}{where}{few}"


def _largest(found: Waterfall) -> str:
    """The largest part, and the lower bound where that is larger still."""
    parts = [part for part in found.parts if part.kind not in _NO_PART and part.us > 0]
    if not parts:
        return "nothing tells what that is spent on"
    floor = found.floor_us
    beyond = [part for part in parts if part.kind != "floor"]
    if floor is not None and (not beyond or floor >= max(part.us for part in beyond)):
        first = f"its lower bound is {microseconds(floor)} of that ({share(floor / found.us)})"
        return f"{first}, and {_named(beyond, found, 'beyond it')}" if beyond else first
    return _named(beyond, found)


def _named(parts: Sequence[Part], found: Waterfall, where: str = "") -> str:
    most = max(parts, key=lambda part: part.us)
    size = f"{microseconds(most.us)} ({share(most.us / found.us)})"
    name = name_of(most, found.of)
    name = f"{name} kernels" if name == "other" else name
    if most.us > _MOST * found.us:
        return f"most of it, {size}, is {name}"
    what = f"the largest part {where}" if where else "its largest part"
    return f"{what} is {name}, {size}"


def _first(report: Report) -> str:
    """What to try first: the first A/B of the findings that are shown, else where to look."""
    shown = shown_findings(report.findings)
    if not shown:
        looked = report.steps.decode and not on_cpu(report)  # few rules are about operators
        return "nothing worth changing was found" if looked else ""
    trial = next((f for f in shown if f.action and f.action.verb == "ab"), None)
    if trial is None:
        first = shown[0]
        return f"look first at {first.key}{_worth(first)}; no A/B of it is known"
    worth = _worth(trial, "ab would tell its gain")
    return f"first try {_side(trial)}{worth}"


def _side(found: Finding) -> str:
    """What the A/B of a finding tries."""
    assert found.action is not None
    tried = found.action.options[-1].removeprefix("--b=")
    return shorten(tried if tried != "stock" else found.action.side, _LONGEST_SIDE)


def _worth(found: Finding, tells: str = "") -> str:
    gain = ""
    if found.ms_per_token is not None:
        gain = f"at most {microseconds(1000 * found.ms_per_token)} of a token"
    told = "; ".join(filter(None, (gain, tells)))
    return f" ({told})" if told else ""
