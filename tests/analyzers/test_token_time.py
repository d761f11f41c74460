"""What a token takes, against brute force over steps planted in recordings by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.threshold_expression import parse
from spark_prof.analyzers.comparing.thresholds import check
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.units import microseconds
from spark_prof.datasets.opened import read_side
from spark_prof.mcp_server.report_views import summary as mcp_summary
from tests.analyzers.planted_steps import Planted, bundle_of
from tests.analyzers.reported import reported
from tests.rows import each_row
from tests.support import refusal


def recorded(folder: Path, steps: Sequence[Planted], idle: float = 0.1) -> Report:
    """The report of a recording with these steps, one right after the other."""
    return reported(bundle_of(folder, steps, idle))


def brute_force(steps: Iterable[Planted]) -> float:
    """The time of the steps, once for every sequence that decodes, over the tokens they got."""
    steps = [each for each in steps if each.decoding]
    return sum(s.us * s.decoding for s in steps) / sum(s.tokens for s in steps)


def figures(report: Report) -> dict[str, float]:
    """The time of a token as each part of a report has it, in us."""
    told = report.steps.headline_and_screen
    assert told is not None
    document = json.loads(render_report(report, Layout("json")))
    return {
        "waterfall": waterfall_of(report).us,
        "account": report.decode_step.token_us if report.decode_step else 0,
        "json": document["steps"]["headline"]["token_us"],
        "mcp": 1e3 * mcp_summary(document)["decode_token"]["ms_per_token"],
    }


def patterns() -> dict[str, list[Planted]]:
    """Ways in which drafts are accepted: tokens a step gives a sequence."""
    accepted = {
        "none": [1] * 24,
        "over a half": [1] * 9 + [4] * 20,
        "in turns": [1, 5] * 12,
        "spread": [1, 2, 3, 4, 2, 1, 1, 3] * 4,
    }
    found = {
        name: [Planted(1, 700 + 11 * (n % 7), tokens) for n, tokens in enumerate(row)]
        for name, row in accepted.items()
    }
    # Several sequences of a step accept unlike numbers.
    found["of four"] = [Planted(4, 900 + 13 * (n % 5), 4 + n % 9) for n in range(30)]
    return found


@pytest.mark.slow
@each_row("name", list(patterns()))
def test_speculation_is_time_over_tokens(tmp_path: Path, name: str) -> None:
    steps = patterns()[name]
    report = recorded(tmp_path, steps)
    wanted = brute_force(steps)
    for where, us in figures(report).items():
        assert us == pytest.approx(wanted, rel=1e-6, abs=1e-3), where
    told = report.steps.tpot_us
    assert told is not None
    assert told.mean == pytest.approx(wanted)
    # The median is the median step's over the mean number of tokens, not one of quotients.
    per_step = sum(s.decoding for s in steps) / sum(s.tokens for s in steps)
    assert report.steps.decode_us is not None
    assert told.median == pytest.approx(report.steps.decode_us.median * per_step)
    text = render_report(report, Layout("text", 100))
    assert f"An output token takes {microseconds(wanted)} at batch {steps[0].decoding}" in text
    assert all((f.ms_per_token or 0) * 1e3 <= wanted * 1.001 for f in report.findings)


def loads() -> dict[str, list[Planted]]:
    return {
        "prompts beside it": [
            Planted(8, 900, 8, 1, 64) if n % 4 == 0 else Planted(8, 400, 8) for n in range(40)
        ],
        "sizes that change": [
            Planted(1 + n % 9, 350 + 20 * (n % 9), 1 + n % 9, n % 3 == 0, 40 * (n % 3 == 0))
            for n in range(90)
        ],
        "drafts and prompts": [
            Planted(5, 1300, 9, 1, 50) if n % 3 == 0 else Planted(5, 600, 5 + n % 4)
            for n in range(60)
        ],
        "prompts alone count nowhere": [
            Planted(0, 5000, 0, 4, 400) if n % 10 == 0 else Planted(4, 500 + n, 4)
            for n in range(50)
        ],
    }


@each_row("name", list(loads()))
def test_all_steps_that_decode_over_their_tokens(tmp_path: Path, name: str) -> None:
    steps = loads()[name]
    report = recorded(tmp_path, steps)
    whole = report.steps.token
    assert whole is not None
    assert report.steps.first_uses == 0
    assert whole.token_us == pytest.approx(brute_force(steps))
    alone = brute_force(s for s in steps if s.phase == "decode")
    assert whole.decode_only_us == pytest.approx(alone)
    for each in report.steps.batches:
        own = [s for s in steps if s.decoding == each.batch]
        assert each.token_us == pytest.approx(brute_force(own))
        time = sum(s.us for s in own)
        assert each.tokens_per_s == pytest.approx(1e6 * sum(s.tokens for s in own) / time)
    if any(s.phase == "mixed" for s in steps):
        text = " ".join(render_report(report, Layout("text", 100)).split())
        assert f"An output token takes {microseconds(brute_force(steps))}" in text
        if alone < brute_force(steps):
            assert f"{microseconds(alone)} when no prompt is read beside it" in text


TWO_SIZES = [Planted(1, 500, 1)] * 30 + [Planted(8, 800, 8)] * 40


def test_several_batch_sizes_are_a_figure_each(tmp_path: Path) -> None:
    report = recorded(tmp_path, TWO_SIZES)
    told = report.steps.headline_and_screen
    assert told is not None
    assert (told.time.batch, told.time.token_us) == (8, pytest.approx(800))
    assert {t.batch: round(t.token_us) for t in report.steps.batches} == {1: 500, 8: 800}
    text = render_report(report, Layout("text", 100))
    assert "An output token takes 800.0 us at batch 8, 1,250 tokens/s a sequence" in text
    assert "10,000 together" in text
    assert "what follows is at batch 8" in text
    assert "What the time of a token consists of at batch 8" in text
    for where, us in figures(report).items():
        assert us == pytest.approx(800), where
    assert report.steps.count == 70  # counts and sums are of all steps
    [row] = [row for row in report.components if row.name == "other"]
    assert row.kernels == 70
    assert row.decode_us_per_step == pytest.approx(720, rel=1e-3)


def test_one_batch_size_is_chosen(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, TWO_SIZES)
    report = reported(bundle, batch=1)
    assert waterfall_of(report).us == pytest.approx(500)
    assert (report.steps.count, report.steps.decode) == (30, 30)
    with refusal("no step in which 3 requests decode: its steps had 1, 8"):
        reported(bundle, batch=3)


USUAL = [Planted(4, 600, 4)] * 30


@pytest.mark.slow
@each_row(
    ("steps", "first", "certain"),
    [
        # The first of its shape, later ones are fast.
        ([Planted(4, 150_000, 4), *USUAL], [0], True),
        ([*USUAL, Planted(8, 190_000, 8), *[Planted(8, 800, 8)] * 20], [30], True),
        # Slow after fast ones, and slow each time: a stall, and its work.
        ([*USUAL, Planted(4, 150_000, 4), *USUAL], [], True),
        ([*USUAL, *[Planted(8, 9_000, 8)] * 20], [], True),
        # Mixed steps of about as many tokens, the first many times as long.
        ([*USUAL, Planted(4, 250_000, 4, 1, 60), *[Planted(4, 900, 4, 1, 60)] * 6, *USUAL], [30],
         True),
        # None is like it: less work than one that is many times faster.
        ([*USUAL, Planted(4, 250_000, 4, 1, 60), *[Planted(4, 610, 4, 1, 500)] * 5], [30], False),
        # A long prompt takes long: the device works for all of it.
        ([*USUAL, Planted(4, 250_000, 4, 1, 60), *USUAL], [], True),
    ],
)  # fmt: skip
def test_first_uses_of_kernels(
    tmp_path: Path, steps: list[Planted], first: list[int], certain: bool
) -> None:
    report = recorded(tmp_path, steps)
    assert [use.step for use in report.steps.first_use_steps] == first
    assert all(use.certain == certain for use in report.steps.first_use_steps)
    kept = [s for n, s in enumerate(steps) if n not in first]
    assert report.steps.token is not None
    assert report.steps.token.token_us == pytest.approx(brute_force(kept))
    assert report.steps.count == len(steps)
    text = " ".join(render_report(report, Layout("text", 100)).split())
    assert ("count in no time" in text) == bool(first)
    if first:
        assert not {"mixed-steps", "slow-steps"} & {f.id for f in report.findings if f.id}


def test_a_mixed_step_in_which_nothing_ran_may_be_a_first_use(tmp_path: Path) -> None:
    """Nothing is like it, and the device waited for nearly all of it."""
    steps = [*USUAL, Planted(4, 250_000, 4, 1, 60), *USUAL]
    report = recorded(tmp_path, steps, idle=0.9)
    assert [(use.step, use.certain) for use in report.steps.first_use_steps] == [(30, False)]


def turns(profiled: int, timed: int, size: int = 2, stretches: int = 4) -> list[Planted]:
    """Stretches of 12 profiled and 12 timed steps, one token each; of a stretch's ends nothing."""
    usual = [Planted(size, profiled, size)] * 12
    beside = [Planted(size, timed, size, watched=False)] * 12
    return (usual + beside) * stretches


