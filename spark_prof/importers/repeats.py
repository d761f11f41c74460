"""Guesses layers from what repeats, where no range and no other trace tells them.

A decoder runs attention once a layer: the n-th attention of a step is that of layer n. What lies
between two of them is placed by the order in a decoder layer. Such places are marked `guess`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm
from spark_prof.analyzers.order import CODES, Launched, place_by_order

__all__ = ["guess_layers"]

Int64s = npt.NDArray[np.int64]

_FEWEST_LAYERS = 2
_MOST_LAYERS = 1024
_PREPARES = ("prepare_varlen", "metadata", "Metadata")
_TRAINING = ("backward", "_bwd", "multi_tensor_apply")
_OUTSIDE = tuple(CODES[name] for name in ("embedding", "lm_head", "sampler", "memcpy"))


def guess_layers(
    kernels: pd.DataFrame, known: Int64s, in_graph: npt.NDArray[np.bool_]
) -> tuple[Int64s, Int64s] | None:
    """Component (a number of COMPONENTS, -1 for none) and layer (-1 for none) of each kernel.

    Args:
        kernels: `name` as categories and `step`, in launch order.
        known: the component's number where something better than the name tells it, else -1.
        in_graph: which ran in a CUDA graph. In a step with attention in a graph, the graph is the
            model, and what ran outside it prepares the batch or samples.

    Returns:
        None where nothing repeats as layers do: steps with different numbers of them, other
        mixers than attention, no attention at all, or training, which runs through them twice.
    """
    names = kernels["name"]
    by_name = _table(names, lambda name: CODES.get(classify(name).component or "", -1))
    component = np.where(known >= 0, known, by_name)
    step = kernels["step"].to_numpy(np.int64)
    gemm = _table(names, is_gemm).astype(bool)
    rest = _table(names, finishes_gemm).astype(bool)
    attention = (component == CODES["attention"]) & (step >= 0)
    attention &= ~_table(names, _only_prepares).astype(bool)
    trains = _table(names, _trains).astype(bool)
    if not attention.any() or trains.any() or (component == CODES["ssm"]).any():
        return None
    replays = np.isin(step, np.unique(step[attention & in_graph]))
    model = in_graph | ~replays
    attention &= model
    layer = np.where(attention, _count_layers(attention, gemm, step), -1)
    layers = pd.Series(layer[attention]).groupby(step[attention]).max() + 1
    usual = int(layers.mode().iloc[0])
    if not _FEWEST_LAYERS <= usual <= _MOST_LAYERS:
        return None
    regular = np.isin(step, layers.index[layers == usual])
    experts = component == CODES["experts"]
    anchor = (attention | experts) & regular
    head = _logits(attention & regular, gemm & ~anchor, np.where(regular, step, -1))
    launched = Launched(
        step=step,
        layer=np.where(attention & regular, layer, -1),
        component=np.where(anchor, component, -1).astype(np.int8),
        loose=~anchor & regular & ~head & model,
        gemm=gemm | rest,
        begins=~rest,
        opens=np.isin(component, (CODES["embedding"], CODES["collective"])),
    )
    ordered, placed = place_by_order(launched, {})
    found = np.where(component >= 0, component, ordered)
    found[head & (component < 0)] = -1
    found[head & gemm] = CODES["lm_head"]
    outside = np.isin(found, _OUTSIDE) | ~regular | head | ~model
    return found.astype(np.int64), np.where(outside, -1, placed).astype(np.int64)


def _logits(
    attention: npt.NDArray[np.bool_], gemm: npt.NDArray[np.bool_], step: Int64s
) -> npt.NDArray[np.bool_]:
    """Which kernels of a step are the logits' product and what follows it.

    After the last attention there are as many products as between two others, but for those of the
    next layer's qkv: one more than that is the logits'.
    """
    head = np.zeros(len(step), bool)
    for number in np.unique(step[step >= 0]).tolist():
        rows = np.flatnonzero(step == number)
        before = np.cumsum(gemm[rows])
        at = np.flatnonzero(attention[rows])
        between = np.diff(before[at])
        usual = int(np.median(between[between > 0])) if (between > 0).any() else 0
        products = rows[gemm[rows]]
        if usual and int(before[-1] - before[at[-1]]) == usual:
            head[rows[rows >= products[-1]]] = True
    return head


def _trains(name: str) -> bool:
    return any(word in name.lower() for word in _TRAINING)


def _only_prepares(name: str) -> bool:
    """Whether a kernel only plans an attention, which may happen once a step for all layers."""
    return any(word in name for word in _PREPARES)


def _count_layers(
    attention: npt.NDArray[np.bool_], gemm: npt.NDArray[np.bool_], step: Int64s
) -> Int64s:
    """The running number of each attention within its step; a product between two parts them."""
    rows = np.flatnonzero(attention)
    products = np.cumsum(gemm)[rows]
    same_step = np.append(False, np.diff(step[rows]) == 0)
    new = ~same_step | (np.diff(products, prepend=-1) > 0)
    count = np.cumsum(new)
    first = np.flatnonzero(~same_step)
    begin = np.repeat(count[first], np.diff(np.append(first, len(rows))))
    layers = np.full(len(attention), -1, np.int64)
    layers[rows] = count - begin
    return layers


def _table(names: pd.Series, of_name: Callable[[str], int]) -> Int64s:
    """A number for the name of each row; one look at each distinct name."""
    values = [int(of_name(str(name))) for name in names.cat.categories]
    return np.array([*values, -1], np.int64)[names.cat.codes.to_numpy()]
