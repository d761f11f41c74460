"""Places what runs between two anchors inside a compiled model, by the order in a decoder layer.

Under torch.compile only the bodies of vLLM's opaque ops run as Python, so only attention, KV write
and experts are known from ranges. Between two of them most decoder layers do the same:

    attention -> o_proj -> norm -> router -> experts        -> norm -> qkv -> rope -> kv_write
    attention -> o_proj -> norm -> mlp (its products)       -> norm -> qkv -> rope -> kv_write

after the embedding, with its collective where it is split over ranks, and before the last norm,
so the products (GEMMs) between two anchors, counted, tell where one component ends. It is a guess:
where a stretch has another number of products than the model's layers have, nothing is placed, and
a model that is none of these (`STRANGERS`) is not placed at all.

The order is that of the launches. On the device, kernels of several streams interleave. The
launches of a thread do not; and a CUDA graph, launched as one, was captured in order: its original
nodes count up as they were created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import (
    BLOCK,
    Integers,
    ascends,
    at_once,
    by_blocks,
    of_blocks,
    positions,
)
from spark_prof.arrays import Flags, Int64s
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COMPONENTS


def launch_order(rows: pd.DataFrame, host: pd.DataFrame, nodes: Int64s) -> Int64s | None:
    """The positions of kernels in launch order, step by step; None if they are in it.

    The rows are in order of start, `host` are the calls that launched them.
    """
    start, step = rows["start_ns"].to_numpy(), rows["step"].to_numpy()
    launched_of = _values_of(
        host[["correlation", "start_ns"]], rows["correlation"].to_numpy(), start
    )

    def in_order(block: slice) -> bool:
        block = slice(max(block.start - 1, 0), block.stop)
        return ascends(step[block], launched_of(block), nodes[block])

    if all(of_blocks(len(rows), in_order)):
        return None
    launched = by_blocks(len(rows), np.int64, launched_of)
    order = None if ascends(step, launched) else np.lexsort((launched, step))
    if order is not None:
        step, launched, nodes = step[order], launched[order], nodes[order]
    if not nodes.any():
        return order
    # What follows is about the kernels of one launch, which only the nodes put in order.
    launch = np.zeros(len(rows), np.int64)
    np.cumsum((np.diff(step) != 0) | (np.diff(launched) != 0), out=launch[1:])
    if not ascends(launch, nodes):
        within = np.lexsort((nodes, launch))
        order = within if order is None else order[within]
    return order


def nodes_of(bundle: Bundle, rank: int, nodes: Int64s) -> Int64s:
    """The captured node of each node, 0 for one whose creation nobody saw."""
    graph_nodes = bundle.frame("graph_nodes", rank, ["node", "original"])
    return _look_up(graph_nodes, nodes, np.zeros(len(nodes), np.int64))


def _look_up(table: pd.DataFrame, keys: Int64s, otherwise: Int64s) -> Int64s:
    """The table's second column where its first one is the key, the first row of equal ones."""
    return by_blocks(len(keys), np.int64, _values_of(table, keys, otherwise))


def _values_of(table: pd.DataFrame, keys: Int64s, otherwise: Int64s) -> Callable[[slice], Int64s]:
    """A function that returns the values that `_look_up` has for a slice of the rows."""
    table_keys, values = (table.iloc[:, column].to_numpy(np.int64) for column in range(2))
    if not len(table_keys):
        return lambda block: otherwise[block]
    if not (table_keys[1:] > table_keys[:-1]).all():
        table_keys, first = np.unique(table_keys, return_index=True)
        values = values[first]
    places = positions(table_keys, keys)

    def chosen(block: slice) -> Int64s:
        place = places[block]
        return np.where(place >= 0, values[place], otherwise[block])

    return chosen


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
_INNER_NORM = r"(?:^|[._])(?:q|k|v|qk|kv)_?(?:a_)?(?:layer)?norm$"  # norms inside an attention
_OTHER_ORDER = ("is_encoder_decoder", "parallel_attn", "use_parallel_residual")
"""What a config says of a model whose layers are in another order."""


