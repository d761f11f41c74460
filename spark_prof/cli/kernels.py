"""`spark-prof kernels`: the replacement kernels, whether they are right here, and how fast."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from spark_prof.cli.options import FormatOption, OutOption, check_folder, page, put, say
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.kernels.bench.results import Report
    from spark_prof.kernels.candidate import Candidate
    from spark_prof.kernels.check.verdict import Verdict
    from spark_prof.kernels.registry import ReplacementKernel


class Device(StrEnum):
    """Where kernels are checked."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


_FOR_THIS_PROJECT = r"  # (type: ignore|noqa).*"
"""What only this project's own linters read."""


class Slot(StrEnum):
    """The places of a model whose kernel can be swapped: `spark_prof.swaps.swap_settings.SLOTS`."""

    QKV = "qkv"
    O_PROJECTION = "o"
    MLP = "mlp"
    MOE = "moe"
    ROUTER = "router"
    NORM = "norm"
    LM_HEAD = "lm_head"


_TEMPLATES = {Slot.MOE: "experts", Slot.ROUTER: "router", Slot.NORM: "norm"}
"""The files of slots that are no matrix."""

_Name = Annotated[
    str | None,
    typer.Argument(help="A kernel of the list, by default all; with --slot FILE.py:FUNCTION."),
]
_Slot = Annotated[
    Slot | None,
    typer.Option(help="The slot that NAME is for, if it is a kernel of your own."),
]


group = typer.Typer(
    name="kernels",
    help="List, check and time this package's kernels, and your own.",
    rich_markup_mode=None,
    invoke_without_command=True,
)


@group.callback()
def _commands(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@group.command("list", short_help="List the kernels with their slots, formats and sizes.")
def list_kernels(
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
) -> None:
    """List the kernels: slots, formats, sizes, what each is held against."""
    drawn_as = page(format, out)
    from spark_prof.dashboards.replacement_kernels import render_kernels
    from spark_prof.kernels.registry import KERNELS
    from spark_prof.kernels.tuning import known_runs

    put(render_kernels(KERNELS, known_runs(), *drawn_as), out)


@group.command(short_help="Write a working kernel of your own to begin with.")
def template(
    slot: Annotated[Slot, typer.Argument(help="What the kernel is for.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file, which is not there yet.")
    ] = None,
) -> None:
    """Write a working kernel of your own to begin with, in Triton and plain PyTorch."""
    if out is not None:
        check_folder(out.absolute().parent)
        if os.path.lexists(out):
            raise CommandError(f"{out} exists, and may be your kernel; give another name")
    put(_template_text(slot), out)


@group.command(short_help="Check that kernels compute what they should.")
def check(
    name: _Name = None,
    slot: _Slot = None,
    device: Annotated[
        Device, typer.Option(help="Where to run; by default on the GPU if there is one.")
    ] = Device.AUTO,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
) -> None:
    """Check here that kernels compute what they should; exit with 1 if not."""
    drawn_as = page(format, out)
    own = _own_slot(name, slot)
    verdicts: list[Verdict] = []
    kernels: Sequence[ReplacementKernel] = ()
    if own:
        where, device_type = _place(device)
        candidate = _own_candidate(str(name), own)
        candidates = {"": replace(candidate, name=f"{own.value}={candidate.name}")}
        say(f"checking {own.value}={name} on {where}")
    else:
        from spark_prof.kernels.registry import by_check, find

        kernels = find(name)
        where, device_type = _place(device, kernels[0])
        candidates = {cases: kernel.candidate() for cases, kernel in by_check(kernels).items()}
    from spark_prof.dashboards.replacement_kernels import Checked, render_checks
    from spark_prof.kernels.check import runner

    for number, (cases, candidate) in enumerate(candidates.items(), 1):
        if cases:
            say(f"checking {cases} on {where}, {number} of {len(candidates)}")
        verdicts += runner.check(candidate, device_type)
    found = Checked(tuple(kernels), where, device_type, tuple(verdicts))
    put(render_checks(found, *drawn_as), out)
    if found.number("failed"):
        raise typer.Exit(1)
    if not found.number("passed"):
        raise CommandError(f"nothing could be checked on {found.where}; the skipped cases say why")


@group.command(short_help="Time kernels beside others on an idle GPU.")
def bench(
    name: _Name = None,
    slot: _Slot = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Part of a model's name whose layers are timed; repeatable."),
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, max=16, help="Rows of activations; repeatable.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="After which no further shape is begun.")
    ] = 240,
    tune: Annotated[
        bool, typer.Option("--tune", help="First search the best configuration of each kernel.")
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Let the dispatcher go by these measurements.")
    ] = False,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
) -> None:
    """Time kernels beside others on a GPU that does nothing else; exit with 1 if one is wrong."""
    drawn_as = page(format, out)
    timed: Sequence[ReplacementKernel] | Candidate
    if own := _own_slot(name, slot):
        if tune or save:
            raise CommandError("--tune and --save are for kernels of the list; leave out --slot")
        if own in (Slot.NORM, Slot.ROUTER):
            raise CommandError(
                f"bench times matrices and experts; what a {own.value} brings is told by"
                f" `spark-prof ab --b {own.value}=FILE.py:FUNCTION`"
            )
        place = _place(Device.AUTO)
        timed = _own_candidate(str(name), own) if place[1] == Device.CUDA.value else ()
    else:
        from spark_prof.kernels.registry import find

        timed = find(name)
        place = _place(Device.AUTO, timed[0])
    if place[1] != Device.CUDA.value:
        raise CommandError(
            "there is no GPU here that PyTorch can use, and times on the CPU would mean nothing"
        )
    report, right = _measured(timed, models or (), tokens or (), seconds, tune)
    from spark_prof.dashboards.replacement_kernels import render_bench

    put(render_bench(report, *drawn_as), out)
    if save:
        from spark_prof.kernels.bench.results import keep

        say(f"wrote {keep(report)}")
    if not right:
        raise typer.Exit(1)


