"""`spark-prof query`: SQL over the tables of one bundle or of many."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.options import Limit, OutOption, check_folder, format_by_ending, say, show
from spark_prof.errors import CommandError, os_errors

if TYPE_CHECKING:
    from spark_prof.traces.bundle import Bundle


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
