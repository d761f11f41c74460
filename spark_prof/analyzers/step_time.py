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
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.instants import Attributed, OwnedTime, RunWork, attribute
from spark_prof.analyzers.lookup import copies_in
from spark_prof.analyzers.token_time import DECODING, TokenTime
from spark_prof.arrays import Flags, Floats, Int64s, exact
from spark_prof.vocabulary import COMPONENTS, PHASES

LAUNCH_GAPS = "launch_gaps"
"""Row of the time in which nothing ran between the first and the last kernel of a step."""
HOST = "host"
"""Row of the time in which nothing ran before the first kernel of a step or after its last."""
GAPS = (LAUNCH_GAPS, HOST)
COPIED = "memcpy"
"""Row of all copies and memsets."""

_TIMES = (-(1 << 61), 1 << 62)
"""From before the epoch to a century from now: no two such times are further apart than a number
of ns can tell."""


ROUNDING_US = 1e-3
"""Times are whole nanoseconds: what sums of them differ by less is rounding, and no time."""

_MOST_SIZES = 16  # of more batch sizes those with the most steps are kept


@dataclass(frozen=True)
class StepKind:
    """Some of the analyzed steps."""

    phase: str  # of `vocabulary.PHASES`, or all
    batch: int | None  # how many requests decode in them, None for any number
    steps: int

    @property
    def word(self) -> str:
        """The word for these steps in an address: the phase, and the batch size behind a hyphen."""
        return self.phase if self.batch is None else f"{self.phase}-{self.batch}"

    def of(self, steps: pd.DataFrame) -> Flags:
        """Which rows of `steps` are such steps."""
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
    """One quantity over the steps of an account."""

    mean: float
    median: float
    p10: float
    p90: float
    p99: float


@dataclass(frozen=True)
class AccountPart:
    """One part of a typical step."""

    name: str  # a component, `memcpy` with all copies and memsets, or LAUNCH_GAPS or HOST
    us: float  # what is attributed to it: those of all parts are the step
    kernel_us: float  # kernel time in the step's window, overlaps counted in full
    exclusive_us: float  # how long it ran while nothing else did
    layers: int  # decoder layers in which it ran, 0 for none
    spread: StepSpread  # of what is attributed to it over all steps, as they are

    @property
    def per_layer_us(self) -> float | None:
        """Its part of each layer; None without layers."""
        return self.us / self.layers if self.layers else None


@dataclass(frozen=True)
class StepSums:
    """How the time of some steps splits; kernels + copies - overlap + gap + residual = steps."""

    steps: int  # first uses of kernels included
    step_us: float
    kernels_us: float
    union_us: float  # time in which at least one kernel ran, copies left out
    copies_us: float
    overlap_us: float  # what of the kernels and copies ran at the same time
    gap_us: float
    residual_us: float
    engine_us: float | None
    """All iterations by the engine's own clock; None for a phase, or where it was not recorded."""

    @property
    def residual_percent(self) -> float:
        """Residual over step time, in per cent."""
        return 100 * self.residual_us / self.step_us if self.step_us else 0.0

    @property
    def busy_us(self) -> float:
        """Time in which at least one kernel or copy ran."""
        return self.kernels_us + self.copies_us - self.overlap_us


@dataclass(frozen=True)
class StepAccount:
    """The one record of time, of steps of a phase and batch size: all, the typical one, a token."""

    phase: str  # prefill, decode, mixed, unknown or all
    batch_size: int | None  # requests that decode in each of the steps; None for steps of any size
    sums: StepSums | None  # None where they fail a check
    # The typical step: how many it is of, first uses of kernels left out, and how long those take.
    # None of all phases, and where the parts fail a check.
    steps: int = 0
    step: StepSpread | None = None
    # Components in the order in which a decoder runs them, then the gaps.
    parts: tuple[AccountPart, ...] = ()
    token: TokenTime | None = None  # what a token takes in decode steps, mixed ones included

    @property
    def step_us(self) -> float:
        """The typical step, which has the median length: the sum of its parts."""
        return self.step.median if self.step else 0.0

    @property
    def steps_per_token(self) -> float | None:
        """A time in a step times this is one in a token of a sequence; None outside decode."""
        return self.token.steps_per_token if self.token and self.step_us else None

    @property
    def token_us(self) -> float | None:
        """What a token of a sequence takes; None outside decode."""
        return self.token.token_us if self.token and self.steps_per_token is not None else None

    @property
    def overlap_us(self) -> float:
        """What the kernel times of the typical step count more than once."""
        return sum(part.kernel_us - part.us for part in self.parts)

    def us(self, name: str) -> float:
        """What is attributed to a part of that name; 0 without one."""
        return sum(part.us for part in self.parts if part.name == name)

    def share(self, part: AccountPart) -> float:
        """A part's share of the typical step."""
        return part.us / self.step_us if self.step_us else 0.0

    @property
    def idle_us(self) -> float:
        """Time of the typical step in which nothing runs."""
        return sum(map(self.us, GAPS))


