"""Every row about the end of an engine reads its own examples, and none reads another's."""

from __future__ import annotations

from spark_prof.rules.engine_failures import FAILURES, FailureRule
from tests.rows import each_row

EXAMPLES = [(rule, example) for rule in FAILURES for example in rule.examples]


@each_row(("rule", "example"), EXAMPLES)
def test_a_row_reads_its_own_examples(rule: FailureRule, example: str) -> None:
    assert next(row for row in FAILURES if row.pattern.search(example)) is rule


def test_the_rows_are_whole() -> None:
    assert len({rule.id for rule in FAILURES}) == len(FAILURES)
    for rule in FAILURES:
        assert rule.examples, rule.id
        assert rule.fix, rule.id
        rule.failure.format("a", "b", "c", library="d", kernel="e", stage="f")
