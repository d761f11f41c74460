"""Which kernel a conversion works for: one that comes after it on its stream.

A stream runs its kernels in the order in which they were launched, which is that of the code, also
inside a CUDA graph. Where a conversion was placed in a component, the next kernel of that component
is taken to read what it wrote; else the next kernel that converts nothing. That is a guess where a
program launches something unrelated in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.classify.classifier import classify, is_gemm
from spark_prof.analyzers.lookup import Integers, NameColumn, ascends
from spark_prof.arrays import Flags, Int64s


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

_LONGEST = 300  # a fused kernel's name says in its beginning what it does


def role_of(name: str) -> str:
    """product, attention, one of ROLES, or empty."""
    if is_gemm(name):
        return "product"
    if classify(name).component == "attention":
        return "attention"
    return _first_of(ROLES, name)


def padding_of(name: str) -> str:
    """The name of the role in PADDING that a kernel's name matches; empty for none."""
    return _first_of(PADDING, name)


def _first_of(roles: tuple[Role, ...], name: str) -> str:
    return next((role.name for role in roles if re.search(role.pattern, name[:_LONGEST])), "")


_TELL_NOTHING = (CODES["other"], CODES["norm"])
"""Components that say nothing about the consumer: what stands between a norm and a product was
often placed with the norm."""

_FURTHEST = 8  # a consumer is looked for among so many kernels


class Flow(NamedTuple):
    """Conversions among the kernels; positions of rows, -1 for none."""

    rows: Int64s  # the conversions
    consumers: Int64s  # what reads the result of each
    producers: Int64s  # the last kernel before each that converts nothing
    places: Int64s  # whose component and layer each counts to: its own, else its consumer's


def flow_of(placed: pd.DataFrame, converts: Flags, copies: Flags) -> Flow:
    """The conversions among everything that ran, each between its producer and its consumer."""
    rows = np.flatnonzero(converts)
    if not len(rows):
        return alone(converts)
    lanes = _Lanes(placed, converts | copies)
    component = placed["component"].cat.codes.to_numpy()
    codes = component[rows]
    tells_component = ~np.isin(codes, _TELL_NOTHING)
    after = lanes.after(rows)
    consumer = after.copy()
    for _ in range(_FURTHEST - 1):
        unmet = tells_component & (consumer >= 0) & (component[consumer] != codes)
        consumer[unmet] = lanes.after(consumer[unmet])
    met = (consumer >= 0) & (component[consumer] == codes)
    consumer = np.where(met, consumer, after)
    places = np.where(tells_component | (consumer < 0), rows, consumer)
    return Flow(rows, consumer, lanes.before(rows), places)


def alone(converts: Flags) -> Flow:
    """The conversions where nothing tells what comes before or after them."""
    rows = np.flatnonzero(converts)
    nothing = np.full(len(rows), -1)
    return Flow(rows, nothing, nothing, rows)


def pads(placed: pd.DataFrame, copies: Flags) -> Flags:
    """The rows of PyTorch's pads: fills with a copy of the same component right behind them."""
    padding = np.zeros(len(placed), bool)
    names = NameColumn(placed["name"])
    fills = names.flags(lambda name: padding_of(name) == "fill")
    if fills.any():
        moves = names.flags(lambda name: padding_of(name) == "copy")
        first = np.flatnonzero(fills)
        second = _Lanes(placed, fills | copies).after(first)
        component = placed["component"].cat.codes.to_numpy()
        pair = (second >= 0) & moves[second] & (component[first] == component[second])
        padding[first[pair]] = padding[second[pair]] = True
    return padding


class _Lanes:
    """The rows of each step and stream that are not skipped, to be found beside other rows."""

    def __init__(self, placed: pd.DataFrame, skipped: Flags) -> None:
        self._step, self._stream = (placed[name].to_numpy() for name in ("step", "stream"))
        streams = pd.unique(self._stream)
        # Of each stream the rows by step, and their places in that order.
        self._rows: dict[int, tuple[Integers, Integers]] = {}
        self._in_order: set[int] = set()  # streams whose rows are so as they stand
        for stream in streams.tolist():
            mine = None if len(streams) == 1 else self._stream == stream
            if ascends(self._step if mine is None else self._step[mine]):
                self._in_order.add(stream)
            plain = ~skipped if mine is None else mine & ~skipped
            rows: Integers = np.flatnonzero(plain).astype(np.int32)
            keys = self._keys(stream, rows)
            if stream not in self._in_order:
                order = np.argsort(keys, kind="stable")
                rows, keys = rows[order], keys[order]
            self._rows[stream] = rows, keys

    def after(self, rows: Int64s) -> Int64s:
        """The next row that is not skipped, of the step and stream of each, or -1."""
        return self._beside(rows, 0, "right")

    def before(self, rows: Int64s) -> Int64s:
        """The last such row before each, or -1."""
        return self._beside(rows, -1, "left")

    def _keys(self, stream: int, rows: Integers) -> Integers:
        """Numbers in the order of steps, and of rows in a step."""
        if stream in self._in_order:
            return rows.astype(np.int32, copy=False)
        return self._step[rows].astype(np.int64) * _ROW_LIMIT + rows

    def _beside(self, rows: Int64s, shift: int, side: Literal["left", "right"]) -> Int64s:
        beside = np.full(len(rows), -1)
        for stream, (plain, keys) in self._rows.items():
            mine = np.flatnonzero(self._stream[rows] == stream)
            place = np.searchsorted(keys, self._keys(stream, rows[mine]), side=side) + shift
            inside = (place >= 0) & (place < len(plain))
            mine, row = mine[inside], plain[place[inside]]
            same = self._step[row] == self._step[rows[mine]]
            beside[mine[same]] = row[same]
        return beside


_ROW_LIMIT = 1 << 31  # more rows than any table has
