"""Puts together what reading prompts takes, from the roofline's needs and the steps' times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.context.context_costs import STATES, attention_us, layer_groups
from spark_prof.analyzers.context.robust_line import FEWEST, robust_line
from spark_prof.analyzers.roofline.needs import shape_of
from spark_prof.analyzers.roofline.roofline_rows import Ceilings, Roofline, RooflineRow
from spark_prof.analyzers.roofline.weight_bytes import PRODUCTS
from spark_prof.analyzers.token_time import that_count
from spark_prof.traces.bundle import Bundle


@dataclass(frozen=True)
class PromptProduct:
    """The kernels of one component that multiply with its weights, in a mean prefill step."""

    component: str  # whose they are
    what: str  # the weights that they multiply with, such as w13, w2
    precision: str  # of the arithmetic; empty where unknown
    us: float  # of a step
    operations: float  # of a step, a multiply-add counted as two
    peak: float | None  # operations per second in that precision; None where unknown

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.us * 1e6 if self.us else 0.0

    @property
    def of_peak(self) -> float | None:
        """Share of the peak; None where that is not known."""
        return self.rate / self.peak if self.peak else None


@dataclass(frozen=True)
class PromptAttention:
    """Attention that sees the whole prompt, over steps that read one prompt or a chunk of it.

    Its time grows with the pairs of a token and one that it sees: half of the prompt's tokens
    squared. The line's figures are None where nothing tells them.
    """

    steps: int  # that read a single prompt and decode nothing
    shortest: int  # prompt tokens of a step, the fewest
    longest: int  # the most
    layers: int  # that see everything
    us: float  # the median of a step
    base_us: float | None = None  # of the line at no pairs
    pair_us: float | None = None  # for a million pairs more, by the line
    pair_low_us: float | None = None  # lower end of the 95 % interval of that
    pair_high_us: float | None = None  # upper end of it
    longest_us: float | None = None  # what grows with pairs, in the step with the most of them
    operations: float = 0.0  # for a million pairs, of all these layers
    precision: str = ""  # of the arithmetic; empty where unknown
    peak: float | None = None  # operations per second in that precision; None where unknown
    why_not: str = ""  # why there is no line: few, narrow, scatter, layers; empty where there is

    @property
    def of_peak(self) -> float | None:
        """Share of the peak that the pairs reach."""
        if not self.pair_us or self.pair_us <= 0 or not self.peak or not self.operations:
            return None
        return self.operations / self.pair_us * 1e6 / self.peak


@dataclass(frozen=True)
class ChunkCost:
    """Mixed steps with about as many prompt tokens, against decode steps of their batch sizes."""

    low: int  # prompt tokens of a step, the fewest
    high: int  # the most
    steps: int  # mixed ones that count
    decodes: float  # requests that decode in one, on average
    decode_us: float  # the decode steps that they are held against, as mean of their medians
    step_us: float  # the median mixed step
    extra_us: float  # by how much a mixed step is longer, in the median: each of its decodes waits
    token_us: float  # of that, for a prompt token, in the median


@dataclass(frozen=True)
class Prefill:
    """Everything about the reading of prompts."""

    steps: int  # that only read prompts
    mixed: int  # that read prompts and decode
    tokens: float  # prompt tokens of a mean step that only reads
    step_us: float | None  # its median; None where no step only reads, or nothing has times
    floor_us: float | None  # its lower bound by the roofline; None where unknown
    products: tuple[PromptProduct, ...] = ()  # the longest first; none where shapes are unknown
    attention: PromptAttention | None = None  # None where no step reads a single prompt
    chunks: tuple[ChunkCost, ...] = ()  # by prompt tokens; none without enough mixed steps
    # For a prompt token, in steps that only read; None without any.
    prefill_only_us: float | None = field(default=None, metadata={"json": "alone_us"})
    budget: int | None = None  # tokens of a batch at most (max_num_batched_tokens)


_FEWEST_DECODES = 8
"""Decode steps of a batch size below which mixed ones are held against none."""
_FEWEST_MIXED = 4
_WIDER = 4.0
"""Times as many pairs as in the shortest prompt that the longest has to have for a line."""
_SURE = 0.5  # half of the interval of a slope, as share of it, above which it is not told
_CHUNKS = (1, 128, 512, 2048, 8192)
"""Prompt tokens from which on steps are in another group."""
_ATTENTION = "attention"
Kernels = Mapping[tuple[str, str], KernelRow]


def prefill_of(
    bundle: Bundle,
    rank: int,
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: Iterable[KernelRow],
    roofline: Roofline | None,
    budget: int | None = None,
) -> Prefill | None:
    """What prompts take; None where no step reads any.

    Args:
        placed: the rank's kernels, as `place_kernels` gives them.
        steps: the analyzed ones, with `step_us` where anything has times.
        kernels: the report's rows, which know the precision of their arithmetic.
        budget: tokens of a batch at most.
    """
    steps = that_count(steps)
    phase = steps["phase"].astype(str).to_numpy()
    reading, mixed = steps[phase == "prefill"], steps[phase == "mixed"]
    reading = reading[(reading["prefill_tokens"] > 0).to_numpy()]
    if reading.empty and mixed.empty:
        return None
    by_name = {(row.component, row.name): row for row in kernels}
    roof = next((p for p in roofline.phases if p.phase == "prefill"), None) if roofline else None
    prefill = Prefill(
        steps=len(reading),
        mixed=len(mixed),
        tokens=float(reading["prefill_tokens"].mean()) if len(reading) else 0.0,
        step_us=roof.step_us if roof else None,
        floor_us=roof.floor_us if roof else None,
        products=_products(roof.rows, by_name, roofline.ceilings) if roof and roofline else (),
        budget=budget,
    )
    if "step_us" not in steps:
        return prefill
    token_us = (reading["step_us"] / reading["prefill_tokens"]).to_numpy(np.float64)
    return replace(
        prefill,
        attention=_attention(bundle, rank, placed, reading, by_name, roofline),
        chunks=_chunks(steps[phase == "decode"], mixed),
        prefill_only_us=float(np.median(token_us)) if len(token_us) else None,
    )


def _precision(kernel: KernelRow | None) -> str:
    """What its arithmetic ran in, where that is known."""
    if kernel is not None and kernel.engine == "cuda-core":
        return "fp32"
    return (kernel.precision or "") if kernel else ""


def _products(
    rows: Iterable[RooflineRow], by_name: Kernels, ceilings: Ceilings
) -> tuple[PromptProduct, ...]:
    """Rows with operations, those of one component and product in one precision together."""
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if row.operations > 0 and row.component in PRODUCTS:
            precision = _precision(by_name.get((row.component, row.name)))
            total = sums[row.component, ", ".join(row.weights) or row.product, precision]
            total[0] += row.step_us
            total[1] += row.operations * row.calls
    products = (
        PromptProduct(component, weights, precision, us, operations, ceilings.peak(precision))
        for (component, weights, precision), (us, operations) in sums.items()
    )
    return tuple(sorted(products, key=lambda product: -product.us))


def _attention(
    bundle: Bundle,
    rank: int,
    placed: pd.DataFrame,
    reading: pd.DataFrame,
    by_name: Kernels,
    roofline: Roofline | None,
) -> PromptAttention | None:
    single = reading[(reading["prefill_requests"] == 1).to_numpy()]
    single = single[(single["context_tokens"] >= 0).to_numpy()]
    facts = bundle.facts(rank)
    groups = [g for g in layer_groups(facts) if g.kind not in STATES and not g.window]
    if single.empty or not groups:
        return None
    tokens, before = (
        single[name].to_numpy(np.float64) for name in ("prefill_tokens", "context_tokens")
    )
    layers = sum(len(group.layers) for group in groups)
    ends = int(tokens.min()), int(tokens.max())
    by_group = attention_us(placed, single, groups, (_ATTENTION,))
    if by_group is None:
        return PromptAttention(len(single), *ends, layers, 0.0, why_not="layers")
    us = np.sum(by_group, axis=0)
    row = PromptAttention(len(single), *ends, layers, float(np.median(us)))
    # A token sees what was there, and of the new ones itself and those before it.
    pairs = tokens * (before + (tokens + 1) / 2) / 1e6
    if len(single) < FEWEST:
        return replace(row, why_not="few")
    if pairs.max() < _WIDER * pairs.min():
        return replace(row, why_not="narrow")
    line = robust_line(pairs, us)
    if line is None or (line.high - line.low) / 2 > _SURE * abs(line.slope):
        return replace(row, why_not="scatter")
    rows = [kernel for (component, _), kernel in by_name.items() if component == _ATTENTION]
    precision = _precision(max(rows, key=lambda kernel: kernel.us, default=None))
    return replace(
        row,
        base_us=line.base,
        pair_us=line.slope,
        pair_low_us=line.low,
        pair_high_us=line.high,
        longest_us=line.slope * float(pairs.max()),
        operations=1e6 * layers * shape_of(facts).pair_operations,
        precision=precision,
        peak=roofline.ceilings.peak(precision) if roofline else None,
    )


def _chunks(decode: pd.DataFrame, mixed: pd.DataFrame) -> tuple[ChunkCost, ...]:
    """Mixed steps by their prompt tokens, each against the median decode step of its batch."""
    sizes = decode.groupby("decode_requests")["step_us"].agg(["size", "median"])
    usual = sizes.loc[sizes["size"] >= _FEWEST_DECODES, "median"]
    mixed = mixed.assign(usual=mixed["decode_requests"].map(usual).astype(np.float64))
    mixed = mixed[mixed["usual"].notna().to_numpy() & (mixed["prefill_tokens"] > 0).to_numpy()]
    tokens = mixed["prefill_tokens"].to_numpy(np.int64)
    group = np.searchsorted(_CHUNKS, tokens, side="right")
    chunks = []
    for number in np.unique(group).tolist():
        rows = mixed[group == number]
        if len(rows) < _FEWEST_MIXED:
            continue
        extra = (rows["step_us"] - rows["usual"]).to_numpy(np.float64)
        tokens_read = rows["prefill_tokens"].to_numpy(np.float64)
        chunks.append(
            ChunkCost(
                int(tokens_read.min()), int(tokens_read.max()), len(rows),
                float(rows["decode_requests"].mean()), float(rows["usual"].mean()),
                float(rows["step_us"].median()), float(np.median(extra)),
                float(np.median(extra / tokens_read)),
            )
        )  # fmt: skip
    return tuple(chunks)
