"""Texts and numbers that no honest profiler writes, and how to find out that one came through."""

from __future__ import annotations

from random import Random
from typing import Any

MARKED_TAG = "fuzzed"
"""A tag that no page of ours has: where HTML has it, a text was not escaped."""

TEXTS = (
    "\x1b]0;owned\x07", "\x1b[2J\x1b[31mred", "\x9b31m", "\r\nspark-prof: forged line", "a\tb\x0bc",
    f"<{MARKED_TAG} onload=alert(1)>", f"</script><{MARKED_TAG}>", f'"><{MARKED_TAG} x="',
    f"]]></style><{MARKED_TAG}>", "javascript:alert(1)", "&lt;b&gt;&amp;",
    "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "|x|y|", "`rm -rf /`", "[a](http://b)",
    "\u202egnp.exe", "\u2066\u2069\u200b\ufeff", "\ud800", "\udfff\ud800", "\x00", "a\x00b", "",
    " ", "../../../../etc/passwd", "/etc/passwd", "C:\\con", "%s%n{0}{a.__class__}", "[bold red]",
    "'; DROP TABLE kernels; --", "\U0001f469\u200d\U0001f680" * 9, "e\u0301" * 40, "NaN", "1e999",
    "model.layers.999999999999.mlp", "nn.Module: X_" + "9" * 300, "rank" + "9" * 30,
    "execute_context_99999999999999(9)_generation_-1(-1)", "gpu_model_runner: forward",
)  # fmt: skip
"""Names as an attacker chooses them."""

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63),
    -(2**63) - 1, 2**64, 10**400, 0.5, -0.0, 1e-320, 1e18, 1e19, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
"""Numbers at and beyond the ends of what fits."""

_LONG = 1 << 20


def hostile_text(chance: Random) -> str:
    """One of the texts, sometimes of a megabyte."""
    text = chance.choice(TEXTS)
    if chance.random() < 0.015:
        return (text or "x") * (_LONG // max(len(text), 1))
    return text


def hostile_value(chance: Random) -> Any:
    """Anything that JSON can hold."""
    kind = chance.randrange(8)
    if kind < 3:
        return chance.choice(NUMBERS)
    if kind < 6:
        return hostile_text(chance)
    return chance.choice((None, True, False, [], {}, [[]], {"a": [None]}, [1, 2, 3], ["x"] * 40))
