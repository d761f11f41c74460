"""`spark-prof salvage`: makes a bundle of what a dead recording left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.options import next_report, say
from spark_prof.cli.written import Answer, AnswerOption, told
from spark_prof.dashboards.units import counted

if TYPE_CHECKING:
    from spark_prof.traces.assemble import Salvage


def salvage(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that a killed recording wrote into.")
    ],
    kind: AnswerOption = Answer.TEXT,
) -> None:
    """Make a bundle of everything that a killed recording had flushed."""
    from spark_prof.profiler.launcher import quarters
    from spark_prof.traces.assemble import salvage as salvage_folder

    found = salvage_folder(folder, progress=quarters(say))
    missing = [line for rank in found.ranks for line in rank.missing]
    if told(kind, "salvage", folder, "bundle", [*missing, *found.missing], bundle=found.bundle):
        return
    for line in _lines(found):
        print(line)
    if found.made:
        say(f"{folder} is a bundle now; {next_report(folder)}")
    else:
        say(f"{folder} is a whole bundle ({found.bundle.meta.state}); there is nothing to salvage")


def _lines(found: Salvage) -> list[str]:
    lines = []
    for rank in found.ranks:
        told = f"{counted(rank.steps, 'step')} and {counted(rank.kernels, 'kernel')}"
        lines.append(f"rank {rank.rank}: {told} in {counted(rank.pieces, 'piece')}")
        lines += [f"  missing: {line}" for line in rank.missing]
    return lines + [f"missing: {line}" for line in found.missing]
