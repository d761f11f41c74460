"""`spark-prof why`: what makes one checkpoint or run decode faster than another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_prof.cli.doctor import gpu_named, question_of
from spark_prof.cli.options import FormatOption, Limit, OutOption, Section, laid_out, put
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.model import Report
    from spark_prof.traces.checkpoint import Checkpoint

_DEFAULT_GPU = "gb10"
_MOST = 6


def why(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Folders with a config.json, or recordings."),
    ],
    gpu: Annotated[
        str | None, typer.Option(help="The GPU; by default that of a recording, else gb10.")
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, help="Sequences at a time, of checkpoints.")
    ] = 1,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
) -> None:
    """Say why one checkpoint decodes faster than another: bytes, lower bound, kernel, precision."""
    drawn_as = laid_out(format, out, limit, section)
    if len(sources) > _MOST:
        raise CommandError(f"{len(sources)} sides are too many; give at most {_MOST}")
    from spark_prof.analyzers.why import (
        Why,
        answer_of,
        next_of,
        side_of_checkpoint,
        side_of_recording,
        what_ifs,
    )
    from spark_prof.dashboards.why_report import render_why
    from spark_prof.rules.gpus import find_gpu
    from spark_prof.traces.checkpoint import Checkpoint

    sources = [
        str(Path(source).parent) if Path(source).name == "config.json" else source
        for source in sources
    ]
    question = question_of(batch)
    named = gpu_named(gpu)
    found = [_read(source) for source in sources]
    reports = [each[0] for each in found if not isinstance(each, Checkpoint)]
    recorded = [find_gpu(r.gpu.name, r.gpu.compute_capability) for r in reports]
    shown = named or next(filter(None, recorded), None) or gpu_named(_DEFAULT_GPU)
    assert shown is not None
    sides, checkpoints = [], []
    for name, each in zip(_names(sources), found, strict=True):
        if isinstance(each, Checkpoint):
            checkpoints.append(each)
            sides.append(side_of_checkpoint(each, name, shown, question))
        else:
            sides.append(side_of_recording(each[0], name, shown, each[1]))
    findings = [() if isinstance(each, Checkpoint) else each[0].findings for each in found]
    speed, said_by = shown.bandwidth.value, shown.bandwidth.source
    answer = Why(
        shown.name,
        speed,
        said_by,
        tuple(sides),
        tuple(what_ifs(checkpoints[0], shown, question)) if checkpoints else (),
        tuple(answer_of(sides, shown)),
        next_of(sides, findings, sources),
    )
    put(render_why(answer, drawn_as), out)


def _read(source: str) -> tuple[Report, Mapping[str, Any]] | Checkpoint:
    """A checkpoint, or the report of a recording with the configuration of its model."""
    from spark_prof.traces.checkpoint import is_model, model_folder, read_checkpoint

    if is_model(source):
        return read_checkpoint(model_folder(source))
    if not Path(source).exists():
        model_folder(source)  # says where a model of that name would be
    from spark_prof.analyzers.lookup import mapping_in
    from spark_prof.analyzers.summary import summarize
    from spark_prof.datasets.opened import opened

    with opened(source) as bundle:
        report = summarize(bundle)
        config = mapping_in(bundle.facts(bundle.ranks[0]), "model_config")
    if report.run.units == "op":
        raise CommandError(
            f"{source:.200} is of a CPU engine: what it reads and computes says nothing of a GPU"
        )
    return report, config


def _names(sources: list[str]) -> list[str]:
    """The last part of each name, or all of it where two are alike."""
    last = [Path(source).name or source for source in sources]
    return last if len(set(last)) == len(last) else list(sources)
