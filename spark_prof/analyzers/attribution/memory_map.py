"""What the live model keeps where in GPU memory, as stretches of addresses.

Several tensors may cover an address: a matrix that embedding and lm_head share, one buffer that
holds the KV caches of several layers, one table of cosines for all of them. A stretch proves what
they have in common, and nothing else. Only where modules of one layer hold the same weight, the
most exact names it: the one that begins last, then the smallest (a part of a matrix), then a weight
before a buffer, then a product before the attention that it belongs to.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.components import layer_of, role_of
from spark_prof.analyzers.lookup import Integers
from spark_prof.analyzers.order import CODES

__all__ = ["BUFFER", "CACHE", "LM_HEAD", "MATRIX", "OTHER_WEIGHT", "MemoryMap", "memory_map"]

Flags = npt.NDArray[np.bool_]
_Value = TypeVar("_Value", int, str)

BUFFER, CACHE, OTHER_WEIGHT, MATRIX = 1, 2, 3, 4
"""Ranks of tensors: where a kernel reads several, it works for the module of the highest one. A
matrix is a weight of at least two dimensions, of a product, of experts or of an embedding."""

LM_HEAD = "lm_head"
"""The role of the module that computes the logits, which a tied embedding's matrix has as well."""

_KINDS = {"weight": OTHER_WEIGHT, "kv": CACHE, "state": CACHE, "buffer": BUFFER}
_NO_PRODUCTS = ("norm", "rope")
_FURTHEST = 1 << 60
"""Addresses and sizes from here on are none."""
_ALIGNED = 16
"""Bytes: what a kernel is given inside a tensor begins at a multiple of this."""


@dataclass(frozen=True)
class MemoryMap:
    """Stretches of addresses in ascending order; arrays have one entry each.

    Attributes:
        begin: first address.
        end: the address behind the last.
        starts: whether a tensor begins with it.
        kind: 0 for weights and buffers, 1 for caches and states, -1 for both.
        rank: the highest rank of its tensors.
        bytes: of the largest tensor.
        component: code of the common or most exact component, -1 for none.
        components: a bit for the code of each component of its tensors.
        layer: the common decoder layer, -1 for none.
        role: number of the common role among `roles`; of a tied matrix the embedding's.
        several: whether its tensors belong to several layers, so that the layer is open.
        tied: whether the embedding's matrix is lm_head's as well.
        weight: number in `weights` of the weight that begins last, of several the smallest; -1 for
            none.
        roles: texts; the first is empty, the second is LM_HEAD.
        weights: rows of the `tensors` table; of one that several modules hold there are several.
    """

    begin: Integers
    end: Integers
    starts: Flags
    kind: Integers
    rank: Integers
    bytes: Integers
    component: Integers
    components: Integers
    layer: Integers
    role: Integers
    several: Flags
    tied: Flags
    weight: Integers
    roles: tuple[str, ...]
    weights: tuple[tuple[int, ...], ...]

    def find(self, addresses: Integers) -> Integers:
        """The stretch of each address that an argument may hold, -1 for none.

        It is one that lies in a tensor, and begins it or is a multiple of 16 bytes.
        """
        if not len(self.begin):
            return np.full(len(addresses), -1)
        near = np.maximum(np.searchsorted(self.begin, addresses, side="right") - 1, 0)
        begin = self.begin[near]
        inside = (addresses >= begin) & (addresses < self.end[near])
        inside &= ((addresses == begin) & self.starts[near]) | (addresses % _ALIGNED == 0)
        return np.where(inside, near, -1)


def memory_map(tensors: pd.DataFrame) -> MemoryMap:
    """The map of the `tensors` table, without its segments of the allocator.

    Example:
        Of two rows, `model.embed_tokens` and `lm_head` at the same 1000 bytes, one stretch is
        made: rank MATRIX, tied, without a component.
    """
    sizes, addresses = tensors["bytes"], tensors["address"]
    live = (sizes > 0) & (sizes < _FURTHEST) & (addresses >= 0) & (addresses < _FURTHEST)
    known = tensors[live & tensors["kind"].astype(str).isin(_KINDS)]
    rows = [_Tensor.of(*row) for row in known[list(_COLUMNS)].itertuples(index=False, name=None)]
    held: dict[tuple[int, int], list[int]] = {}
    for number, row in zip(known.index.tolist(), rows, strict=True):
        if row.rank in (OTHER_WEIGHT, MATRIX):
            held.setdefault((row.begin, row.end), []).append(number)
    weights = {place: number for number, place in enumerate(held)}
    named = sorted({row.role for row in rows} - {"", LM_HEAD})
    roles = {role: number for number, role in enumerate(("", LM_HEAD, *named))}
    edges = sorted(
        edge for n, row in enumerate(rows) for edge in ((row.begin, 1, n), (row.end, 0, n))
    )
    active = _Active()
    found: list[tuple[int, ...]] = []
    starts = False
    for index, (begin, enters, number) in enumerate(edges):
        active.count(rows[number], 1 if enters else -1)
        starts |= bool(enters)
        end = edges[index + 1][0] if index + 1 < len(edges) else begin
        if end > begin:
            if active:
                found.append((begin, end, starts, *active.common(roles), active.weight(weights)))
            starts = False
    table = np.array(found, np.int64).reshape(-1, 13).T
    begins, ends, start, kind, rank, size, component, bits, layer, role, several, tied, own = table
    return MemoryMap(
        begins, ends, start > 0, kind, rank, size, component, bits, layer, role, several > 0,
        tied > 0, own, tuple(roles), tuple(map(tuple, held.values())),
    )  # fmt: skip


