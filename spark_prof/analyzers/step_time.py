"""The one account of a step's time: what a typical step consists of, by phase and batch size.

An instant belongs to what runs in it, whichever step launched that (`analyzers.instants`). The
typical step is the median one. Its parts, gaps included, are means over the middle half of the
steps by length, those above the median weighed against those below so that the parts add up to it.
Whatever a report says of a step stands on these parts: the waterfall splits them at the lower
bound, and layers, roles and kernels of a decode step have the same weights. Sums over all steps
(`us` of components, layers and kernels, `step_accounting`) are another whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.instants import Attributed, OwnedTime, RunWork, attribute_rows
from spark_prof.analyzers.lookup import copies_in
from spark_prof.analyzers.token_time import DECODING, TokenTime, token_times
from spark_prof.arrays import Flags, Floats, Int64s
from spark_prof.vocabulary import COMPONENTS, PHASES

LAUNCH_GAPS = "launch_gaps"
"""Row of the time in which nothing ran between the first and the last kernel of a step."""
HOST = "host"
"""Row of the time in which nothing ran before the first kernel of a step or after its last."""
GAPS = (LAUNCH_GAPS, HOST)

_TIMES = (-(1 << 61), 1 << 62)
"""From before the epoch to a century from now: no two such times are further apart than a number
of ns can tell."""


_MOST_SIZES = 16  # of more batch sizes those with the most steps are kept


@dataclass(frozen=True)
class StepKind:
    """Some of the analyzed steps."""

    phase: str  # of `vocabulary.PHASES`, or all
    batch: int | None  # how many requests decode in them, None for any number
    steps: int

    @property
    def word(self) -> str:
        """In an address: the phase, and the batch size behind a hyphen."""
        return self.phase if self.batch is None else f"{self.phase}-{self.batch}"

    def of(self, steps: pd.DataFrame) -> Flags:
        """Which steps these are."""
        if self.phase == "all":
            return np.ones(len(steps), bool)
        chosen: Flags = np.asarray(steps["phase"] == self.phase, bool)
        if self.batch is not None:
            chosen = np.logical_and(chosen, steps["decode_requests"].to_numpy() == self.batch)
        return chosen


def kinds_of(steps: pd.DataFrame) -> tuple[StepKind, ...]:
    """What can be chosen, the most telling first: decode, its batch sizes, other phases, all."""
    phase = steps["phase"].astype(str)
    kinds = []
    for name in ("decode", *(name for name in PHASES if name != "decode")):
        mine = steps[phase == name]
        if mine.empty:
            continue
        kinds.append(StepKind(name, None, len(mine)))
        requests = mine["decode_requests"].to_numpy(np.int64)
        sizes, counts = np.unique(requests[requests > 0], return_counts=True)
        if name == "decode" and len(sizes) > 1:
            common = np.sort(np.argsort(-counts, kind="stable")[:_MOST_SIZES])
            kinds += [StepKind(name, int(sizes[place]), int(counts[place])) for place in common]
    phases = {kind.phase for kind in kinds}
    return (*kinds, StepKind("all", None, len(steps))) if len(phases) != 1 else tuple(kinds)


@dataclass(frozen=True)
class StepSpread:
    """One quantity over the steps of a ledger."""

    mean: float
    median: float
    p10: float
    p90: float
    p99: float


@dataclass(frozen=True)
class LedgerRow:
    """One part of a typical step."""

    name: str  # a component, `memcpy` with all copies and memsets, or LAUNCH_GAPS or HOST
    summed_us: float  # kernel time in the step's window, overlaps counted in full
    charged_us: float  # what is attributed to it: these parts of all rows add up to the step
    alone_us: float  # how long it ran while nothing else did
    share: float  # `charged_us` over the step
    # Its part of the time per token of a sequence; None outside decode.
    ms_per_token: float | None
    layers: int  # decoder layers in which it ran, 0 for none
    per_layer_us: float | None  # `charged_us` over `layers`; None without layers
    spread: StepSpread  # of what is attributed to it over all steps, as they are


@dataclass(frozen=True)
class Ledger:
    """The typical step of one kind, taken apart."""

    phase: str  # prefill, decode, mixed or unknown
    batch_size: int | None  # requests that decode in each of the steps; None for steps of any size
    steps: int  # how many there are
    step: StepSpread  # their length; the typical step has the median
    # What a token of a sequence takes in steps of this size, mixed ones included; None outside
    # decode. The rows are parts of it; the other parts are in `token`.
    ms_per_token: float | None
    overlap_us: float  # what the kernel times count more than once
    # Components in the order in which a decoder runs them, then the gaps.
    rows: tuple[LedgerRow, ...]
    token: TokenTime | None = None  # of decode steps

    @property
    def step_us(self) -> float:
        """The typical step."""
        return self.step.median

    def us(self, name: str) -> float:
        """What is attributed to a row of that name; 0 without one."""
        return sum(row.charged_us for row in self.rows if row.name == name)

    @property
    def idle_us(self) -> float:
        """In which nothing runs."""
        return sum(map(self.us, GAPS))


def attributed_time(placed: pd.DataFrame, steps: pd.DataFrame) -> tuple[Attributed, OwnedTime]:
    """Who owns each instant of the steps: by step and component, and row by row."""
    return attribute_rows(_work(placed), *edges_of(steps), len(COMPONENTS))


def token_ledgers(
    attributed: Attributed,
    steps: pd.DataFrame,
    sums: pd.DataFrame,
    tokens: Iterable[TokenTime] | None = None,
) -> tuple[Ledger, ...]:
    """One ledger each phase that occurs, decode first; then one each batch size of decode steps.

    Batch sizes are left out where all decode steps have the same one.

    Args:
        attributed: of all kernels and copies, by `attributed_time`.
        tokens: what a token takes over all steps and at each batch size; None works it out.
    """
    begin, finish = edges_of(steps)
    if tokens is None:
        whole, sizes = token_times(steps.assign(step_us=(finish - begin) / 1e3))
        tokens = sizes if whole is None else (whole, *sizes)
    by_size = {token.batch: token for token in tokens}
    counted = np.ones(len(steps), bool)
    if "first_use" in steps:
        counted = ~steps["first_use"].to_numpy(bool)
    length = (finish - begin) / 1e3
    decoding = counted & steps["phase"].astype(str).isin(DECODING).to_numpy()
    profiled_sizes = np.unique(steps["decode_requests"].to_numpy(np.int64)[decoding])
    if len(profiled_sizes) == 1 and (only := by_size.get(int(profiled_sizes[0]))):
        by_size[None] = only  # others were not profiled
    kinds = [kind for kind in kinds_of(steps[counted]) if kind.phase != "all"]
    return tuple(
        _ledger(
            kind,
            Attributed(*(times[chosen] for times in vars(attributed).values())),
            length[chosen],
            by_size.get(kind.batch) if kind.phase == "decode" else None,
            _layers(sums, kind.phase),
        )
        for kind in sorted(kinds, key=lambda kind: kind.batch is not None)
        for chosen in [kind.of(steps) & counted]
    )


def edges_of(steps: pd.DataFrame) -> tuple[Int64s, Int64s]:
    """Where the windows of steps begin and end, in ns."""
    begin, finish = (np.clip(steps[name].to_numpy(), *_TIMES) for name in ("begin_ns", "finish_ns"))
    return begin, finish


def middle_half(length: Floats) -> Int64s:
    """The places of steps of middle length; of fewer than four all."""
    cut = len(length) // 4
    return np.argsort(length, kind="stable")[cut : len(length) - cut]


def typical_weights(length: Floats) -> Floats:
    """Weights of steps of these lengths whose weighted mean length is the median.

    The middle half counts: a stall of the host swings nothing.
    """
    middle = middle_half(length)
    half = (len(middle) + 1) // 2
    lower, upper = middle[:half], middle[-half:]
    low, high = length[lower].mean(), length[upper].mean()
    below = (high - np.median(length)) / (high - low) if high > low else 0.5
    weights = np.zeros(len(length))
    weights[lower] += below / half
    weights[upper] += (1 - below) / half
    return weights


def step_weights(phase_of: pd.Series, windows: pd.DataFrame | None = None) -> Floats:
    """Weights of steps that make the typical step of each phase, or without windows the mean one.

    Args:
        phase_of: phase of each step.
        windows: begin_ns and finish_ns of the same steps.
    """
    phases = phase_of.astype(str).to_numpy()
    weights = np.zeros(len(phases))
    for phase in dict.fromkeys(phases):
        in_phase = phases == phase
        if windows is None:
            weights[in_phase] = 1 / in_phase.sum()
        else:
            begin, finish = edges_of(windows)
            counted = in_phase
            if "first_use" in windows:
                counted = in_phase & ~windows["first_use"].to_numpy(bool)
                counted = counted if counted.any() else in_phase
            weights[counted] = typical_weights((finish - begin)[counted] / 1e3)
    return weights


def _work(placed: pd.DataFrame) -> RunWork:
    copies = copies_in(placed)
    kind = placed["component"].cat.codes.to_numpy()
    if copies.any():
        kind = np.where(copies, np.int8(CODES["memcpy"]), kind)
    start, end = placed["start_ns"].to_numpy(), placed["end_ns"].to_numpy()
    return RunWork(start, end, kind, ~copies)


def _layers(sums: pd.DataFrame, phase: str) -> dict[str, int]:
    rows = sums[(sums["phase"] == phase) & (sums["layer"] >= 0)]
    counts = rows.groupby("component", observed=True)["layer"].nunique()
    return {str(name): int(count) for name, count in counts.items()}


def _ledger(
    kind: StepKind,
    attributed: Attributed,
    length: Floats,
    token: TokenTime | None,
    layers: dict[str, int],
) -> Ledger:
    step = _spread(length)
    weights = typical_weights(length)
    per_token = token.steps_per_token if token and step.median else None

    summed, owned, exclusive = (
        times.T / 1e3
        for times in (attributed.kernel_time, attributed.attributed, attributed.exclusive)
    )
    between, outside = attributed.between / 1e3, attributed.outside / 1e3
    parts = [
        *(row for row in zip(COMPONENTS, summed, owned, exclusive, strict=True) if row[1].any()),
        (LAUNCH_GAPS, between, between, between),
        (HOST, outside, outside, outside),
    ]
    rows = tuple(
        LedgerRow(
            name=name,
            summed_us=float(in_kernels @ weights),
            charged_us=us,
            alone_us=float(without_others @ weights),
            share=share,
            ms_per_token=None if per_token is None else us * per_token / 1e3,
            layers=layers.get(name, 0),
            per_layer_us=us / layers[name] if name in layers else None,
            spread=_spread(attributed_us),
        )
        for name, in_kernels, attributed_us, without_others in parts
        for us in [float(attributed_us @ weights)]
        for share in [us / step.median if step.median else 0.0]
    )
    overlap = sum(row.summed_us - row.charged_us for row in rows)
    ms_per_token = token.token_us / 1e3 if token and per_token is not None else None
    return Ledger(kind.phase, kind.batch, len(length), step, ms_per_token, overlap, rows, token)


def _spread(us: Floats) -> StepSpread:
    p10, median, p90, p99 = np.quantile(us, [0.1, 0.5, 0.9, 0.99]).tolist()
    return StepSpread(float(us.mean()), median, p10, p90, p99)
