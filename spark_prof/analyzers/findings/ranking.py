"""Runs all rules over a report and ranks what they find by milliseconds per token."""

from __future__ import annotations

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.audit_findings import FALLBACKS
from spark_prof.analyzers.findings.format_conversions import CONVERSIONS
from spark_prof.analyzers.findings.fp4_builds import EVIDENCE
from spark_prof.analyzers.findings.gaps_and_slow_steps import TIME
from spark_prof.analyzers.findings.gpu_clock import CLOCKS
from spark_prof.analyzers.findings.grids_and_tiles import SHAPES
from spark_prof.analyzers.findings.lm_head import LM_HEAD
from spark_prof.analyzers.findings.memory_floor import ROOFLINE
from spark_prof.analyzers.findings.rule import Rule
from spark_prof.analyzers.findings.small_work import WORK
from spark_prof.analyzers.findings.stragglers import RANKS
from spark_prof.analyzers.model import Report

RULES: tuple[Rule, ...] = (
    *TIME,
    *WORK,
    *ROOFLINE,
    *SHAPES,
    *RANKS,
    *CLOCKS,
    *CONVERSIONS,
    *LM_HEAD,
    *EVIDENCE,
    *FALLBACKS,
)
"""Every rule, in the order of docs/findings.md."""

PAGES = {rule.id: rule.page for rule in RULES}
"""The page of the explorer that shows what each rule's findings stand on."""


def findings_of(report: Report, rules: tuple[Rule, ...] = RULES) -> tuple[Finding, ...]:
    """What the rules find, the largest gain first and what nobody can put a figure on last."""
    found = [finding for rule in rules for finding in rule.find(report)]
    return tuple(sorted(found, key=lambda f: (f.ms_per_token is None, -(f.ms_per_token or 0.0))))
