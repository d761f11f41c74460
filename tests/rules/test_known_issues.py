"""The table of known issues: whole rows, and nothing in them that `spark-prof ab` would refuse."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import date

from spark_prof.ab.sides import BACKENDS, parse_side
from spark_prof.rules.engine_log_lines import LINE_RULES, TOPICS, LineRule
from spark_prof.rules.issue_lines import ISSUE_LINES
from spark_prof.rules.known_issue import KINDS, AnyOf, Condition, Issue, Runs
from spark_prof.rules.known_issues import ISSUES
from spark_prof.rules.vllm_versions import build_of
from spark_prof.traces.readers.engine_log import statements_of
from tests.rows import each_row

EXAMPLES = [(rule, example) for rule in ISSUE_LINES for example in rule.examples]


def conditions(issue: Issue) -> list[Condition]:
    found: list[Condition] = []
    for each in issue.when:
        found += each.conditions if isinstance(each, AnyOf) else [each]
    return found


def test_their_names() -> None:
    names = [issue.id for issue in ISSUES]
    assert len(set(names)) == len(names) >= 30
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in names)


@each_row("issue", ISSUES)
def test_a_row_is_whole(issue: Issue) -> None:
    assert issue.kind in KINDS
    assert issue.when
    for text in (issue.what, issue.effect):
        assert text
        assert not text.endswith(".")
    assert issue.remedy or issue.side, "what is to be done?"
    date.fromisoformat(issue.as_of)


@each_row("issue", ISSUES)
def test_its_sources_are_public_and_dated(issue: Issue) -> None:
    assert issue.reported
    for each in issue.reported:
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", each.url)
        assert re.fullmatch(r"202\d-\d\d(-\d\d)?", each.date)
        assert each.date <= issue.as_of


@each_row("issue", ISSUES)
def test_its_window_is_in_order(issue: Issue) -> None:
    ends = [issue.vllm.since, issue.vllm.last, *filter(None, [issue.vllm.fixed])]
    builds = [build for end in ends if (build := build_of(end))]
    assert len(builds) == len(ends)
    places = [build.place for build in builds]
    assert places == sorted(places)
    assert len(ends) == 2 or places[1] < places[2]


@each_row("issue", ISSUES)
def test_ab_takes_what_it_says_to_try(issue: Issue) -> None:
    if issue.side:
        side = parse_side(issue.side)
        assert side.options or side.environment
        for option, value in zip(side.options, side.options[1:], strict=False):
            assert value in BACKENDS.get(option, (value,)), option


@each_row("issue", ISSUES)
def test_its_patterns_compile(issue: Issue) -> None:
    for each in conditions(issue):
        for part in fields(each):
            if part.name == "pattern":
                re.compile(getattr(each, part.name))
        if isinstance(each, Runs):
            assert each.kind in ("linear", "moe", "attention", "gdn")


@each_row(("rule", "example"), EXAMPLES)
def test_a_line_is_read_by_its_own_rule(rule: LineRule, example: str) -> None:
    (said,) = statements_of([f"(EngineCore pid=1) INFO 11-21 10:58:01 [x.py:9] {example}"])
    assert said.rule is rule
    assert rule.word in example.encode()


def test_its_lines_are_whole() -> None:
    assert set(ISSUE_LINES) <= set(LINE_RULES)
    assert len({rule.id for rule in LINE_RULES}) == len(LINE_RULES)
    assert all(rule.examples and rule.topic in TOPICS for rule in ISSUE_LINES)
