"""Acceptance against brute force, and what drafts cost against planted times."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.speculation.acceptance import interval
from spark_prof.analyzers.speculation.speculation_rows import DraftCost, Speculation
from spark_prof.traces.bundle import Bundle
from tests.analyzers.reported import reported

from .drafting import SPECULATIVE, Drafted, recorded

PATTERNS = (
    (0,), (1,), (2,), (3,), (0, 1), (1, 0), (7, 0, 3), (2, 2, 1, 0), (0, 0, 0, 4), (5, 6, 7),
    (1, 2, 3, 4, 5, 6, 7), (3, 0, 3, 0, 1),
)  # fmt: skip
"""How many drafts are accepted at most, step after step; a request has one of them."""


def speculation(bundle: Bundle, batch: int | None = None) -> Speculation:
    found = reported(bundle, batch=batch).speculation
    assert found is not None
    return found


def cost(bundle: Bundle) -> DraftCost:
    found = speculation(bundle).cost
    assert found is not None
    return found


def one(proposed: int, accepted: int, *, shared: bool = False, **times: int) -> Drafted:
    return Drafted([(proposed, accepted)], shared=shared, **times)


@pytest.mark.parametrize("most", [1, 3, 7])
def test_planted_acceptance_is_counted_exactly(tmp_path: Path, most: int) -> None:
    steps, truth = [], []
    for at in range(14):
        requests = []
        for n, pattern in enumerate(PATTERNS):
            if (at + n) % 4:
                proposed = most - (at * n) % 2 * (most > 1)
                requests.append((proposed, min(pattern[at % len(pattern)], proposed)))
        truth += [(len(requests), 100 * at, *each) for each in requests]
        steps.append(Drafted(requests, context=100 * at))
    found = speculation(recorded(tmp_path / "b", steps))
    assert (found.verified, found.proposed, found.accepted) == (
        len(truth), sum(p for *_, p, _ in truth), sum(a for *_, a in truth)
    )  # fmt: skip
    assert [(p.position, p.proposed, p.accepted) for p in found.positions] == [
        (place, sum(p >= place for *_, p, _ in truth), sum(a >= place for *_, a in truth))
        for place in range(1, most + 1)
    ]
    contexts = {0: range(256), 256: range(256, 1024), 1024: range(1024, 4096)}
    assert [(g.low, g.verified, g.proposed, g.accepted) for g in found.contexts] == [
        (low, len(rows), sum(p for *_, p, _ in rows), sum(a for *_, a in rows))
        for low, span in contexts.items()
        if (rows := [row for row in truth if row[1] in span])
    ]
    sizes = sorted({size for size, *_ in truth})
    assert [(g.low, g.high, g.verified, g.accepted) for g in found.batches] == [
        (size, size, sum(s == size for s, *_ in truth), sum(a for s, *_, a in truth if s == size))
        for size in sizes
    ]


def test_what_a_token_takes_is_time_over_tokens(tmp_path: Path) -> None:
    """3 drafts a step, 0 and 3 of them accepted by turns: 4 steps of 2 ms for 10 tokens."""
    found = cost(recorded(tmp_path / "b", [one(3, 3 * (n % 2), us=2000) for n in range(20)]))
    assert found.token_us == pytest.approx(2000 / 2.5)
    assert found.step_us == pytest.approx(2000)
    assert (found.width, found.tokens_per_step, found.requests) == (4, 2.5, 1)
    assert (found.steps, found.plain_steps) == (20, 0)


def test_drafting_is_from_the_drafters_first_kernel_to_its_last(tmp_path: Path) -> None:
    """A hole between two of them counts; in its parts are the kernels alone."""
    found = cost(recorded(tmp_path / "b", [one(3, 2) for _ in range(20)]))
    assert found.drafter_us == pytest.approx(300)
    assert found.drafter_by == "kernels"
    assert found.host_us == pytest.approx(40)
    assert [(part.component, part.us) for part in found.parts] == [("mlp", pytest.approx(280))]
    assert found.plain_most_us == found.plain_low_us == found.plain_high_us == pytest.approx(700)
    assert found.plain_by == "drafter"
    assert found.break_even == pytest.approx(1000 / 700 - 1)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_what_drafting_shares_with_the_model_is_the_drafters(tmp_path: Path, on_cpu: bool) -> None:
    """Such as a rotary embedding: the model's module, called while drafts are made."""
    steps = [one(3, 2, shared=True) for _ in range(4)]
    bundle = recorded(tmp_path / "b", steps, on_cpu=on_cpu)
    placed = place_kernels(bundle, 0)
    roles = placed["role"].astype(str).groupby(placed["name"].astype(str)).unique()
    prefix = "aten::" if on_cpu else ""
    assert {name.removeprefix(prefix): set(found) for name, found in roles.items()} == {
        "gemm_qkv": {"qkv_proj"},
        "gemm_shared": {"drafter.qkv_proj"},
        "gemm_draft": {"drafter.mlp"},
    }
    assert set(placed["layer"][placed["name"].astype(str).str.contains("shared")]) == {-1}


def test_steps_without_drafts_tell_what_one_takes(tmp_path: Path) -> None:
    """A drafter runs in them too, for the next step: it is taken off."""
    steps = [one(3, 1) for _ in range(20)] + [one(-1, 0, us=800) for _ in range(10)]
    found = cost(recorded(tmp_path / "b", steps))
    assert found.plain_low_us == found.plain_high_us == pytest.approx(500)
    assert (found.plain_by, found.plain_steps) == ("steps", 10)
    assert found.plain_most_us == pytest.approx(700)
    assert found.token_us == pytest.approx((20 * 1000 + 10 * 800) / (20 * 2 + 10))


