"""`spark-prof completion`: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from spark_prof.cli.completion_scripts import SCRIPTS, CommandWords, OptionWords
from spark_prof.cli.options import show
from spark_prof.errors import CommandError


class Shell(StrEnum):
    """The shells that a script is known for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    context: typer.Context,
    shell: Annotated[
        Shell | None, typer.Argument(metavar="bash|zsh|fish", help="The shell that reads it.")
    ] = None,
) -> None:
    """Print the shell script that completes commands, options and values."""
    if shell is None:
        raise CommandError(
            "which shell? Give one, as in: spark-prof completion bash "
            "> ~/.local/share/bash-completion/completions/spark-prof"
        )
    show(SCRIPTS[shell.value](tuple(command_words(context.find_root().command))))


def command_words(command: Any, path: tuple[str, ...] = ()) -> Iterator[CommandWords]:
    """The words of a command and of all below it, itself first.

    next(command_words(typer.main.get_command(app))).subcommands["report"]
    """
    below = dict(sorted(getattr(command, "commands", {}).items()))
    hints = get_type_hints(command.callback) if command.callback else {}
    options = [_HELP]
    words = {name: _line(part.short_help or part.help) for name, part in below.items()}
    for parameter in command.params:
        option = _option(parameter, hints.get(parameter.name))
        if parameter.param_type_name == "argument":
            words |= dict.fromkeys(option.choices, option.help)
        elif not parameter.hidden:
            options.append(option)
    yield CommandWords(path, words, tuple(options))
    for name, part in below.items():
        yield from command_words(part, (*path, name))


_HELP = OptionWords(("--help", "-h"), "Show what the command does and its options")


def _option(parameter: Any, hint: Any) -> OptionWords:
    kinds = tuple(_types(hint))
    choices = next((kind for kind in kinds if issubclass(kind, StrEnum)), ())
    return OptionWords(
        (*parameter.opts, *parameter.secondary_opts),
        _line(parameter.help),
        takes_value=not getattr(parameter, "is_flag", False),
        choices=tuple(choice.value for choice in choices),
        takes_file=Path in kinds,
    )


def _types(hint: Any) -> Iterator[type]:
    """The classes in a type such as ``list[Path] | None``."""
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        yield from _types(part)


def _line(text: str | None) -> str:
    """The first sentence of a help text."""
    return " ".join((text or "").split()).partition(". ")[0].rstrip(".")
