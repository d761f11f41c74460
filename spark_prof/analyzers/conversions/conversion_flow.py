"""Which kernel a conversion works for: one that comes after it on its stream.

A stream runs its kernels in the order in which they were launched, which is that of the code, also
inside a CUDA graph. Where a conversion was placed in a component, the next kernel of that component
is taken to read what it wrote; else the next kernel that converts nothing. That is a guess where a
program launches something unrelated in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.classify.classifier import classify, is_gemm
from spark_prof.analyzers.lookup import NameColumn


@dataclass(frozen=True)
class Role:
    """Kernels whose name matches; the first that does counts."""

    name: str
    pattern: str
    example: str


ROLES = (
    Role("activation", r"(?i)silu|gelu|swiglu|act_and_mul|activation|relu",
         "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(int)"),
    Role("norm", r"(?i)rms_?norm|layer_?norm|_norm_",
         "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, float, int)"),
)  # fmt: skip
"""What comes before a quantization that vLLM can do in the same kernel."""

PADDING = (
    Role("fill", r"FillFunctor<(?:c10::)?(?:BFloat16|Half|Float8_\w+|float)>",
         "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16>,"
         " std::array<char*, 1ul> >(int, at::native::FillFunctor<c10::BFloat16>)"),
    Role("copy", r"direct_copy_kernel_cuda",
         "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
         "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int)"),
)  # fmt: skip
"""What PyTorch's pad launches: it fills the larger tensor and copies the smaller one into it."""

_LONGEST = 300
"""A fused kernel's name says in its beginning what it does."""


def role_of(name: str) -> str:
    """product, attention, one of ROLES, or empty."""
    if is_gemm(name):
        return "product"
    if classify(name).component == "attention":
        return "attention"
    return _first_of(ROLES, name)


def padding_of(name: str) -> str:
    """One of PADDING, or empty."""
    return _first_of(PADDING, name)


def _first_of(roles: tuple[Role, ...], name: str) -> str:
    return next((role.name for role in roles if re.search(role.pattern, name[:_LONGEST])), "")


Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_TELL_NOTHING = (CODES["other"], CODES["norm"])
"""Components that say nothing about the consumer: what stands between a norm and a product was
often placed with the norm."""

_FURTHEST = 8
"""A consumer is looked for among so many kernels."""


class Flow(NamedTuple):
    """Conversions among the kernels; positions of rows, -1 for none."""

    rows: Int64s  # the conversions
    consumers: Int64s  # what reads the result of each
    producers: Int64s  # the last kernel before each that converts nothing
    places: Int64s  # whose component and layer each counts to: its own, else its consumer's


def flow_of(placed: pd.DataFrame, converts: Flags, copies: Flags) -> Flow:
    """The conversions, each between its producer and its consumer.

    Args:
        placed: stream, step and component of everything that ran, in order of start.
        copies: whether each row is no kernel.
    """
    if not converts.any():
        return alone(converts)
    lanes = _Lanes(placed, converts, copies)
    own = lanes.component(lanes.conversions)
    wanted = ~np.isin(own, _TELL_NOTHING)
    nearest = consumer = lanes.after(lanes.conversions)
    for _ in range(_FURTHEST - 1):
        unmet = np.flatnonzero(wanted & (consumer >= 0) & (lanes.component(consumer) != own))
        if not len(unmet):
            break
        consumer = consumer.copy()
        consumer[unmet] = lanes.after(consumer[unmet])
    met = (consumer >= 0) & (~wanted | (lanes.component(consumer) == own))
    consumer = np.where(met, consumer, nearest)
    producer = lanes.before(lanes.conversions)
    place = np.where(wanted | (consumer < 0), lanes.conversions, consumer)
    return Flow(*map(lanes.rows, (lanes.conversions, consumer, producer, place)))


def alone(converts: Flags) -> Flow:
    """The conversions where nothing tells what comes before or after them."""
    rows = np.flatnonzero(converts)
    nothing = np.full(len(rows), -1)
    return Flow(rows, nothing, nothing, rows)


def pads(placed: pd.DataFrame, copies: Flags) -> Flags:
    """The rows of PyTorch's pads: fills with a copy of the same component right behind them.

    Args:
        placed: name, stream, step and component of everything that ran, in order of start.
        copies: whether each row is no kernel.
    """
    found = np.zeros(len(placed), bool)
    names = NameColumn(placed["name"])
    fills = names.flags(lambda name: padding_of(name) == "fill")
    if fills.any():
        moves = names.flags(lambda name: padding_of(name) == "copy")
        lanes = _Lanes(placed, fills, copies)
        first = lanes.rows(lanes.conversions)
        second = lanes.rows(lanes.after(lanes.conversions))
        component = placed["component"].cat.codes.to_numpy()
        pair = (second >= 0) & moves[second] & (component[first] == component[second])
        found[first[pair]] = found[second[pair]] = True
    return found


class _Lanes:
    """Everything that ran, stream by stream; a place is a position in that order.

    Attributes:
        conversions: the places of the conversions, ascending.
    """

    def __init__(self, placed: pd.DataFrame, converts: Flags, copies: Flags) -> None:
        self._component = placed["component"].cat.codes.to_numpy()
        self._step, self._stream = placed["step"].to_numpy(), placed["stream"].to_numpy()
        self._order = _by_stream(self._stream, copies)
        skipped = converts | copies
        if self._order is not None:
            converts, skipped = converts[self._order], skipped[self._order]
        self.conversions = np.flatnonzero(converts)
        self._others = np.flatnonzero(~skipped)

    def rows(self, places: Int64s) -> Int64s:
        """The row at each place, -1 for none."""
        if self._order is None:
            return places
        return np.where(places >= 0, self._order[places], -1)

    def component(self, places: Int64s) -> npt.NDArray[np.integer[Any]]:
        """Code of the component at each place."""
        return self._component[self.rows(places)]

    def after(self, places: Int64s) -> Int64s:
        """The next place of the same step and stream that is neither conversion nor copy, or -1."""
        return self._beside(places, np.searchsorted(self._others, places, side="right"))

    def before(self, places: Int64s) -> Int64s:
        """The last place before, of the same step and stream, that is neither, or -1."""
        return self._beside(places, np.searchsorted(self._others, places) - 1)

    def _beside(self, places: Int64s, number: Int64s) -> Int64s:
        near = np.append(self._others, -1)[np.clip(number, -1, len(self._others))]
        row, other = self.rows(places), self.rows(near)
        there = (near >= 0) & (self._step[row] == self._step[other])
        return np.where(there & (self._stream[row] == self._stream[other]), near, -1)


def _by_stream(stream: Int64s, copies: Flags) -> Int64s | None:
    """The rows stream by stream; None where all kernels are on one."""
    kernel = int(np.argmin(copies))
    if copies[np.flatnonzero(stream != stream[kernel])].all():
        return None
    codes, known = pd.factorize(stream)
    # Few streams are sorted by counting.
    small = np.int16 if len(known) < 1 << 15 else np.int64
    return np.argsort(codes.astype(small), kind="stable")
