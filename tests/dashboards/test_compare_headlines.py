"""The first sentence of 120 made comparisons against brute force, and the figures below it."""

from __future__ import annotations

import re

import pytest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.comparison import Comparison
from spark_prof.analyzers.comparing.obstacles import outcome_of
from spark_prof.dashboards.compare_answer import answer, headline
from spark_prof.dashboards.compare_report import CompareRun, document, render_comparison
from spark_prof.dashboards.section import LINES, Layout
from tests.dashboards.compare_cases import COUNT, KINDS, Case, Oracle, Pool, cases

pytestmark = pytest.mark.slow

NAMES = ("before", "after")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, Comparison]]:
    pool = Pool(tmp_path_factory.mktemp("worlds"))
    return [(case, compare(*pool.sides(case), NAMES)) for case in cases()]


def test_every_headline_is_what_brute_force_says(found: list[tuple[Case, Comparison]]) -> None:
    wrong = []
    for case, comparison in found:
        right, said = Oracle(case).right, answer(comparison)
        same = said == right.answer if right.whole else said.startswith(right.answer)
        if not same or outcome_of(comparison).verdict != right.verdict:
            wrong.append(f"{case.kind}: {said}\n  right: {right.verdict}: {right.answer}")
    assert len(found) == COUNT
    assert not wrong, "\n".join(wrong)


def test_the_cases_hold_every_verdict_of_every_kind() -> None:
    """A table of which all had one answer would prove little."""
    verdicts = {kind: {Oracle(c).right.verdict for c in cases() if c.kind == kind}
                for kind in KINDS}  # fmt: skip
    several = [kind for kind, told in verdicts.items() if len(told) > 1]
    assert set().union(*verdicts.values()) == {
        "slower", "faster", "no difference shown", "not comparable"
    }  # fmt: skip
    assert len(several) >= 9, verdicts


def test_what_stands_below_says_the_same(found: list[tuple[Case, Comparison]]) -> None:
    """One sign for one quantity; no change where nothing is comparable; one screen.

    Drawing takes long: of each case from one of its sides.
    """
    wrong = []
    for case, comparison in found[::2]:
        compared = CompareRun((comparison,))
        text = render_comparison(compared, Layout())
        if len(text.splitlines()) > LINES:
            wrong.append(f"{case.kind}: {len(text.splitlines())} lines")
        outcome, figures = outcome_of(comparison), headline(comparison)
        whole = document(compared)
        changes = [
            str(cell)
            for section in whole.sections
            if re.match("compare_(steps|components|layers|kernels|engines)_", section.id)
            for row in section.rows
            for cell in row[1:]
            if re.fullmatch(r"[+-][\d.,]+ (%|us|ms)|slower|faster", str(cell))
        ]
        if outcome.verdict == "not comparable":
            if figures or changes or re.search(r"[+-]\d+\.\d %", text):
                wrong.append(f"{case.kind}: {outcome.obstacle}: {figures} {changes[:5]}")
            continue
        sign = {"slower": "+", "faster": "-"}.get(outcome.verdict)
        told = str(figures[0][1])
        if sign and not re.match(rf"\{sign}[\d.,]+ [um]?s, \{sign}[\d.]+ %", told):
            wrong.append(f"{case.kind}: {outcome.verdict}: {told}")
        if sign and not [cell for cell in changes if told.startswith(f"{cell}, ")]:
            wrong.append(f"{case.kind}: {told} is in no table below")
    assert not wrong, "\n".join(wrong)
