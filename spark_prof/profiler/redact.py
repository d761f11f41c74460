"""Keeps passwords and keys out of a bundle, which people send to each other."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["is_secret", "redacted"]

_HIDDEN = "***"
_WORDS = re.compile(
    r"(^|[_-])(api[_-]?keys?|keys?|token|secrets?|passwd|passwords?|credentials?|auth)($|[_-])",
    re.I,
)
_NOT_SECRET = re.compile(r"max[_-]|[_-]tokens|tokens?[_-](per|id|budget|threshold)|tokeni", re.I)
_ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z][\w-]*)=(.*)", re.S)


def is_secret(name: str) -> bool:
    """Whether an option or variable of that name holds something that nobody else may see."""
    return bool(_WORDS.search(name)) and not _NOT_SECRET.search(name)


def redacted(argv: Sequence[str]) -> list[str]:
    """The command line with the values of secret options and variables hidden.

    Knows ``--api-key X``, ``--api-key=X``, ``-e HF_TOKEN=X`` and ``--env=HF_TOKEN=X``.
    """
    result: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("--"):
            result.append(_HIDDEN)
            hide_next = False
            continue
        hide_next = word.startswith("--") and "=" not in word and is_secret(word.lstrip("-"))
        result.append(_hide_assignment(word))
    return result


def _hide_assignment(word: str) -> str:
    match = _ASSIGNMENT.fullmatch(word)
    if match is None:
        return word
    name, value = match.groups()
    if is_secret(name.lstrip("-")):
        return f"{name}={_HIDDEN}"
    return f"{name}={_hide_assignment(value)}" if name in ("--env", "-e") else word
