"""Places what runs between two anchors inside a compiled model, by the order in a decoder layer.

Under torch.compile only the bodies of vLLM's opaque ops run as Python, so only attention, KV write
and experts are known from ranges. Between two of them most decoder layers do the same:

    attention -> o_proj -> norm -> router -> experts        -> norm -> qkv -> rope -> kv_write
    attention -> o_proj -> norm -> mlp (its products)       -> norm -> qkv -> rope -> kv_write

after the embedding, with its collective where it is split over ranks, and before the last norm,
so the products (GEMMs) between two anchors, counted, tell where one component ends. It is a guess:
where a stretch has another number of products than the model's layers have, nothing is placed, and
a model that is none of these (`STRANGERS`) is not placed at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import Integers
from spark_prof.vocabulary import COMPONENTS

__all__ = ["CODES", "STRANGERS", "Launched", "place_by_order", "products_of"]

Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]

CODES = {name: code for code, name in enumerate(COMPONENTS)}
"""Millions of components are compared as numbers; -1 is none, which as an index is the last."""

STRANGERS = (
    ("MLA", "path", r"\.(\w+_a_proj\w*|kv_a_proj_with_mqa|kv_b_proj)$",
     "model.layers.0.self_attn.kv_a_proj_with_mqa"),
    ("MLA", "type", r"MLA(?!P)|LatentAttention", "MultiHeadLatentAttentionWrapper"),
    ("hybrid", "component", r"^ssm$", "ssm"),
    ("encoder", "type", r"Encoder|CrossAttention|^Bert|^Roberta", "EncoderOnlyAttention"),
    ("parallel attention", "path", r"\.ln_(attn|mlp)$", "transformer.h.0.ln_attn"),
    ("parallel attention", "architecture", r"GPTNeoX|GPTJ|Falcon|Cohere|^Phi(Model|ForCausal)",
     "GPTNeoXForCausalLM"),
)  # fmt: skip
"""Models in whose layers another order holds: what they are, the column of the `layers` table (or
the architecture in the model's config) that tells, the pattern, and an example."""

_COUNTED = ("qkv", "o_proj", "router", "mlp")
_INNER_NORM = r"(?:^|[._])(?:q|k|v|qk|kv)_?(?:a_)?(?:layer)?norm$"
"""Norms inside an attention."""


@dataclass(frozen=True)
class Launched:
    """Kernels of one rank in launch order; arrays of one length.

    Attributes:
        step: the step of each.
        layer: its layer, -1 for none. Experts that only their name told count to the layer of the
            attention before them.
        component: code of what it is known to be, -1 for none.
        loose: whether the order is to place it.
        gemm: whether it is a matrix product.
        begins: false for what only goes on with the product before it.
        opens: whether it can only be the embedding's before the first attention: its lookup and
            collectives.
    """

    step: Integers
    layer: Integers
    component: Codes
    loose: Flags
    gemm: Flags
    begins: Flags
    opens: Flags

    def taken(self, order: Integers) -> Launched:
        """The same kernels in that order."""
        return Launched(*(array[order] for array in vars(self).values()))


def products_of(layers: pd.DataFrame, config: object = None) -> dict[str, int] | None:
    """How many matrix products a decoder layer has in qkv, o_proj, router and mlp.

    Args:
        layers: the `layers` table, read from the live model.
        config: the model's configuration, where it is known.

    Returns:
        None for a model to which the order does not apply: one of `STRANGERS`, with a single norm a
        layer (its attention and mlp run side by side), or whose layers are not alike.
    """
    config = config if isinstance(config, dict) else {}
    names = " ".join(map(str, config.get("architectures") or ()))
    flags = ("is_encoder_decoder", "parallel_attn", "use_parallel_residual")
    inside = _decoder(layers[layers["layer"] >= 0])
    if inside.empty or any(config.get(flag) for flag in flags):
        return None
    for _, column, pattern, _ in STRANGERS:
        values = [names] if column == "architecture" else inside[column].astype(str).unique()
        if any(re.search(pattern, value) for value in values):
            return None
    norms = inside[inside["component"] == "norm"]
    outer = norms[~norms["path"].str.contains(_INNER_NORM)].groupby("layer").size()
    counts = inside[inside["quant_method"] != ""].groupby(["component", "layer"], observed=True)
    by_layer = counts.size().unstack("layer", fill_value=0).reindex(list(_COUNTED), fill_value=0)
    # Not every layer has a router or an mlp, but every layer has an attention.
    several = [len(set(row) - {0}) > 1 for row in by_layer.to_numpy().tolist()]
    attention = by_layer.loc[["qkv", "o_proj"]].to_numpy()
    whole = by_layer.shape[1] == inside["layer"].nunique() and (attention > 0).all()
    if (outer == 1).any() or any(several) or not whole:
        return None
    return {str(name): int(row.max()) for name, row in by_layer.iterrows()}


def _decoder(layers: pd.DataFrame) -> pd.DataFrame:
    """The rows of the model's longest stack of layers: a vision tower has one of its own."""
    stack = layers["path"].str.replace(r"\.\d+(?:\..*)?$", "", regex=True)
    longest = layers.groupby(stack)["layer"].nunique()
    return layers[stack == longest.idxmax()] if len(longest) else layers


def place_by_order(rows: Launched, products: Mapping[str, int] | None) -> tuple[Codes, Integers]:
    """Component and layer of the loose rows, as far as the order tells.

    Args:
        rows: the kernels.
        products: what `products_of` says; None places nothing.

    Returns:
        The component's code and the layer of each row. Both are -1 for loose rows in a stretch
        whose products are not as many as the layers on both sides have.
    """
    placed = np.full(len(rows.step), -1, np.int8)
    if products is None:
        return placed, rows.layer.copy()
    attention = (rows.component == CODES["attention"]) | (rows.component == CODES["kv_write"])
    attention &= rows.layer >= 0
    experts = rows.component == CODES["experts"]
    layer = _experts_after_attention(rows, experts, attention)
    experts &= layer >= 0
    anchors = np.flatnonzero(attention | experts)
    wanted = np.flatnonzero(rows.loose)
    if not len(anchors) or not len(wanted):
        return placed, layer
    segments = _segments(rows, layer, wanted, anchors, np.where(attention[anchors], 1, 2))
    gemm = rows.gemm[wanted]
    component, found = _between(segments, gemm, products)
    first = _in_embedding(segments, rows.opens[wanted])
    component[first], found[first] = CODES["embedding"], -1
    placed[wanted], layer[wanted] = component, found
    return placed, layer


def _experts_after_attention(rows: Launched, experts: Flags, attention: Flags) -> Integers:
    """The layers, with those of experts that have none taken from the attention before them."""
    layer = rows.layer.copy()
    unknown = np.flatnonzero(experts & (layer < 0))
    anchors = np.flatnonzero(attention)
    if len(unknown) and len(anchors):
        latest = np.searchsorted(anchors, unknown) - 1
        anchor = anchors[np.maximum(latest, 0)]
        known = (latest >= 0) & (rows.step[anchor] == rows.step[unknown])
        layer[unknown[known]] = layer[anchor[known]]
    return layer


@dataclass(frozen=True)
class _Segments:
    """What lies between two anchors of a step; the first and last are half open.

    An anchor is 1 for attention, 2 for experts, 0 where there is none. Each segment has the anchors
    `before` and `after` it, their layers `own` and `following`, -1 without one, and the `count` of
    its products; each row to be placed the `number` of its segment, and the products `done` before.
    """

    before: Integers
    own: Integers
    after: Integers
    following: Integers
    count: Integers
    number: Integers
    done: Integers


def _segments(
    rows: Launched, layer: Integers, wanted: Integers, anchors: Integers, kind: Integers
) -> _Segments:
    """The segments of the rows `wanted`; `kind` is that of each of the anchors."""
    step, gemm = rows.step[wanted], rows.gemm[wanted]
    passed = np.zeros(len(layer), np.int32)
    passed[anchors] = 1
    following = np.cumsum(passed, out=passed)[wanted]
    change = np.append(True, (following[1:] != following[:-1]) | (step[1:] != step[:-1]))
    segment = np.cumsum(change, dtype=np.int32) - np.int32(1)
    # An operator's later stretches belong to the same product as its first one.
    calls = np.cumsum(gemm & rows.begins[wanted], dtype=np.int32)
    first = np.flatnonzero(change)
    last = np.append(first[1:], len(wanted)) - 1
    earlier = np.append(np.int32(0), calls[last[:-1]])
    kinds, layers = [], []
    for index in (following[first] - 1, following[first]):
        near = np.clip(index, 0, len(anchors) - 1)
        anchor = anchors[near]
        there = (index >= 0) & (index < len(anchors)) & (rows.step[anchor] == step[first])
        kinds.append(np.where(there, kind[near], 0))
        layers.append(np.where(there, layer[anchor], -1))
    return _Segments(
        before=kinds[0],
        own=layers[0],
        after=kinds[1],
        following=layers[1],
        count=calls[last] - earlier,
        number=segment,
        done=calls - earlier[segment] - gemm,
    )


def _in_embedding(segments: _Segments, opens: Flags) -> Flags:
    """The rows of a step up to the last one that opens it, before its first attention."""
    number = segments.number
    begins = (segments.before == 0) & (segments.after == 1)
    opening = np.flatnonzero(opens & (segments.done == 0) & begins[number])
    last = np.full(len(begins), -1, np.int64)
    # Of several rows of a segment the last one stays, as they ascend.
    last[number[opening]] = opening
    within: Flags = np.arange(len(number)) <= last[number]
    return within


def _between(
    segments: _Segments, gemm: Flags, products: Mapping[str, int]
) -> tuple[Codes, Integers]:
    """Component and layer of each row by its place between two anchors."""
    before, after, count = segments.before, segments.after, segments.count
    qkv = np.where(after == 1, products.get("qkv", 0), 0)
    head = np.where(before == 1, products.get("o_proj", 0), 0)
    alone = (before == after) & (segments.own == segments.following)
    fits = _fits(segments, products, alone)

    number, done = segments.number, segments.done
    to_attention, to_experts = (after == 1)[number], (after == 2)[number]
    to_end = (after == 0)[number]
    own_head = head.astype(np.int32)[number]
    last = np.where(before == 1, head + products.get("mlp", 0), 0)
    left = np.where(after == 0, last, count - qkv).astype(np.int32)[number]
    beyond_head = done > own_head
    inner = (own_head > 0) & beyond_head & (done < left)
    into_attention = to_attention & (done >= left)
    # The first rule that holds decides; the products of o_proj come with what converts their input.
    rules = (
        (~fits[number], "", "none"),
        (alone[number], "", "own"),
        (to_end & gemm & (done >= left), "lm_head", "none"),
        (to_end & (done > left), "", "none"),
        (done < own_head, "o_proj", "own"),
        (into_attention & gemm, "qkv", "following"),
        (into_attention & (done >= count[number]), "rope", "following"),
        (into_attention, "norm", "following"),
        (to_experts & (gemm | beyond_head), "router", "following"),
        (to_experts, "norm", "following"),
        # After the last experts comes the model's own norm, which has no layer.
        (to_end & (before == 2)[number], "norm", "following"),
        (gemm | inner, "mlp", "own"),
        (~beyond_head, "norm", "own"),
    )
    chosen = np.full(len(gemm), len(rules), np.int8)
    for rule in reversed(range(len(rules))):
        chosen[rules[rule][0]] = rule
    component = np.array([CODES.get(name, -1) for _, name, _ in rules] + [CODES["norm"]], np.int8)
    which = np.array([("own", "following", "none").index(w) for _, _, w in rules] + [1])[chosen]
    nowhere = np.full(len(number), -1, segments.own.dtype)
    layers = np.choose(which, [segments.own[number], segments.following[number], nowhere])
    return component[chosen], layers


def _fits(segments: _Segments, products: Mapping[str, int], alone: Flags) -> Flags:
    """Which segments have the products that the layers on both sides have, and no other."""
    before, after, count = segments.before, segments.after, segments.count
    qkv, o_proj, router, mlp = (products.get(name, 0) for name in _COUNTED)
    further = segments.following - segments.own
    found: Flags = alone & (before > 0) & (count == 0)
    # The anchors, by how many layers the second is further, and the products between them.
    for first, second, layers, wanted in (
        (0, 1, None, (qkv,)),
        (1, 1, 1, (o_proj + mlp + qkv,)),
        (2, 1, 1, (qkv,)),
        # Some mixtures of experts call their router themselves.
        (1, 2, 0, (o_proj + router, o_proj)),
        # The product of the logits may end a step.
        (1, 0, None, (o_proj + mlp, o_proj + mlp + 1)),
        (2, 0, None, (0, 1)),
    ):
        chosen = (before == first) & (after == second) & np.isin(count, wanted)
        found |= chosen if layers is None else chosen & (further == layers)
    return found
