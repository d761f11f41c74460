"""`spark-prof compare`: where the difference between recordings comes from, and a gate for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.options import FormatOption, Limit, OutOption, Section, laid_out, put, say
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.dashboards.compare_report import Compared

_MOST = 25
_MOST_RECORDINGS = 200


def compare(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="What the others are held to: a bundle or a trace, or several engine starts of "
            "the same thing as A1,A2,A3.",
        ),
    ],
    others: Annotated[list[str], typer.Argument(metavar="B", help="What is compared with it.")],
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
    rank: Annotated[
        int | None, typer.Option(help="The rank to compare; by default the lowest.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPR",
            help="Exit with code 1 if this holds, such as 'decode_us.median > 3%'; repeatable.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 on undecided limits too.")
    ] = False,
) -> None:
    """Show where the difference between recordings comes from: components, layers, kernels."""
    from spark_prof.analyzers.comparing.threshold_expression import parse

    gates = [parse(text) for text in fail_on or ()]
    drawn_as = laid_out(format, out, limit, section)
    if len(others) > _MOST:
        raise CommandError(f"{len(others) + 1} sides are too many; compare at most 26")
    from spark_prof.analyzers.comparing.compare_sides import compare as compare_sides
    from spark_prof.analyzers.comparing.comparison import side_names
    from spark_prof.analyzers.comparing.thresholds import check
    from spark_prof.dashboards.compare_report import Compared, render_comparison
    from spark_prof.datasets.compared import read_side, recordings_of

    sides = [recordings_of(source) for source in (reference, *others)]
    if sum(map(len, sides)) > _MOST_RECORDINGS:
        raise CommandError(
            f"{sum(map(len, sides))} recordings are too many; compare at most {_MOST_RECORDINGS}"
        )
    a, *rest = ([read_side(source, rank) for source in side] for side in sides)
    first, *names = side_names([[each.source for each in side] for side in (a, *rest)])
    found = tuple(
        compare_sides(a, side, (first, name)) for side, name in zip(rest, names, strict=True)
    )
    gate = tuple(check(each, gates) for each in found) if gates else ()
    compared = Compared(found, gate)
    put(render_comparison(compared, drawn_as), out)
    if _failed(compared, strict):
        raise typer.Exit(1)


def _failed(compared: Compared, strict: bool) -> bool:
    """Tells what became of every limit that was not kept; whether that is a failure."""
    from spark_prof.dashboards.compare_gate import reason

    failed = False
    for found, checked in zip(compared.found, compared.gate, strict=False):
        for each in checked:
            if each.outcome != "passed":
                say(f"gate {reason(each, found.names)}")
                failed |= each.outcome == "failed" or strict
    return failed
