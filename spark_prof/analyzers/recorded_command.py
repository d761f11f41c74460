"""What of a recorded command line may be typed again: what the tables of `rules` let through."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from spark_prof.redact import HIDDEN
from spark_prof.rules.harmless_options import (
    CONFIGURATIONS,
    LEFT_OUT,
    MODEL,
    RECORDED_OPTIONS,
    SHORT,
    harmless_arguments,
    harmless_configuration,
    harmless_variable,
)
from spark_prof.rules.harmless_programs import (
    ATTACHED,
    COMPOSE_OPTIONS,
    COMPOSES,
    CONTAINER_OPTIONS,
    CONTAINERS,
    DEMO,
    DEMO_OPTIONS,
    IMAGES,
    LAUNCHERS,
    MOUNT_MODES,
    MOUNTED,
    MOUNTED_AT,
    PASSED_ON,
    PREFIXES,
    SERVERS,
    SERVICE,
    SERVICE_OPTIONS,
    STARTED_VARIABLES,
)

Words = tuple[str, ...]

_PREFIXES = {prefix.name: prefix for prefix in PREFIXES}
_PYTHON = re.compile(r"python(3(\.[0-9]{1,2})?)?")
_VERBS = (("serve",), ("bench", "latency"), ("bench", "throughput"))
PLACE = "MODEL"
"""What stands for a model whose path the recording leaves out, or gives by its last name alone."""
_SEVERAL = frozenset(name for name, shape in RECORDED_OPTIONS.items() if "( " in shape)
"""Options that take several words."""


class _RefusedError(Exception):
    """A word that no table lets through."""


def split(text: str) -> Words:
    """The words of a command line; of one that no shell wrote those between its blanks."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def attached_to(words: Sequence[str]) -> str:
    """The server of this machine that was attached to; empty where a command was recorded."""
    is_attached = len(words) == 2 and words[0] == "--attach" and re.fullmatch(ATTACHED, words[1])
    return words[1] if is_attached else ""


def starting_words(words: Sequence[str], model: str = "") -> Words:
    """The words with which the same engine may be started again; none where one is not let through.

    Programs go by their names, and what changes nothing that is measured, such as a key, is gone.

        starting_words(["/venv/bin/vllm", "serve", "m/x", "--api-key", "***"]) ==
            ("vllm", "serve", "m/x")

    Args:
        model: the last name of its path; `ab` records a model and its options, and no program.
    """
    try:
        if words and PurePath(words[0]).name == model:
            return ("vllm", "serve", *_arguments(list(words)))
        return tuple(_started(list(words)))
    except _RefusedError:
        return ()


def engine_words(words: Sequence[str], model: str) -> Words:
    """What `spark-prof ab` takes after `--` to start the engine of a recorded command.

    A container is started whole; of a script it is the model. None where a word is not let through.

        engine_words(["numactl", "-N", "0", "vllm", "serve", "m/x"], "x") ==
            ("vllm", "serve", "m/x")
    """
    if in_container(words):
        return starting_words(words)
    engine = recorded_engine(words, model)
    try:
        if engine[0] == "vllm" and engine[1:]:
            return tuple(_vllm(list(engine)))
        return tuple(_arguments(list(engine)))
    except _RefusedError:
        return ()


def in_container(words: Sequence[str]) -> bool:
    """Whether a command line starts a container: docker (compose) run, also behind sudo."""
    return _behind_run(words) > 0


def _behind_run(words: Sequence[str]) -> int:
    """The place behind docker run or docker compose run; 0 where no container is started."""
    names = [PurePath(word).name for word in words]
    engines = (n for n, name in enumerate(names) if name in (*CONTAINERS, *COMPOSES))
    at = next(engines, len(words)) + 1
    while at < len(words) and words[at] != "run":
        before = words[at - 1]
        of_option = before.startswith("-") and "=" not in before
        if not (words[at].startswith("-") or words[at] in ("compose", "container") or of_option):
            return 0
        at += 1
    return at + 1 if at < len(words) else 0


