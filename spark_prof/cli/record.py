"""`spark-prof record`: makes a bundle from a live vLLM run."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.errors import CommandError
from spark_prof.profiler.settings import DEFAULT_STEPS, Settings

__all__ = ["Backend", "add_to", "record"]


class Backend(StrEnum):
    """What watches the kernels."""

    AUTO = "auto"
    CUPTI = "cupti"
    TORCH = "torch"


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    # Everything after the first word that is no option of ours belongs to the command.
    settings = {"allow_interspersed_args": False}
    app.command(context_settings=settings)(record)


def record(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="What starts vLLM: vllm serve, vllm bench, python script.py, docker run ...",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The bundle's folder; by default named by the time."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=0, help="Steps to record; 0 records until the command ends.")
    ] = DEFAULT_STEPS,
    warmup_steps: Annotated[
        int, typer.Option(min=0, help="Steps to let pass before recording begins.")
    ] = 0,
    decode_only: Annotated[
        bool, typer.Option("--decode-only", help="Record only steps without any prefill.")
    ] = False,
    backend: Annotated[Backend, typer.Option(help="What watches the kernels.")] = Backend.AUTO,
    counters: Annotated[
        bool, typer.Option("--counters", help="Also sample the GPU's hardware counters.")
    ] = False,
    attach: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Record the server that listens there instead."),
    ] = None,
) -> int:
    """Run COMMAND, record every step of its vLLM engine, and write a bundle."""
    if bool(command) == bool(attach):
        raise CommandError(
            "give either a command after -- or --attach URL, such as: "
            "spark-prof record -- vllm serve MODEL"
        )
    folder = (out or Path(time.strftime("spark-prof-%Y%m%d-%H%M%S"))).absolute()
    settings = Settings(
        bundle=str(folder),
        steps=steps,
        warmup_steps=warmup_steps,
        decode_only=decode_only,
        backend=backend.value,
        counters=counters,
    )
    if attach:
        from spark_prof.profiler.attach import attach as attach_to

        bundle, code = attach_to(attach, settings, _say), 0
    else:
        from spark_prof.profiler.record import record as record_command

        bundle, code = record_command(command or [], settings, _say)
    steps_found = sum(n for name, n in bundle.meta.tables.items() if name.startswith("steps-"))
    ranks = len(bundle.ranks)
    shown = out or folder.name
    _say(
        f"{steps_found // max(ranks, 1)} steps"
        + (f" on each of {ranks} ranks" if ranks > 1 else "")
        + f" in {shown}; next: spark-prof report {shown}"
    )
    if code:
        _say(f"the command itself ended with exit code {code}")
    return 1 if code else 0


def _say(line: str) -> None:
    print(f"spark-prof: {line}", file=sys.stderr, flush=True)
