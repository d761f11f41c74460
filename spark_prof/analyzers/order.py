"""Places what runs between two anchors inside a compiled model, by the order in a decoder layer.

Under torch.compile only the bodies of vLLM's opaque ops run as Python, so only attention, KV write
and experts are known from ranges. Between two of them a decoder layer always does the same:

    attention -> o_proj -> norm -> router -> experts        -> norm -> qkv -> rope -> kv_write
    attention -> o_proj -> norm -> mlp (its products)       -> norm -> qkv -> rope -> kv_write

so the products (GEMMs) between two anchors, counted, tell where one component ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["place_by_order"]

_ATTENTION = ("attention", "kv_write")


def place_by_order(
    rows: pd.DataFrame, is_gemm: npt.NDArray[np.bool_], products: Mapping[str, int]
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.int64]]:
    """Component and layer of the rows that have none, as far as the order tells.

    Args:
        rows: kernels of one rank in launch order with `step`, `part`, `component` ("" for the
            rows to be placed, None for rows that are to be left alone) and `layer`. Experts that
            only their name told count to the layer of the attention before them.
        is_gemm: which rows are matrix products.
        products: how many products a decoder layer has in qkv, o_proj and router; from the
            `layers` table.

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
    # A segment runs from one anchor of a step to the next; the first and last are half open.
    wanted = np.flatnonzero(loose)
    segment = np.searchsorted(anchors, wanted)
    change = (np.diff(segment) != 0) | (np.diff(step[wanted]) != 0)
    for part in np.split(wanted, np.flatnonzero(change) + 1):
        index, number = int(np.searchsorted(anchors, part[0])), step[part[0]]
        before = anchors[index - 1] if index and step[anchors[index - 1]] == number else None
        after = anchors[index] if index < len(anchors) and step[anchors[index]] == number else None
        names, layers = _segment(
            is_gemm[part],
            begins[part],
            None if before is None else (int(kind[before]), int(layer[before])),
            None if after is None else (int(kind[after]), int(layer[after])),
            products,
        )
        placed[part], placed_layer[part] = names, layers
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


def _segment(
    gemm: npt.NDArray[np.bool_],
    begins: npt.NDArray[np.bool_],
    before: tuple[int, int] | None,
    after: tuple[int, int] | None,
    products: Mapping[str, int],
) -> tuple[list[str], list[int]]:
    """Component and layer of each row between two anchors, given as (kind, layer)."""
    if before is None and after is None:
        return [""] * len(gemm), [-1] * len(gemm)
    # An operator's later stretches belong to the same product as its first one.
    count = int((gemm & begins).sum())
    done: list[int] = (np.cumsum(gemm & begins) - gemm).tolist()  # finished before each row
    names: list[str] = []
    layers: list[int] = []
    qkv = min(products.get("qkv", 1), count) if after and after[0] == 1 else 0
    if before and after and before == after:
        return [""] * len(gemm), [before[1]] * len(gemm)
    head = min(products.get("o_proj", 1), count) if before and before[0] == 1 else 0
    own = before[1] if before else -1
    following = after[1] if after else -1
    for is_product, finished in zip(gemm.tolist(), done, strict=True):
        if finished < head:  # its products, and what converts their input
            name, layer = "o_proj", own
        elif after and after[0] == 1 and finished >= count - qkv:
            name, layer = (
                ("qkv" if is_product else "rope" if finished >= count else "norm"),
                following,
            )
        elif after and after[0] == 2:
            name, layer = ("router" if is_product or finished > head else "norm"), following
        elif is_product or (head and head < finished < count - qkv):
            name, layer = "mlp", own
        else:
            name, layer = "norm", own if finished <= head else following
        names.append(name)
        layers.append(layer)
    return names, layers