def test_the_time_is_that_of_steps_that_were_not_profiled(tmp_path: Path) -> None:
    report = recorded(tmp_path, turns(980, 700))
    told = report.steps.headline_and_screen
    assert told is not None
    assert told.time.token_us == pytest.approx(700)
    assert told.time.profiled_us == pytest.approx(980, rel=0.01)
    for where, us in figures(report).items():
        assert us == pytest.approx(700, rel=1e-6), where
    text = render_report(report, Layout("text", 100))
    assert "An output token takes 700.0 us at batch 2 (profiled: 980.0 us)" in text
    parts = {part.kind: part.us for part in waterfall_of(report).parts}
    assert sum(parts.values()) == pytest.approx(700)
    # What ran is as long as it was seen to be; by how much profiled steps are longer is a part.
    assert parts["unprofiled"] == pytest.approx(-280, rel=0.01)
    assert parts["component"] == pytest.approx(980 * 0.9, rel=0.01)
    assert all((f.ms_per_token or 0) * 1e3 <= 700 for f in report.findings)


def test_sizes_that_were_only_profiled_and_too_few_timed_steps(tmp_path: Path) -> None:
    both = recorded(tmp_path / "1", [*turns(980, 700), *[Planted(6, 1500, 6)] * 10])
    assert {t.batch: t.timed_steps > 0 for t in both.steps.batches} == {2: True, 6: False}
    assert any("At batch 6" in note for note in both.notes)
    timed = [Planted(3, 350, 3, watched=False)] * 16
    only = recorded(tmp_path / "3", [*USUAL, *timed])
    assert {t.batch: round(t.token_us) for t in only.steps.batches} == {3: 350, 4: 600}
    assert waterfall_of(only).us == pytest.approx(600)
    few = recorded(
        tmp_path / "2", [*USUAL, *[replace(USUAL[0], watched=False, us=400)] * 6, *USUAL]
    )
    told = few.steps.headline_and_screen
    assert told is not None
    assert (told.time.token_us, told.time.profiled_us) == (pytest.approx(600), None)
    assert any("Too few of the" in note for note in few.notes)


