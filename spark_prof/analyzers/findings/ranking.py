"""Runs all rules over a report and ranks what they find by milliseconds per token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

from spark_prof.analyzers.finding import Finding, keyed
from spark_prof.analyzers.findings import (
    context_findings,
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
from spark_prof.analyzers.findings.claims import held_to_parts, token_ms
from spark_prof.analyzers.findings.next_command import with_next_command
from spark_prof.analyzers.findings.rule import FindingRule
from spark_prof.analyzers.model import Report


def _in(*modules: ModuleType) -> Iterator[FindingRule[Report]]:
    for module in modules:
        yield from (rule for rule in vars(module).values() if isinstance(rule, FindingRule))


RULES: tuple[FindingRule[Report], ...] = (
    *_in(gaps_and_slow_steps, memory_floor, grids_and_tiles, stragglers),
    *_in(draft_findings, waiting_requests, context_findings, host_findings),
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
