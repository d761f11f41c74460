"""The page about findings has every rule, and no other."""

from __future__ import annotations

from spark_prof.analyzers.findings.ranking import RULES
from spark_prof.analyzers.findings.rule import Rule
from tests.docs.pages import ROOT, tables
from tests.rows import each_row

ROWS = {row[0].strip("`"): row for row in tables(ROOT / "docs" / "findings.md", "Rules")[0]}


@each_row("rule", RULES)
def test_a_rule_stands_on_the_page(rule: Rule) -> None:
    assert rule.id in ROWS, "add it to docs/findings.md"
    assert ROWS[rule.id][1] == rule.looks_for
    assert ROWS[rule.id][2]


def test_no_rule_twice_and_none_that_is_gone() -> None:
    known = [rule.id for rule in RULES]
    assert len(known) == len(set(known))
    assert set(ROWS) == set(known)
