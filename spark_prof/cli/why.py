"""`spark-prof why`: what makes one checkpoint or run decode faster than another."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_prof.cli.doctor import gpu_named
from spark_prof.cli.options import FormatOption, Limit, OutOption, Section, laid_out, put
from spark_prof.errors import CommandError

_MOST = 1_000_000_000
_MOST_GPUS = 1024


def why(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Folders with a config.json, or recordings."),
    ],
    gpu: Annotated[
        str | None, typer.Option(help="The GPU; by default that of a recording, else gb10.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Sequences at a time; by default a recording's, or 1."),
    ] = None,
    context: Annotated[
        int,
        typer.Option(min=0, max=_MOST, help="Tokens of context of each, of checkpoints."),
    ] = 0,
    ranks: Annotated[
        int | None,
        typer.Option("--tensor-parallel", min=1, max=_MOST_GPUS, help="GPUs that share a model."),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(metavar="X,Y", help="Tokens/s that were measured of each, to be explained."),
    ] = None,
    bench: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[:N,M]", help="The same from load generators' results, or a post of them."
        ),
    ] = None,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
) -> None:
    """Say why one checkpoint decodes faster than another: bytes, lower bound, kernel, precision."""
    drawn_as = laid_out(format, out, limit, section)
    if measured and bench:
        raise CommandError("--measured and --bench say the same; give one of them")
    named = gpu_named(gpu)
    from spark_prof.dashboards.why_report import render_why
    from spark_prof.datasets.why_sides import WhySettings, why_of

    question = WhySettings(named, batch, ranks, context, measured or "", tuple(bench or ()))
    put(render_why(why_of(sources, question), drawn_as), out)