def with_variables(words: Sequence[str], variables: Mapping[str, str]) -> Words:
    """A command line that starts a container, with variables that the container gets.

    with_variables(["docker", "run", "i"], {"A": "1"}) == ("docker", "run", "-e", "A=1", "i")
    """
    begin = _behind_run(words)  # before anything else, where a file says something else
    options = (word for name, value in variables.items() for word in ("-e", f"{name}={value}"))
    return (*words[:begin], *options, *words[begin:])


def recorded_engine(words: Sequence[str], model: str) -> Words:
    """As `engine_words`, but as the file has it: to be shown and not to be typed."""
    if in_container(words):
        return tuple(words)
    names = [PurePath(word).name for word in words]
    if "vllm" in names[:-1]:
        begun = words[names.index("vllm") + 1 :]
        if PurePath(begun[0]).name in ("serve", "bench"):
            return ("vllm", *begun)
    if "--model" in words[:-1]:
        return ("vllm", "serve", *words[words.index("--model") + 1 :])
    if names and names[0] == model:
        return (words[0] if "/" in words[0] else PLACE, *words[1:])
    named = (word for word in words if word == HIDDEN or (model and PurePath(word).name == model))
    model_word = next(named, model or PLACE)
    # A name alone that a script was given is neither a folder nor on the hub.
    return (model_word if "/" in model_word or model_word not in (HIDDEN, *words) else PLACE,)


def _started(words: list[str]) -> list[str]:
    name = PurePath(words[0]).name if words else ""
    if prefix := _PREFIXES.get(name):
        options, rest = _options(words[1:], prefix.options)
        if prefix.argument:
            options.append(_let_through(prefix.argument, rest[0] if rest else ""))
            rest = rest[1:]
        return [name, *options, *_started(rest)]
    if name == "env":
        count = next((n for n, word in enumerate(words[1:]) if "=" not in word), len(words) - 1)
        return ["env", *map(_variable, words[1 : 1 + count]), *_started(words[1 + count :])]
    if name in CONTAINERS and words[1:2] == ["run"]:
        return [name, "run", *_container(words[2:])]
    if name in COMPOSES or (name in CONTAINERS and words[1:2] == ["compose"]):
        begun = 1 if name in COMPOSES else 2
        options, rest = _options(words[begun:], COMPOSE_OPTIONS)
        if rest[:1] != ["run"]:
            raise _RefusedError
        return [
            name,
            *words[1:begun],
            *options,
            "run",
            *_container(rest[1:], SERVICE, SERVICE_OPTIONS),
        ]
    if _PYTHON.fullmatch(name) and words[1:2] == ["-m"] and words[2:]:
        return [name, "-m", words[2], *_module(words[2], words[3:])]
    if name == "vllm":
        return _vllm(["vllm", *words[1:]])
    raise _RefusedError


def _let_through(shape: str, text: str) -> str:
    if not re.fullmatch(shape, text):
        raise _RefusedError
    return text


def _vllm(words: list[str]) -> list[str]:
    for verb in _VERBS:
        if tuple(words[1 : 1 + len(verb)]) == verb:
            at = 1 + len(verb)
            return [*words[:at], *_arguments(words[at:])]
    raise _RefusedError


def _module(name: str, words: list[str]) -> list[str]:
    if name in SERVERS:
        return _arguments(words)
    if name in LAUNCHERS:
        return _vllm(["vllm", *words])[1:]
    if name != DEMO:
        raise _RefusedError
    arguments: list[str] = []
    while words:
        if words[0] == "--engine" and words[1:] and harmless_arguments(words[1]):
            arguments += words[:2]
            words = words[2:]
        elif words[0].startswith("-"):
            option, words = _options(words, DEMO_OPTIONS, most=1)
            arguments += option
        else:
            arguments.append(PLACE if words[0] == HIDDEN else _let_through(MODEL, words[0]))
            words = words[1:]
    return arguments


