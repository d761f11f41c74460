"""`spark-prof import`: a bundle out of traces that something else recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli.options import next_report, say
from spark_prof.cli.written import AnswerOption, WriteReceipt, print_json_answer
from spark_prof.datasets.engines import Executor
from spark_prof.errors import CommandError


def import_traces(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Traces of one run, archives or folders of them, results of load generators.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="The bundle's folder.")
    ],
    like: Annotated[
        Path | None,
        typer.Option(
            help="A bundle or trace of the same model with known layers, such as an eager run: "
            "kernels in CUDA graphs take theirs from it."
        ),
    ] = None,
    each_recording: Annotated[
        bool,
        typer.Option(
            "--each", help="Import every recording of a folder into a bundle of its own below OUT."
        ),
    ] = False,
    engine: Annotated[
        Executor, typer.Option(help="Where the recordings of --each are imported.")
    ] = Executor.LOCAL,
    kind: AnswerOption = WriteReceipt.TEXT,
) -> None:
    """Make a bundle of what nsys, PyTorch's profiler, Proton, ncu or a load generator wrote."""
    if each_recording:
        _import_each(files, out, like, engine, kind)
        return
    if engine is not Executor.LOCAL:
        raise CommandError("--engine spreads many imports over a cluster: give --each with it")
    from contextlib import ExitStack

    from spark_prof.importers.sources import import_files
    from spark_prof.traces.claim import Claim
    from spark_prof.traces.resolve import fetched_path

    with ExitStack() as stack:
        claim = stack.enter_context(Claim(out))
        paths = [stack.enter_context(fetched_path(file)) for file in files]
        bundle = import_files(paths, claim, like)
    if print_json_answer(kind, "import", out, "bundle", bundle.meta.lost, bundle=bundle):
        return
    ranks = ", ".join(map(str, bundle.ranks))
    words = f"ranks {ranks}" if len(bundle.ranks) > 1 else f"rank {ranks}"
    say(f"{words} in {out}; {next_report(out)}")
    for line in bundle.meta.lost:
        say(line)


def _import_each(
    files: list[str], out: Path, like: Path | None, engine: Executor, kind: WriteReceipt
) -> None:
    from spark_prof.datasets.every_recording import import_each

    if len(files) != 1:
        raise CommandError("--each wants one folder of recordings")
    outcomes = import_each(files[0], out, like, engine)
    failed = [(name, outcome.reason) for name, outcome in outcomes if outcome.value is None]
    notes = [f"{name}: {reason}" for name, reason in failed]
    for line in notes:
        say(line)
    if len(failed) == len(outcomes):
        raise CommandError(
            f"none of the {len(outcomes)} recordings in {files[0]} could be imported"
        )
    if print_json_answer(kind, "import", out, "bundles", notes):
        return
    say(f"{len(outcomes) - len(failed)} of {len(outcomes)} recordings in {out}; {next_report(out)}")
