"""What commands share: formats, where the output goes, colour and width."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from spark_prof.dashboards.section import DocumentBounds, Layout
from spark_prof.errors import CommandError, one_line, os_errors

Kind = TypeVar("Kind")


class Format(StrEnum):
    """How a document is drawn."""

    TEXT = "text"
    MARKDOWN = "md"
    HTML = "html"
    JSON = "json"


ENDINGS = {
    ".txt": Format.TEXT,
    "": Format.TEXT,
    ".md": Format.MARKDOWN,
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".json": Format.JSON,
}

FormatOption = Annotated[
    Format | None, typer.Option(help="How to draw it; by default text, or what OUT's ending says.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write to this file, not to the terminal.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many rows of each table.")]
Section = Annotated[
    list[str] | None, typer.Option(help="Only this section, such as kernels; repeatable.")
]
AllSections = Annotated[bool, typer.Option("--all", help="Every section, not the one screen.")]


def laid_out(
    format: Format | None,  # noqa: A002
    out: Path | None,
    limit: int | None = None,
    section: Sequence[str] | None = None,
) -> Layout:
    """How to draw what was asked for; refuses a missing folder before any work is done."""
    kind = format or format_by_ending(out, ENDINGS)
    if out is not None:
        check_folder(out.absolute().parent)
    on_terminal = out is None and sys.stdout.isatty()
    width = terminal_width() if on_terminal else 100
    return Layout(kind.value, width, takes_color(out), DocumentBounds(limit, tuple(section or ())))


def put(drawn: str, out: Path | None) -> None:
    """Shows what was drawn, or writes it to the file and says so."""
    if out is None:
        show(drawn)
    else:
        write_whole(out, drawn)
        say(f"wrote {out}")


def whole_numbers(
    text: str,
    example: str,
    *,
    separator: str = ",",
    least: int = 1,
    most: int = 999_999_999,
    repeats: bool = False,
) -> tuple[int, ...]:
    """The different whole numbers of an option's text.

    Args:
        example: what is right, for the message: `--batch-sizes 1,8`.
        repeats: a number may be there twice.
    """
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise CommandError(f"{text!r:.40} is no list of whole numbers; give {example}, say")
    numbers = tuple(map(int, parts))
    twice = len(set(numbers)) < len(numbers) and not repeats
    if twice or not least <= min(numbers) <= max(numbers) <= most:
        raise CommandError(f"{text!r:.40}: give each number from {least} on once, as in {example}")
    return numbers


_MOST_TOKENS = 100_000_000
_THOUSANDS = re.compile(r"(\d{1,6}) ?[kK](?=\s*(?:,|$))", re.ASCII)


def token_counts(text: str, example: str) -> tuple[int, ...]:
    """The different numbers of tokens of an option's text, where k is 1,024 of them.

    token_counts("1k,8k,100", "--contexts 1k,8k") == (1024, 8192, 100)
    """
    plain = _THOUSANDS.sub(lambda match: str(1024 * int(match[1])), text)
    return whole_numbers(plain, example, most=_MOST_TOKENS)


def show(text: str) -> None:
    """Prints to the terminal or pipe; a reader that goes away, such as head, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Nothing may be left to flush when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str) -> None:
    """Tells the person who waits one line, on stderr.

    Nobody may read it any more: Ctrl-C also ends the `tee` that it goes to, and a lost connection
    takes the terminal. What is told goes on all the same.
    """
    with suppress(OSError):
        print(f"spark-prof: {one_line(line)}", file=sys.stderr, flush=True)


def report_command(folder: Path | str) -> str:
    """The command to go on with once there is a bundle."""
    return f"spark-prof report {shlex.quote(str(folder))}"


def next_report(folder: Path | str) -> str:
    """The same as a line for a person."""
    return f"next: {report_command(folder)}"


def check_folder(folder: Path) -> None:
    """Refuses a folder that is not there, before any work is done."""
    try:
        exists = folder.is_dir()
    except OSError:
        exists = False
    if not exists:
        raise CommandError(f"{folder} does not exist; create it or choose another --out")


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    from spark_prof.files import write_whole as write

    with os_errors(f"cannot write {path}"):
        write(path, text)


def format_by_ending(out: Path | None, endings: Mapping[str, Kind]) -> Kind:
    """The format that the ending of a file means; without a file that of no ending."""
    try:
        return endings["" if out is None else out.suffix.lower()]
    except KeyError:
        names = ", ".join(filter(None, endings))
        raise CommandError(f"{out} ends in none of {names}; say which --format it has") from None


def terminal_width() -> int:
    """Columns of the terminal."""
    from shutil import get_terminal_size

    return get_terminal_size((120, 40)).columns


def takes_color(out: Path | None = None) -> bool:
    """Whether what is shown may be coloured: on a terminal with colours whose user wants them.

    NO_COLOR means none if it is not empty, as https://no-color.org says.
    """
    if out is not None or not sys.stdout.isatty():
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
