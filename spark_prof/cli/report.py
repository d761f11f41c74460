"""`spark-prof report`: where the time of a recording went."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from spark_prof.cli.terminal import takes_color
from spark_prof.datasets.engines import Engine
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.dataset import Dataset
    from spark_prof.traces.resolve import Folder

Kind = TypeVar("Kind")


class Format(StrEnum):
    """How a report is drawn."""

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


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command()(report)


def report(
    source: Annotated[
        str,
        typer.Argument(
            help="A bundle, a trace, a folder of them, the URL of one, or a result of ab."
        ),
    ],
    format: Annotated[  # noqa: A002 - the option's name is the contract's
        Format | None,
        typer.Option(help="How to draw it; by default text, or what OUT's ending says."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file, not to the terminal.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="The rank to report; by default the lowest.")
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="A load generator's result to compare the steps with; repeatable."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Ceilings that doctor --measure kept; by default those of this machine."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Where the recordings of a folder are read.")
    ] = Engine.LOCAL,
) -> None:
    """Show where the time of a recording went: steps, components, layers, kernels, books."""
    chosen = format or format_by_ending(out, ENDINGS)
    if out is not None:
        check_folder(out.parent)
    from spark_prof.traces.resolve import AbResult, Folder, LoadTest, fetched, resolve

    named = resolve(source)
    of_ab = isinstance(named, AbResult)
    if isinstance(named, AbResult | Folder):
        if rank is not None or bench or measured:
            held = "a result of spark-prof ab" if of_ab else "several recordings"
            raise CommandError(
                f"{source} holds {held}; --rank, --bench and --measured need one recording"
            )
        on_terminal = out is None and sys.stdout.isatty()
        color = takes_color(out)
        width = terminal_width() if on_terminal else 100
        if isinstance(named, Folder):
            from spark_prof.dashboards.dataset_report import render_dataset

            put(render_dataset(_dataset(named, engine), chosen.value, width, color), out)
        else:
            from spark_prof.ab.result import read_result
            from spark_prof.dashboards.ab_report import render_ab

            put(render_ab(read_result(named.file), chosen.value, width, color), out)
        return
    from spark_prof.analyzers.clients.client_comparison import with_clients
    from spark_prof.analyzers.summary import summarize
    from spark_prof.dashboards.render import RENDERERS
    from spark_prof.datasets.opened import ceilings_for, opened
    from spark_prof.traces.benchmarks.read import read_benchmark

    results = [read_benchmark(path) for path in bench or ()]
    with fetched(named) as found:
        if isinstance(found, LoadTest):
            from spark_prof.dashboards.client_report import render_clients

            put(render_clients([read_benchmark(found.path), *results], chosen.value), out)
            return
        with opened(found) as bundle:
            ceilings = ceilings_for(bundle, rank, measured)
            report = summarize(bundle, rank, measured=ceilings)
            summary = with_clients(report, bundle, rank, results)
    if chosen is Format.TEXT and out is None and sys.stdout.isatty():
        from spark_prof.dashboards import text

        show(text.render(summary, width=terminal_width(), color=takes_color(out)))
        return
    put(RENDERERS[chosen.value](summary), out)


def _dataset(folder: Folder, engine: Engine) -> Dataset:
    from spark_prof.datasets.every_recording import summarize_dataset

    dataset = summarize_dataset(folder, engine)
    if not dataset.recordings:
        first = dataset.failures[0]
        raise CommandError(
            f"no recording in {folder.name} could be read: {first.name}: {first.reason}"
        )
    return dataset


def put(drawn: str, out: Path | None) -> None:
    """Shows what was drawn, or writes it to the file and says so."""
    if out is None:
        show(drawn)
    else:
        write_whole(out, drawn)
        print(f"spark-prof: wrote {out}", file=sys.stderr)


def show(text: str) -> None:
    """Prints to the terminal or pipe; a reader that goes away, such as head, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Nothing may be left to flush when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_folder(folder: Path) -> None:
    """Refuses a folder that is not there, before any work is done."""
    try:
        there = folder.is_dir()
    except OSError:
        there = False
    if not there:
        raise CommandError(f"{folder} does not exist; create it or choose another --out")


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all.

    Raises:
        CommandError: it cannot be written.
    """
    from spark_prof.files import write_whole as write

    try:
        write(path, text)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error


def format_by_ending(out: Path | None, endings: Mapping[str, Kind]) -> Kind:
    """The format that the ending of a file means; without a file that of no ending.

    Raises:
        CommandError: the file has another ending.
    """
    try:
        return endings["" if out is None else out.suffix.lower()]
    except KeyError:
        known = ", ".join(filter(None, endings))
        raise CommandError(f"{out} ends in none of {known}; say which --format it has") from None


def terminal_width() -> int:
    """Columns of the terminal."""
    from shutil import get_terminal_size

    return get_terminal_size((120, 40)).columns