@dataclass(frozen=True)
class Launched:
    """Kernels of one rank in launch order; arrays of one length."""

    step: Integers  # the step of each
    # Its layer, -1 for none. Experts that only their name told count to the layer of the attention
    # before them.
    layer: Integers
    component: Codes  # code of what it is known to be, -1 for none
    loose: Flags  # whether the order is to place it
    gemm: Flags  # whether it is a matrix product
    begins: Flags  # false for what only goes on with the product before it
    # Whether it can only be the embedding's before the first attention: its lookup and collectives.
    opens: Flags

    def reordered(self, order: Integers | slice) -> Launched:
        """These kernels in another order."""
        return Launched(*(array[order] for array in vars(self).values()))


def products_of(layers: pd.DataFrame, config: object = None) -> dict[str, int] | None:
    """How many matrix products a decoder layer has in qkv, o_proj, router and mlp.

    None for a model to which the order does not apply: one of `STRANGERS`, with a single norm a
    layer (its attention and mlp run side by side), or whose layers are not alike.
    """
    config = config if isinstance(config, dict) else {}
    inside = layers[layers["layer"] >= 0]
    if inside.empty or any(map(config.get, _OTHER_ORDER)):
        return None
    # The decoder is the longest stack of layers: a vision tower has one of its own.
    stack = inside["path"].str.replace(r"\.\d+(?:\..*)?$", "", regex=True)
    inside = inside[stack == inside.groupby(stack)["layer"].nunique().idxmax()]
    names = [" ".join(map(str, config.get("architectures") or ()))]
    for _, column, pattern, _ in STRANGERS:
        values = names if column == "architecture" else inside[column].astype(str).unique()
        if any(re.search(pattern, value) for value in values):
            return None
    outer = inside[(inside["component"] == "norm") & ~inside["path"].str.contains(_INNER_NORM)]
    linear = inside[inside["quant_method"] != ""]
    by_layer = pd.crosstab(linear["component"].astype(str), linear["layer"])
    by_layer = by_layer.reindex(list(_COUNTED), columns=inside["layer"].unique(), fill_value=0)
    count = by_layer.to_numpy(np.int64)
    most = count.max(axis=1)
    # Not every layer has a router or an mlp, but every layer has an attention.
    uniform = ((count == most[:, None]) | (count == 0)).all() and count[:2].all()
    if not uniform or (outer.groupby("layer").size() == 1).any():
        return None
    return dict(zip(_COUNTED, most.tolist(), strict=True))


def place_by_order(rows: Launched, products: Mapping[str, int] | None) -> tuple[Codes, Integers]:
    """The component's code and the layer of each loose row, as far as the order tells.

    Both are -1 in a stretch whose products are not as many as the layers on both sides have.
    """
    component, layer = np.full(len(rows.step), -1, np.int8), rows.layer.copy()
    if products is None:
        return component, layer

    def place(steps: slice) -> None:
        component[steps], layer[steps] = _place_steps(rows.reordered(steps), products)

    at_once(*(partial(place, steps) for steps in _whole_steps(rows.step)))
    return component, layer


def _whole_steps(step: Integers) -> Iterator[slice]:
    """Slices of rows in launch order, each of whole steps: a row tells nothing of other steps."""
    begin = 0
    while begin < len(step):
        end = min(begin + BLOCK, len(step))
        while end < len(step) and step[end] == step[end - 1]:
            step_begins = np.flatnonzero(step[end : end + BLOCK] != step[end - 1])
            end = end + int(step_begins[0]) if len(step_begins) else min(end + BLOCK, len(step))
        yield slice(begin, end)
        begin = end


