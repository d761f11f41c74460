"""Every replacement kernel by name, and what it says of itself: slot, sizes, bytes, cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from pkgutil import resolve_name
from typing import Any, Literal

from spark_prof.errors import CommandError
from spark_prof.kernels.tuning import Work

Slot = Literal["qkv", "o", "mlp", "moe", "router", "lm_head"]
"""Which part of a model a kernel stands in for."""

ARCHITECTURES = ("sm_90a", "sm_100f", "sm_120f", "sm_121a")
"""Targets for which the tests compile every kernel and look at its machine code."""


@dataclass(frozen=True)
class Late:
    """A function that is imported when it is called: torch takes seconds, and need not be there."""

    path: str  # its module and its name, such as `spark_prof.kernels.dense:linear`

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
    """What one call has to read and write at least, everything once."""

    formula: str  # in words of the documentation: M tokens, N rows, K columns, and so on
    of: Callable[[Work], int]


@dataclass(frozen=True)
class ReplacementKernel:
    """One kernel in one slot."""

    name: str  # what `spark-prof kernels check NAME` takes
    slot: Slot
    does: str
    formats: tuple[str, ...]  # of the weights, or logits, that it reads
    tokens: tuple[int, int]  # the fewest and the most rows of activations
    shapes: str
    operation: Late
    reference: Late  # the same in float64, in plain PyTorch
    codes: Late
    bytes: Traffic
    tolerance: str  # how far a result may be from the reference
    check: str  # the name of its cases in `check`; kernels with the same name share them
    # What `spark-prof kernels bench` times for it; None if that has nothing to compare.
    bench: Literal["dense", "moe"] | None = None
    # The name of its measurements in tuned.json, empty if there is nothing to choose.
    tuned_as: str = ""
    # What it is compiled for and looked at; other GPUs from compute capability 8.0 on may run it
    # too.
    architectures: tuple[str, ...] = ARCHITECTURES


BYTES_A_WEIGHT = {
    "nvfp4": Fraction(9, 16),  # a code of 4 bits, and an E4M3 scale for 16 of them
    "mxfp4": Fraction(17, 32),  # and an E8M0 scale for 32
    "fp8": Fraction(1),
    "bf16": Fraction(2),
    "fp32": Fraction(4),
}
"""What a weight, or a logit, takes in memory with its part of a scale."""

_BF16_BYTES, _FLOAT_BYTES = 2, 4


def _linear(work: Work) -> int:
    return _linear_bf16(work) + _FLOAT_BYTES * work.rows


def _linear_bf16(work: Work) -> int:
    weights = work.rows * work.columns * BYTES_A_WEIGHT[work.format]
    return int(weights) + _BF16_BYTES * work.tokens * (work.rows + work.columns)


def _moe(work: Work) -> int:
    hidden, inner = work.columns, work.rows // 2
    used = min(work.tokens * work.top_k, work.experts)
    weights = 3 * hidden * inner * BYTES_A_WEIGHT[work.format] + _FLOAT_BYTES * (2 * inner + hidden)
    between = 2 * _BF16_BYTES * work.tokens * work.top_k * inner
    return int(used * weights) + between + _BF16_BYTES * work.tokens * (2 * hidden + work.experts)


def _routing(work: Work) -> int:
    logits = int(work.experts * BYTES_A_WEIGHT[work.format])
    return work.tokens * (logits + 2 * _FLOAT_BYTES * work.top_k)


LINEAR = Traffic("N K w + 4 N + 2 M (N + K)", _linear)
"""w: bytes a weight, see `BYTES_A_WEIGHT`; 4 N: a factor for each row."""

LINEAR_BF16 = Traffic("N K w + 2 M (N + K)", _linear_bf16)
"""Without factors, of which BF16 rows have none."""

MOE = Traffic("D (3 H I w + 4 (2 I + H)) + 4 M k I + 2 M (2 H + E)", _moe)
"""D: the experts that take part, at most the smaller of M k and E; 4 M k I: what lies between."""

ROUTING = Traffic("w M E + 8 M k", _routing)


EXPERTS = (
    ReplacementKernel(
        name="router-topk",
        slot="router",
        does="the k experts of largest score of each token, and their weights",
        formats=("bf16", "fp32"),
        tokens=(1, 16),
        shapes="up to 512 experts, k up to 16",
        operation=Late("spark_prof.kernels.routing:route"),
        reference=Late("spark_prof.kernels.check.oracles:routing_oracle"),
        codes=Late("spark_prof.kernels.routing:codes"),
        bytes=ROUTING,
        tolerance="experts equal; weights within some units in the last place of float32",
        check="routing",
    ),
    ReplacementKernel(
        name="moe-w4a16",
        slot="moe",
        does="gate and up, SiLU or SwiGLU, down and the weighted sum, from the router's logits",
        formats=("nvfp4", "mxfp4"),
        tokens=(1, 16),
        shapes="H and I multiples of 16 (MXFP4: of 32)",
        operation=Late("spark_prof.kernels.moe:moe"),
        reference=Late("spark_prof.kernels.check.oracles:moe_oracle"),
        codes=Late("spark_prof.kernels.moe:codes"),
        bytes=MOE,
        tolerance="as of dense layers, the error of what lies between carried through",
        check="moe",
        bench="moe",
        tuned_as="moe",
    ),
)
"""Routing is part of the kernel of the experts too, which begins with it."""


def _dense(
    slot: Slot, bits: str, does: str, formats: tuple[str, ...], shapes: str
) -> ReplacementKernel:
    return ReplacementKernel(
        name=f"{slot}-{bits}",
        slot=slot,
        does=does,
        formats=formats,
        tokens=(1, 16),
        shapes=shapes,
        operation=Late("spark_prof.kernels.dense:linear"),
        reference=Late("spark_prof.kernels.check.oracles:linear_oracle"),
        codes=Late("spark_prof.kernels.dense:codes"),
        bytes=LINEAR_BF16 if formats == ("bf16",) else LINEAR,
        tolerance="each element within c 2^-8 sum|x||w|, c = 1 + K 2^-15",
        check=bits,
        bench=None if bits == "fp8" else "dense",
        tuned_as="dense",
    )


_FP4 = (
    "w4a16", "y = x W^T + bias", ("nvfp4", "mxfp4"), "any N; K a multiple of 16 (MXFP4: of 32)",
)  # fmt: skip
_FP8 = ("fp8", "y = x W^T + bias, a scale for each row", ("fp8",), "any N; K a multiple of 16")
_BF16 = ("w16a16", "y = x W^T + bias", ("bf16",), "N and K multiples of 16")

DENSE = (
    _dense("qkv", *_FP4),
    _dense("o", *_FP4),
    _dense("mlp", *_FP4),
    _dense("lm_head", *_FP4),
    _dense("qkv", *_FP8),
    _dense("o", *_FP8),
    _dense("mlp", *_FP8),
    _dense("lm_head", *_FP8),
    _dense("qkv", *_BF16),
    _dense("o", *_BF16),
    _dense("mlp", *_BF16),
    _dense("router", *_BF16),
    _dense("lm_head", *_BF16),
)
"""One kernel in all of these slots. It reads a BF16 weight where it is, or what `quantize_at_load`
made of it: mxfp4 or fp8. A router's matrix is small, and is BF16 in all models."""


KERNELS: tuple[ReplacementKernel, ...] = (*DENSE, *EXPERTS)
"""In the order in which they are listed."""


def find(name: str | None) -> Sequence[ReplacementKernel]:
    """The kernel of that name, or all of them for None.

    Raises:
        CommandError: there is none of that name.
    """
    if name is None:
        return KERNELS
    found = [kernel for kernel in KERNELS if kernel.name == name]
    if not found:
        names = [kernel.name for kernel in KERNELS]
        near = [each for each in names if each.startswith(f"{name}-")]
        near = near or get_close_matches(name, names, 1)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
        raise CommandError(f"there is no kernel {name}; {hint}")
    return found
