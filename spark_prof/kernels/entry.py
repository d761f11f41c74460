"""What a replacement kernel says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

from spark_prof.kernels.tuning import Work

Slot = Literal["qkv", "o", "mlp", "moe", "router", "norm", "lm_head"]
"""Which part of a model a kernel stands in for."""

SLOTS: tuple[Slot, ...] = ("qkv", "o", "mlp", "moe", "router", "norm", "lm_head")
"""In the order in which a decoder layer runs them."""

ARCHITECTURES = ("sm_90a", "sm_100f", "sm_120f", "sm_121a")
"""Targets for which the tests compile every kernel and look at its machine code."""


@dataclass(frozen=True)
class Late:
    """A function that is imported when it is called: torch takes seconds, and need not be there.

    Attributes:
        path: its module and its name, such as `spark_prof.kernels.dense:linear`.
    """

    path: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the function."""
        return self.function(*arguments, **named)

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        found: Callable[..., Any] = resolve_name(self.path)
        return found


@dataclass(frozen=True)
class Traffic:
    """What one call has to read and write at least, everything once.

    Attributes:
        formula: in words of the documentation: M tokens, N rows, K columns, and so on.
        of: the bytes for a piece of work.
    """

    formula: str
    of: Callable[[Work], int]


@dataclass(frozen=True)
class ReplacementKernel:
    """One kernel in one slot.

    Attributes:
        name: what `spark-prof kernels check NAME` takes.
        slot: which part of a model it stands in for.
        formats: of the weights that it reads, or of what it writes where it quantizes.
        tokens: the fewest and the most rows of activations.
        architectures: what it is compiled for and looked at; other GPUs from compute capability 8.0
            on may run it too.
        operation: the Python function that launches it.
        reference: the same in float64, or bit by bit, in plain PyTorch.
        codes: the list of its kernels as they are compiled.
        tolerance: how far a result may be from the reference.
        check: the name of its cases in `check`; kernels with the same name share them.
        bench: what `spark-prof kernels bench` times for it; None if that has nothing to compare.
        tuned_as: the name of its measurements in tuned.json, empty if there is nothing to choose.
    """

    name: str
    slot: Slot
    does: str
    formats: tuple[str, ...]
    tokens: tuple[int, int]
    shapes: str
    operation: Late
    reference: Late
    codes: Late
    bytes: Traffic
    tolerance: str
    check: str
    bench: Literal["dense", "moe", "fused"] | None = None
    tuned_as: str = ""
    architectures: tuple[str, ...] = ARCHITECTURES
