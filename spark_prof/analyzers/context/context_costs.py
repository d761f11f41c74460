"""What context costs a decode step: attention's time by kind of layer, beside its bytes.

Steps of one batch size whose requests decode as many tokens are compared with each other. The
context is that of a mean request: of a window that some requests of a batch fill and others do
not, a few tokens too many may count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.ceilings.ceiling_rows import SequenceState
from spark_prof.analyzers.ceilings.config import Config, architecture_of, layer_kinds
from spark_prof.analyzers.context.context_rows import (
    ContextCost,
    ContextMark,
    ContextSpeed,
    LayerKindCost,
)
from spark_prof.analyzers.context.robust_line import FEWEST, Line, robust_line
from spark_prof.analyzers.lookup import copies_in, mapping_in, positions
from spark_prof.analyzers.roofline.needs import ModelShape, StepLoad, attention, shape_of
from spark_prof.analyzers.roofline.roofline_rows import Roofline
from spark_prof.analyzers.token_time import given_tokens, that_count
from spark_prof.arrays import Floats
from spark_prof.rules.components import DRAFTER, part_of
from spark_prof.traces.bundle import Bundle

READING = ("full", "window", "mla", "sparse")
"""Kinds of layers with a KV cache."""
STATES = ("gdn", "mamba")
"""Kinds of layers that keep a state of one size."""


@dataclass(frozen=True)
class ContextLayers:
    """The layers of one kind."""

    kind: str  # of READING or STATES
    layers: tuple[int, ...]
    window: int = 0  # tokens that one reads at most, 0 for all
    index: SequenceState | None = None  # what chooses those tokens and is read as a whole


def layer_groups(facts: Mapping[str, Any]) -> tuple[ContextLayers, ...]:
    """The kinds of layers of a recorded model; none where its configuration does not tell.

    One of 24 layers every second of which has a window of 128: full and window, 12 layers each.
    """
    read = Config(mapping_in(facts, "model_config"))
    shape, kinds = shape_of(facts), layer_kinds(read)
    latent = [state for state in architecture_of(read).states if state.kind == "latent"]
    layers_by_kind: dict[tuple[str, int], list[int]] = {}
    for layer, kind in enumerate(kinds):
        name = _named(kind, read, latent)
        if name in STATES or (name in READING and shape.kv_elements):
            layers_by_kind.setdefault((name, shape.window(layer)), []).append(layer)
    index = latent[1] if len(latent) > 1 else None
    return tuple(
        ContextLayers(kind, tuple(layers), window, index if kind == "sparse" else None)
        for (kind, window), layers in layers_by_kind.items()
    )


def _named(kind: str, read: Config, latent: Sequence[SequenceState]) -> str:
    if kind in ("full", "window") and latent:
        return "sparse" if latent[0].window else "mla"
    if kind == "linear":
        return "gdn" if read.delta_values else "mamba"
    return kind


def read_bytes(group: ContextLayers, load: StepLoad, shape: ModelShape) -> float:
    """What all layers of the group read of KV cache and index in such a step, in bytes."""
    if group.kind in STATES:
        return 0.0
    total = sum(attention(layer, load, shape)[0].need.streamed for layer in group.layers)
    if group.index is not None:
        whole = replace(shape, windows=(), kv_elements=group.index.elements, kv_bytes=1)
        total += len(group.layers) * attention(0, load, whole)[0].need.streamed
    return total


_NEARLY_ALL = 0.95  # of attention's time, whose layers must be known
_STATE = "ssm"
_PREPARED = "step.prepare"  # attention's metadata, outside of layers, whatever the context is


def attention_us(
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    groups: Sequence[ContextLayers],
    components: Collection[str],
) -> list[Floats] | None:
    """The us of each group's layers in each of these steps; None where layers are not known.

    Args:
        components: of kernels that count, of layers with a KV cache.
    """
    component = placed["component"].astype(str).to_numpy()
    attends, states = np.isin(component, list(components)), component == _STATE
    step = positions(steps.index.to_numpy(), placed["step"].to_numpy())
    roles = placed["role"].astype("category")
    outside = [part_of(str(role)) == DRAFTER or role == _PREPARED for role in roles.cat.categories]
    relevant = (attends | states) & (step >= 0) & ~copies_in(placed)
    relevant &= ~np.array([*outside, False])[roles.cat.codes.to_numpy()]
    layer = placed["layer"].to_numpy(np.int64)
    us = (placed["end_ns"] - placed["start_ns"]).to_numpy(np.float64) / 1e3
    in_layers = relevant & (layer >= 0)
    if not in_layers.any() or us[in_layers].sum() < _NEARLY_ALL * us[relevant].sum():
        return None
    sums = []
    for group in groups:
        kind = states if group.kind in STATES else attends
        rows = in_layers & np.isin(layer, group.layers) & kind
        sums.append(np.bincount(step[rows], us[rows], minlength=len(steps)).astype(np.float64))
    return sums


MARKS = (1024, 8192, 32768, 65536)
"""Lengths of context whose cost is told."""
NARROWEST = 512
"""Tokens between the shortest and the longest context below which no line is drawn.

