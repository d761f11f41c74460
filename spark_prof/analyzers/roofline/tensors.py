"""Which weights kernels read, from the addresses among their arguments, and what these hold."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.ceilings.tensor_names import place_of
from spark_prof.analyzers.fallbacks.schemes import bits_of
from spark_prof.analyzers.roofline.shape import Shape
from spark_prof.analyzers.roofline.weights import (
    LARGEST,
    LOOKED_UP,
    OF_EXPERTS,
    Weights,
    is_factor,
    order_of,
)
from spark_prof.traces.bundle import Bundle

__all__ = ["tensors_read", "weights_of_tensors"]

_POINTER = 8
_DIGITS = len(str(LARGEST))
_ELEMENT_BITS = {"float32": 32, "float64": 64, "bfloat16": 16, "float16": 16}


def tensors_read(bundle: Bundle, rank: int) -> pd.DataFrame:
    """Which weights the kernels of a rank point to.

    An aligned address inside a weight is taken for one that the kernel reads.

    Returns:
        node (0 outside graphs), correlation (-1 in graphs) and tensor (row of the `tensors`
        table), each combination once.
    """
    tensors = bundle.frame("tensors", rank, ["address", "bytes", "kind"])
    found = bundle.frame("arguments", rank, ["node", "correlation", "offset", "address"])
    weights = np.flatnonzero((tensors["kind"] == "weight").to_numpy())
    begins = tensors["address"].to_numpy()[weights]
    order = np.argsort(begins, kind="stable")
    weights, begins = weights[order], begins[order]
    ends = begins + tensors["bytes"].to_numpy()[weights]
    address = found["address"].to_numpy()
    place = np.searchsorted(begins, address, side="right") - 1
    inside = (place >= 0) & (found["offset"].to_numpy() % _POINTER == 0)
    inside[inside] = address[inside] < ends[place[inside]]
    hits = found.loc[inside, ["node", "correlation"]].assign(tensor=weights[place[inside]])
    once: pd.DataFrame = hits.drop_duplicates(ignore_index=True)
    return once


def weights_of_tensors(tensors: pd.DataFrame, shape: Shape) -> list[Weights]:
    """The weights that steps stream, one a tensor; left out is what `weights_of` leaves out.

    Args:
        tensors: the `tensors` table.
        shape: of the model: a tied lm_head is the embedding's tensor.
    """
    own = tensors[(tensors["kind"] == "weight").to_numpy() & (tensors["bytes"] > 0).to_numpy()]
    names = ["module", "name", "component", "layer", "bytes", "shape", "dtype", "format"]
    rows: list[tuple[Any, ...]] = list(own[names].itertuples(name=None))
    stored: dict[str, str] = {}
    for _, module, _, _, _, _, _, dtype, form in sorted(rows, key=lambda row: -row[5]):
        if form != "scale":
            stored.setdefault(module, form or dtype)
    tied = shape.tied and not (own["component"] == "lm_head").any()
    found = []
    for number, module, name, whose, layer, size, sides, dtype, form in rows:
        component = "lm_head" if tied and whose == LOOKED_UP else str(whose)
        if component in ("", LOOKED_UP) or place_of(module, 0).role != "decoder":
            continue
        leaf, experts = module.rpartition(".")[2], component == "experts"
        part = OF_EXPERTS.search(name) if experts else None
        what, kept = part[1] if part else leaf, stored.get(module, "")
        factor = form != "scale" and is_factor(component, leaf, name, sides) and _count(sides) > 0
        bits = bits_of(form) or _ELEMENT_BITS.get(dtype, 8)
        weights = Weights(
            component, int(layer), what, int(size), int(size) * 8 // bits if factor else 0, experts,
            kept, (bits_of(kept) or 16) < 16, order_of(what, leaf), module, int(number),
        )  # fmt: skip
        found.append(weights)
    return found


def _count(shape: str) -> int:
    """Numbers of a tensor of that shape; 0 for what no real tensor has."""
    sides = shape.split("x")
    if not all(side.isascii() and side.isdigit() and len(side) < _DIGITS for side in sides):
        return 0
    count = prod(map(int, sides))
    return count if count < LARGEST else 0
