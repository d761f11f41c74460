"""Hides passwords and keys in what is written into files that people send to each other.

Everything that names or looks like a secret is replaced by ``***``; see `secret_rules`. This module
runs inside vLLM's processes too and needs only the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from spark_prof.redact_lines import looks_random, secret_arguments
from spark_prof.redact_text import HIDDEN, redacted_text
from spark_prof.secret_rules import is_shown, name_strength

__all__ = ["HIDDEN", "is_secret", "redacted", "redacted_text", "redacted_value"]

_A_MODEL = re.compile(r"serve|--?(?:model|tokenizer|served-model-name|revision|name|m)")
_PROGRAM = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|vllm|(?:ba|z|fi|c|k)?sh|docker|podman|env|uvx?|torchrun|sudo|nohup)"
    r"|\S+\.(?:sh|py)|\./\S+"
)
_SCRIPT_OPTION = re.compile(r"-[a-z]{0,4}c")
_DEEPEST = 64
"""Levels of nested values and of encoded texts that are looked into; what is deeper is hidden."""


def is_secret(name: str) -> bool:
    """Whether an option, variable, key or header of that name holds what nobody else may see."""
    return name_strength(name) > 0


def redacted(argv: Sequence[str]) -> list[str]:
    """A command line, or other texts, with what is secret in them hidden.

    Options stay, and so does what follows a value: of ``--api-key a b --port 1`` the words a and b
    are hidden, of ``bash -c 'HF_TOKEN=x vllm serve m'`` the x.
    """
    words = _without_arguments(argv, [redacted_text(word) for word in argv])
    if len(words) < 2:
        return words
    # Together, because a word may be secret for the one before it.
    try:
        return list(json.loads(redacted_text(json.dumps(words, ensure_ascii=False))))
    except ValueError:  # a bracket or quote in a word reached into others
        return [HIDDEN] * len(words)


def _without_arguments(argv: Sequence[str], words: list[str]) -> list[str]:
    """The words without keys that nothing names, and without those that a script takes."""
    command = any(word.startswith("-") for word in argv) or (argv and _PROGRAM.fullmatch(argv[0]))
    for index, word in enumerate(argv):
        if command and looks_random(word) and not (index and _A_MODEL.fullmatch(words[index - 1])):
            words[index] = HIDDEN
        if index and _SCRIPT_OPTION.fullmatch(words[index - 1]) and "$" in word:
            secret_numbers = secret_arguments(word)
            for number in range(len(words) - index - 1):
                if secret_numbers is None or number in secret_numbers:
                    words[index + 1 + number] = HIDDEN
    return words


def redacted_value(value: Any, name: str = "") -> Any:
    """Values as JSON has them, and dataclasses of such, with what is secret hidden."""
    return _value(value, name_strength(name), _DEEPEST)


def _value(value: Any, strength: int, depth: int) -> Any:
    if depth <= 0:
        return HIDDEN if isinstance(value, str | dict | list | tuple) else value
    if isinstance(value, str):
        if strength:
            return value if is_shown(value, strength) else HIDDEN
        return redacted_text(value)
    if isinstance(value, Mapping):
        return _mapping(value, strength, depth)
    if isinstance(value, list | tuple):
        items = _items(value, strength, depth)
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        entries = ((field.name, getattr(value, field.name)) for field in fields(value))
        return replace(value, **{n: _value(e, name_strength(n), depth - 1) for n, e in entries})
    if strength and type(value) in (int, float) and not is_shown(str(value), strength):
        return HIDDEN
    return value


def _mapping(value: Mapping[Any, Any], strength: int, depth: int) -> dict[Any, Any]:
    named = next((value[k] for k in ("name", "Name", "key", "Key") if k in value), None)
    named_strength = name_strength(named) if isinstance(named, str) and " " not in named else 0
    result = {}
    for key, entry in value.items():
        key_strength = name_strength(key) if isinstance(key, str) else 0
        if named_strength and key in ("value", "Value"):
            key_strength = named_strength
        result[redacted_text(key) if isinstance(key, str) else key] = _value(
            entry, max(key_strength, strength), depth - 1
        )
    return result


def _items(value: Sequence[Any], strength: int, depth: int) -> list[Any]:
    if not strength and all(isinstance(item, str) for item in value):
        return redacted(value)
    return [_value(item, strength, depth - 1) for item in value]
