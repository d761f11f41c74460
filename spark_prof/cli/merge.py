"""`spark-prof import`, `merge` and `salvage`: a bundle of what others recorded or left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from spark_prof.cli.options import next_report, say
from spark_prof.cli.written import AnswerOption, WriteReceipt, print_json_answer
from spark_prof.dashboards.units import counted
from spark_prof.datasets.engines import Executor
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.traces.assemble import Salvage


def merge(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE SOURCE...",
            help="What each host wrote: a bundle, or the folder that holds its pieces.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="The merged bundle's folder.")
    ],
    same_run: Annotated[
        bool,
        typer.Option(
            "--same-run", help="Take them for one run, whatever their steps and clocks say."
        ),
    ] = False,
    kind: AnswerOption = WriteReceipt.TEXT,
) -> None:
    """Join the ranks of one run that were recorded on several hosts, on one clock."""
    if len(sources) < 2:
        raise CommandError("give at least two folders to merge, each with other ranks of one run")
    from spark_prof.analyzers.ranks.rank_clocks import wanted_shifts
    from spark_prof.analyzers.ranks.same_run import made_by_one_call, why_other_runs, why_torn
    from spark_prof.traces.assemble import open_bundle
    from spark_prof.traces.claim import staged
    from spark_prof.traces.merge_ranks import join_bundles, move_clocks, open_parts

    with staged(out) as staging:
        parts = open_parts(sources)
        told_so = same_run or made_by_one_call(parts)
        for part in () if told_so else parts[1:]:
            if why := why_other_runs(parts[0], part):
                _refuse(parts[0].path, part.path, why)
        bundle = join_bundles(parts, staging)
        if not told_so and (why := why_torn(bundle)):
            _refuse(parts[0].path, parts[1].path, why)
        shifts, lost = wanted_shifts(bundle)
        bundle = move_clocks(bundle, shifts, lost)
    notes = []
    for process, shift in shifts.items():
        outcome = "moved" if shift.applied else "left as they were"
        notes.append(
            f"{process}: clock {shift.offset_ns / 1e3:+,.1f} us "
            f"± {shift.uncertainty_ns / 1e3:,.1f} us against rank {shift.reference_rank}; "
            f"times {outcome}"
        )
    notes += lost
    if print_json_answer(kind, "merge", out, "bundle", notes, bundle=open_bundle(out)):
        return
    ranks = ", ".join(map(str, bundle.ranks))
    say(f"ranks {ranks} in {out}; {next_report(out)}")
    for line in notes:
        say(line)


def _refuse(first: Path, second: Path, why: str) -> NoReturn:
    raise CommandError(
        f"{first} and {second} are not of one run: {why}. If you know better: --same-run"
    )


def salvage(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that a killed recording wrote into.")
    ],
    kind: AnswerOption = WriteReceipt.TEXT,
) -> None:
    """Make a bundle of everything that a killed recording had flushed."""
    from spark_prof.profiler.launcher import quarters
    from spark_prof.traces.assemble import salvage as salvage_folder

    salvaged = salvage_folder(folder, progress=quarters(say))
    missing = [line for rank in salvaged.ranks for line in rank.missing]
    if print_json_answer(
        kind, "salvage", folder, "bundle", [*missing, *salvaged.missing], bundle=salvaged.bundle
    ):
        return
    for line in _lines(salvaged):
        print(line)
    if salvaged.newly_assembled:
        say(f"{folder} is a bundle now; {next_report(folder)}")
    else:
        state = salvaged.bundle.meta.state
        say(f"{folder} is a whole bundle ({state}); there is nothing to salvage")


def _lines(salvaged: Salvage) -> list[str]:
    lines = []
    for rank in salvaged.ranks:
        amount = f"{counted(rank.steps, 'step')} and {counted(rank.kernels, 'kernel')}"
        lines.append(f"rank {rank.rank}: {amount} in {counted(rank.pieces, 'piece')}")
        lines += [f"  missing: {line}" for line in rank.missing]
    return lines + [f"missing: {line}" for line in salvaged.missing]


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