_COLUMNS = ("address", "bytes", "kind", "module", "layer", "component", "shape")
_SHARED = -2
"""The layer of a tensor whose module stands in several."""


@dataclass(frozen=True)
class _Tensor:
    begin: int
    end: int
    kind: int
    rank: int
    component: str
    layer: int
    role: str

    @property
    def exactness(self) -> tuple[int, ...]:
        """How far from the most exact one it is among several of one layer."""
        of_attention = self.component == "attention"
        return -self.begin, self.end - self.begin, -self.rank, of_attention

    @classmethod
    def of(
        cls, address: int, size: int, kind: str, module: str, layer: int, component: str, shape: str
    ) -> _Tensor:
        rank = _KINDS[kind]
        if rank == OTHER_WEIGHT and "x" in shape and component not in _NO_PRODUCTS:
            rank = MATRIX
        if layer < 0 <= layer_of(module):
            layer = _SHARED
        cached = int(rank == CACHE)
        return cls(address, address + size, cached, rank, component, layer, role_of(module))


class _Active:
    """The tensors that cover an address, counted by what they are."""

    def __init__(self) -> None:
        self._bytes: Counter[int] = Counter()
        self._kind: Counter[int] = Counter()
        self._rank: Counter[int] = Counter()
        self._layer: Counter[int] = Counter()
        self._component: Counter[str] = Counter()
        self._role: Counter[str] = Counter()
        self._lookup: Counter[str] = Counter()
        self._tensors: Counter[_Tensor] = Counter()
        self._entered = 0
        self._most_exact: list[tuple[tuple[int, ...], int, _Tensor]] = []
        self._weights: list[tuple[int, int, int, _Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._bytes)

    def count(self, tensor: _Tensor, by: int) -> None:
        """Adds the tensor (1), or takes it away (-1)."""
        _add(self._bytes, tensor.end - tensor.begin, by)
        _add(self._kind, tensor.kind, by)
        _add(self._rank, tensor.rank, by)
        _add(self._layer, tensor.layer, by)
        _add(self._component, tensor.component, by)
        _add(self._role, tensor.role, by)
        self._tensors[tensor] += by
        if by > 0:
            self._entered += 1
            heapq.heappush(self._most_exact, (tensor.exactness, self._entered, tensor))
            if tensor.rank in (OTHER_WEIGHT, MATRIX):
                entry = (-tensor.begin, tensor.end, self._entered, tensor)
                heapq.heappush(self._weights, entry)
        if tensor.component == "embedding":
            _add(self._lookup, tensor.role, by)

    def weight(self, numbers: dict[tuple[int, int], int]) -> int:
        """The number of the weight that begins last, -1 for none."""
        while self._weights and not self._tensors[self._weights[0][-1]]:
            heapq.heappop(self._weights)
        return numbers[-self._weights[0][0], self._weights[0][1]] if self._weights else -1

    def common(self, roles: dict[str, int]) -> tuple[int, ...]:
        """Kind, rank, bytes, component, layer, role, several and tied, as in the map."""
        tied = {"embedding", "lm_head"} <= self._component.keys()
        while not self._tensors[self._most_exact[0][2]]:
            heapq.heappop(self._most_exact)
        first = self._most_exact[0][2]
        component, role = _only(self._component, ""), _only(self._role, "")
        if len(self._layer) == 1 and CACHE not in self._rank and not tied:
            component, role = first.component, first.role
        elif tied:
            role = _only(self._lookup, "")
        return (
            _only(self._kind, -1),
            max(self._rank),
            max(self._bytes),
            CODES.get(component, -1),
            sum(1 << CODES[name] for name in self._component if name in CODES),
            max(_only(self._layer, -1), -1),
            roles[role],
            len(self._layer) > 1 or _SHARED in self._layer,
            tied,
        )


def _add(counter: Counter[_Value], value: _Value, by: int) -> None:
    counter[value] += by
    if not counter[value]:
        del counter[value]


def _only(values: Iterable[_Value], otherwise: _Value) -> _Value:
    """The value where it is the only one."""
    first, *more = values
    return otherwise if more else first
