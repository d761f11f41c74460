"""`spark-prof report`: where the time of a recording went."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from spark_prof.cli.terminal import takes_color
from spark_prof.datasets.engines import Engine
from spark_prof.errors import CommandError

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
    from spark_prof.ab.result import find_result
    from spark_prof.cli.dataset import report_dataset
    from spark_prof.datasets.report import is_dataset

    compared = find_result(source)
    if compared or is_dataset(source):
        if rank is not None or bench or measured:
            held = "a result of spark-prof ab" if compared else "several recordings"
            raise CommandError(
                f"{source} holds {held}; --rank, --bench and --measured need one recording"
            )
        on_terminal = out is None and sys.stdout.isatty()
        color = takes_color(out)
        width = terminal_width() if on_terminal else 100
        if compared:
            from spark_prof.ab.result import read_result
            from spark_prof.dashboards.ab_report import render_ab

            put(render_ab(read_result(compared), chosen.value, width, color), out)
        else:
            put(report_dataset(source, chosen.value, engine.value, width, color), out)
        return
    from spark_prof.analyzers.clients.summary import with_clients
    from spark_prof.analyzers.summary import summarize
    from spark_prof.dashboards.render import RENDERERS
    from spark_prof.datasets.ceilings import ceilings_for
    from spark_prof.datasets.opened import local_path, opened
    from spark_prof.traces.benchmarks.read import read_benchmark
    from spark_prof.traces.sniff import BENCHMARK, format_of

    results = [read_benchmark(path) for path in bench or ()]
    with local_path(source) as path:
        if os.path.isfile(path) and format_of(path) == BENCHMARK:
            from spark_prof.dashboards.client_report import render_clients

            put(render_clients([read_benchmark(path), *results], chosen.value), out)
            return
        with opened(str(path)) as bundle:
            ceilings = ceilings_for(bundle, rank, measured)
            found = summarize(bundle, rank, measured=ceilings)
            summary = with_clients(found, bundle, rank, results)
    if chosen is Format.TEXT and out is None and sys.stdout.isatty():
        from spark_prof.dashboards import text

        show(text.render(summary, width=terminal_width(), color=takes_color(out)))
        return
    put(RENDERERS[chosen.value](summary), out)


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
    from spark_prof.traces.durable import write_whole as write

    try:
        write(path, lambda file: file.write(text.encode()))
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