def _own_slot(name: str | None, slot: Slot | None) -> Slot | None:
    """The slot of a kernel as swaps name it; None where a command is about kernels of the list."""
    file = name is not None and (name.endswith(".py") or ".py:" in name)
    if file and slot is None:
        raise CommandError(f"{name}: say what it is for, such as --slot moe")
    if slot is not None and name is None:
        raise CommandError("--slot goes with a kernel, such as my_kernel.py:build")
    return slot


def _own_candidate(kernel: str, slot: Slot) -> Candidate:
    """Somebody's own kernel, `FILE.py:FUNCTION` or a name as in a swap."""
    from spark_prof.kernels.candidate import Candidate
    from spark_prof.swaps.own import load_builder

    return Candidate(Path(kernel).name, slot.value, load_builder(kernel))


def _measured(
    timed: Sequence[ReplacementKernel] | Candidate,
    models: Sequence[str],
    tokens: Sequence[int],
    seconds: float,
    tune: bool,
) -> tuple[Report, bool]:
    """Times kernels of the list, without those that nothing is comparable with, or one's own.

    Returns:
        What was measured, and whether none of the kernels failed; one's own may abstain.
    """
    import torch

    from spark_prof.kernels.bench.ceilings import measure_ceilings
    from spark_prof.kernels.bench.results import Cell, Report, cell_line, machine_of
    from spark_prof.kernels.bench.run import KINDS, Request, run
    from spark_prof.kernels.bench.shapes import TOKENS, WeightFormat
    from spark_prof.kernels.candidate import Candidate

    counts = tokens or TOKENS
    own = timed if isinstance(timed, Candidate) else None
    if isinstance(timed, Candidate):
        request = Request(models=models, tokens=counts, seconds=seconds, own=timed)
    else:
        raced = [kernel for kernel in timed if kernel.bench]
        if not raced:
            raise CommandError(f"{timed[0].name} has nothing to be timed beside; check can test it")
        kinds = [kind for kind in KINDS if any(kernel.race == kind for kernel in raced)]
        named = {kind for kernel in raced if kernel.race == "dense" for kind in kernel.formats}
        formats = [kind for kind in get_args(WeightFormat) if kind in named]
        names = [kernel.check for kernel in raced]
        request = Request(kinds, models, counts, formats, seconds=seconds, tune=tune, kernels=names)
    device = torch.device("cuda", torch.cuda.current_device())
    report = Report(machine_of(device), measure_ceilings(device))
    for found in run(request, device):
        report.add(found)
        say(cell_line(found, report.ceilings) if isinstance(found, Cell) else found.what)
    if not report.cells and not report.left_out:
        raise CommandError(f"no layer is of a model named like {' or '.join(models)}")
    results = [r for cell in report.cells for r in cell.results if r.contestant == cell.subject]
    failures = [result.failed for result in results if result.failed]
    if own is None:
        return report, not failures
    abstained = all(why.startswith("Abstained") for why in failures)
    if results and not any(result.us for result in results) and abstained:
        raise CommandError(f"{own.name} was not timed anywhere: {failures[0]}")
    return report, abstained


def _template_text(slot: Slot) -> str:
    """A working kernel for that slot, to begin with."""
    name = _TEMPLATES.get(slot, "matrix")
    text = files("spark_prof.swaps.templates").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return re.sub(_FOR_THIS_PROJECT, "", text)


def _place(wanted: Device, kernel: ReplacementKernel | None = None) -> tuple[str, str]:
    """Where to run, in words and as torch calls it; a kernel of the list is compiled to be sure."""
    try:
        import torch
    except ImportError as error:
        raise CommandError(
            "PyTorch is not installed, on whose tensors kernels run; pip install torch"
        ) from error
    if wanted is not Device.CPU and torch.cuda.is_available():
        if kernel is not None:
            from spark_prof.kernels.runtime.compiler import architecture_of, compile_code

            # Where nothing compiles, all cases would fail for the same reason.
            architecture = architecture_of(torch.cuda.get_device_capability())
            compile_code(kernel.function("codes")()[0], architecture)
        return torch.cuda.get_device_name(), Device.CUDA.value
    if wanted is Device.CUDA:
        raise CommandError("there is no GPU here that PyTorch can use; leave out --device cuda")
    if kernel is not None:
        from spark_prof.kernels.runtime.launch import RUNNERS

        if Device.CPU.value not in RUNNERS:
            raise CommandError(
                "there is no GPU here that PyTorch can use; kernels of the list need one"
            )
    return "the CPU", Device.CPU.value
