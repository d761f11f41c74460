"""The grammar of `--fail-on`, and when a limit fails, passes, or cannot be decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.comparison import Comparison
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.threshold_expression import Expression, parse
from spark_prof.analyzers.comparing.thresholds import METRICS, Reading, check, outcome_of
from spark_prof.datasets.compared import read_side
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
def found() -> Comparison:
    names = ("code-h100/dense-awq", "code-h100/dense-nvfp4")
    a, b = (read_side(str(DATA / name)) for name in names)
    return compare(a, b)


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
    assert outcome_of(parse(f"decode_us {limit}"), Reading("time", change)) == outcome


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
        ("kernels > 3%", "quotes"),
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
