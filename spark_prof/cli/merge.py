"""`spark-prof merge`: one bundle from what several hosts recorded of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli.options import next_report, say
from spark_prof.cli.written import Answer, AnswerOption, told
from spark_prof.errors import CommandError


def merge(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE SOURCE...",
            help="What each host wrote: a bundle, or the folder that holds its pieces.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The merged bundle's folder.")],
    kind: AnswerOption = Answer.TEXT,
) -> None:
    """Join the ranks of one run that were recorded on several hosts, on one clock."""
    if len(sources) < 2:
        raise CommandError("give at least two folders to merge, each with other ranks of one run")
    from spark_prof.analyzers.ranks.rank_clocks import wanted_shifts
    from spark_prof.traces.assemble import open_bundle
    from spark_prof.traces.claim import staged
    from spark_prof.traces.merge_ranks import join_bundles, move_clocks, open_parts

    with staged(out) as staging:
        parts = open_parts(sources)
        bundle = join_bundles(parts, staging)
        shifts, lost = wanted_shifts(bundle)
        bundle = move_clocks(bundle, shifts, lost)
    notes = []
    for process, shift in shifts.items():
        done = "moved" if shift.applied else "left as they were"
        notes.append(
            f"{process}: clock {shift.offset_ns / 1e3:+,.1f} us "
            f"± {shift.uncertainty_ns / 1e3:,.1f} us against rank {shift.reference_rank}; "
            f"times {done}"
        )
    notes += lost
    if told(kind, "merge", out, "bundle", notes, bundle=open_bundle(out)):
        return
    ranks = ", ".join(map(str, bundle.ranks))
    say(f"ranks {ranks} in {out}; {next_report(out)}")
    for line in notes:
        say(line)