Kernels read whole tiles of up to 128 tokens: over a few of them a staircase is no line.
"""
_BEYOND = 0.02  # of the recorded contexts, by how much a mark may lie outside of them
_SURE = 0.5  # half of the interval of a slope, as share of it, above which the slope is not told
_ATTENTION = ("attention", "kv_write")


def context_cost(
    bundle: Bundle,
    rank: int,
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    timed: pd.DataFrame,
    roofline: Roofline | None,
) -> ContextCost | None:
    """What context costs, of the batch size with the widest contexts; None without decode steps.

    Args:
        placed: the rank's kernels, as `place_kernels` gives them.
        steps: the analyzed ones, with `step_us` where anything has times.
        timed: those that were only timed; where they have the same contexts, a step's time is
            theirs.
        roofline: whose bandwidth the bound has.
    """
    decode = _decoding(steps)
    size = _widest(decode)
    if size is None:
        return None
    batch, width = size
    decode = _of_size(decode, batch, width)
    context = decode["context"].to_numpy(np.float64)
    bandwidth = roofline.ceilings.bandwidth if roofline else None
    cost = ContextCost(
        batch, len(decode), float(context.min()), float(context.max()),
        float(context.mean()), bandwidth.value if bandwidth else None,
    )  # fmt: skip
    if "step_us" not in steps:
        return replace(cost, why_not="times")
    if len(decode) < FEWEST:
        return replace(cost, why_not="few")
    if cost.longest - cost.shortest < NARROWEST:
        return replace(cost, why_not="narrow")
    facts = bundle.facts(rank)
    groups, shape = layer_groups(facts), shape_of(facts)
    if not groups:
        return replace(cost, why_not="model")
    by_group = attention_us(placed, decode, groups, _ATTENTION)
    if by_group is None:
        return replace(cost, why_not="layers")
    kinds = tuple(
        _kind_cost(group, us, decode, shape, cost)
        for group, us in zip(groups, by_group, strict=True)
        if us.any()
    )
    speed = _speed(kinds, decode, _of_size(_decoding(timed), batch, width), cost)
    return replace(cost, kinds=kinds, speed=speed)


def _decoding(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that only decode and whose contexts are known, with `context` and `width`."""
    steps = that_count(steps)
    requests, tokens = (
        steps[name].to_numpy(np.int64) for name in ("decode_requests", "decode_tokens")
    )
    whole = (steps["context_tokens"].to_numpy(np.int64) > 0) & (requests > 0)
    whole &= (steps["phase"].astype(str) == "decode").to_numpy() & (tokens > 0)
    sequences = np.maximum(requests, 1)
    steps = steps.assign(
        context=steps["context_tokens"].to_numpy(np.float64) / sequences, width=tokens / sequences
    )
    return steps[whole]


def _widest(decode: pd.DataFrame) -> tuple[int, float] | None:
    """The batch size, and tokens of a request, with enough steps over the widest contexts."""
    if decode.empty:
        return None
    groups = decode.groupby(["decode_requests", "width"])["context"]
    sizes = pd.DataFrame({"count": groups.size(), "span": groups.max() - groups.min()})
    sizes["enough"] = (sizes["count"] >= FEWEST) & (sizes["span"] >= NARROWEST)
    sizes["span"] = sizes["span"].where(sizes["enough"], 0.0)
    batch, width = sizes.sort_values(["enough", "span", "count"], kind="stable").index[-1]
    return int(batch), float(width)


def _of_size(decode: pd.DataFrame, batch: int, width: float) -> pd.DataFrame:
    return decode[((decode["decode_requests"] == batch) & (decode["width"] == width)).to_numpy()]


