"""Runs all rules over a report and ranks what they find by milliseconds per token."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from spark_prof.analyzers.finding import Finding, keyed
from spark_prof.analyzers.findings import (
    format_conversions,
    fp4_builds,
    gaps_and_slow_steps,
    grids_and_tiles,
    memory_floor,
    stragglers,
)
from spark_prof.analyzers.findings.audit_findings import FALLBACKS
from spark_prof.analyzers.findings.next_command import with_next_command
from spark_prof.analyzers.findings.rule import Rule
from spark_prof.analyzers.model import Report


def _in(*modules: ModuleType) -> Iterator[Rule[Report]]:
    for module in modules:
        yield from (each for each in vars(module).values() if isinstance(each, Rule))


RULES: tuple[Rule[Report], ...] = (
    *_in(gaps_and_slow_steps, memory_floor, grids_and_tiles, stragglers),
    *format_conversions.CONVERSIONS,
    *_in(format_conversions, fp4_builds),
    *FALLBACKS,
)
"""Every rule, in the order of docs/findings.md."""

PAGES = {rule.id: rule.page for rule in RULES}
"""The page of the explorer that shows what each rule's findings stand on."""


def findings_of(report: Report) -> tuple[Finding, ...]:
    """What the rules find, the largest gain first and what nobody can put a figure on last."""
    found = [with_next_command(f, report, rule.page) for rule in RULES for f in rule.find(report)]
    return keyed(sorted(found, key=lambda f: (f.ms_per_token is None, -(f.ms_per_token or 0.0))))