def _place_steps(rows: Launched, products: Mapping[str, int]) -> tuple[Codes, Integers]:
    """Components and layers of the kernels of some whole steps."""
    component, layer = np.full(len(rows.step), -1, np.int8), rows.layer.copy()
    attention = (rows.component == CODES["attention"]) | (rows.component == CODES["kv_write"])
    attention &= rows.layer >= 0
    experts = rows.component == CODES["experts"]
    _place_experts(rows.step, layer, experts, attention)
    experts &= layer >= 0
    anchors, loose = np.flatnonzero(attention | experts), np.flatnonzero(rows.loose)
    if not len(anchors) or not len(loose):
        return component, layer
    step, gemm = rows.step[loose], rows.gemm[loose]
    passed = np.zeros(len(layer), np.int32)
    passed[anchors] = 1
    passed = np.cumsum(passed, out=passed)[loose]
    begin = np.append(True, (passed[1:] != passed[:-1]) | (step[1:] != step[:-1]))
    stretch = np.cumsum(begin, dtype=np.int32) - np.int32(1)
    first = np.flatnonzero(begin)
    # An operator's later kernels belong to the same product as its first one.
    products_begun = np.cumsum(gemm & rows.begins[loose], dtype=np.int32)
    earlier = np.append(np.int32(0), products_begun[first[1:] - 1])
    products_before = products_begun - earlier[stretch] - gemm
    kinds, layers = [], []
    for near in (passed[first] - 1, passed[first]):
        anchor = anchors[np.clip(near, 0, len(anchors) - 1)]
        in_step = (near >= 0) & (near < len(anchors)) & (rows.step[anchor] == step[first])
        kinds.append(np.where(in_step, np.where(attention[anchor], 1, 2), 0))
        layers.append(np.where(in_step, layer[anchor], -1).astype(layer.dtype))
    count = np.diff(earlier, append=products_begun[-1])
    starts, components, sides = _templates(kinds, layers[1] - layers[0], count, products)
    place = starts[stretch]
    place = np.where(place > 0, place + 2 * products_before + gemm, 0)
    layers.append(np.full(len(first), -1, layer.dtype))
    component[loose] = components[place]
    layer[loose] = np.choose(sides[place], [side[stretch] for side in layers])
    # Before the first product of a step, all up to its last row that opens it is the embedding's.
    opening = np.flatnonzero(rows.opens[loose] & (products_before == 0))
    opening = opening[((kinds[0] == 0) & (kinds[1] == 1))[stretch[opening]]]
    last = np.full(len(first), -1)
    last[stretch[opening]] = opening
    embedding = loose[np.arange(len(loose)) <= last[stretch]]
    component[embedding], layer[embedding] = CODES["embedding"], -1
    return component, layer


def _place_experts(step: Integers, layer: Integers, experts: Flags, attention: Flags) -> None:
    """Gives experts without a layer that of the attention before them in their step, in place."""
    unknown, anchors = np.flatnonzero(experts & (layer < 0)), np.flatnonzero(attention)
    latest = np.searchsorted(anchors, unknown) - 1
    unknown, anchor = unknown[latest >= 0], anchors[latest[latest >= 0]]
    same = step[anchor] == step[unknown]
    layer[unknown[same]] = layer[anchor[same]]


def _templates(
    kinds: list[Integers], further: Integers, count: Integers, products: Mapping[str, int]
) -> tuple[Integers, Codes, Codes]:
    """What lies between two anchors, by their kinds and the number of products between them.

    A template has an entry for what is before each product, for the product, and for what is behind
    the last: a component in the layer of the anchor before it (`<`), of the one after it (`>`), or
    in none.

    Returns:
        Where the template of each stretch begins, 0 for one that none fits; and of all templates'
        entries the component and the side that its layer is of, the first one for no place.
    """
    qkv, o_proj, router, mlp = (products.get(name, 0) for name in _COUNTED)
    head, tail = "o_proj< " * 2 * o_proj, "norm> qkv> " * qkv + "rope>"
    dense = "norm< " + "mlp< " * (2 * mlp - 1) if mlp else ""
    last = dense + "norm" if mlp else "norm<"
    starts = np.zeros(len(count), np.int32)
    entries = ["-"]
    for before, after, layers, template in (
        (0, 1, None, tail),
        (1, 1, 1, head + dense + tail),
        (2, 1, 1, tail),
        # Some mixtures of experts call their router themselves.
        (1, 2, 0, head + "norm>"),
        (1, 2, 0, head + "norm> " + "router> " * 2 * router),
        # The product of the logits may end a step.
        (1, 0, None, head + last),
        (1, 0, None, head + last + " lm_head -"),
        (2, 0, None, "norm"),
        (2, 0, None, "norm lm_head -"),
        (1, 1, 0, "-<"),
        (2, 2, 0, "-<"),
    ):
        words = template.split()
        fits = (kinds[0] == before) & (kinds[1] == after) & (2 * count + 1 == len(words))
        starts[fits if layers is None else fits & (further == layers)] = len(entries)
        entries += words
    component = [CODES.get(word.rstrip("<>"), -1) for word in entries]
    side = ["<>".find(word[-1]) % 3 for word in entries]
    return starts, np.array(component, np.int8), np.array(side, np.int8)
