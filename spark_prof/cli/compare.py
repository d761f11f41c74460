"""`spark-prof compare`: where the difference between recordings comes from, and a gate for it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.option_class import takes
from spark_prof.cli.options import (
    AllSections,
    FormatOption,
    Limit,
    OutOption,
    Section,
    laid_out,
    put,
    say,
)
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.comparing.load_tests import LoadComparison
    from spark_prof.dashboards.compare_report import CompareRun
    from spark_prof.traces.resolve import Source

_MOST = 25
_MOST_RECORDINGS = 200


@dataclass(frozen=True)
class CompareOptions:
    """What `compare` is asked for."""

    reference: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="What the others are held to: a bundle or a trace, or several engine starts of "
            "the same thing as A1,A2,A3.",
        ),
    ]
    other_sources: Annotated[
        list[str], typer.Argument(metavar="B", help="What is compared with it.")
    ]
    format: FormatOption = None
    out: OutOption = None
    all_sections: AllSections = False
    limit: Limit = None
    section: Section = None
    rank: Annotated[
        int | None, typer.Option(help="The rank to compare; by default the lowest.")
    ] = None
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPR",
            help="Exit with code 1 if this holds, such as 'decode_us.median > 3%'; repeatable.",
        ),
    ] = None
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 on undecided limits too.")
    ] = False

    @property
    def sources(self) -> tuple[str, ...]:
        """What is compared, the reference first."""
        return (self.reference, *self.other_sources)


@takes(CompareOptions)
def compare(options: CompareOptions) -> None:
    """Show where the difference between recordings comes from: components, layers, kernels."""
    from spark_prof.analyzers.comparing.threshold_expression import parse

    gates = [parse(text) for text in options.fail_on or ()]
    drawn_as = laid_out(options.format, options.out, options.limit, options.section)
    if len(options.other_sources) > _MOST:
        raise CommandError(
            f"{len(options.other_sources) + 1} sides are too many; compare at most 26"
        )
    from spark_prof.analyzers.comparing.compare_sides import compare as compare_sides
    from spark_prof.analyzers.comparing.comparison import side_names
    from spark_prof.analyzers.comparing.thresholds import check
    from spark_prof.dashboards.compare_report import CompareRun, render_comparison
    from spark_prof.dashboards.load_comparison import render_loads
    from spark_prof.datasets.opened import read_side, recordings_of
    from spark_prof.traces.checkpoint import is_model
    from spark_prof.traces.resolve import LoadTest

    models = [source for source in options.sources if is_model(source)]
    if models and len(models) == len(options.other_sources) + 1:
        again = shlex.join(["spark-prof", "why", *models])
        raise CommandError(f"these are models and no recordings; ask: {again}")
    sides = [recordings_of(source) for source in options.sources]
    if sum(map(len, sides)) > _MOST_RECORDINGS:
        raise CommandError(
            f"{sum(map(len, sides))} recordings are too many; compare at most {_MOST_RECORDINGS}"
        )
    if any(isinstance(source, LoadTest) for side in sides for source in side):
        put(render_loads(_loads(sides, options.fail_on), drawn_as), options.out)
        return
    a, *rest = ([read_side(source, options.rank) for source in side] for side in sides)
    first, *names = side_names([[recording.source for recording in side] for side in (a, *rest)])
    comparisons = tuple(
        compare_sides(a, side, (first, name)) for side, name in zip(rest, names, strict=True)
    )
    gate = tuple(check(comparison, gates) for comparison in comparisons) if gates else ()
    compared = CompareRun(comparisons, gate)
    put(render_comparison(compared, drawn_as, whole=options.all_sections), options.out)
    if _failed(compared, options.strict):
        raise typer.Exit(1)


def _loads(sides: list[list[Source]], fail_on: list[str] | None) -> LoadComparison:
    """The comparison of results of load generators, of which all have to be."""
    from spark_prof.analyzers.comparing.comparison import side_names
    from spark_prof.analyzers.comparing.load_tests import compare_loads
    from spark_prof.traces.benchmarks.read import read_benchmark
    from spark_prof.traces.resolve import LoadTest

    every = [source for side in sides for source in side]
    tested = [source for source in every if isinstance(source, LoadTest)]
    recorded = [source for source in every if not isinstance(source, LoadTest)]
    if recorded:
        raise CommandError(
            f"{tested[0].name} is a load generator's result and {recorded[0].name} is none; "
            f"spark-prof report {shlex.quote(recorded[0].name)} --bench "
            f"{shlex.quote(tested[0].name)} holds one beside the other"
        )
    if len(sides) != 2 or fail_on:
        raise CommandError(
            "results of load generators are compared two sides at a time and without --fail-on, "
            "which needs recordings"
        )
    a, b = ([read_benchmark(Path(source.name)) for source in side] for side in sides)
    first, second = side_names([[source.name for source in side] for side in sides])
    return compare_loads(a, b, (first, second))


def _failed(compared: CompareRun, strict: bool) -> bool:
    """Tells what became of every limit that was not kept; whether that is a failure."""
    from spark_prof.dashboards.compare_gate import reason

    failed = False
    for comparison, checked in zip(compared.comparisons, compared.gate, strict=False):
        for limit in checked:
            if limit.outcome != "passed":
                say(f"gate {reason(limit, comparison.names)}")
                failed |= limit.outcome == "failed" or strict
    return failed