def test_too_few_steps_without_drafts_tell_nothing(tmp_path: Path) -> None:
    steps = [one(3, 1) for _ in range(20)] + [one(-1, 0, us=800) for _ in range(7)]
    assert cost(recorded(tmp_path / "b", steps)).plain_by == "drafter"


def test_of_another_batch_size_they_tell_nothing(tmp_path: Path) -> None:
    steps = [one(3, 1) for _ in range(20)]
    steps += [Drafted([(-1, 0)] * 2, us=800) for _ in range(10)]
    whole = reported(recorded(tmp_path / "b", steps), batch=1).speculation
    assert whole is not None
    assert whole.cost is not None
    assert whole.cost.plain_by == "drafter"


def test_many_tokens_compute_longer_than_they_read(tmp_path: Path) -> None:
    steps = [Drafted([(3, 1)] * 9) for _ in range(20)]
    found = cost(recorded(tmp_path / "b", steps))
    assert (found.plain_high_us, found.why_unknown) == (None, "wide")
    assert found.plain_most_us == pytest.approx(700)


def test_without_the_drafters_time_nothing_is_estimated(tmp_path: Path) -> None:
    found = cost(recorded(tmp_path / "b", [one(3, 1) for _ in range(20)], marked=False))
    assert (found.drafter_us, found.plain_most_us, found.plain_high_us) == (None, None, None)
    assert found.why_unknown == "drafter"
    assert found.break_even is None


def test_a_processor_computes_longer_for_more_tokens(tmp_path: Path) -> None:
    bundle = recorded(tmp_path / "b", [one(3, 1) for _ in range(20)], on_cpu=True)
    found = cost(bundle)
    assert (found.plain_high_us, found.why_unknown) == (None, "cpu")
    assert found.plain_most_us is not None


def test_a_search_without_kernels_is_host_time(tmp_path: Path) -> None:
    """N-grams: the call that drafts is marked, and launches nothing."""
    bundle = recorded(
        tmp_path / "b",
        [one(3, 1, drafter_us=0, host_us=200) for _ in range(20)],
        speculative={"method": "ngram", "num_speculative_tokens": "3"},
    )
    found = cost(bundle)
    assert found.drafter_us == found.host_us == pytest.approx(200)
    assert found.drafter_by == "host"
    assert found.plain_high_us == pytest.approx(800)
    assert found.parts == ()


def test_a_result_that_nobody_took_counts_nowhere_but_is_told(tmp_path: Path) -> None:
    steps = [one(3, 2) for _ in range(20)]
    bundle = recorded(tmp_path / "b", [*steps, Drafted([(3, -1)])])
    found = speculation(bundle)
    assert (found.verified, found.unknown, found.proposed, found.accepted) == (20, 1, 60, 40)


def test_a_recording_without_drafts_says_nothing(tmp_path: Path) -> None:
    report = reported(recorded(tmp_path / "b", [one(-1, 0) for _ in range(4)]))
    assert report.speculation is None


def test_of_several_batch_sizes_cost_is_the_screens_and_acceptance_that_of_all(
    tmp_path: Path,
) -> None:
    steps = [one(3, 2) for _ in range(30)] + [Drafted([(3, 0)] * 2, us=4000) for _ in range(4)]
    bundle = recorded(tmp_path / "b", steps)
    report = reported(bundle)
    found = report.speculation
    assert found is not None
    assert found.cost is not None
    assert (found.verified, found.accepted) == (38, 60)
    assert report.steps.screen_batch == 1
    assert found.cost.step_us == pytest.approx(1000)
    only = speculation(bundle, batch=2)
    assert (only.verified, only.accepted) == (8, 0)


@pytest.mark.parametrize("text", ["", "-3", "3.5", "1000"])
def test_a_number_of_drafts_that_is_none_is_not_known(tmp_path: Path, text: str) -> None:
    asked = {"method": "mtp", "num_speculative_tokens": text}
    bundle = recorded(tmp_path / "b", [one(3, 1)] * 2, speculative=asked)
    assert (speculation(bundle).method, speculation(bundle).most) == ("mtp", None)


def test_rows_of_absurd_length_are_left_out(tmp_path: Path) -> None:
    """Of a file that somebody else made: a table of positions is not made as long as it says."""
    bundle = recorded(tmp_path / "b", [one(3, 1)] * 3 + [one(2_000_000_000, 1)])
    assert len(speculation(bundle).positions) == 3
    assert speculation(bundle).most == int(SPECULATIVE["num_speculative_tokens"])


def test_intervals_of_shares_hold_what_they_say() -> None:
    """Of planted shares, 95 % of the intervals have it inside (Wilson's, within 2 %)."""
    chance = random.Random(7)
    for share, of in ((0.05, 60), (0.3, 40), (0.7, 200), (0.95, 50)):
        inside = 0
        for _ in range(2000):
            low, high = interval(sum(chance.random() < share for _ in range(of)), of)
            inside += low <= share <= high
        assert 0.93 <= inside / 2000 <= 0.98, (share, of)
    assert interval(0, 60) == (0.0, pytest.approx(0.0602, abs=1e-4))
    assert interval(60, 60)[1] == 1.0
    assert interval(0, 0) == (0.0, 1.0)
