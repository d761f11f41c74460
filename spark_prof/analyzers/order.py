"""Places what runs between two anchors inside a compiled model, by the order in a decoder layer.

Under torch.compile only the bodies of vLLM's opaque ops run as Python, so only attention, KV write
and experts are known from ranges. Between two of them a decoder layer always does the same:

    attention -> o_proj -> norm -> router -> experts        -> norm -> qkv -> rope -> kv_write
    attention -> o_proj -> norm -> mlp (its products)       -> norm -> qkv -> rope -> kv_write

after the embedding, with its collective where it is split over ranks, and before the last norm,
so the products (GEMMs) between two anchors, counted, tell where one component ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["place_by_order"]

Int64s = npt.NDArray[np.int64]

_ATTENTION = ("attention", "kv_write")


def place_by_order(
    rows: pd.DataFrame,
    is_gemm: npt.NDArray[np.bool_],
    products: Mapping[str, int],
    opens: npt.NDArray[np.bool_] | None = None,
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.int64]]:
    """Component and layer of the rows that have none, as far as the order tells.

    Args:
        rows: kernels of one rank in launch order with `step`, `part`, `component` ("" for the
            rows to be placed, None for rows that are to be left alone) and `layer`. Experts that
            only their name told count to the layer of the attention before them.
        is_gemm: which rows are matrix products.
        products: how many products a decoder layer has in qkv, o_proj and router; from the
            `layers` table.
        opens: which rows can only be the embedding's before the first attention: its lookup and
            collectives.

    Returns:
        component ("" where the order does not tell) and layer, one each row.
    """
    component = rows["component"].to_numpy(object)
    layer = rows["layer"].to_numpy(np.int64)
    step = rows["step"].to_numpy(np.int64)
    begins = rows["part"].to_numpy(np.int64) == 0
    placed = np.full(len(rows), "", object)
    is_attention = np.isin(component, _ATTENTION) & (layer >= 0)
    layer = _experts_after_attention(layer, component == "experts", is_attention, step)
    placed_layer = layer.copy()
    kind = np.select([is_attention, (component == "experts") & (layer >= 0)], [1, 2], 0)
    anchors = np.flatnonzero(kind > 0)
    loose = component == ""
    if not len(anchors) or not loose.any():
        return placed, placed_layer
    wanted = np.flatnonzero(loose)
    segments = _segments(wanted, anchors, step, kind, layer, (is_gemm, begins))
    placed[wanted], placed_layer[wanted] = _between(segments, is_gemm[wanted], products)
    if opens is not None:
        first = wanted[_in_embedding(segments, opens[wanted])]
        placed[first], placed_layer[first] = "embedding", -1
    return placed, placed_layer


def _experts_after_attention(
    layer: npt.NDArray[np.int64],
    is_experts: npt.NDArray[np.bool_],
    is_attention: npt.NDArray[np.bool_],
    step: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The layers, with those of experts that have none taken from the attention before them."""
    index = np.where(is_attention, np.arange(len(layer)), -1)
    latest = np.maximum.accumulate(index)
    known = is_experts & (layer < 0) & (latest >= 0) & (step[np.maximum(latest, 0)] == step)
    return np.where(known, layer[np.maximum(latest, 0)], layer)


@dataclass(frozen=True)
class _Segments:
    """For each row to be placed, what it lies between; arrays of one length.

    A segment runs from one anchor of a step to the next; the first and last are half open. An
    anchor is 1 for attention, 2 for experts, 0 where there is none.
    """

    before: Int64s
    own: Int64s
    """Layer of the anchor before, -1 without one."""
    after: Int64s
    following: Int64s
    """Layer of the anchor after, -1 without one."""
    count: Int64s
    """Products of the segment."""
    done: Int64s
    """Products finished before the row."""
    number: Int64s
    """Number of the segment."""


def _segments(
    wanted: Int64s,
    anchors: Int64s,
    step: Int64s,
    kind: Int64s,
    layer: Int64s,
    products: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
) -> _Segments:
    """The segments of the rows `wanted`; `products` are the masks of products and of calls."""
    gemm, begins = (mask[wanted] for mask in products)
    following = np.searchsorted(anchors, wanted)
    change = (np.diff(following) != 0) | (np.diff(step[wanted]) != 0)
    segment = np.cumsum(np.append(0, change))
    # An operator's later stretches belong to the same product as its first one.
    calls = np.cumsum(gemm & begins)
    first = np.append(0, np.flatnonzero(change) + 1)
    last = np.append(first[1:], len(wanted)) - 1
    earlier = np.append(0, calls[last[:-1]])
    kinds, layers = [], []
    for index in (following - 1, following):
        anchor = anchors[np.clip(index, 0, len(anchors) - 1)]
        there = (index >= 0) & (index < len(anchors)) & (step[anchor] == step[wanted])
        kinds.append(np.where(there, kind[anchor], 0))
        layers.append(np.where(there, layer[anchor], -1))
    return _Segments(
        before=kinds[0],
        own=layers[0],
        after=kinds[1],
        following=layers[1],
        count=(calls[last] - earlier)[segment],
        done=calls - earlier[segment] - gemm,
        number=segment,
    )


def _in_embedding(rows: _Segments, opens: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The rows of a step up to the last one that opens it, before its first attention."""
    opens = opens & (rows.before == 0) & (rows.after == 1) & (rows.done == 0)
    position = np.arange(len(opens))
    last = np.full(int(rows.number[-1]) + 1, -1, np.int64)
    np.maximum.at(last, rows.number[opens], position[opens])
    return position <= last[rows.number]


def _between(
    rows: _Segments, gemm: npt.NDArray[np.bool_], products: Mapping[str, int]
) -> tuple[npt.NDArray[np.object_], Int64s]:
    """Component and layer of each row by its place between two anchors."""
    to_attention = rows.after == 1
    qkv = np.where(to_attention, np.minimum(products.get("qkv", 1), rows.count), 0)
    head = np.where(rows.before == 1, np.minimum(products.get("o_proj", 1), rows.count), 0)
    inner = (head > 0) & (rows.done > head) & (rows.done < rows.count - qkv)
    nowhere = (rows.before == 0) & (rows.after == 0)
    same = (rows.before == rows.after) & (rows.own == rows.following)
    into_attention = to_attention & (rows.done >= rows.count - qkv)
    # The first rule that holds decides; the products of o_proj come with what converts their input.
    rules = (
        (nowhere | same, "", rows.own),
        (rows.done < head, "o_proj", rows.own),
        (into_attention & gemm, "qkv", rows.following),
        (into_attention & (rows.done >= rows.count), "rope", rows.following),
        (into_attention, "norm", rows.following),
        ((rows.after == 2) & (gemm | (rows.done > head)), "router", rows.following),
        (rows.after == 2, "norm", rows.following),
        # After the last experts comes the model's own norm, which has no layer.
        ((rows.before == 2) & (rows.after == 0) & ~gemm, "norm", rows.following),
        (gemm | inner, "mlp", rows.own),
        (rows.done <= head, "norm", rows.own),
        (np.ones(len(gemm), bool), "norm", rows.following),
    )
    conditions = [condition for condition, _, _ in rules]
    names = np.array([name for _, name, _ in rules], object)
    layers = np.select(conditions, [layer for _, _, layer in rules], -1)
    return names[np.select(conditions, list(range(len(rules))))], layers
