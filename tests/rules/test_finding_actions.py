"""What is to be done next is about findings that there are."""

from __future__ import annotations

from spark_prof.ab.sides import parse_side
from spark_prof.analyzers.findings.ranking import PAGES
from spark_prof.rules import finding_actions as actions


def test_every_row_is_of_a_finding() -> None:
    named = {row.finding for row in actions.TRIALS} | {*actions.RECORDINGS}
    assert named | {*actions.OF_THE_MACHINE, *actions.OF_WIDE_WEIGHTS} <= {*PAGES}
    assert {*actions.SECTIONS} <= {*PAGES.values()}


def test_every_side_can_be_typed() -> None:
    for row in actions.TRIALS:
        words = [word.removeprefix("--b=").removeprefix("--a=") for word in row.sides]
        for side in (word for word in words if word != "--b"):
            parse_side(side)
        assert row.change.startswith("--")
