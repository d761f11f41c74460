"""What is swapped, as it is written on a command line: ``moe=spark_prof,lm_head=mxfp4``."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.errors import CommandError

SLOTS = ("qkv", "o", "mlp", "moe", "router", "norm", "lm_head")
"""The places of a model whose kernel can be swapped."""

LAYER_BOUNDS = {"kept": 2.0**-6, "changed": 0.3}
"""The largest relative L2 error of a layer by itself, by what becomes of the weights' bits.

Where they are kept two kernels round at most five times each on the way, by 0.0015 of the size:
sqrt(10) * 0.0015 = 0.005, and three times that is allowed. To quantize to MXFP4 brings 0.112 on
normally distributed weights, to FP8 0.026 (docs/kernels.md)."""


@dataclass(frozen=True)
class Swap:
    """One slot and what runs in it."""

    slot: str
    # ``spark_prof`` (the package's own, the weights keep their bits), ``mxfp4`` or ``fp8`` (a BF16
    # weight is quantized at load), ``path/to/file.py:function``, or the name of an entry point of
    # the group ``spark_prof.kernels``.
    kernel: str


def parse_swaps(text: str) -> tuple[Swap, ...]:
    """Reads swaps with commas between them; an empty text is none.

    Raises:
        CommandError: a word is no swap, names no slot, or a slot comes twice.
    """
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
    return tuple(swaps.values())


def format_swaps(swaps: tuple[Swap, ...]) -> str:
    """The text that `parse_swaps` reads back."""
    return ",".join(f"{swap.slot}={swap.kernel}" for swap in swaps)
