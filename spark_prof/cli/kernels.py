"""`spark-prof kernels`: the replacement kernels, whether they are right here, and how fast."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.options import (
    FormatOption,
    Limit,
    OutOption,
    Section,
    check_folder,
    laid_out,
    put,
    say,
)
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.kernels.candidate import KernelCandidate
    from spark_prof.kernels.check.verdict import CheckVerdict
    from spark_prof.kernels.registry import ReplacementKernel


class DeviceOption(StrEnum):
    """Where kernels are checked."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


_FOR_THIS_PROJECT = r"  # (type: ignore|noqa).*"
"""What only this project's own linters read."""


class Slot(StrEnum):
    """The slots that have a template: of `spark_prof.swaps.swap_settings.SLOTS` all but `layer`."""

    QKV = "qkv"
    O_PROJECTION = "o"
    MLP = "mlp"
    MOE = "moe"
    ROUTER = "router"
    NORM = "norm"
    LM_HEAD = "lm_head"


_TEMPLATES = {Slot.MOE: "experts", Slot.ROUTER: "router", Slot.NORM: "norm"}
"""The files of slots that are no matrix."""

NameOption = Annotated[
    str | None,
    typer.Argument(help="A kernel of the list, by default all; with --slot FILE.py:FUNCTION."),
]
SlotOption = Annotated[
    Slot | None, typer.Option(help="The slot that NAME is for, if it is a kernel of your own.")
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
    limit: Limit = None,
    section: Section = None,
) -> None:
    """List the kernels: slots, formats, sizes, what each is held against."""
    drawn_as = laid_out(format, out, limit, section)
    from spark_prof.dashboards.replacement_kernels import render_kernels
    from spark_prof.kernels.registry import KERNELS
    from spark_prof.kernels.tuning import known_runs

    put(render_kernels(KERNELS, known_runs(), drawn_as), out)


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
    name: NameOption = None,
    slot: SlotOption = None,
    device: Annotated[
        DeviceOption, typer.Option(help="Where to run; by default on the GPU if there is one.")
    ] = DeviceOption.AUTO,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
) -> None:
    """Check here that kernels compute what they should; exit with 1 if not."""
    drawn_as = laid_out(format, out, limit, section)
    user_slot = own_slot(name, slot)
    verdicts: list[CheckVerdict] = []
    kernels: Sequence[ReplacementKernel] = ()
    if user_slot:
        where, device_type = place_of(device)
        candidate = own_candidate(str(name), user_slot)
        candidates = {"": replace(candidate, name=f"{user_slot.value}={candidate.name}")}
        say(f"checking {user_slot.value}={name} on {where}")
    else:
        from spark_prof.kernels.registry import by_check, find

        kernels = find(name)
        where, device_type = place_of(device, kernels[0])
        candidates = {cases: kernel.candidate() for cases, kernel in by_check(kernels).items()}
    from spark_prof.dashboards.replacement_kernels import KernelCheckRun, render_checks
    from spark_prof.kernels.check import runner

    for number, (cases, candidate) in enumerate(candidates.items(), 1):
        if cases:
            say(f"checking {cases} on {where}, {number} of {len(candidates)}")
        verdicts += runner.check(candidate, device_type)
    checked = KernelCheckRun(tuple(kernels), where, device_type, tuple(verdicts))
    put(render_checks(checked, drawn_as), out)
    if checked.number("failed"):
        raise typer.Exit(1)
    if not checked.number("passed"):
        raise CommandError(
            f"nothing could be checked on {checked.where}; the skipped cases say why"
        )


def own_slot(name: str | None, slot: Slot | None) -> Slot | None:
    """The slot of a kernel as swaps name it; None where a command is about kernels of the list."""
    file = name is not None and (name.endswith(".py") or ".py:" in name)
    if file and slot is None:
        raise CommandError(f"{name}: say what it is for, such as --slot moe")
    if slot is not None and name is None:
        raise CommandError("--slot goes with a kernel, such as my_kernel.py:build")
    return slot


def own_candidate(kernel: str, slot: Slot) -> KernelCandidate:
    """Somebody's own kernel, `FILE.py:FUNCTION` or a name as in a swap."""
    from spark_prof.kernels.candidate import KernelCandidate
    from spark_prof.swaps.builder_loading import load_builder

    return KernelCandidate(Path(kernel).name, slot.value, load_builder(kernel))


def _template_text(slot: Slot) -> str:
    """A working kernel for that slot, to begin with."""
    name = _TEMPLATES.get(slot, "matrix")
    text = files("spark_prof.swaps.templates").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return re.sub(_FOR_THIS_PROJECT, "", text)


def place_of(device: DeviceOption, kernel: ReplacementKernel | None = None) -> tuple[str, str]:
    """Where to run, in words and as torch calls it; a kernel of the list is compiled to be sure.

    Raises:
        CommandError: PyTorch is missing, or the GPU that was asked for or that the list needs.
    """
    try:
        import torch
    except ImportError as error:
        raise CommandError(
            "PyTorch is not installed, on whose tensors kernels run; pip install torch"
        ) from error
    if device is not DeviceOption.CPU and torch.cuda.is_available():
        if kernel is not None:
            from spark_prof.kernels.registry import ARCHITECTURES
            from spark_prof.kernels.runtime.compiler import (
                architecture_of,
                check_target,
                compile_code,
            )

            # Where nothing compiles, all cases would fail for the same reason.
            architecture = architecture_of(torch.cuda.get_device_capability())
            if kernel.targets != ARCHITECTURES:
                check_target(kernel.name, kernel.targets, architecture)
            compile_code(kernel.function("codes")()[0], architecture)
        return torch.cuda.get_device_name(), DeviceOption.CUDA.value
    if device is DeviceOption.CUDA:
        raise CommandError("there is no GPU here that PyTorch can use; leave out --device cuda")
    if kernel is not None:
        from spark_prof.kernels.runtime.launch import RUNNERS

        if DeviceOption.CPU.value not in RUNNERS:
            raise CommandError(
                "there is no GPU here that PyTorch can use; kernels of the list need one"
            )
    return "the CPU", DeviceOption.CPU.value
