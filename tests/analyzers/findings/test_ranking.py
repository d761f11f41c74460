"""What findings promise is there: in the token, and in each part of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import RULES, held_to_parts, parts_of_token, token_ms
from spark_prof.analyzers.model import Report
from spark_prof.vocabulary import COMPONENTS
from tests.analyzers.findings.reports import HEALTHY, STEP_US, STEPS, accounts, kernel
from tests.rows import each_row

KINDS = {"small", "conversion", "launch_gaps", "host", "memcpy"}
ROUNDING = 1 + 1e-9


def overclaimed(report: Report, findings: list[Finding] | tuple[Finding, ...]) -> list[str]:
    """What is promised beyond what there is, in words."""
    whole, sizes = token_ms(report), parts_of_token(report)
    claims = [f for f in findings if f.ms_per_token]
    wrong = [f.id for f in claims if whole is not None and f.ms_per_token > whole * ROUNDING]  # type: ignore[operator]
    parts = {part for f in claims for part in f.parts}
    # Those about one part, and about two, together: none of them may hold more than both parts.
    for some in (*combinations(sorted(parts), 1), *combinations(sorted(parts), 2)):
        room = sum(ms for cell, ms in sizes.items() if set(cell) & set(some))
        told = sum(f.ms_per_token or 0 for f in claims if f.parts and set(f.parts) <= set(some))
        if room and told > room * ROUNDING:
            wrong.append(f"{some}: {told:.3f} of {room:.3f} ms")
    return wrong


@each_row("seed", range(20))
def test_nor_do_findings_that_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ("qkv", "experts", "norm", "lm_head")
    sizes = rng.dirichlet(np.ones(len(names))) * 0.9 * STEP_US
    kernels = tuple(kernel(n, n, us * STEPS) for n, us in zip(names, sizes, strict=True))
    report = replace(HEALTHY, kernels=kernels, accounts=accounts(0.06 * STEP_US, 0.04 * STEP_US))
    made = [
        Finding(
            f"found-{number}", float(rng.exponential(0.5)), "", "",
            parts=tuple(rng.choice([*names, "launch_gaps"], rng.integers(0, 4), replace=False)),
        )
        for number in range(12)
    ]  # fmt: skip
    made.sort(key=lambda f: -(f.ms_per_token or 0))
    held = held_to_parts(made, report)
    assert overclaimed(report, held) == []
    for before, after in zip(made, held, strict=True):
        assert before.ms_per_token is not None
        if after.ms_per_token is None:
            assert after.within in {f.id for f in held}
        elif after.ms_per_token < 0.9 * before.ms_per_token:
            assert f"{before.ms_per_token:.2f} ms" in after.evidence[-1]  # and says what it was
    largest = next((f for f in made if f.parts), None)
    if largest is not None:
        room = sum(parts_of_token(report)[p, ""] for p in largest.parts)
        expected = min(largest.ms_per_token or 0, room)
        assert next(f for f in held if f.id == largest.id).ms_per_token == pytest.approx(expected)


def test_a_claim_that_fits_stays() -> None:
    alone = Finding("alone", 0.5, "", "", parts=("o_proj",))
    assert held_to_parts([alone], HEALTHY) == [alone]
    unknown = replace(alone, ms_per_token=None)
    assert held_to_parts([unknown], HEALTHY) == [unknown]


def test_no_claim_is_longer_than_the_token() -> None:
    """A mean over steps of which a few are many times as long."""
    (held,) = held_to_parts([Finding("mixed", 5.0, "", "")], HEALTHY)
    assert held.ms_per_token == token_ms(HEALTHY) == pytest.approx(STEP_US / 1e3)
    assert "no change brings more than the whole token" in held.evidence[-1]
    (held,) = held_to_parts([Finding("mixed", 5.0, "", "")], HEALTHY, 2.5)
    assert held.ms_per_token == pytest.approx(2.5)  # of the token that another report tells


def test_every_part_is_one() -> None:
    assert all(set(rule.parts) <= {*COMPONENTS, *KINDS} for rule in RULES)
