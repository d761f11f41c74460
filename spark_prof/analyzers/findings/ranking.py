"""Runs all rules over a report drops claims of the same time, and ranks by ms per token."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType

from spark_prof.analyzers.finding import Finding, keyed
from spark_prof.analyzers.findings import (
    draft_findings,
    format_conversions,
    fp4_builds,
    gaps_and_slow_steps,
    grids_and_tiles,
    host_findings,
    memory_floor,
    stragglers,
    waiting_requests,
)
from spark_prof.analyzers.findings.audit_findings import FALLBACKS
from spark_prof.analyzers.findings.next_command import with_next_command
from spark_prof.analyzers.findings.rule import FindingRule
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import COPIED, GAPS
from spark_prof.analyzers.views.waterfall import SMALL_US
from spark_prof.rules import thresholds

_SAME = thresholds.SAME_STATISTIC.value
_NOTHING = thresholds.NOTHING_LEFT.value

Cell = tuple[str, str]
"""A component and a kind of its kernels (small, conversion or neither); no kernels overlap."""


def token_ms(report: Report) -> float | None:
    """The time of an output token, in ms; None where nothing tells."""
    if headline := report.steps.headline:
        return headline.token_us / 1e3
    return report.steps.tpot_us.median / 1e3 if report.steps.tpot_us else None


def parts_of_token(report: Report) -> dict[Cell, float]:
    """What each part of a token takes, in ms, of the typical decode step."""
    step_us: defaultdict[Cell, float] = defaultdict(float)
    steps = report.steps.decode
    converting = {row.name for row in report.conversions.items}
    for name, component, us, call_us in _kernels(report):
        kind = "small" if call_us < SMALL_US else ""
        kind = "conversion" if name in converting else kind
        step_us[component, "" if component == "collective" else kind] += us
    if step := report.decode_step:
        for part in (*GAPS, COPIED):
            step_us[part, ""] += step.us(part)
    per_token = {cell: report.steps.us_per_token(us * steps) or 0.0 for cell, us in step_us.items()}
    # What profiling adds is between kernels as far as anything tells: no change brings it.
    token = report.steps.token
    added_us = max(-token.unprofiled_us, 0.0) if token else 0.0
    for cell in ((gap, "") for gap in reversed(GAPS)):
        profiling_us = min(added_us, per_token.get(cell, 0.0))
        per_token[cell] = per_token.get(cell, 0.0) - profiling_us
        added_us -= profiling_us
    return {cell: us / 1e3 for cell, us in per_token.items() if us}


def _kernels(report: Report) -> Iterator[tuple[str, str, float, float]]:
    """Name, component, time in the typical decode step, and that of a call."""
    if report.typical:
        for row in report.typical:
            if row.phase == "decode":
                call_us = row.kernel_us / row.calls + row.ahead_us if row.calls else SMALL_US
                yield row.name, row.component, row.us, call_us
        return
    for kernel in report.kernels:  # of a report made by hand
        call_us = kernel.us / kernel.calls if kernel.calls else SMALL_US
        yield kernel.name, kernel.component, kernel.decode_us_per_step, call_us


def held_to_parts(
    findings: Sequence[Finding], report: Report, whole: float | None = None
) -> list[Finding]:
    """The findings, none above a token's time, and those about a part together not above it.

    Args:
        findings: the largest claim first.
        whole: that time in ms, where another report tells it; else the report's.
    """
    whole, left = whole or token_ms(report), parts_of_token(report)
    cells_of = [[cell for cell in left if set(cell) & set(finding.parts)] for finding in findings]
    claims_on = Counter(cell for cells in cells_of for cell in cells)
    limited: list[Finding] = []
    for finding, cells in zip(findings, cells_of, strict=True):
        claim = finding.ms_per_token
        if claim is None or claim <= 0:
            limited.append(finding)
            continue
        room = sum(left[cell] for cell in cells) if cells else None
        least = min(value for value in (claim, whole, room) if value is not None)
        # What no other finding is about comes first, so that others keep theirs.
        _take(left, sorted(cells, key=lambda cell: claims_on[cell]), least)
        rivals = [one.id for one in limited if set(one.parts) & set(finding.parts)]
        if least >= claim * (1 - _SAME):
            limited.append(replace(finding, ms_per_token=least))
        elif least < claim * _NOTHING and rivals:
            limited.append(replace(finding, ms_per_token=None, within=rivals[0]))
        else:
            line = (_CUT if cells else _WHOLE).format(claim=claim, least=least)
            limited.append(replace(finding, ms_per_token=least, evidence=(*finding.evidence, line)))
    return limited


_WHOLE = (
    "By itself {claim:.2f} ms a token, as mean over steps that differ: no change brings more than "
    "the whole token, {least:.2f} ms."
)
_CUT = (
    "By itself {claim:.2f} ms a token: {least:.2f} ms is all that its part of the token has beside "
    "what larger findings claim of it."
)


def _take(left: dict[Cell, float], cells: Iterable[Cell], claim: float) -> None:
    """Subtracts the claim from what the cells have left, one after another."""
    for cell in cells:
        portion = min(left[cell], claim)
        left[cell] -= portion
        claim -= portion


def _in(*modules: ModuleType) -> Iterator[FindingRule[Report]]:
    for module in modules:
        yield from (rule for rule in vars(module).values() if isinstance(rule, FindingRule))


RULES: tuple[FindingRule[Report], ...] = (
    *_in(gaps_and_slow_steps, memory_floor, grids_and_tiles, stragglers),
    *_in(draft_findings, waiting_requests, host_findings),
    *format_conversions.CONVERSIONS,
    *_in(format_conversions, fp4_builds),
    *FALLBACKS,
)
"""Every rule, in the order of docs/findings.md."""

PAGES = {rule.id: rule.page for rule in RULES}
"""The page of the explorer that shows what each rule's findings stand on."""


def findings_of(report: Report) -> tuple[Finding, ...]:
    """What the rules find, the largest gain first and what nobody can put a figure on last."""
    findings = [
        with_next_command(f, report, rule.page) for rule in RULES for f in rule.find(report)
    ]
    return ranked(findings, report, report)


OF_ALL_STEPS = frozenset(
    {"mixed-steps", "preemptions", "requests-queue", "kv-cache-bound", "context-slope", "host-code"}
)
"""What is found among the steps of all batch sizes; the others are of the screen's size."""


def ranked(findings: Iterable[Finding], report: Report, whole: Report) -> tuple[Finding, ...]:
    """The largest gain first, and what nobody can put a figure on last; no claim above its part.

    Args:
        report: whose parts of a token they are about.
        whole: whose token is told first.
    """
    limited = held_to_parts(sorted(findings, key=_largest_first), report, token_ms(whole))
    return keyed(sorted(limited, key=_largest_first))


def _largest_first(finding: Finding) -> tuple[bool, float]:
    return finding.ms_per_token is None, -(finding.ms_per_token or 0.0)
