"""`spark-prof kernels tune`: the best configurations on this GPU, and where kernels win here."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from spark_prof.cli.kernels import NameOption, group
from spark_prof.cli.kernels_bench import (
    FromOption,
    ModelOption,
    TokensOption,
    asked,
    measured,
    on_gpu,
    raced_kernels,
)
from spark_prof.cli.options import FormatOption, Limit, OutOption, Section, page, put, say

_TOKENS = (1, 8, 16)
"""The dispatcher knows what lies between two measured numbers too."""
_BESIDE_S = 20
"""What measuring the machine, and ending what was begun, may take beside the search."""


@group.command(short_help="Find the best configurations on this GPU in minutes.")
def tune(
    name: NameOption = None,
    models: ModelOption = None,
    source: FromOption = None,
    tokens: TokensOption = None,
    minutes: Annotated[
        float, typer.Option(min=0.5, max=600, help="How long all of it may take.")
    ] = 4.5,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
) -> None:
    """Time kernels on this GPU, search better configurations, and keep them for this machine."""
    drawn_as = page(format, out, limit, section)
    listed = raced_kernels(name)
    on_gpu(listed)
    request, recorded = asked(listed, models or (), tokens or (), source, name)
    if not tokens:
        own = recorded.tokens if recorded else ()
        request = replace(request, tokens=sorted({*own, *_TOKENS}))
    seconds = 60 * minutes - _BESIDE_S
    report, right = measured(replace(request, seconds=seconds, seconds_each=0.05, tune=True))
    from spark_prof.dashboards.kernel_races import render_bench
    from spark_prof.kernels.bench.results import keep, run_of

    put(render_bench(report, *drawn_as, recorded), out)
    path = keep(report)
    rows = run_of(report).rows
    wins = sum(row.wins for row in rows)
    say(f"wrote {path}: the dispatcher takes the kernels for {wins} of {len(rows)} on this GPU")
    if not right:
        raise typer.Exit(1)
