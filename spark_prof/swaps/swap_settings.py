"""What is swapped, as a command line and the environment say it, and which side is computed now.

Switching a side costs nothing: the dispatchers of eager layers and the CUDA graphs of
`sided_graphs.py` look at `SIDES.active` when they are called.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spark_prof.errors import CommandError

SLOTS = ("layer", "qkv", "o", "mlp", "moe", "router", "norm", "lm_head")

INSIDE_LAYER = ("qkv", "moe", "router", "norm")
"""Slots whose layers `layer` has in it, where all of its parts fit; o and lm_head it has not.

Beside it they run in the layers that it leaves to vLLM, such as MLA's projections.
"""

_LAYER_BOUNDS = {"kept": 2.0**-6, "changed": 0.3}
"""The largest relative L2 error of a layer by itself, by what becomes of the weights' bits.

Where they are kept two kernels round at most five times each on the way, by 0.0015 of the size:
sqrt(10) * 0.0015 = 0.005, and three times that is allowed. To quantize to MXFP4 brings 0.112 on
normally distributed weights, to FP8 0.026 (docs/kernels.md)."""

_ROUTED_BOUND = 2.0**-4
"""As `kept`, of experts that get no logits but make them: logits are rounded to bfloat16, and where
two right kernels round one between 4 and 8 to neighbours, its expert's weight changes by 2^-5."""


Rounded = Literal["", "fp8", "fp4"]
"""What vLLM's own layer rounds its activations to: nothing narrower than 16 bits, E4M3, E2M1."""

_MANTISSA: dict[Rounded, int] = {"fp8": 3, "fp4": 1}
_MARGIN = 3.0


def rounding_error(mantissa: int) -> float:
    """Of values rounded to that many bits, in their size: see `ab.accuracy_gate`."""
    return 2.0**-mantissa / math.sqrt(12 * 1.5 / math.log(2))


def layer_bound(bits: str, slot: str, name: str, rounded: Rounded = "") -> float:
    """The largest relative L2 error of a layer by itself: a place's slot and module path.

    Where vLLM rounds activations it is three times that rounding's error, of which experts and an
    MLP have three: in gate's and up's factor of their product, and in what down is given.
    """
    experts = slot == "moe" or (slot == "layer" and name.endswith("experts"))
    gated = experts or (slot == "layer" and name.endswith(".mlp"))
    if bits == "kept" and rounded:
        error = rounding_error(_MANTISSA[rounded]) * math.sqrt(3 if gated else 1)
        return min(_MARGIN * error, _LAYER_BOUNDS["changed"])
    routed = bits == "kept" and slot == "layer" and experts
    return _ROUTED_BOUND if routed else _LAYER_BOUNDS[bits]


def element_bound(bits: str, slot: str, name: str, rounded: Rounded = "") -> float:
    """Of an element, in 1/16 of its row's root mean square: 8 deviations in rows twice as bad."""
    return layer_bound(bits, slot, name, rounded) / (_MARGIN if bits == "kept" and rounded else 1)


@dataclass(frozen=True)
class Swap:
    """One slot and what runs in it."""

    slot: str
    # ``spark_prof`` (the package's own, the weights keep their bits), ``mxfp4`` or ``fp8`` (a BF16
    # weight is quantized at load), ``path/to/file.py:function``, or the name of an entry point of
    # the group ``spark_prof.kernels``.
    kernel: str


def parse_swaps(text: str) -> tuple[Swap, ...]:
    """Reads swaps with commas between them; an empty text is none."""
    swaps: dict[str, Swap] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        slot, equals, kernel = word.partition("=")
        if not equals or not kernel:
            raise CommandError(f"{word} is no swap; write slot=kernel, such as moe=spark_prof")
        if slot not in SLOTS:
            raise CommandError(f"{word}: there is no slot {slot}; give {', '.join(SLOTS)}")
        if slot in swaps:
            raise CommandError(f"{text}: {slot} is given twice; give it one kernel")
        swaps[slot] = Swap(slot, kernel)
    if "layer" in swaps and "norm" in swaps:
        raise CommandError(f"{text}: layer has norm in it; leave that out")
    return tuple(swaps.values())


def kernel_folders(swaps: Iterable[Swap]) -> tuple[Path, ...]:
    """The folders of kernels that are a file's function, with what such a file may import."""
    files = (swap.kernel.rpartition(":")[0] for swap in swaps)
    return tuple(dict.fromkeys(Path(file).parent for file in files if file.endswith(".py")))


def format_swaps(swaps: tuple[Swap, ...]) -> str:
    """The text that `parse_swaps` reads back."""
    return ",".join(f"{swap.slot}={swap.kernel}" for swap in swaps)


TWIN = "a2"
"""Side a once more, with CUDA graphs of its own: what an A/A run compares side a with."""


@dataclass
class Sides:
    """The sides that are live in this process."""

    active: str = "a"
    names: tuple[str, ...] = ("a",)  # all of them; the first is what vLLM warms up with

    def switch(self, side: str) -> None:
        """Makes a side the active one."""
        if side not in self.names:
            raise ValueError(f"there is no side {side}; there are {', '.join(self.names)}")
        self.active = side


SIDES = Sides()


def plain_side(side: str) -> str:
    """The side whose swaps a side has: its own, or a's for the twin."""
    return "a" if side == TWIN else side


SWAPS_ENVIRONMENT = "SPARK_PROF_SWAPS"
"""Swaps (``moe=spark_prof``) that are on for good, or JSON as `SwapSettings.to_json` writes it."""


@dataclass(frozen=True)
class SwapSettings:
    """What one engine shall swap."""

    # The swaps of each side. Side a alone is what `ab --apply` asks for.
    sides: Mapping[str, tuple[Swap, ...]]
    twin: bool = False  # side a has a twin, with CUDA graphs of its own
    hang_seconds: float = 120.0  # how long a kernel may take on trial before the process is ended
    # The engine serves and no gate follows: a kernel that is wrong on trial does not run, and dummy
    # weights are not given random values that a model can compute with.
    serve: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The sides in the order in which their graphs are captured."""
        return (*self.sides, TWIN) if self.twin else tuple(self.sides)

    def to_json(self) -> str:
        """The settings as one line of JSON."""
        sides = {side: format_swaps(swaps) for side, swaps in self.sides.items()}
        return json.dumps({**sides, "twin": self.twin, "hang_seconds": self.hang_seconds})

    @classmethod
    def from_text(cls, text: str) -> SwapSettings:
        """Reads the value of `SWAPS_ENVIRONMENT`."""
        if not text.lstrip().startswith("{"):
            return cls({"a": parse_swaps(text)}, serve=True)
        try:
            value = json.loads(text)
            names = ["a", *(name for name, swaps in value.items() if isinstance(swaps, str))]
            sides = {name: parse_swaps(value.pop(name)) for name in dict.fromkeys(names)}
            return cls(sides, **value)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CommandError(f"{SWAPS_ENVIRONMENT} is damaged: {error}") from error

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SwapSettings | None:
        """What the environment asks for, None when it asks for nothing."""
        text = (os.environ if environment is None else environment).get(SWAPS_ENVIRONMENT, "")
        return cls.from_text(text) if text.strip() else None
