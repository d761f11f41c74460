"""`spark-prof completion`: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from spark_prof.cli.options import show
from spark_prof.errors import CommandError

PROGRAM = "spark-prof"


@dataclass(frozen=True)
class OptionWords:
    """One option: its names, and what may follow them."""

    names: tuple[str, ...]
    help: str = ""
    takes_value: bool = False
    choices: tuple[str, ...] = ()  # all values that there are; empty where any may be given
    takes_file: bool = False


@dataclass(frozen=True)
class CommandWords:
    """One command: the words that lead to it, and what may follow them."""

    path: tuple[str, ...]
    subcommands: Mapping[str, str]  # or values of its argument, each with what it does
    options: tuple[OptionWords, ...]

    @property
    def key(self) -> str:
        """The path as the scripts compare it: ``kernels check``."""
        return " ".join(self.path)


def bash(commands: Sequence[CommandWords]) -> str:
    """The script for bash: what ``complete`` calls, and the call of ``complete``.

    bash([CommandWords((), {"report": "One screen"}, ())])
    """
    values = []
    for key, option in _valued(commands):
        after = f"{'|'.join(shlex.quote(f'{key} {name}') for name in option.names)})"
        if option.choices:
            words = shlex.quote(" ".join(option.choices))
            values.append(f'{after} COMPREPLY=($(compgen -W {words} -- "$current")); return ;;')
        elif option.takes_file:
            values.append(f"{after} return ;;")
        else:
            values.append(f"{after} compopt +o default 2>/dev/null; return ;;")
    words_of = [
        f"{shlex.quote(command.key)}) subcommands={shlex.quote(' '.join(command.subcommands))} "
        f"options={shlex.quote(' '.join(name for o in command.options for name in o.names))} ;;"
        for command in commands
    ]
    return "\n".join([
        f"# {PROGRAM} completion bash > ~/.local/share/bash-completion/completions/{PROGRAM}",
        "_spark_prof() {",
        '    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}',
        "    local path= subcommands= options= at",
        "    COMPREPLY=()",
        "    for ((at = 1; at < COMP_CWORD; at++)); do",
        '        [[ ${COMP_WORDS[at]} == -- ]] && return',
        *_path_loop("        ", "${COMP_WORDS[at]}", commands),
        "    done",
        "    # Bash makes words of their own of the = and of what follows it.",
        "    if [[ $current == = ]]; then current=",
        "    elif [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi",
        '    case "$path $previous" in',
        *(f"        {line}" for line in values),
        "    esac",
        '    case "$path" in',
        *(f"        {line}" for line in words_of),
        "    esac",
        '    [[ $current == -* ]] && subcommands=$options',
        '    COMPREPLY=($(compgen -W "$subcommands" -- "$current"))',
        "}",
        f"complete -o default -F _spark_prof {PROGRAM}",
    ])  # fmt: skip


def zsh(commands: Sequence[CommandWords]) -> str:
    """The script for zsh, for a file of ``fpath`` or for ``eval``."""
    values = []
    for key, option in _valued(commands):
        after = f"{'|'.join(shlex.quote(f'{key} {name}') for name in option.names)})"
        words = " ".join(map(shlex.quote, option.choices))
        todo = (
            f"compadd -- {words}" if words else "_files" if option.takes_file else "_message value"
        )
        values.append(f"{after} {todo}; return ;;")
    words_of = []
    for command in commands:
        described = [f"{name}:{text}" for name, text in command.subcommands.items()]
        options = [f"{name}:{option.help}" for option in command.options for name in option.names]
        words_of += [
            f"{shlex.quote(command.key)})",
            f"    subcommands=({' '.join(map(shlex.quote, described))})",
            f"    options=({' '.join(map(shlex.quote, options))}) ;;",
        ]
    return "\n".join([
        f"#compdef {PROGRAM}",
        "_spark_prof() {",
        "    local place= at",
        "    local -a subcommands options",
        "    for ((at = 2; at < CURRENT; at++)); do",
        "        if [[ $words[at] == -- ]]; then",
        "            shift $at words; ((CURRENT -= at)); _normal; return",
        "        fi",
        *_path_loop("        ", "$words[at]", commands, variable="place"),
        "    done",
        '    case "$place $words[CURRENT-1]" in',
        *(f"        {line}" for line in values),
        "    esac",
        '    case "$place" in',
        *(f"        {line}" for line in words_of),
        "    esac",
        "    if [[ $words[CURRENT] == -* ]]; then _describe -o option options",
        "    elif ((#subcommands)); then _describe command subcommands",
        "    else _files; fi",
        "}",
        'if [[ $funcstack[1] == _spark_prof ]]; then _spark_prof "$@"',
        f"else compdef _spark_prof {PROGRAM}; fi",
    ])  # fmt: skip


def fish(commands: Sequence[CommandWords]) -> str:
    """The script for fish: a ``complete`` for each word."""
    lines = [
        "function __spark_prof_at",
        "    set -l words (commandline -opc)",
        "    contains -- -- $words; and return 1",
        "    set -l path",
        "    for word in $words[2..-1]",
        '        switch "$path $word"',
        f"            case {_quoted(_paths(commands))}",
        "                set -a path $word",
        "        end",
        "    end",
        '    test "$path" = "$argv"',
        "end",
    ]
    for command in commands:
        begin = f"complete -c {PROGRAM} -n {_fish(f'__spark_prof_at {command.key}'.rstrip())}"
        for name, text in command.subcommands.items():
            lines.append(f"{begin} -f -a {name} -d {_fish(text)}")
        for option in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            value = " -r -F" if option.takes_file else " -x" if option.takes_value else ""
            if option.choices:
                value = f" -x -a {_fish(' '.join(option.choices))}"
            lines.append(f"{begin} {names}{value} -d {_fish(option.help)}")
    return "\n".join(lines)


SCRIPTS: dict[str, Callable[[Sequence[CommandWords]], str]] = {
    "bash": bash, "zsh": zsh, "fish": fish,
}  # fmt: skip
"""What makes the script of each shell."""


def _valued(commands: Iterable[CommandWords]) -> Iterator[tuple[str, OptionWords]]:
    for command in commands:
        for option in command.options:
            if option.takes_value:
                yield command.key, option


def _paths(commands: Iterable[CommandWords]) -> Iterator[str]:
    """The path before each command, and its name: `` report``, ``kernels check``."""
    for command in commands:
        if command.path:
            yield f"{' '.join(command.path[:-1])} {command.path[-1]}"


def _path_loop(
    indent: str, word: str, commands: Iterable[CommandWords], variable: str = "path"
) -> list[str]:
    """What follows the words of the line to the command that they name, in bash and in zsh."""
    cases = "|".join(shlex.quote(path) for path in _paths(commands))
    return [
        f'{indent}case "${variable} {word}" in',
        f'{indent}    {cases}) {variable}="${{{variable}:+${variable} }}{word}" ;;',
        f"{indent}esac",
    ]


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(_fish, words))


def _fish(text: str) -> str:
    """A text in fish's quotes, where a backslash and a quote have one before them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


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
