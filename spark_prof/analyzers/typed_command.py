"""The door of every command that is printed to be typed: no word of a file gets out unchecked.

A recording and a result are files that somebody else may have written. A `Command` is made here
alone, of this program's own words, of what the person at the command line named, and of such
recorded words as the tables in `rules` let through. All else is shown as `recorded`, never after
a `$`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from spark_prof.errors import one_line


class TypedCommand(str):
    """A line that a person may type as it stands, with its words; empty for none."""

    words: tuple[str, ...]

    def __new__(cls, text: str, words: Sequence[str] = ()) -> TypedCommand:
        """The line."""
        line = super().__new__(cls, text)
        line.words = tuple(words)
        return line

    @property
    def started(self) -> tuple[str, ...]:
        """What it starts: the words behind its first `--`."""
        return self.words[self.words.index("--") + 1 :] if "--" in self.words else ()


NONE = TypedCommand("")
_LONGEST = 1000  # characters of a command that somebody copies


def command(*words: str) -> TypedCommand:
    """A command of this program's own words, and of paths that were named at the command line.

        command("spark-prof", "report", "my run") == "spark-prof report 'my run'"

    Nothing where a word would not be shown as it is, or is a path that reads as an option.
    """
    text = shlex.join(words)
    return TypedCommand(text, words) if text.isprintable() and len(text) <= _LONGEST else NONE


def source_word(source: str) -> str:
    """A path as a word that is no option: `./-x` for `-x`."""
    return f"./{source}" if source.startswith("-") else source


def then(first: TypedCommand, second: TypedCommand) -> TypedCommand:
    """Both, the second where the first succeeds; the second alone where that is too long."""
    both = f"{first} && {second}"
    if not (first and second and len(both) <= _LONGEST):
        return second
    return TypedCommand(both, (*first.words, "&&", *second.words))


def commented(line: TypedCommand, comment: str) -> TypedCommand:
    """The command with a remark of this program's own behind it."""
    return TypedCommand(f"{line}  # {comment}", line.words) if line else NONE


def exports(variables: Mapping[str, str]) -> tuple[TypedCommand, ...]:
    """Lines that set variables which a table lets through."""
    return tuple(
        TypedCommand(f"export {name}={shlex.quote(value)}")
        for name, value in variables.items()
        if value.isprintable()
    )


def typed_by_user(text: str) -> TypedCommand:
    """What the person at the command line typed in this very run, as one printable line."""
    return TypedCommand(one_line(text))


def recorded(words: Sequence[str] | str) -> str:
    """What a file says was typed, as one printable line: to be read, not to be typed."""
    return one_line(words if isinstance(words, str) else shlex.join(words))
