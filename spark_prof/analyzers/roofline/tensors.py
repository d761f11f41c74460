"""The weights of the live model, one a tensor, and what they hold."""

from __future__ import annotations

from math import prod
from typing import Any

import pandas as pd

from spark_prof.analyzers.fallbacks.checkpoint_schemes import bits_of
from spark_prof.analyzers.roofline.shape import Shape
from spark_prof.analyzers.roofline.weights import (
    LARGEST,
    LOOKED_UP,
    OF_EXPERTS,
    Weights,
    is_factor,
    order_of,
)
from spark_prof.rules.tensor_names import place_of

_DIGITS = len(str(LARGEST))
_ELEMENT_BITS = {"float32": 32, "float64": 64, "bfloat16": 16, "float16": 16}


def weights_of_tensors(tensors: pd.DataFrame, shape: Shape) -> list[Weights]:
    """The weights that steps stream, one a tensor; left out is what `weights_of` leaves out.

    Memory that several modules hold counts for the first, and a view as what it holds.

    Args:
        tensors: the `tensors` table.
        shape: of the model: a tied lm_head is the embedding's tensor.
    """
    own = tensors[(tensors["kind"] == "weight").to_numpy() & (tensors["bytes"] > 0).to_numpy()]
    own = own.assign(stored=_stored(own))
    names = ["module", "name", "component", "layer", "stored", "shape", "dtype", "format"]
    names += ["address", "bytes"]
    rows: list[tuple[Any, ...]] = list(own[names].itertuples(name=None))
    stored = stored_as(own)
    tied = shape.tied and not (own["component"] == "lm_head").any()
    found = []
    seen: set[tuple[int, int]] = set()
    for number, module, name, whose, layer, size, sides, dtype, form, *where in rows:
        component = "lm_head" if tied and whose == LOOKED_UP else str(whose)
        if component in ("", LOOKED_UP) or place_of(module, 0).role != "decoder":
            continue
        if tuple(where) in seen:
            continue
        seen.add((where[0], where[1]))
        leaf, experts = module.rpartition(".")[2], component == "experts"
        part = OF_EXPERTS.search(name) if experts else None
        what, kept = part[1] if part else leaf, stored.get(module, dtype)
        factor = form != "scale" and is_factor(component, leaf, name, sides) and _count(sides) > 0
        bits = bits_of(form) or _ELEMENT_BITS.get(dtype, 8)
        weights = Weights(
            component, int(layer), what, int(size), int(size) * 8 // bits if factor else 0, experts,
            kept, (bits_of(kept) or 16) < 16, order_of(what, leaf), module, int(number),
        )  # fmt: skip
        found.append(weights)
    return found


def stored_as(tensors: pd.DataFrame) -> dict[str, str]:
    """The format of each module's largest weight, scales left out; its type where none is known.

    Args:
        tensors: the `tensors` table.
    """
    own = tensors[(tensors["kind"] == "weight").to_numpy() & (tensors["format"] != "scale")]
    own = own.sort_values("bytes", ascending=False, kind="stable").drop_duplicates("module")
    return {
        str(module): str(form or dtype)
        for module, form, dtype in zip(own["module"], own["format"], own["dtype"], strict=True)
    }


def _stored(tensors: pd.DataFrame) -> list[int]:
    """Bytes of each tensor without what lies between its rows."""
    columns = (tensors[name] for name in ("bytes", "shape", "dtype"))
    return [
        min(size, (_count(shape) * _ELEMENT_BITS.get(dtype, 0) // 8) or size)
        for size, shape, dtype in zip(*columns, strict=True)
    ]


def _count(shape: str) -> int:
    """Numbers of a tensor of that shape; 0 for what no real tensor has."""
    sides = shape.split("x")
    if not all(side.isascii() and side.isdigit() and len(side) < _DIGITS for side in sides):
        return 0
    count = prod(map(int, sides))
    return count if count < LARGEST else 0
