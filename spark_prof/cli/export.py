"""`spark-prof export`: a bundle for Perfetto, speedscope, a spreadsheet or Parquet readers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from os.path import exists
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from spark_prof.cli.options import (
    Limit,
    OutOption,
    check_folder,
    format_by_ending,
    say,
    show,
    whole_numbers,
)
from spark_prof.cli.written import print_json_answer
from spark_prof.errors import CommandError, os_errors

if TYPE_CHECKING:
    from spark_prof.exporters.table_folder import Selection
    from spark_prof.traces.bundle import Bundle


class ExportFormat(StrEnum):
    """What is written."""

    PERFETTO = "perfetto"
    CSV = "csv"
    PARQUET = "parquet"
    SPEEDSCOPE = "speedscope"


def export(
    source: Annotated[str, typer.Argument(help="A bundle, or any file that import takes.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="A file in .json or .json.gz, replaced if it is there, or a new folder; of "
            "stacks one in .speedscope.json.",
        ),
    ],
    format: Annotated[  # noqa: A002 - the option's name is that of the other commands
        ExportFormat | None,
        typer.Option(
            help="What to write; by default told by the file's ending; parquet for a folder."
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only steps A up to but not including B.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="R,R...", help="Only these ranks, such as 0,3.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Say what was written as JSON; --format is the file's.")
    ] = False,
) -> None:
    """Write a trace for ui.perfetto.dev, stacks for speedscope.app, or tables as CSV or Parquet."""
    chosen = format or _format_of(out)
    check_folder(out.absolute().parent)
    from spark_prof.datasets.opened import opened
    from spark_prof.exporters.table_folder import Selection, parse_steps, write_tables
    from spark_prof.traces.claim import staged

    first, stop = parse_steps(steps) if steps is not None else (None, None)
    chosen_ranks = None if ranks is None else whole_numbers(ranks, "--ranks 0,3", least=0)
    selection = Selection(chosen_ranks, first, stop)
    with os_errors(f"cannot write {out}"):
        if chosen in (ExportFormat.PERFETTO, ExportFormat.SPEEDSCOPE):
            with opened(source) as bundle:
                _write_file(bundle, selection, out, chosen)
        else:
            with staged(out) as staging, opened(source) as bundle:
                write_tables(bundle, selection, staging, chosen.value)
    if not print_json_answer("json" if as_json else "", "export", out, chosen.value, then=""):
        say(f"wrote {out}")


def _format_of(out: Path) -> ExportFormat:
    name = out.name.lower()
    if name.endswith((".speedscope.json", ".speedscope.json.gz")):
        return ExportFormat.SPEEDSCOPE
    if name.endswith((".json", ".json.gz")):
        return ExportFormat.PERFETTO
    if out.suffix.lower() in (".csv", ".parquet"):
        raise CommandError(
            f"{out}: there is a file for each table; name a folder and --format {out.suffix[1:]}"
        )
    if out.suffix and not out.is_dir():
        raise CommandError(
            f"{out} ends neither in .json nor in .json.gz; say with --format what it is to be"
        )
    return ExportFormat.PARQUET


def _write_file(bundle: Bundle, selection: Selection, out: Path, chosen: ExportFormat) -> None:
    from spark_prof.exporters.perfetto import write_perfetto
    from spark_prof.exporters.speedscope import write_speedscope
    from spark_prof.files import write_whole

    write = write_speedscope if chosen is ExportFormat.SPEEDSCOPE else write_perfetto
    if out.name.lower().endswith(".gz"):
        from isal import igzip

        # A file object leaves no name and no time in the header: the same bundle, the same bytes.
        def compress(file: BinaryIO) -> None:
            with igzip.IGzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                write(bundle, selection, packed)

        write_whole(out, compress)
    else:
        write_whole(out, lambda file: write(bundle, selection, file))


class RowFormat(StrEnum):
    """How the rows are written."""

    TEXT = "text"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


_ENDINGS = {
    ".txt": RowFormat.TEXT, "": RowFormat.TEXT, ".csv": RowFormat.CSV, ".json": RowFormat.JSON,
    ".parquet": RowFormat.PARQUET,
}  # fmt: skip


def query(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... SQL", help="Bundles, traces or folders of them; the query last."
        ),
    ],
    format: Annotated[  # noqa: A002 - the option's name is that of the other commands
        RowFormat | None,
        typer.Option(help="How to write the rows; by default text, or what OUT's ending says."),
    ] = None,
    out: OutOption = None,
    limit: Limit = None,
) -> None:
    """Ask the tables of bundles in SQL; docs/query.md names the tables and their columns."""
    if len(sources) < 2:
        raise CommandError('give a source and a query: spark-prof query DIR "SHOW TABLES"')
    if exists(sources[-1]) and not exists(sources[0]):
        raise CommandError('the query comes last: spark-prof query DIR "SHOW TABLES"')
    chosen = format or format_by_ending(out, _ENDINGS)
    if chosen is RowFormat.PARQUET and out is None:
        raise CommandError("Parquet is no text; say with -o which file to write")
    if chosen is RowFormat.PARQUET and limit is not None:
        raise CommandError("Parquet gets all rows; say LIMIT in the query instead of --limit")
    if out is not None:
        check_folder(out.absolute().parent)
    from spark_prof.dashboards.query_result import WRITERS
    from spark_prof.datasets.sql_query import query as run
    from spark_prof.files import write_whole

    with opened_bundles(sources[:-1]) as bundles, run(bundles, sources[-1]) as result:
        if out is None:
            for text in WRITERS[chosen.value](result.columns, result.rows(), limit):
                show(text.removesuffix("\n"))
            return
        with os_errors(f"cannot write {out}"):
            if chosen is RowFormat.PARQUET:
                path = result.write_parquet()
                with open(path, "rb") as source:
                    write_whole(out, lambda file: shutil.copyfileobj(source, file))
            else:
                texts = WRITERS[chosen.value](result.columns, result.rows(), limit)
                write_whole(out, lambda file: file.writelines(text.encode() for text in texts))
    say(f"wrote {out}")


@contextmanager
def opened_bundles(sources: list[str]) -> Iterator[dict[str, Bundle]]:
    """All bundles and traces that the sources hold, by name; one that is broken is told."""
    from spark_prof.datasets.opened import opened
    from spark_prof.traces.resolve import recordings_below

    bundles: dict[str, Bundle] = {}
    failed: list[str] = []
    with ExitStack() as stack:
        for member in (member for source in sources for member in recordings_below(source)):
            try:
                bundle = stack.enter_context(opened(member.source))
            except CommandError as error:
                failed.append(str(error))
                continue
            bundles[member.name if member.name not in bundles else member.source] = bundle
        if not bundles:
            raise CommandError(failed[0])
        for line in failed:
            say(f"left out: {line}")
        yield bundles
