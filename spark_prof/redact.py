"""Hides passwords and keys in what is written into files that people send to each other.

Everything that names or looks like a secret is replaced by ``***``; see `secret_rules`. This module
runs inside vLLM's processes too and needs only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from spark_prof.redact_text import HIDDEN, header_value, redacted_text
from spark_prof.secret_rules import (
    PROGRAM_NAMES,
    PROGRAMS,
    REFERENCE,
    SEVERAL,
    TAKEN,
    is_shown,
    name_strength,
    plain_name,
)

__all__ = ["HIDDEN", "is_secret", "redacted", "redacted_text", "redacted_value"]

_DEEPEST = 64
"""Levels of nested values and of encoded texts that are looked into; what is deeper is hidden."""
_SHELLS = frozenset(
    ["bash", "sh", "zsh", "dash", "ksh", "fish", "ssh", "eval", "su", "tmux", "screen"]
)
_HEADER_OPTION = ("-H", "--header", "--proxy-header", "--headers")
_ENVIRONMENT_OPTIONS = (
    "-e", "--env", "--set", "--set-string", "--build-arg", "--from-literal",
)  # fmt: skip
_LONG_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNED = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)=(.*)", re.S)
_HEADER = re.compile(r"([A-Za-z][\w-]*:\s*)(.*)", re.S)


def is_secret(name: str) -> bool:
    """Whether an option, variable, key or header of that name holds what nobody else may see."""
    return name_strength(name) > 0


def redacted(argv: Sequence[str]) -> list[str]:
    """A command line with what is secret in it hidden.

    Options stay, and so does what follows a value: of ``--api-key a b --port 1`` the words a and b
    are hidden, of ``bash -c 'HF_TOKEN=x vllm serve m'`` the x.
    """
    result: list[str] = []
    left, program, script, before = 0, "", False, ""
    for word in argv:
        if left and not _is_option(word, first=left > 0):
            result.append(word if is_shown(word, 2) else HIDDEN)
            left = -1 if left in (-1, 2) else 0
            before = word
            continue
        left = 0
        if _LONG_OPTION.fullmatch(word):
            if name_strength(word):
                left = 2 if SEVERAL.fullmatch(plain_name(word)) else 1
            elif (program, word, "value") in TAKEN:
                left = 1
        result.append(_redacted_word(word, before, program, script))
        name = word.rpartition("/")[2]
        if name in PROGRAM_NAMES and (program, name, "argument") not in TAKEN:
            program = name
        script = script or name in _SHELLS
        before = word
    return result


def redacted_value(value: Any, name: str = "") -> Any:
    """Values as JSON has them, and dataclasses of such, with what is secret hidden.

    Args:
        name: what it is called where it stands.
    """
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
        entries = {each.name: getattr(value, each.name) for each in fields(value)}
        return replace(
            value, **{n: _value(e, name_strength(n), depth - 1) for n, e in entries.items()}
        )
    if strength and type(value) in (int, float) and not is_shown(str(value), strength):
        return HIDDEN
    return value


def _mapping(value: Mapping[Any, Any], strength: int, depth: int) -> dict[Any, Any]:
    named = next((value[k] for k in ("name", "Name", "key", "Key") if k in value), None)
    known = name_strength(named) if isinstance(named, str) and " " not in named else 0
    result = {}
    for key, entry in value.items():
        own = name_strength(key) if isinstance(key, str) else 0
        if known and key in ("value", "Value"):
            own = known
        result[redacted_text(key) if isinstance(key, str) else key] = _value(
            entry, max(own, strength), depth - 1
        )
    return result


def _items(value: Sequence[Any], strength: int, depth: int) -> list[Any]:
    texts = bool(value) and all(isinstance(item, str) for item in value)
    if texts and not strength:
        if len(value) == 2 and _is_pair(*value):
            return [value[0], HIDDEN]
        return redacted(value)
    return [_value(item, strength, depth - 1) for item in value]


def _is_pair(name: str, value: str) -> bool:
    """Whether it is a name with its secret; not two names."""
    strength = name_strength(name) if re.fullmatch(r"\w[\w.-]{0,100}", name) else 0
    return bool(strength) and not is_shown(value, strength) and not re.fullmatch(r"[A-Z_]+", value)


def _is_option(word: str, *, first: bool) -> bool:
    """Whether the word begins another option instead of being a value."""
    if first:
        return word.startswith("--") or bool(re.fullmatch(r"-[A-Za-z]{1,3}\d?", word))
    return word.startswith("-") and len(word) > 1


def _redacted_word(word: str, before: str, program: str, script: bool) -> str:
    if (program, before, "argument") in TAKEN and not word.startswith("-"):
        return HIDDEN
    if before in _HEADER_OPTION and (match := _HEADER.fullmatch(word)):
        name, value = match.groups()
        if name_strength(name.rstrip(": ")):
            return f"{name}{header_value(value)}"
    for rule in PROGRAMS:
        if rule.program != program or not rule.option:
            continue
        if rule.kind == "login" and (login := _login_word(word, before, rule.option)):
            return login
        if rule.kind == "joined" and word.startswith(rule.option) and len(word) > 2:
            return f"{rule.option}{HIDDEN}"
    if match := _ASSIGNED.fullmatch(word):
        name, value = match.groups()
        if name in _ENVIRONMENT_OPTIONS:
            return f"{name}={_redacted_word(value, name, program, False)}"
        strength = name_strength(name)
        of_shell = (
            (script and re.search(r"\s", value) and _before_script(before))
            or re.search(r", ?[A-Za-z_]\w*=", value)
            or REFERENCE.match(value)
        )
        if strength and not of_shell and value[:1] not in ("[", "{", "("):
            return word if is_shown(value, strength) else f"{name}={HIDDEN}"
    return redacted_text(word)


def _before_script(word: str) -> bool:
    """Whether what follows the word is a shell's script, and not a variable for a program."""
    named = word in ("env", "export", *_ENVIRONMENT_OPTIONS)
    return not named and bool(re.fullmatch(r"-[a-z]*c|eval|[\w.@-]+", word))


def _login_word(word: str, before: str, option: str) -> str:
    """``user:password`` after its option, or joined to it, hidden; empty where it is none."""
    joined = re.match(re.escape(option) + ("=" if option.startswith("--") else "=?"), word)
    if not joined and before != option:
        return ""
    start = joined[0] if joined else ""
    user, colon, _ = word[len(start) :].partition(":")
    return f"{start}{user}:{HIDDEN}" if colon else ""
