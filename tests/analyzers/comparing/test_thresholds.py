"""The grammar of `--fail-on`, and when a limit fails, passes, or cannot be decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.comparison import Comparison, Obstacle
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.obstacles import outcome_of
from spark_prof.analyzers.comparing.threshold_expression import Expression, parse
from spark_prof.analyzers.comparing.thresholds import (
    METRICS,
    WALL_TIMES,
    MetricReading,
    _findings,
    check,
    gate_outcome_of,
)
from spark_prof.datasets.opened import read_side
from spark_prof.errors import CommandError
from tests.rows import each_row


@each_row(
    ("text", "metric", "operator", "value", "unit", "signed"),
    [
        ("decode_us.median > 3%", ("decode_us", "median"), ">", 0.03, "%", False),
        ("decode_us.median>=3 %", ("decode_us", "median"), ">=", 0.03, "%", False),
        ("tokens_per_s < -3%", ("tokens_per_s",), "<", -0.03, "%", True),
        ("tokens_per_s<200 tokens/s", ("tokens_per_s",), "<", 200.0, "tokens/s", False),
        ("layers.3.experts > +5us", ("layers", "3", "experts"), ">", 5.0, "us", True),
        ("decode_us.p99 <= 4.5ms", ("decode_us", "p99"), "<=", 4500.0, "us", False),
        ("prefill_us > 1 s", ("prefill_us",), ">", 1e6, "us", False),
        ('kernels."void f<1>(int)" > 3%', ("kernels", "void f<1>(int)"), ">", 0.03, "%", False),
        ("findings.small-kernels > 0", ("findings", "small-kernels"), ">", 0.0, "", False),
        ("components.experts missing", ("components", "experts"), "missing", 0.0, "", False),
    ],
)
def test_read(
    text: str, metric: tuple[str, ...], operator: str, value: float, unit: str, signed: bool
) -> None:
    found = parse(text)
    assert found == Expression(text, metric, operator, found.value, unit, signed)
    assert found.value == pytest.approx(value)


@each_row(
    "text",
    [
        "", " ", ">", "> 3%", "decode_us", "decode_us.", "decode_us.median >", "decode_us > %",
        "decode_us > 3 4", "decode_us > 3 miles", "decode_us == 3%", "decode_us > 3% or 1 > 0",
        "__import__('os')", "decode_us.median > 1e400", "decode_us > nan", "decode_us > 3%%",
        'kernels."unclosed > 3%', "decode_us > 0x10", "a" * 10_000, "\x00 > 3%", "é > 3%",
        "decode_us missing 3%", "3 > decode_us",
    ],
)  # fmt: skip
def test_refused_in_one_line(text: str) -> None:
    with pytest.raises(CommandError) as raised:
        parse(text)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2
    assert len(str(raised.value)) < 400


DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def eager() -> Comparison:
    names = ("code-h100/dense-awq", "code-h100/dense-nvfp4")
    a, b = (read_side(str(DATA / name)) for name in names)
    return compare(a, b)


@pytest.fixture(scope="module")
def found(eager: Comparison) -> Comparison:
    """The same as if the steps had been launched by graphs."""
    return replace(eager, eager=(False, False))


def test_wall_time_of_eager_runs_is_no_gate(eager: Comparison) -> None:
    """Refused as a change and as a level; the kernels are what the first line is about."""
    for metric in WALL_TIMES:
        assert metric in METRICS
        bounds = ("< 3 tokens/s", "< -3%") if metric == "tokens_per_s" else ("> 3ms", "> 3%")
        for bound in bounds:
            if metric in ("step_us",):
                continue  # no such steps here
            with pytest.raises(CommandError, match=r"both sides ran eagerly.*kernels > 3%"):
                check(eager, [parse(f"{metric} {bound}")])
    assert check(replace(eager, eager=(True, False)), [parse("decode_us > 3ms")])
    [checked] = check(eager, [parse("kernels > 3%")])
    outcome = outcome_of(eager)
    assert outcome.change is not None
    assert (checked.reading.change.us, checked.outcome) == (outcome.change.us, "passed")


def test_kernels_of_steps_that_give_several_tokens_are_compared_by_token(
    eager: Comparison,
) -> None:
    by_step = outcome_of(eager)
    assert by_step.change is not None
    phases = [replace(phase, step_tokens=(1.25, 2.5), token=phase.like) for phase in eager.phases]
    by_token = outcome_of(replace(eager, phases=tuple(phases)))
    assert by_token.change is not None
    assert (by_step.basis, by_token.basis) == ("kernels", "kernels by token")
    assert by_token.change.a == pytest.approx(by_step.change.a / 1.25)
    assert by_token.change.b == pytest.approx(by_step.change.b / 2.5)


def test_what_is_not_comparable_decides_no_change(found: Comparison) -> None:
    """The level of side b alone is one all the same."""
    obstacle = Obstacle("batch", "", "1", "8")
    phases = tuple(replace(phase, obstacle=obstacle) for phase in found.phases)
    limits = [
        parse(text) for text in ("decode_us > 3%", "components.mlp > +1us", "decode_us > 1ms")
    ]
    *changes, level = check(replace(found, phases=phases), limits)
    assert [(each.outcome, each.obstacle) for each in changes] == [("undecided", obstacle)] * 2
    assert (level.outcome, level.obstacle) == ("failed", None)


@each_row(
    ("limit", "low", "high", "outcome"),
    [
        *(("> 3%", low, high, "failed") for low, high in ((3.1, 5), (4, 9))),
        *(("> 3%", low, high, "undecided") for low, high in ((3, 5), (2.9, 3.1), (-1, 3.1))),
        *(("> 3%", low, high, "passed") for low, high in ((0.5, 2.9), (1, 3), (-9, -1))),
        (">= 3%", 3, 5, "failed"), (">= 3%", 1, 3, "undecided"), (">= 3%", 1, 2.9, "passed"),
        ("> 0%", 0.1, 3, "failed"), ("> 0%", -0.1, 3, "undecided"),
        # A demand: faster by 5 %.
        ("> -5%", -7, -5.5, "passed"), ("> -5%", -7, -3, "undecided"), ("> -5%", -4, -3, "failed"),
        ("< -3%", -5, -3.1, "failed"), ("< -3%", -5, -1, "undecided"), ("< -3%", -2, -1, "passed"),
        ("< 3%", 3, 4, "passed"), ("< 3%", 2, 4, "undecided"), ("< 3%", -1, 1, "failed"),
    ],
)  # fmt: skip
def test_of_an_interval(limit: str, low: float, high: float, outcome: str) -> None:
    """Of a figure of 100: its change in us is its change in per cent."""
    us = (low + high) / 2
    change = Change(100, 100 + us, us, low, high)
    assert gate_outcome_of(parse(f"decode_us {limit}"), MetricReading("time", change)) == outcome


@each_row(
    ("outcome", "limits"),
    {
        # 0.6 % faster to 16.2 % slower.
        "undecided": (
            "decode_us.median > 3%", "decode_us.median < 3%", "decode_us.p99 > 3%",
            "prefill_us > 3%", "decode_us.median > 4.9ms", "decode_us.median > +200us",
            "tokens_per_s < 203 tokens/s", "gaps.share > +3%",
        ),
        "passed": (
            "decode_us.median > 20%", "decode_us.median > 6 ms", "tokens_per_s < 100 tokens/s",
            "components.mlp > 3%", "components.mlp missing", "layers.2 > 3%",
            'kernels."marlin::Marlin" missing', "conversions.share > 0.5", "conversions > 1ms",
            "coverage.layer < 95%", "coverage.engine < -1%", "coverage.proven < 100%",
            "coverage.derived > 1%", "coverage.guessed > 0%", "coverage.unknown > +1%",
            "findings > +0", "findings.far-from-memory-floor > 0",
        ),
        "failed": (
            "decode_us.median > -1%", "decode_us.median > 4ms", "decode_us.median > -50us",
            "tpot_us > -1%", "tokens_per_s < +1%", "components.mlp < -3%",
            "components.ssm missing", "layers.2.mlp < -5us", 'kernels."marlin::Marlin" > 0us',
            'kernels."cutlass::gemm" missing', 'kernels."no such kernel" missing',
            "gaps.launch_gaps > 2%", "gaps.share > 50%", "coverage.proven > 50%",
            "coverage.derived < 1%", "findings > 0",
        ),
    }.items(),
)  # fmt: skip
def test_of_real_recordings(found: Comparison, outcome: str, limits: tuple[str, ...]) -> None:
    outcomes = {limit: check(found, [parse(limit)])[0].outcome for limit in limits}
    assert outcomes == dict.fromkeys(limits, outcome)


@each_row(
    ("limit", "said"),
    [
        ("decod_us > 3%", "decode_us"),
        ("decode_us.medain > 3%", "median"),
        ("components.expert > 3%", "experts"),
        ("layers.400 > 3%", "layer"),
        ("layers > 3%", "layers.3"),
        ('kernels."a"."b" > 3%', "quotes"),
        ("coverage.layers < 95%", "layer"),
        ("gaps.launch > 3%", "launch_gaps"),
        ("tokens_per_s.median < -3%", "leave it out"),
        ("decode_us > 3", "5ms"),
        ("decode_us > 3 tokens/s", "a time"),
        ("coverage.layer < 3us", "a share"),
        ("findings > 3%", "a count"),
        ("step_us > 3%", "unknown steps"),
    ],
)
def test_an_unknown_metric_is_one_line_with_what_is_near(
    found: Comparison, limit: str, said: str
) -> None:
    with pytest.raises(CommandError, match=said) as raised:
        check(found, [parse(limit)])
    assert raised.value.exit_code == 2


def test_every_metric_is_documented() -> None:
    page = (DATA.parents[1] / "docs" / "compare.md").read_text(encoding="utf-8")
    for metric in METRICS:
        assert f"`{metric}" in page, metric


def test_what_half_of_a_side_s_recordings_have_counts() -> None:
    """One recording of three has one finding more, and one another."""
    few, many = ([SimpleNamespace(id=name) for name in names] for names in ("a", "aab"))
    recordings = [SimpleNamespace(report=SimpleNamespace(findings=f)) for f in (few, few, many)]
    found: Any = SimpleNamespace(sides=(recordings[:1], recordings))
    reading = _findings(found, ())
    assert (reading.change.a, reading.change.b) == (1.0, 1.0)
    reading = _findings(SimpleNamespace(sides=(recordings[:1], recordings[1:])), ("b",))  # type: ignore[arg-type]
    assert (reading.change.a, reading.change.b) == (0.0, 1.0)