def _kind_cost(
    group: ContextLayers, us: Floats, decode: pd.DataFrame, shape: ModelShape, cost: ContextCost
) -> LayerKindCost:
    context = decode["context"].to_numpy(np.float64)
    width = float(decode["width"].iloc[0])
    grows = group.kind not in STATES
    if group.window and group.index is None:
        # A window that is full reads as much whatever the context is.
        full = context + width >= group.window
        inside = context[~full]
        grows = len(inside) >= FEWEST and float(np.ptp(inside)) >= NARROWEST
        mask = ~full if grows else full
        us, context = us[mask], context[mask]
    low, high = float(context.min(initial=cost.longest)), float(context.max(initial=0.0))
    middle = float(np.median(us)) if len(us) else 0.0
    row = LayerKindCost(group.kind, len(group.layers), group.window, low, high, middle, grows)
    if len(us) < FEWEST:
        return replace(row, why_not="few")
    if high - low < NARROWEST:
        return replace(row, why_not="narrow")
    load = StepLoad(width * cost.batch, cost.batch, width * cost.batch, 0.0)
    read = [read_bytes(group, replace(load, context=end), shape) for end in (low, high)]
    a_token = (read[1] - read[0]) / (high - low)
    bound_us = a_token / cost.bandwidth * 1e9 if cost.bandwidth else None
    row = replace(row, bytes_per_token=a_token, bound_us=bound_us)
    line = robust_line(context, us)
    if line is None or _unsure(line, high - low, row):
        return replace(row, why_not="scatter")
    return replace(
        row,
        base_us=line.base,
        slope_us=1e3 * line.slope,
        slope_low_us=1e3 * line.low,
        slope_high_us=1e3 * line.high,
        off=line.off,
        marks=tuple(_marks(group, line, (low, high), load, shape, cost.bandwidth)),
    )


def _unsure(line: Line, span: float, row: LayerKindCost) -> bool:
    """Whether the steps scatter too much for a slope.

    Of what does not grow the slope is about nothing: what it adds over all contexts has to be known
    to a part of the time instead.
    """
    within = (line.high - line.low) / 2
    if row.grows:
        return within > _SURE * abs(line.slope) and within * span > 0.01 * row.us
    return within * span > _SURE * row.us


def _marks(
    group: ContextLayers,
    line: Line,
    ends: tuple[float, float],
    load: StepLoad,
    shape: ModelShape,
    bandwidth: float | None,
) -> list[ContextMark]:
    marks = []
    low, high = ends[0] * (1 - _BEYOND), ends[1] * (1 + _BEYOND)
    for mark in MARKS:
        read = read_bytes(group, replace(load, context=float(mark)), shape)
        us = line.at(mark) if low <= mark <= high else None
        bound_us = read / bandwidth * 1e6 if bandwidth and group.kind not in STATES else None
        marks.append(ContextMark(mark, us, bound_us))
    return marks


def _speed(
    kinds: Sequence[LayerKindCost], decode: pd.DataFrame, timed: pd.DataFrame, cost: ContextCost
) -> ContextSpeed | None:
    """None where a line of the steps, or of a kind that grows, is not known."""
    if any(kind.slope_us is None and kind.grows for kind in kinds) or not kinds:
        return None
    whole = decode
    if len(timed) >= FEWEST:
        ends = float(timed["context"].min()), float(timed["context"].max())
        slack = _BEYOND * cost.longest
        if ends[0] <= cost.shortest + slack and ends[1] >= cost.longest - slack:
            whole = timed
    line = robust_line(
        whole["context"].to_numpy(np.float64), whole["step_us"].to_numpy(np.float64)
    )  # fmt: skip
    if line is None or line.slope <= 0 or line.high - line.low > 2 * _SURE * line.slope:
        return None
    shortest_us, longest_us = line.at(cost.shortest), line.at(cost.longest)
    if shortest_us <= 0:
        return None
    sequences, tokens = given_tokens(decode)
    attention_us = sum(_over(kind, kind.slope_us) for kind in kinds)
    bytes_us = None
    if cost.bandwidth:
        bytes_us = min(sum(_over(kind, kind.bound_us) for kind in kinds), attention_us)
    return ContextSpeed(
        shortest_us,
        longest_us,
        float(tokens.sum() / sequences.sum()) if sequences.sum() else 1.0,
        bytes_us,
        None if bytes_us is None else attention_us - bytes_us,
        attention_us,
        longest_us - shortest_us - attention_us,
    )


def _over(kind: LayerKindCost, slope_us: float | None) -> float:
    """What a slope adds over the contexts of its steps; one below zero is chance, and adds none."""
    return max(slope_us or 0.0, 0.0) * (kind.longest - kind.shortest) / 1e3