def _options(
    words: list[str], shapes: Mapping[str, str], most: int = 1000
) -> tuple[list[str], list[str]]:
    """The options at the beginning with their values, and the words behind them."""
    options: list[str] = []
    while words and words[0].startswith("-") and most:
        name, equals, value = words[0].partition("=")
        shape = shapes.get(name)
        if shape is None or bool(equals) > bool(shape):
            raise _RefusedError
        size = 1 if equals or not shape else 2
        if shape:
            _let_through(shape, value if equals else "".join(words[1:2]))
        options += words[:size]
        words, most = words[size:], most - 1
    return options, words


def _variable(word: str) -> str:
    """NAME=VALUE as it is, or NAME alone where it is passed on or its value is hidden."""
    name, equals, value = word.partition("=")
    if name in PASSED_ON and (not equals or value == HIDDEN):
        return name
    recordable = bool(re.fullmatch(STARTED_VARIABLES.get(name, "(?!)"), value))
    if not equals or not (recordable or harmless_variable(name, value)):
        raise _RefusedError
    return word


def _mount(word: str) -> str:
    source, _, rest = word.partition(":")
    target, colon, mode = rest.partition(":")
    _let_through(MOUNTED, source)
    _let_through(MOUNTED_AT, target)
    if colon:
        _let_through(MOUNT_MODES, mode)
    return word


def _container(
    words: list[str], named: str = IMAGES, options: Mapping[str, str] = CONTAINER_OPTIONS
) -> list[str]:
    """What follows `docker run` or `docker compose run`: options, image or service, command."""
    beside = {"-e": _variable, "--env": _variable, "-v": _mount, "--volume": _mount}
    command: list[str] = []
    while words and words[0].startswith("-"):
        name, equals, value = words[0].partition("=")
        if check := beside.get(name):
            value = value if equals else "".join(words[1:2])
            command += [name, check(value)]
            words = words[1 if equals else 2 :]
        else:
            option, words = _options(words, options, most=1)
            command += option
    if not words:
        raise _RefusedError
    image, words = _let_through(named, words[0]), words[1:]
    if PurePath("".join(words[:1])).name == "vllm":
        return [*command, image, *_vllm(["vllm", *words[1:]])]
    if words[:1] == ["serve"]:
        return [*command, image, *_vllm(["vllm", *words])[1:]]
    return [*command, image, *_arguments(words)]


def _arguments(words: list[str]) -> list[str]:
    """What vLLM's parser reads: options, and at most one word that is the model."""
    arguments: list[str] = []
    model = ""
    while words:
        word = words[0]
        if not word.startswith("-"):
            if model:
                raise _RefusedError
            model = PLACE if word == HIDDEN else _let_through(MODEL, word)
            arguments.append(model)
            words = words[1:]
            continue
        name, equals, value = word.partition("=")
        root, dot, field = name.partition(".")
        root = root if root in RECORDED_OPTIONS or root in SHORT else root.replace("_", "-")
        value_count = next(
            (n for n, w in enumerate(words[1:]) if w.startswith("-")), len(words) - 1
        )
        if not dot and root in LEFT_OUT:
            words = words[1 if equals else 1 + value_count :]
            continue
        size = 1 if equals else 2
        if SHORT.get(root, root) in CONFIGURATIONS:
            value = value if equals else "".join(words[1:2])
            if not harmless_configuration(f"{root}{dot}{field}", value):
                raise _RefusedError
        else:
            shape = RECORDED_OPTIONS.get(name if dot else root)
            if shape is None or bool(equals) > bool(shape):
                raise _RefusedError
            if not shape:
                size = 1
            else:
                size = 1 + value_count if root in _SEVERAL and not equals else size
                _let_through(shape, value if equals else " ".join(words[1:size]))
        arguments += words[:size]
        words = words[size:]
    return arguments
