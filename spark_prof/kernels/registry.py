"""Every replacement kernel by name, as the module that launches it declares it: slot, cases, races.

A module of this folder with a tuple `LISTED` has kernels of the list: a row of it says what some
names stand for. The module also has `build`, which makes a replacement of a layer, `codes`, what is
compiled for typical layers, and, if there is a choice, `config_for`, the default configuration.
`LISTED` is read from the module's text: importing it takes torch, which takes seconds and need not
be there for a list.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.kernels.candidate import KernelCandidate

ARCHITECTURES = ("sm_90a", "sm_100f", "sm_120f", "sm_121a")
"""Targets for which the tests compile every kernel and look at its machine code. Other GPUs from
compute capability 8.0 on may run them too."""

_CHECK = "spark_prof.kernels.check"


class ReplacementKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kernel in one slot: a name of a row, and what the row says of all its names."""

    name: str  # what `spark-prof kernels check NAME` takes: SLOT-KIND
    module: str  # the path of the module that declares it
    # What it is built from; a choice is that of experts.
    layer: Literal[
        "matrix", "experts", "choice", "norm", "normed matrix", "attention", "normed experts",
        "normed mlp", "quantized matrix",
    ]  # fmt: skip
    does: str
    formats: tuple[str, ...]  # of the weights, or logits, that it reads
    shapes: str
    operation: str  # a function of the module; here its path
    # The same in float64, in plain PyTorch: of `check/oracles.py`, or FILE:NAME; here its path.
    reference: str
    # What one call has to read and write at least, everything once: M tokens, N rows, K columns, w
    # bytes a weight with its scales; of experts D take part.
    bytes: str
    tolerance: str  # how far a result may be from the reference
    check: str  # what the results of its cases are called; kernels with the same one share them
    tokens: tuple[int, int] = (1, 16)  # the fewest and the most rows of activations
    bench: bool = False  # whether `spark-prof kernels bench` has something to compare it with
    # The name of its measurements in tuned.json, empty if there is nothing to choose.
    tuned_as: str = ""
    targets: tuple[str, ...] = ARCHITECTURES  # for which the tests compile it

    @property
    def slot(self) -> str:
        """The part of a model that the kernel replaces."""
        return self.name.rpartition("-")[0]

    @property
    def race(self) -> str:
        """Among whom it is timed; empty where it has no peers."""
        races = {"matrix": "dense", "quantized matrix": "dense", "experts": "moe"}
        return races.get(self.layer, "")

    def function(self, name: str) -> Callable[..., Any]:
        """A function of its module."""
        function: Callable[..., Any] = resolve_name(f"{self.module}:{name}")
        return function

    def candidate(self) -> KernelCandidate:
        """The kernel as `kernels check` and `kernels bench` take it."""
        from spark_prof.kernels.candidate import KernelCandidate

        formats: Any = () if self.layer == "choice" else self.formats
        return KernelCandidate(
            self.check, self.slot, self.function("build"), formats, is_custom=False
        )


def _declared() -> Iterator[ReplacementKernel]:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        module = f"spark_prof.kernels.{path.stem}"
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "LISTED":
                for row in ast.literal_eval(statement.value):
                    row["operation"] = f"{module}:{row['operation']}"
                    *where, reference = row["reference"].split(":")
                    row["reference"] = f"{_CHECK}.{where[0] if where else 'oracles'}:{reference}"
                    for name in row.pop("names"):
                        named = {"name": name, "module": module, **row}
                        yield msgspec.convert(named, ReplacementKernel)


KERNELS: tuple[ReplacementKernel, ...] = tuple(_declared())


def find(name: str | None) -> Sequence[ReplacementKernel]:
    """The kernel of that name, or all of them for None."""
    if name is None:
        return KERNELS
    kernels = [kernel for kernel in KERNELS if kernel.name == name]
    if not kernels:
        names = [kernel.name for kernel in KERNELS]
        near = [kernel_name for kernel_name in names if kernel_name.startswith(f"{name}-")]
        near = near or get_close_matches(name, names, 1)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
        raise CommandError(f"there is no kernel {name}; {hint}")
    return kernels


def by_check(kernels: Sequence[ReplacementKernel] = KERNELS) -> dict[str, ReplacementKernel]:
    """The kernels by the name of the cases that check them."""
    return {kernel.check: kernel for kernel in kernels}
