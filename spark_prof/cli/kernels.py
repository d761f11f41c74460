"""`spark-prof kernels`: the replacement kernels, whether they are right here, and how fast."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.options import FormatOption, OutOption, check_folder, page, put, say
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.dashboards.replacement_kernels import Checked
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
    verdicts: list[Verdict] = []
    if _is_own(name, slot):
        found = _checked_own(str(name), slot, _on_gpu(device))
    else:
        from spark_prof.kernels.registry import by_check, find

        kernels = find(name)
        where, device_type = _device(device, kernels[0])
        from spark_prof.dashboards.replacement_kernels import Checked
        from spark_prof.kernels.check import runner

        checks = by_check(kernels)
        for number, (cases, kernel) in enumerate(checks.items(), 1):
            say(f"checking {cases} on {where}, {number} of {len(checks)}")
            verdicts += runner.check(kernel.candidate(), device_type)
        found = Checked(tuple(kernels), where, device_type, tuple(verdicts))
    from spark_prof.dashboards.replacement_kernels import render_checks

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
    if _is_own(name, slot):
        assert slot is not None
        _check_race(slot, tune or save)
        _need_gpu(_on_gpu(Device.AUTO))
        from spark_prof.cli.kernels_bench import own_candidate

        timed = own_candidate(str(name), slot.value)
    else:
        from spark_prof.kernels.registry import find

        timed = find(name)
        _need_gpu(_device(Device.AUTO, timed[0])[1] == Device.CUDA.value)
    from spark_prof.cli.kernels_bench import measured

    report, right = measured(timed, models or (), tokens or (), seconds, tune)
    from spark_prof.dashboards.replacement_kernels import render_bench

    put(render_bench(report, *drawn_as), out)
    if save:
        from spark_prof.kernels.bench.results import keep

        say(f"wrote {keep(report)}")
    if not right:
        raise typer.Exit(1)


def _is_own(name: str | None, slot: Slot | None) -> bool:
    """Whether a command is about a kernel as swaps name it, and not about one of the list.

    Raises:
        CommandError: its slot or its name is missing.
    """
    file = name is not None and (name.endswith(".py") or ".py:" in name)
    if file and slot is None:
        raise CommandError(f"{name}: say what it is for, such as --slot moe")
    if slot is not None and name is None:
        raise CommandError("--slot goes with a kernel, such as my_kernel.py:build")
    return slot is not None


def _checked_own(kernel: str, slot: Slot | None, cuda: bool) -> Checked:
    """Runs the cases of a slot on somebody's own kernel, and tells on stderr that it does."""
    import torch

    from spark_prof.dashboards.replacement_kernels import Checked
    from spark_prof.kernels.candidate import Candidate
    from spark_prof.kernels.check import runner
    from spark_prof.swaps.own import load_builder

    assert slot is not None
    candidate = Candidate(f"{slot.value}={Path(kernel).name}", slot.value, load_builder(kernel))
    where = torch.cuda.get_device_name() if cuda else "the CPU"
    say(f"checking {slot.value}={kernel} on {where}")
    device = Device.CUDA.value if cuda else Device.CPU.value
    return Checked((), where, device, tuple(runner.check(candidate, device)))


def _check_race(slot: Slot, keep: bool) -> None:
    """Refuses slots without anything to race against, and what a dispatcher cannot go by."""
    if keep:
        raise CommandError("--tune and --save are for kernels of the list; leave out --slot")
    if slot in (Slot.NORM, Slot.ROUTER):
        raise CommandError(
            f"bench times matrices and experts; what a {slot.value} brings is told by"
            f" `spark-prof ab --b {slot.value}=FILE.py:FUNCTION`"
        )


def _template_text(slot: Slot) -> str:
    """A working kernel for that slot, to begin with."""
    name = _TEMPLATES.get(slot, "matrix")
    text = files("spark_prof.swaps.templates").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return re.sub(_FOR_THIS_PROJECT, "", text)


def _device(wanted: Device, kernel: ReplacementKernel) -> tuple[str, str]:
    """Where to run, in words and as torch calls it; on a GPU the kernel is compiled to be sure."""
    if _on_gpu(wanted):
        import torch

        from spark_prof.kernels.runtime.compiler import architecture_of, compile_code

        # Where nothing compiles, all cases would fail for the same reason.
        architecture = architecture_of(torch.cuda.get_device_capability())
        compile_code(kernel.function("codes")()[0], architecture)
        return torch.cuda.get_device_name(), Device.CUDA.value
    from spark_prof.kernels.runtime.launch import RUNNERS

    if Device.CPU.value not in RUNNERS:
        raise CommandError(
            "there is no GPU here that PyTorch can use; kernels of the list need one"
        )
    return "the CPU", Device.CPU.value


def _need_gpu(there: bool) -> None:
    if not there:
        raise CommandError(
            "there is no GPU here that PyTorch can use, and times on the CPU would mean nothing"
        )


def _on_gpu(wanted: Device) -> bool:
    """Whether to run on the GPU.

    Raises:
        CommandError: PyTorch is missing, or the GPU that was asked for.
    """
    try:
        import torch
    except ImportError as error:
        raise CommandError(
            "PyTorch is not installed, on whose tensors kernels run; pip install torch"
        ) from error
    if wanted is not Device.CPU and torch.cuda.is_available():
        return True
    if wanted is Device.CUDA:
        raise CommandError("there is no GPU here that PyTorch can use; leave out --device cuda")
    return False