def attributed_time(placed: pd.DataFrame, steps: pd.DataFrame) -> tuple[Attributed, OwnedTime]:
    """Who owns each instant of the steps: by step and component, and row by row.

    Args:
        steps: with `gap_us`, the time in which nothing ran.
    """
    idle = np.rint(steps["gap_us"].to_numpy(np.float64) * 1e3)
    return attribute(_work(placed), *edges_of(steps), len(COMPONENTS), idle)


def step_accounts(
    attributed: Attributed,
    steps: pd.DataFrame,
    sums: pd.DataFrame,
    tokens: Iterable[TokenTime] = (),
) -> tuple[StepAccount, ...]:
    """The account of all steps, one each phase that occurs, then one each batch size of decode.

    Batch sizes are left out where all decode steps have the same one.

    Args:
        attributed: of all kernels and copies, by `attributed_time`.
        steps: as `step_accounting.step_times` has them.
        tokens: what a token takes over all steps and at each batch size.
    """
    by_size = {token.batch: token for token in tokens}
    usual = np.ones(len(steps), bool)
    if "first_use" in steps:
        usual = ~steps["first_use"].to_numpy(bool)
    phases = steps["phase"].astype(str)
    decoding = usual & phases.isin(DECODING).to_numpy()
    profiled_sizes = np.unique(steps["decode_requests"].to_numpy(np.int64)[decoding])
    if len(profiled_sizes) == 1 and (only := by_size.get(int(profiled_sizes[0]))):
        by_size[None] = only  # others were not profiled
    kinds = [StepKind(phase, None, 0) for phase in ("all", *PHASES) if phase in {"all", *phases}]
    kinds += [kind for kind in kinds_of(steps[usual]) if kind.batch is not None]
    length = steps["step_us"].to_numpy(np.float64)
    accounts = []
    for kind in kinds:
        account = StepAccount(kind.phase, kind.batch, _sums(kind, steps[kind.of(steps)]))
        chosen = kind.of(steps) & usual
        if kind.phase != "all" and chosen.any():
            account = replace(
                account,
                steps=int(chosen.sum()),
                step=_spread(length[chosen]),
                parts=_parts(attributed, chosen, length[chosen], _layers(sums, kind.phase)),
                token=by_size.get(kind.batch) if kind.phase == "decode" else None,
            )
        accounts.append(account)
    return tuple(accounts)


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
        kind = np.where(copies, np.int8(CODES[COPIED]), kind)
    start, end = placed["start_ns"].to_numpy(), placed["end_ns"].to_numpy()
    return RunWork(start, end, kind, ~copies)


def _layers(sums: pd.DataFrame, phase: str) -> dict[str, int]:
    rows = sums[(sums["phase"] == phase) & (sums["layer"] >= 0)]
    counts = rows.groupby("component", observed=True)["layer"].nunique()
    return {str(name): int(count) for name, count in counts.items()}


def _sums(kind: StepKind, steps: pd.DataFrame) -> StepSums:
    # The engine learns of a step's tokens when it gets round to it, with asynchronous scheduling
    # after it has started the next one: only the sum over all steps can be compared.
    names = [field.name for field in fields(StepSums) if field.name.endswith("_us")]
    sums: dict[str, Any] = {name: float(steps[name].sum()) for name in names}
    if kind.phase != "all" or steps["engine_us"].isna().any():
        sums["engine_us"] = None
    return StepSums(len(steps), **sums)


def _parts(
    attributed: Attributed, chosen: Flags, length: Floats, layers: dict[str, int]
) -> tuple[AccountPart, ...]:
    """The parts of the typical one of the chosen steps: together they have the median length."""
    names, idle = (*COMPONENTS, *GAPS), np.stack([attributed.between, attributed.outside], axis=1)
    by_kind = (attributed.attributed, attributed.kernel_time, attributed.exclusive)
    # What is attributed to each part of each step, its kernel time and its exclusive time.
    times = np.stack([np.hstack([rows, idle])[chosen] for rows in by_kind]) / 1e3
    typical = exact(typical_weights(length) @ times)
    left = exact(float(np.median(length))) - typical[0].sum()
    typical[:, typical[0].argmax()] += left if abs(left) < ROUNDING_US else 0.0
    rows = enumerate(zip(names, *typical.tolist(), strict=True))
    return tuple(
        AccountPart(name, us, kernel_us, exclusive_us, layers.get(name, 0), _spread(times[0, :, n]))
        for n, (name, us, kernel_us, exclusive_us) in rows
        if name in GAPS or times[1, :, n].any()
    )


def _spread(us: Floats) -> StepSpread:
    p10, p90, p99 = np.quantile(us, [0.1, 0.9, 0.99]).tolist()
    return StepSpread(float(us.mean()), exact(float(np.median(us))), p10, p90, p99)
