"""The grammar of `--fail-on`."""

from __future__ import annotations

import pytest

from spark_prof.analyzers.comparing.threshold_expression import Expression, parse
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
