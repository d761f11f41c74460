"""What the live model keeps where in GPU memory, as stretches of addresses.

Several tensors may cover an address: a matrix that embedding and lm_head share, one buffer that
holds the KV caches of several layers, one table of cosines for all of them. A stretch proves what
they have in common, and nothing else. Only where modules of one layer hold the same weight, the
most exact names it: the one that begins last, then the smallest (a part of a matrix), then a weight
before a buffer, then a product before the attention that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.lookup import Integers
from spark_prof.arrays import Flags
from spark_prof.rules.components import LM_HEAD, component_of, layer_of, role_of

BUFFER, CACHE, OTHER_WEIGHT, MATRIX = 1, 2, 3, 4
"""Ranks of tensors: where a kernel reads several, it works for the module of the highest one. A
matrix is a weight of at least two dimensions, of a product, of experts or of an embedding."""

_KINDS = {"weight": OTHER_WEIGHT, "kv": CACHE, "state": CACHE, "buffer": BUFFER}
_NO_PRODUCTS = ("norm", "rope")
_FURTHEST = 1 << 60  # addresses and sizes from here on are none
_ALIGNED = 16  # bytes: what a kernel is given inside a tensor begins at a multiple of this
_SHARED, _OPEN = -2, -3
"""The layer of tensors whose module stands in several, or which are of several."""


@dataclass(frozen=True)
class MemoryMap:
    """Stretches of addresses in ascending order; arrays have one entry each.

    Those from `kind` to `weight` have one more, the last: what is so where there is no tensor.
    """

    begin: Integers  # first address
    end: Integers  # the address behind the last
    starts: Flags  # whether a tensor begins with it
    kind: Integers  # 0 for weights and buffers, 1 for caches and states, -1 for both
    rank: Integers  # the highest rank of its tensors
    bytes: Integers  # of the largest tensor
    component: Integers  # code of the common or most exact component, -1 for none
    components: Integers  # a bit for the code of each component of its tensors
    layer: Integers  # the common decoder layer, -1 for none
    role: Integers  # number of the common role among `roles`; of a tied matrix the embedding's
    several: Flags  # whether its tensors belong to several layers, so that the layer is open
    tied: Flags  # whether the embedding's matrix is lm_head's as well
    # Number in `weights` of the weight that begins last, of several the smallest; -1 for none.
    weight: Integers
    roles: tuple[str, ...]  # texts; the first is empty, the second is LM_HEAD
    # Rows of the `tensors` table; of one that several modules hold there are several.
    weights: tuple[tuple[int, ...], ...]
    of_module: Integers  # for each role its module's, which has no part of it such as w13 in it

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


@dataclass(frozen=True)
class _Tensors:
    """What the tensors of a map are; arrays have an entry each."""

    begin: Integers
    size: Integers
    rank: npt.NDArray[np.integer[Any]]
    layer: Integers
    component: Integers
    role: Integers
    weight: Integers  # number in `weights`, -1 for none
    weights: tuple[tuple[int, ...], ...]
    roles: tuple[str, ...]
    of_module: Integers


def _tensors(tensors: pd.DataFrame, roles: Iterable[str]) -> _Tensors:
    """The tensors of the model in the `tensors` table."""
    sizes, addresses = tensors["bytes"], tensors["address"]
    live = (sizes > 0) & (sizes < _FURTHEST) & (addresses >= 0) & (addresses < _FURTHEST)
    model_tensors = tensors[live & tensors["kind"].astype(str).isin(_KINDS)]
    modules, types = model_tensors["module"].astype(str), model_tensors["type"].astype(str)
    # An earlier spark-prof may not have known the module.
    descriptions = zip(model_tensors["component"].astype(str), modules, types, strict=True)
    names = pd.Series(
        [name or component_of(path, kind) for name, path, kind in descriptions],
        model_tensors.index,
        dtype="str",
    )
    begin, size = (
        model_tensors["address"].to_numpy(np.int64),
        model_tensors["bytes"].to_numpy(np.int64),
    )
    ranks = model_tensors["kind"].astype(str).map(_KINDS)
    matrix = model_tensors["shape"].astype(str).str.contains("x", regex=False) & ~names.isin(
        _NO_PRODUCTS
    )
    rank = ranks.mask(matrix & (ranks == OTHER_WEIGHT), MATRIX).to_numpy(np.int64)
    layer = model_tensors["layer"].to_numpy(np.int64)
    in_layer = np.array([layer_of(path) for path in modules], np.int64) >= 0
    layer = np.where(in_layer & (layer < 0), _SHARED, layer)
    whole = [role_of(path) for path in modules]
    paths = [
        role_of(*tensor) for tensor in zip(modules, model_tensors["name"].astype(str), strict=True)
    ]
    named = dict.fromkeys(("", LM_HEAD, *roles, *sorted({*paths, *whole})))
    number = {path: n for n, path in enumerate(named)}
    of_module = np.arange(len(number))
    of_module[[number[path] for path in paths]] = [number[path] for path in whole]
    role = np.array([number[path] for path in paths], np.int64)
    component = np.array([CODES.get(name, -1) for name in names], np.int64)
    rows_by_range: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(rank >= OTHER_WEIGHT).tolist():
        rows_by_range.setdefault((begin[row], begin[row] + size[row]), []).append(row)
    weight_index = np.full(len(model_tensors), -1)
    for index, rows in enumerate(rows_by_range.values()):
        weight_index[rows] = index
    weights = tuple(tuple(model_tensors.index[rows].tolist()) for rows in rows_by_range.values())
    return _Tensors(
        begin, size, rank, layer, component, role, weight_index, weights, tuple(number), of_module
    )


def memory_map(tensors: pd.DataFrame, roles: Iterable[str] = ()) -> MemoryMap:
    """The map of the `tensors` table, without its segments of the allocator.

    These roles come first among those of the map. Of `model.embed_tokens` and `lm_head` at the same
    1000 bytes one stretch is made: rank MATRIX, tied, without a component.
    """
    of = _tensors(tensors, roles)
    begin, size, component = of.begin, of.size, of.component
    # Each tensor in each stretch that it covers, the most exact one first.
    edges = np.unique(np.concatenate([begin, begin + size]))
    first = np.searchsorted(edges, begin)
    count = np.searchsorted(edges, begin + size) - first
    tensor = np.repeat(np.arange(len(begin)), count)
    stretch = np.arange(len(tensor)) - np.repeat(np.cumsum(count) - count - first, count)
    key = (component == CODES["attention"], -of.rank, size, -begin)
    order = np.lexsort((tensor, *(values[tensor] for values in key), stretch))
    tensor, stretch = tensor[order], stretch[order]
    at = np.flatnonzero(np.diff(stretch, prepend=-1))
    weights_first = np.lexsort((size[tensor], -begin[tensor], of.weight[tensor] < 0, stretch))

    def over(ufunc: np.ufunc, values: npt.NDArray[Any]) -> Integers:
        """What the function makes of the values of the tensors of each stretch."""
        reduced: Integers = ufunc.reduceat(values[tensor], at) if len(at) else values[:0]
        return reduced

    def common(values: npt.NDArray[Any], otherwise: int, of: Flags | bool = True) -> Integers:
        """The value where it is the only one."""
        lowest = over(np.minimum, np.where(of, values, _FURTHEST))
        same = lowest == over(np.maximum, np.where(of, values, -_FURTHEST))
        return np.where(same, lowest, otherwise)

    bit = np.array([1 << code if code >= 0 else 0 for code in component.tolist()], np.int64)
    bits = over(np.bitwise_or, bit)
    tied = (bits >> CODES["embedding"] & bits >> CODES["lm_head"] & 1) > 0
    in_cache = (of.rank == CACHE).astype(np.int64)
    layers = common(of.layer, _OPEN)
    exact = (layers != _OPEN) & ~tied & (over(np.maximum, in_cache) == 0)
    best, stretch = tensor[at], stretch[at]
    common_role = np.where(
        tied, common(of.role, 0, component == CODES["embedding"]), common(of.role, 0)
    )
    return MemoryMap(
        begin=edges[stretch],
        end=edges[stretch + 1],
        starts=np.isin(edges[stretch], begin),
        kind=np.append(common(in_cache, -1), -1),
        rank=np.append(over(np.maximum, of.rank), 0),
        bytes=np.append(over(np.maximum, size), 0),
        component=np.append(np.where(exact, component[best], common(component, -1)), -1),
        components=np.append(bits, 0),
        layer=np.append(np.maximum(layers, -1), -1),
        role=np.append(np.where(exact, of.role[best], common_role), 0),
        several=np.append(layers <= _SHARED, False),
        tied=np.append(tied, False),
        weight=np.append(of.weight[tensor[weights_first[at]]], -1),
        roles=of.roles,
        of_module=of.of_module,
        weights=of.weights,
    )
