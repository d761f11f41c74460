"""`spark-prof report`: where the time of a recording went."""

from __future__ import annotations

from collections.abc import Sequence
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
    check_folder,
    laid_out,
    next_report,
    put,
    say,
)
from spark_prof.cli.written import print_json_answer
from spark_prof.dashboards.section import Layout
from spark_prof.datasets.engines import Executor
from spark_prof.errors import CommandError, os_errors

if TYPE_CHECKING:
    from spark_prof.analyzers.model import Report
    from spark_prof.traces.benchmarks.load_test import BenchmarkResult
    from spark_prof.traces.bundle import Bundle
    from spark_prof.traces.resolve import AbResult, Folder


@dataclass(frozen=True)
class ReportOptions:
    """What `report` is asked for."""

    source: Annotated[
        str,
        typer.Argument(
            help="A bundle, a trace, a folder of them, the URL of one, or a result of ab."
        ),
    ]
    format: FormatOption = None
    out: OutOption = None
    all_sections: AllSections = False
    section: Section = None
    limit: Limit = None
    share: Annotated[
        Path | None,
        typer.Option(help="Write the recording to this .zip, without what is private, to send it."),
    ] = None
    card: Annotated[
        Path | None,
        typer.Option(help="Draw its verdict and parts as this .png, a picture to post."),
    ] = None
    layer: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="The kernels of one layer, beside layers like it."),
    ] = None
    rank: Annotated[int | None, typer.Option(help="The rank to report; by default the lowest.")] = (
        None
    )
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Only steps in which N requests decode, beside those that read prompts alone.",
        ),
    ] = None
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="A load generator's result to compare the steps with; repeatable."),
    ] = None
    measured: Annotated[
        Path | None,
        typer.Option(help="Ceilings that doctor --measure kept; by default those of this machine."),
    ] = None
    engine: Annotated[Executor, typer.Option(help="Where the recordings of a folder are read.")] = (
        Executor.LOCAL
    )

    @property
    def layout(self) -> Layout:
        """How to draw it; refuses a missing folder before any work is done."""
        return laid_out(self.format, self.out, self.limit, self.section)


@takes(ReportOptions)
def report(options: ReportOptions) -> None:
    """Show where the time of a recording went: steps, components, layers, kernels."""
    layout = options.layout
    if options.card:
        check_picture(options.card)
    from spark_prof.traces.resolve import AbResult, Folder, LoadTest, fetched, resolve

    source = resolve(options.source)
    if isinstance(source, AbResult | Folder):
        put(_several(source, options, layout), options.out)
        return
    from spark_prof.datasets.opened import opened
    from spark_prof.traces.benchmarks.read import read_benchmark

    results = [read_benchmark(path) for path in options.bench or ()]
    with fetched(source) as local:
        if isinstance(local, LoadTest):
            from spark_prof.dashboards.dataset_report import render_clients

            put(render_clients([read_benchmark(local.path), *results], layout), options.out)
            return
        with opened(local) as bundle:
            drawn = _one_recording(bundle, options, layout, results)
    if drawn is not None:
        put(drawn, options.out)


def _several(source: AbResult | Folder, options: ReportOptions, layout: Layout) -> str:
    """What was measured of several engines, or the recordings of a folder, drawn."""
    from spark_prof.traces.resolve import AbResult, SpeculateFile, TuneFile

    of_one = (options.rank, options.layer, options.batch, options.measured, options.card)
    if options.bench or any(option is not None for option in of_one):
        command = "a result of spark-prof ab, tune or speculate"
        contents = command if isinstance(source, AbResult) else "several recordings"
        raise CommandError(
            f"{options.source} holds {contents}; --rank, --layer, --batch, --bench, --measured and "
            "--card need one recording"
        )
    whole = options.all_sections
    if not isinstance(source, AbResult):
        return report_dataset(source, layout, options.engine, whole=whole)
    if isinstance(source, TuneFile):
        from spark_prof.dashboards.tune_report import render_tune
        from spark_prof.tune.tune_result import read_tune

        return render_tune(read_tune(source.file), layout, whole=whole)
    if isinstance(source, SpeculateFile):
        from spark_prof.dashboards.speculate_report import render_speculate
        from spark_prof.speculate.speculate_result import read_speculate

        return render_speculate(read_speculate(source.file), layout, whole=whole)
    from spark_prof.ab.result import read_result
    from spark_prof.dashboards.ab_report import render_ab

    return render_ab(read_result(source.file), layout, whole=whole, source=str(source.file))