def test_a_full_kv_cache_is_named_and_not_warmed_up(tmp_path: Path) -> None:
    again = Planted(4, 4_000, 4, 1, 200, preempted=1, again=200)
    report = recorded(tmp_path, [*USUAL, again, *USUAL, again, *USUAL, again, again, *USUAL])
    assert (report.steps.preemptions, report.steps.recomputed_tokens) == (4, 800)
    found = {f.id: f for f in report.findings}
    assert "KV cache was full: a request was preempted 4 times" in found["preemptions"].text
    assert "--max-num-seqs" in found["preemptions"].fix
    assert "mixed-steps" not in found
    assert not any("warm" in text for f in report.findings for text in (f.fix, f.command, f.text))


def test_a_prompt_read_to_its_end_is_no_token_of_those_that_decode(tmp_path: Path) -> None:
    """A step with two that decode and one whose first token comes: two tokens, not three."""
    steps = [Planted(2, 1000, 2, 1, 30)] * 12 + [Planted(2, 500, 2)] * 12
    report = recorded(tmp_path, steps)
    assert report.steps.token is not None
    assert report.steps.token.token_us == pytest.approx(750)
    assert report.steps.token.prompts_us == pytest.approx(250)


def test_compare_and_gate_have_time_over_tokens(tmp_path: Path) -> None:
    """Steps of one side are 10 % longer; drafts are accepted in unlike patterns, as often."""
    a = [Planted(1, 1000 + n % 5, 1 if n % 3 else 4) for n in range(90)]
    b = [Planted(1, 1100 + n % 5, 1 + n % 3) for n in range(90)]
    for name, steps in (("a", a), ("b", b)):
        bundle_of(tmp_path / name, steps)
    found = compare(*(read_side(str(tmp_path / name / "b")) for name in "ab"))
    for metric in ("tpot_us", "tpot_us.mean"):
        [checked] = check(found, [parse(f"{metric} > 1us")])
        change = checked.reading.change
        assert (change.a, change.b) == pytest.approx((brute_force(a), brute_force(b)), rel=2e-3)
    [mean] = check(found, [parse("tpot_us.mean > 1us")])
    change = mean.reading.change
    assert change.a == pytest.approx(brute_force(a))
    assert change.low < change.us < change.high
