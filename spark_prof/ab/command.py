"""Takes the engine out of a vLLM command line: which Python runs it, and with which arguments."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import option_value, recognise
from spark_prof.profiler.container import missing_gpu, refuse_image, refuse_options
from spark_prof.profiler.container_run import ContainerRun, container_run
from spark_prof.profiler.program import PYTHON, find_program

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
    python: str  # the interpreter that has vLLM; in a container perhaps its `vllm`, which tells
    form: str  # which of vLLM's parsers reads the arguments: model, serve, latency or throughput
    arguments: tuple[str, ...]  # what that parser reads
    container: ContainerRun | None = None  # in which it runs; None for this host

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
        raise CommandError("no model and no command; put one after --: -- vllm serve MODEL")
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
        run, inside = container_run(command.argv)
        refuse_image(run.image)
        form, arguments = _inside(inside, run.image)
        return EngineCommand((*words, *run.added), (), inside[0], form, arguments, run)
    if program.name == "vllm":
        form, arguments = _form(argv[1:])
        if arguments and _is_lost_folder(arguments[0]):
            raise CommandError(f"{arguments[0]} is no model's folder; check the path")
        python = _interpreter(argv[0]) if program.local else "python"
        return EngineCommand(tuple(words), prefix, python, form, arguments)
    if command.kind == "python" and (served := _module(argv)):
        return EngineCommand(tuple(words), prefix, argv[0], *served)
    raise CommandError(
        f"{program.name} is not known to start one engine whose arguments can be read; give a "
        f"model, vllm serve, or vllm bench latency, as in {EXAMPLE}"
    )


def container_note(engine: EngineCommand, options: Sequence[str] = ()) -> str:
    """What may be missing in an engine's container; empty where that is nothing, or there is none.

    CommandError where the vLLM of its image, by the image's name, has not one of the options.
    """
    if engine.container is None:
        return ""
    refuse_options(engine.container.image, (*engine.arguments, *options))
    return missing_gpu(engine.container.line)


def _module(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The form and arguments of `python -m` one of vLLM's servers; None of anything else."""
    if len(words) < 3 or words[1] != "-m" or words[2] not in _SERVERS:
        return None
    return ("serve", tuple(words[3:])) if words[2] == _SERVERS[0] else _form(words[3:])


def _inside(words: Sequence[str], image: str) -> tuple[str, tuple[str, ...]]:
    """The form and arguments of the engine that a container runs."""
    name = Path(words[0]).name if words else ""
    if name == "vllm":
        return _form(words[1:])
    if PYTHON.fullmatch(name) and (served := _module(words)):
        return served
    raise CommandError(
        f"{image} runs {name or 'nothing'}, which is not known to start one engine whose arguments "
        "can be read; give vllm serve behind the image: IMAGE vllm serve MODEL ..."
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
    command = " ".join(["vllm", *arguments[:2]])
    raise CommandError(
        f"'{command}' is no engine to compare; give vllm serve, vllm bench latency or throughput"
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
    match = re.match(r"#!\s*(\S*python[\d.]*)\s", head) or re.search(
        r"^'''exec' \"?([^\"\n]*?python[\d.]*)\"? ", head, re.M
    )
    return match[1] if match and Path(match[1]).exists() else sys.executable
