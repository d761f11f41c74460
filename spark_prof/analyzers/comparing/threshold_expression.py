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
from types import MappingProxyType
from typing import Literal

from spark_prof.errors import CommandError

Unit = Literal["%", "us", "tokens/s", ""]

_UNITS: Mapping[str, tuple[Unit, float]] = MappingProxyType(
    {
        "%": ("%", 0.01),
        "us": ("us", 1.0),
        "ms": ("us", 1e3),
        "s": ("us", 1e6),
        "tokens/s": ("tokens/s", 1.0),
        "": ("", 1.0),
    }
)
"""What follows a number: its unit, and what it is multiplied by. Per cent become shares of 1."""

_TOKEN = re.compile(
    r'\s*(?:"(?P<quoted>[^"]{1,4096})"|(?P<operator>[<>]=?)|(?P<dot>\.)'
    r"|(?P<unit>tokens/s)(?!\w)|(?P<word>[A-Za-z_][A-Za-z0-9_-]{0,200})"
    r"|(?P<number>[+-]?\d{1,15}(?:\.\d{1,15})?)|(?P<percent>%))"
)
_LONGEST = 8192
_EXAMPLE = "write it as in decode_us.median > 3%"


@dataclass(frozen=True)
class Expression:
    """One limit."""

    text: str  # as it was given
    metric: tuple[str, ...]  # its words, such as ("decode_us", "median")
    operator: str
    value: float  # in `unit`; a share of 1 for per cent. 0 for missing
    unit: Unit  # of the value
    signed: bool  # whether it was written with + or -, which means a change


def parse(text: str) -> Expression:
    """Reads one expression.

    Raises:
        CommandError: it is none.
    """
    tokens = _tokens(text)
    metric = _metric(text, tokens)
    if tokens == [("word", "missing")]:
        return Expression(text, metric, "missing", 0.0, "", signed=False)
    if not tokens or tokens[0][0] != "operator":
        raise _wrong(text, "an operator (> >= < <= or missing) must follow the metric")
    operator = tokens.pop(0)[1]
    if not tokens or tokens[0][0] != "number":
        raise _wrong(text, f"a number must follow {operator}")
    number = tokens.pop(0)[1]
    unit = tokens.pop(0)[1] if tokens and tokens[0][0] in ("percent", "word", "unit") else ""
    if tokens or unit not in _UNITS:
        raise _wrong(text, "a number may have % us ms s or tokens/s behind it, and nothing more")
    kind, factor = _UNITS[unit]
    return Expression(text, metric, operator, float(number) * factor, kind, number[0] in "+-")


def _tokens(text: str) -> list[tuple[str, str]]:
    if len(text) > _LONGEST:
        raise _wrong(text, "it is too long")
    found: list[tuple[str, str]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or not token.lastgroup:
            raise _wrong(text, f"{text[position:].strip()[:20]!r} has no meaning here")
        found.append((token.lastgroup, token[token.lastgroup]))
        position = token.end()
    return found


def _metric(text: str, tokens: list[tuple[str, str]]) -> tuple[str, ...]:
    """Takes the metric's words from the front of the tokens."""
    if not tokens or tokens[0][0] != "word":
        raise _wrong(text, "a metric must come first")
    words = [tokens.pop(0)[1]]
    while tokens and tokens[0][0] == "dot":
        tokens.pop(0)
        if not tokens or tokens[0][0] not in ("word", "number", "quoted"):
            raise _wrong(text, "a word must follow each dot")
        words.append(tokens.pop(0)[1])
    return tuple(words)


def _wrong(text: str, why: str) -> CommandError:
    return CommandError(f"--fail-on {text[:100]!r} cannot be read: {why}; {_EXAMPLE}")
