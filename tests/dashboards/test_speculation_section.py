"""What a report says of drafts: the line of the first screen, and the section."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.speculation.speculation_rows import (
    DraftCost,
    DraftGroup,
    DraftPart,
    DraftPosition,
    Speculation,
)
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.sections.speculation_section import line, sections
from spark_prof.dashboards.short_report import short_report

from .sample import SAMPLES

BASE = SAMPLES["mixture_of_experts"]
COST = DraftCost(
    steps=60, plain_steps=0, step_us=46_500.0, width=4.0, requests=1.0, tokens_per_step=3.1,
    token_us=15_000.0, drafter_us=22_700.0, drafter_by="kernels", host_us=900.0,
    parts=(DraftPart("mlp", 9_000.0), DraftPart("attention", 3_000.0)), plain_most_us=23_800.0,
    plain_low_us=23_800.0, plain_high_us=23_800.0, plain_by="drafter",
)  # fmt: skip
DRAFTS = Speculation(
    "eagle", 3, 2, 60, 0, 180, 126,
    positions=(DraftPosition(1, 60, 54, 0.8, 0.95), DraftPosition(2, 60, 42, 0.57, 0.8)),
    contexts=(DraftGroup(0, 255, 20, 60, 50, 0.9), DraftGroup(262144, None, 40, 120, 76, 0.85)),
    batches=(DraftGroup(1, 1, 60, 180, 126, 0.9, 46_500.0),), cost=COST,
)  # fmt: skip


def report(drafts: Speculation | None = DRAFTS, **cost: Any) -> Report:
    """A report with these drafts, whose token takes as long as they say."""
    if drafts is not None and cost:
        drafts = replace(drafts, cost=replace(COST, **cost))
    return replace(BASE, speculation=drafts)


def sentences(one: Report) -> str:
    return " ".join(str(row[0]) for row in sections(one)[0].rows)


def test_the_line_of_the_first_screen() -> None:
    text = line(report())
    assert text.startswith("2.1 of 3 drafts accepted; a token takes 15.00 ms")
    assert text.endswith("; without drafts about 23.80 ms (estimated).")
    shown = short_report(report())
    assert (text,) in [row for section in shown.sections for row in section.rows]


def test_without_drafts_there_is_nothing() -> None:
    assert line(BASE) == ""
    assert sections(BASE) == ()
    assert not any(s.id.startswith("speculation") for s in outline(BASE).sections)


@pytest.mark.parametrize(
    ("cost", "told", "why"),
    [
        ({}, "about 23.80 ms", "as they read the same weights."),
        ({"plain_low_us": 19_000.0}, "about 19.00 to 23.80 ms", "experts that only drafts may"),
        ({"plain_by": "steps", "plain_steps": 12}, "about 23.80 ms", "the mean of 12 steps that"),
        ({"plain_low_us": None, "plain_high_us": None, "plain_by": "", "why_unknown": "cpu"},
         "at most 23.80 ms", "a processor computes longer for more tokens"),
        ({"plain_low_us": None, "plain_high_us": None, "plain_by": "", "why_unknown": "wide"},
         "at most 23.80 ms", "with so many tokens a step computes longer"),
    ],
)  # fmt: skip
def test_how_the_time_without_drafts_is_known(cost: dict[str, Any], told: str, why: str) -> None:
    assert f"without drafts {told} (estimated)" in line(report(**cost))
    assert why in sentences(report(**cost))


def test_where_nothing_tells_what_drafting_takes() -> None:
    nothing = dict.fromkeys(("drafter_us", "plain_most_us", "plain_low_us", "plain_high_us"))
    one = report(**nothing, plain_by="", why_unknown="drafter")
    assert "without drafts" not in line(one)
    assert "is not known: what drafting takes is not recorded." in sentences(one)


def test_what_the_section_says() -> None:
    one = report()
    text = sentences(one)
    for part in (
        "126 drafts of 180 accepted, in 60 verifications of 2 requests.",
        "Drafting takes 22.70 ms of it, 48.8 %, from the drafter's first kernel to its last.",
        "The call that drafts takes 900.0 us on the host.",
        "A step with drafts pays from 0.95 accepted drafts on; 2.10 are.",
    ):
        assert part in text
    tables = {section.id: section for section in sections(one)}
    assert tables["speculation"].title == "Speculation (eagle, at most 3 drafts a step)"
    assert [row[:3] for row in tables["speculation-positions"].rows] == [
        ("1", "60", "54"), ("2", "60", "42"),
    ]  # fmt: skip
    assert [row[0] for row in tables["speculation-contexts"].rows] == ["0-255", "262,144 and more"]
    assert [row[0] for row in tables["speculation-drafter"].rows] == [
        "drafter.mlp", "drafter.attention",
    ]  # fmt: skip


def test_what_was_thrown_away_and_what_ran_outside_of_graphs_is_told() -> None:
    one = report(replace(DRAFTS, unknown=4), outside_graphs=7, outside_us=1500.0)
    text = sentences(replace(one, speculation=replace(one.speculation or DRAFTS, unknown=4)))
    assert "Nothing was taken of 4 more verifications" in text
    assert "7 steps with drafts ran outside of CUDA graphs, and took 1.50 ms longer" in text


def test_a_drafter_on_the_host_and_a_bound_that_is_none() -> None:
    one = report(drafter_by="host", plain_low_us=None, plain_high_us=None, plain_by="",
                 why_unknown="wide")  # fmt: skip
    text = sentences(one)
    assert "Drafting takes 22.70 ms of it, 48.8 %, on the host." in text
    assert "The call that drafts" not in text
    assert "pays from 0.95 accepted drafts on, or more" in text
