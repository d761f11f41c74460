"""vLLM's options in a command line: which are set, and how more of them are added.

vLLM takes a configuration as JSON, ``--compilation-config '{"mode": 3}'``, or by its fields,
``--compilation-config.mode=3``, and where both stand in one command it drops the JSON without a
word.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from spark_prof.profiler.program import SHELLS, scan_options

_SHORT: Mapping[str, str] = {
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
    "-O": "--optimization-level",
}
_NUMBER = re.compile(r"-[\d.]+")


def set_options(words: Sequence[str]) -> dict[str, str]:
    """What the words of a command line set: an option's name, as vLLM documents it, and its value.

    A field of a configuration has its path as name, however it was given; a switch has no value.

        set_options(["-O1", "-cc", '{"mode": 0}']) ==
            {"--optimization-level": "1", "--compilation-config.mode": "0"}
    """
    options: dict[str, str] = {}
    for name, values, _ in _options(words):
        value = " ".join(values)
        configuration = _object(value)
        if configuration is None:
            options[name] = value
        else:
            options.update({f"{name}.{path}": text for path, text in _fields(configuration)})
    return options


def with_options(arguments: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """The arguments with further options behind them, which count before theirs.

    A configuration that the arguments give as JSON and the options by its fields is written by
    its fields; one that the options give anew as JSON, and a switch that they turn back, is left
    out.
    """
    if script := _script_at(arguments):
        inside = with_options(shlex.split(arguments[script]), options)
        return (*arguments[:script], shlex.join(inside), *arguments[script + 1 :])
    turned = {_opposite(name) for name, _, _ in _options(options)}
    roots = {name.partition(".")[0] for name, _, _ in _options(options) if "." in name}
    anew = {name for name, values, _ in _options(options) if _is_whole(" ".join(values))}
    words: list[str] = []
    at = 0
    for name, values, place in _options(arguments):
        end = place + 1 + (len(values) if "=" not in arguments[place] else 0)
        fields: list[str] = []
        if name in turned and not values:
            pass
        elif name.partition(".")[0] in anew:
            end = min(end, place + 2)
        elif name in roots and (whole := _object(" ".join(values))) is not None:
            fields = [f"{name}.{key}={json.dumps(value)}" for key, value in whole.items()]
            end = min(end, place + 2)
        else:
            continue
        words += [*arguments[at:place], *fields]
        at = end
    return (*words, *arguments[at:], *(() if tuple(options) == _NO_DRAFTER else options))


_NO_DRAFTER = ("--speculative-config", "None")


def _is_whole(value: str) -> bool:
    """Whether a value is all of a configuration: its JSON, or none."""
    return value == "None" or _object(value) is not None


def _script_at(words: Sequence[str]) -> int:
    """The place of the one command that a shell is given, as in bash -c 'vllm serve m'; 0 for none.

    Words that start an engine are meant, in which a shell is the last program.
    """
    shells = [at for at, word in enumerate(words) if PurePath(word).name in SHELLS]
    if not shells:
        return 0
    options, at = scan_options(words, shells[-1] + 1, "-o -O --rcfile --init-file")
    return at if at < len(words) and any("c" in o.name.lstrip("-") for o in options) else 0


def _opposite(name: str) -> str:
    return name.replace("--no-", "--") if name.startswith("--no-") else f"--no-{name[2:]}"


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str], int]]:
    """Each option's name, its values and its place."""
    for place, word in enumerate(words):
        if not word.startswith("-") or _NUMBER.fullmatch(word):
            continue
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-O\d", name):
            name, equals, value = "-O", "=", name[2:]
        root, dot, field = name.partition(".")
        root = _SHORT.get(root, root.replace("_", "-"))
        values = [value] if equals else []
        for following in words[place + 1 :] if not equals else ():
            if following.startswith("-") and not _NUMBER.fullmatch(following):
                break
            values.append(following)
        yield f"{root}{dot}{field.removesuffix('+')}", values, place


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _fields(configuration: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in configuration.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value if isinstance(value, str) else json.dumps(value)
