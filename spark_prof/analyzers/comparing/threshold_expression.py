"""Reads what `--fail-on` is given, such as ``decode_us.median > 3%``. Nothing in it is evaluated.

expression = metric ("missing" | operator value)
metric     = word {"." (word | number | quoted)}
operator   = ">" | ">=" | "<" | "<="
value      = ["+" | "-"] number ["%" | "us" | "ms" | "s" | "tokens/s"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spark_prof.errors import CommandError

Unit = Literal["%", "us", "tokens/s", ""]

_UNITS: Mapping[str, tuple[Unit, float]] = {
    "%": ("%", 0.01),
    "us": ("us", 1.0),
    "ms": ("us", 1e3),
    "s": ("us", 1e6),
    "tokens/s": ("tokens/s", 1.0),
    "": ("", 1.0),
}
"""What follows a number: its unit, and what it is multiplied by. Per cent become shares of 1."""

_WORD = r"[A-Za-z_][A-Za-z0-9_-]{0,200}"
_PART = rf'{_WORD}|\d{{1,15}}|"[^"]{{1,4096}}"'
_LIMIT = re.compile(
    rf"(?P<metric>{_WORD}(?:\s*\.\s*(?:{_PART}))*)\s*(?:(?<![\w-])missing|(?P<operator>[<>]=?)\s*"
    r"(?P<number>[+-]?\d{1,15}(?:\.\d{1,15})?)\s*(?P<unit>%|us|ms|s|tokens/s|))",
)
_LONGEST = 8192


@dataclass(frozen=True)
class Expression:
    """One limit of `--fail-on`."""

    text: str  # as it was given
    metric: tuple[str, ...]  # its words, such as ("decode_us", "median")
    operator: str
    value: float  # in `unit`; a share of 1 for per cent. 0 for missing
    unit: Unit
    signed: bool  # whether it was written with + or -, which means a change


def parse(text: str) -> Expression:
    """Reads one expression."""
    match = _LIMIT.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise CommandError(
            f"--fail-on {text[:100]!r} cannot be read: after a metric stands missing, or one of > "
            ">= < <= and a number, which may have % us ms s or tokens/s behind it; write it as in "
            "decode_us.median > 3%"
        )
    metric = tuple(word.strip('"') for word in re.findall(_PART, match["metric"]))
    if match["operator"] is None:
        return Expression(text, metric, "missing", 0.0, "", signed=False)
    unit, factor = _UNITS[match["unit"]]
    value = float(match["number"]) * factor
    return Expression(text, metric, match["operator"], value, unit, match["number"][0] in "+-")