def _one_recording(
    bundle: Bundle, options: ReportOptions, layout: Layout, results: Sequence[BenchmarkResult]
) -> str | None:
    """A recording's report, drawn; None where it went into a file of its own."""
    from spark_prof.analyzers.summary import summary_of
    from spark_prof.dashboards.render import render_report
    from spark_prof.datasets.opened import ceilings_for

    if options.share:
        share_recording(bundle, options.share, layout.kind)
        return None
    if bundle.imported:
        bundle.named = options.source
    if options.layer is not None:
        return report_layer(bundle, options.rank, options.layer, layout, options.batch)
    ceilings = ceilings_for(bundle, options.rank, options.measured)
    report = summary_of(bundle, options.rank, None, ceilings, results, options.batch).report
    if options.card:
        draw_card(report, options.card)
        return None
    # What is drawn is read from the bundle when it is drawn.
    return render_report(report, layout, whole=options.all_sections)


def check_picture(out: Path) -> None:
    """Refuses what cannot become a picture before anything is read."""
    from spark_prof.dashboards.render.card_png import NO_PILLOW, has_pillow

    if out.suffix.lower() != ".png":
        raise CommandError(f"{out} is a picture; let its name end in .png")
    if not has_pillow():
        raise CommandError(NO_PILLOW)
    check_folder(out.absolute().parent)


def draw_card(report: Report, out: Path) -> None:
    """Writes the picture of a report's one screen."""
    from spark_prof.dashboards.render.card_png import card_of, card_png
    from spark_prof.dashboards.short_report import short_report

    drawn = card_png(card_of(short_report(report)))
    with os_errors(f"cannot write {out}"):
        out.write_bytes(drawn)
    say(f"wrote {out}")


def report_layer(
    bundle: Bundle, rank: int | None, layer: int, drawn_as: Layout, batch: int | None = None
) -> str:
    """One layer of a recording, drawn."""
    from spark_prof.analyzers.one_layer import layer_of
    from spark_prof.analyzers.summary import summary_of
    from spark_prof.dashboards.render import draw
    from spark_prof.dashboards.sections import layer_section, run_section

    summary = summary_of(bundle, rank, batch=batch)
    one_layer = layer_of(summary, layer)
    drawn = layer_section.one_layer(one_layer, run_section.title(summary.report))
    return draw(lambda: drawn, lambda: one_layer, drawn_as)


def share_recording(bundle: Bundle, out: Path, kind: str) -> None:
    """Writes what somebody else may see of a recording, and says how to look at it."""
    from spark_prof.dashboards.shared_report import shared_lines
    from spark_prof.exporters.shared_recording import SharedRecording

    if out.suffix != ".zip":
        raise CommandError(f"{out} is a zip file; let its name end in .zip")
    check_folder(out.absolute().parent)
    with os_errors(f"cannot write {out}"):
        shared = SharedRecording(bundle)
        for line in shared_lines(shared.sent):
            say(line)
        shared.write(out)
    if print_json_answer(kind, "report", out, "zip"):
        return
    say(f"wrote {out}, {out.stat().st_size / 1e6:.1f} MB, which holds what is listed above")
    say(next_report(out))


def report_dataset(
    folder: Folder, drawn_as: Layout, engine: Executor, *, whole: bool = False
) -> str:
    """The report of all recordings in a folder, drawn."""
    from spark_prof.dashboards.dataset_report import render_dataset
    from spark_prof.datasets.every_recording import summarize_dataset

    dataset = summarize_dataset(folder, engine)
    if not dataset.recordings:
        first = dataset.failures[0]
        raise CommandError(
            f"no recording in {folder.name} could be read: {first.name}: {first.reason}"
        )
    return render_dataset(dataset, drawn_as, whole=whole)
