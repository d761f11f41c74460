"""What `spark-prof kernels` does with somebody's own kernel: template, check, bench."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.dashboards.replacement_kernels import Checked

_FOR_THIS_PROJECT = r"  # (type: ignore|noqa).*"
"""What only this project's own linters read."""


class Slot(StrEnum):
    """The places of a model whose kernel can be swapped: `spark_prof.swaps.spec.SLOTS`."""

    QKV = "qkv"
    O_PROJECTION = "o"
    MLP = "mlp"
    MOE = "moe"
    ROUTER = "router"
    NORM = "norm"
    LM_HEAD = "lm_head"


_TEMPLATES = {Slot.MOE: "experts", Slot.ROUTER: "router", Slot.NORM: "norm"}
"""The files of slots that are no matrix."""


def is_own(name: str | None, slot: Slot | None) -> bool:
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


def checked(kernel: str, slot: Slot, cuda: bool) -> Checked:
    """Runs the cases of a slot on a kernel, and tells on stderr that it does.

    Args:
        kernel: as in a swap: `FILE.py:FUNCTION`, or a name.
        slot: for which.
        cuda: on the GPU, else on the CPU.

    Raises:
        CommandError: there is no such kernel.
    """
    import torch

    from spark_prof.dashboards.replacement_kernels import Checked
    from spark_prof.swaps.check.run import check_builder
    from spark_prof.swaps.own import load_builder

    builder = load_builder(kernel)
    where = torch.cuda.get_device_name() if cuda else "the CPU"
    print(f"spark-prof: checking {slot.value}={kernel} on {where}", file=sys.stderr)
    device = "cuda" if cuda else "cpu"
    name = f"{slot.value}={Path(kernel).name}"
    verdicts = tuple(check_builder(name, slot.value, builder, device))
    return Checked((), where, device, verdicts)


def check_race(slot: Slot, keep: bool) -> None:
    """Refuses what a kernel of one's own cannot be timed with.

    Args:
        slot: for which.
        keep: whether configurations are to be searched or kept.

    Raises:
        CommandError: there is nothing to race against, or nothing that a dispatcher could go by.
    """
    if keep:
        raise CommandError("--tune and --save are for kernels of the list; leave out --slot")
    if slot in (Slot.NORM, Slot.ROUTER):
        raise CommandError(
            f"bench times matrices and experts; what a {slot.value} brings is told by"
            f" `spark-prof ab --b {slot.value}=FILE.py:FUNCTION`"
        )


def template_text(slot: Slot) -> str:
    """A working kernel for that slot, to begin with."""
    name = _TEMPLATES.get(slot, "matrix")
    text = files("spark_prof.swaps.templates").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return re.sub(_FOR_THIS_PROJECT, "", text)
