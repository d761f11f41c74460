"""`spark-prof record`: makes a bundle from a live vLLM run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli.live import closing_screen, live_screen
from spark_prof.cli.options import next_report, say, whole_numbers
from spark_prof.cli.written import AnswerOption, WriteReceipt, print_json_answer, stdout_is_ours
from spark_prof.errors import CommandError
from spark_prof.profiler.settings import DEFAULT_STEPS, Settings


class BackendOption(StrEnum):
    """What watches the kernels."""

    AUTO = "auto"
    CUPTI = "cupti"
    NSYS = "nsys"
    TORCH = "torch"


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
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="The bundle's folder; by default named by the time.",
        ),
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
    steady: Annotated[
        bool,
        typer.Option(
            "--steady",
            help="Record --steps decode steps of each batch size, once their times have settled.",
        ),
    ] = False,
    batch_sizes: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="With --steady: end when these batch sizes are done."),
    ] = None,
    duty_cycle: Annotated[
        str | None,
        typer.Option(
            "--duty-cycle",
            "--stretches",
            metavar="STEPS/PERIOD",
            help="Profile so many steps of each period and only time the others; 1/1 profiles all. "
            "By default 8/256 on an NVIDIA GPU after the first steps of each kind; 25/50 with "
            "--steady.",
        ),
    ] = None,
    backend: Annotated[
        BackendOption, typer.Option(help="What watches the kernels.")
    ] = BackendOption.AUTO,
    counters: Annotated[
        bool, typer.Option("--counters", help="Also sample the GPU's hardware counters.")
    ] = False,
    nvtx: Annotated[
        bool, typer.Option("--nvtx", help="Also record the NVTX ranges of the command.")
    ] = False,
    host: Annotated[
        bool,
        typer.Option(
            "--host", help="Also sample the Python stacks of its processes from outside (py-spy)."
        ),
    ] = False,
    attach: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Record the server that listens there instead."),
    ] = None,
    stop: Annotated[
        bool,
        typer.Option("--stop", help="With --attach: end the recording of that server, if any."),
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live/--no-live", help="Show times and kernels while it records, in a terminal."
        ),
    ] = True,
    answer: AnswerOption = WriteReceipt.TEXT,
) -> int:
    """Run COMMAND, record every step of its vLLM engine, and write a bundle."""
    if stop:
        if command or not attach:
            raise CommandError("--stop belongs to --attach URL; give both, and no command")
        from spark_prof.profiler.attach import stop_recording

        stop_recording(attach, say)
        return 0
    if bool(command) == bool(attach):
        raise CommandError(
            "give either a command after -- or --attach URL, such as: "
            "spark-prof record -- vllm serve MODEL"
        )
    folder = (out or Path(time.strftime("spark-prof-%Y%m%d-%H%M%S"))).absolute()
    if batch_sizes is not None and not steady:
        raise CommandError("--batch-sizes belongs to --steady; give both")
    if duty_cycle is None and (steady or host):
        duty_cycle = "25/50"  # without recorded kernels a step has no gaps
    if steady and warmup_steps:
        raise CommandError("--steady waits by itself until steps settle; leave out --warmup-steps")
    if nvtx and (attach or backend not in (BackendOption.AUTO, BackendOption.CUPTI)):
        raise CommandError(
            "--nvtx needs the CUPTI backend from the start of a command; leave it out "
            "(the nsys backend keeps NVTX in its own report)"
        )
    if host and attach:
        raise CommandError("--host needs a command that spark-prof starts; leave it out")
    stretch, period = 0, 0
    if duty_cycle is not None:
        numbers = whole_numbers(duty_cycle, "--duty-cycle 50/1000", separator="/", repeats=True)
        if len(numbers) != 2 or numbers[0] > numbers[1]:
            raise CommandError(
                f"{duty_cycle!r:.40} is no duty cycle; give --duty-cycle 50/1000, say"
            )
        stretch, period = numbers
    settings = Settings(
        bundle=str(folder),
        steps=steps,
        warmup_steps=warmup_steps,
        decode_only=decode_only,
        steady=steady,
        batch_sizes=() if batch_sizes is None else whole_numbers(batch_sizes, "--batch-sizes 1,8"),
        stretch=stretch,
        period=period,
        sampled=duty_cycle is None,
        backend=backend.value,
        counters=counters,
        nvtx=nvtx,
        host=host,
    )
    screen = live_screen(settings.pieces) if live and answer is WriteReceipt.TEXT else None
    if attach:
        if backend is BackendOption.NSYS:
            raise CommandError(
                "nsys cannot begin to watch a running server; start it under 'spark-prof record "
                "--backend nsys -- vllm serve ...'"
            )
        from spark_prof.profiler.attach import attach as attach_to

        with closing_screen(screen):
            bundle, code = attach_to(attach, settings, say, screen), 0
    else:
        from spark_prof.profiler.launcher import record as record_command

        with stdout_is_ours(answer), closing_screen(screen):
            bundle, code = record_command(command or [], settings, say, screen)
    target = out or folder.name
    if print_json_answer(answer, "record", target, "bundle", bundle.meta.lost, None, bundle, code):
        return 1 if code else 0
    say(f"{steps_of(bundle.meta.tables)} in {target}; {next_report(target)}")
    if code:
        say(f"the command itself ended with exit code {code}")
    return 1 if code else 0


def steps_of(tables: Mapping[str, int]) -> str:
    """How many steps there are; replicas of a model each have their own number."""
    counts = [n for name, n in tables.items() if name.startswith("steps-")]
    least, most = min(counts, default=0), max(counts, default=0)
    count = f"{least} steps" if least == most else f"{least} to {most} steps"
    return count + (f" on each of {len(counts)} ranks" if len(counts) > 1 else "")
