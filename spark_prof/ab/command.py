"""Takes the engine out of a vLLM command line: which Python runs it, and with which arguments."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import find_program, option_value, recognise

EXAMPLE = "spark-prof ab --b moe=spark_prof -- vllm serve MODEL"

_FORMS = {"serve": "serve", "bench latency": "latency", "bench throughput": "throughput"}
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SHEBANG_BYTES = 4096


@dataclass(frozen=True)
class EngineCommand:
    """An engine as somebody starts it."""

    text: tuple[str, ...]  # the command line
    prefix: tuple[str, ...]  # wrappers in front of the program, such as ``numactl -N 0``
    python: str  # the interpreter that has vLLM
    form: str  # which of vLLM's parsers reads the arguments: model, serve, latency or throughput
    arguments: tuple[str, ...]  # what that parser reads

    @property
    def model(self) -> str:
        """The model's name or folder, as far as the words tell."""
        if named := option_value(self.arguments, "--model"):
            return named
        first = self.arguments[0] if self.arguments else ""
        return "" if first.startswith("-") or self.form in ("latency", "throughput") else first


def engine_command(words: Sequence[str]) -> EngineCommand:
    """Reads a model, or a vLLM command line that starts an engine."""
    if not words or not words[0].strip():
        raise CommandError(f"no model and no command; put it after --, as in {EXAMPLE}")
    if any(word.encode("utf-8", "ignore").decode() != word for word in words):
        raise CommandError("the command has bytes that are no UTF-8; write it in UTF-8")
    if _is_model(words[0]):
        return EngineCommand(tuple(words), (), sys.executable, "model", tuple(words))
    if _is_lost_folder(words[0]):
        raise CommandError(f"{words[0]} is neither a model's folder nor a program; check the path")
    command = recognise(words)
    program = find_program(command.argv)
    prefix, argv = command.argv[: program.index], command.argv[program.index :]
    if command.kind == "container":
        raise CommandError(
            f"{program.name} starts the engine where spark-prof ab cannot reach it; run "
            "spark-prof ab inside the container"
        )
    if program.name == "vllm":
        form, arguments = _form(argv[1:])
        if arguments and _is_lost_folder(arguments[0]):
            raise CommandError(f"{arguments[0]} is no model's folder; check the path")
        python = _interpreter(argv[0]) if program.local else "python"
        return EngineCommand(tuple(words), prefix, python, form, arguments)
    if command.kind == "python" and len(argv) > 2 and argv[1] == "-m" and argv[2] in _SERVERS:
        server = argv[2] == _SERVERS[0]
        form, arguments = ("serve", tuple(argv[3:])) if server else _form(argv[3:])
        return EngineCommand(tuple(words), prefix, argv[0], form, arguments)
    raise CommandError(
        f"{program.name} is not known to start one engine whose arguments can be read; give a "
        f"model, vllm serve, or vllm bench latency, as in {EXAMPLE}"
    )


def _is_model(word: str) -> bool:
    if Path(word).is_dir():
        return True
    return bool(_HUB_NAME.fullmatch(word)) and not Path(word).exists() and not word.startswith(".")


def _is_lost_folder(word: str) -> bool:
    """Whether a word is written as a path, and nothing is there."""
    return word.startswith((".", "/", "~")) and not Path(word).exists()


def _form(arguments: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    for words, form in _FORMS.items():
        count = len(words.split())
        if " ".join(arguments[:count]) == words:
            return form, tuple(arguments[count:])
    shown = " ".join(["vllm", *arguments[:2]])
    raise CommandError(
        f"'{shown}' is no engine to compare; give vllm serve, vllm bench latency or throughput"
    )


def _interpreter(program: str) -> str:
    """The Python behind vLLM's start script, by its first lines; this one if they do not tell."""
    path = shutil.which(program)
    try:
        with open(path or program, "rb") as file:
            head = file.read(_SHEBANG_BYTES).decode("utf-8", "replace")
    except OSError:
        return sys.executable
    # pip and uv write long paths into a second line: '''exec' "/long/path/python" "$0" "$@"
    found = re.match(r"#!\s*(\S*python[\d.]*)\s", head) or re.search(
        r"^'''exec' \"?([^\"\n]*?python[\d.]*)\"? ", head, re.M
    )
    return found[1] if found and Path(found[1]).exists() else sys.executable
