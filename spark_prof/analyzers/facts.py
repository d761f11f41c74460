"""What a report reads once of a rank of a bundle: its kernels, steps, owned times and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.classify.evidence import KernelEvidence, evidence_of
from spark_prof.analyzers.instants import Attributed, OwnedTime, with_own_starts
from spark_prof.analyzers.layer_consistency import (
    LayerTables,
    Parts,
    unknown_layers,
    without_layers,
)
from spark_prof.analyzers.lookup import copies_in, mapping_in, positions
from spark_prof.analyzers.step_accounting import Steps, length_by_group, step_times
from spark_prof.analyzers.step_time import attributed_time
from spark_prof.analyzers.token_time import DECODING, SETTLING
from spark_prof.analyzers.windows import Windows, engine_rows, timed_windows
from spark_prof.arrays import Flags, Floats
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import BenchmarkResult
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.measured import MeasuredMachine
from spark_prof.traces.readers.engine_log import EngineLog

_FAR = 3.0  # times the later steps of its shape
_VERY_FAR = 5.0  # times what others, not quite alike, let expect
_FEW = 4  # mixed steps of about as many tokens: what these take may be what they always take
_IDLE = 0.8  # of a step in which the device did nothing of its own


@dataclass(frozen=True, eq=False)
class FirstUses:
    """The steps that count in no figure of a step's or a token's time, in the order of the rows."""

    first: Flags  # the first of a shape that later steps are many times faster at
    alone: Flags  # a shape of its own, and far beyond what others let expect

    @property
    def any(self) -> Flags:
        """Steps that are either."""
        return np.asarray(self.first | self.alone)


def first_uses(steps: pd.DataFrame, working_us: Floats | None = None) -> FirstUses:
    """Judges steps in order, with `step_us`.

    Args:
        working_us: how long kernels ran in each, without collectives, which wait for other ranks;
            None where that is not known.
    """
    count = len(steps)
    us = steps["step_us"].to_numpy(np.float64)
    phase = steps["phase"].astype(str).to_numpy()
    tokens = (steps["prefill_tokens"] + steps["decode_tokens"]).to_numpy(np.float64)
    tokens = np.maximum(tokens, 1.0)
    requests = steps["decode_requests"].to_numpy(np.int64)
    decode = phase == "decode"
    bucket = np.ceil(np.log2(tokens)).astype(np.int64)
    shape = pd.MultiIndex.from_arrays(
        [phase, np.where(decode, requests, -1), np.where(decode, tokens.astype(np.int64), bucket)]
    )
    codes = shape.factorize()[0]
    first, alone = np.zeros(count, bool), np.zeros(count, bool)
    has_phase = np.isin(phase, ("decode", "mixed", "prefill"))
    single = []  # steps of a shape that does not come back, or hardly
    for code in range(int(codes.max(initial=-1)) + 1):
        places = np.flatnonzero((codes == code) & has_phase)
        if not len(places):
            continue
        if len(places) == 1 or (phase[places[0]] == "mixed" and len(places) < _FEW):
            single += places.tolist()
        if len(places) == 1:
            continue
        lead, later = places[0], places[1:]
        # More work takes at most as many times as long.
        expected = us[later] * np.maximum(tokens[lead] / tokens[later], 1.0)
        first[lead] = us[lead] > _FAR * max(float(np.median(expected)), float(expected[0]))
    for place in (place for place in single if not first[place]):
        mixed = phase[place] == "mixed"
        alone[place] = _beyond(
            place, us, tokens, decode, has_phase & ~first, working_us if mixed else None
        )
    return FirstUses(first, alone)


def _beyond(
    place: int,
    us: Floats,
    tokens: Floats,
    decode: Flags,
    has_phase: Flags,
    working_us: Floats | None,
) -> bool:
    """Whether a step without any like it is far beyond what the others let expect."""
    comparable = has_phase & (decode == decode[place])
    comparable[place] = False
    # Nothing with as much work or more, or in proportion to it, takes nearly as long.
    least = us[comparable] * np.maximum(tokens[place] / tokens[comparable], 1.0)
    if len(least) and us[place] > _VERY_FAR * float(np.median(least)):
        return True
    if working_us is None or not (has_phase & decode).any():
        return False
    usual = float(np.median(us[has_phase & decode]))
    idle = 1 - min(working_us[place] / us[place], 1.0) if us[place] else 0.0
    return bool(idle >= _IDLE and us[place] > _VERY_FAR * usual)


def told_first_uses(steps: Steps) -> Iterator[str]:
    """One line on the steps that use a kernel for the first time."""
    uses = steps.first_use_steps
    if not uses:
        return
    kinds = ", ".join(f"{count} {phase}" for phase, count in Counter(u.phase for u in uses).items())
    low, high = (f"{of(u.us for u in uses) / 1e3:,.0f}" for of in (min, max))
    span = low if low == high else f"{low} to {high}"
    unsure = sum(not use.certain for use in uses)
    why = "the first use of a kernel compiles it, and later steps like them are fast"
    if unsure == len(uses):
        why = "likely the first use of a kernel, which compiles it; no other step is like them"
    elif unsure:
        why += f" ({unsure} have none like them: likely)"
    yield f"{len(uses):,} of {steps.count:,} steps count in no time ({kinds}; {span} ms): {why}."


def timed_steps(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The steps that were only timed, with `step_us` and the scheduler's figures."""
    steps = bundle.frame("steps", rank).sort_values("step").set_index("step", drop=False)
    watched = steps["watched"].to_numpy(bool)
    if watched.all() or not steps.index.is_unique:
        return steps[:0].assign(step_us=0.0, output_tokens=0.0, output_requests=0.0)
    steps = steps.join(engine_rows(bundle, steps))
    number, start = (steps[name].to_numpy(np.int64) for name in ("step", "start_ns"))
    follows = np.append(False, (np.diff(number) == 1) & (watched[1:] == watched[:-1]))
    stretch = np.cumsum(~follows)
    within = pd.Series(stretch).groupby(stretch).cumcount().to_numpy()
    took = np.append(np.diff(start), 0)
    settled = ~watched & np.append(follows[1:], False) & (within >= SETTLING) & (took > 0)
    unfinished = steps["unfinished"].to_numpy(np.float64)
    settled &= np.isnan(unfinished) | (unfinished > 0)
    steady: pd.DataFrame = steps.assign(step_us=took / 1e3)[settled]
    return steady


@dataclass(frozen=True, eq=False)
class RecordedFacts:
    """The tables of one rank that all topics of a report are computed from, each read once.

    Facts(bundle, 0).sums.groupby("component")["ns"].sum()

    Args:
        batch: leaves out steps in which other numbers of requests decode; None leaves out none.
        log: what the engine printed in the same run.
        measured: bounds of its GPU that were measured.
        results: of load generators that saw the same server, beside those in the bundle.
        every_batch: the facts of all steps, where these are of one batch size.
    """

    bundle: Bundle
    rank: int
    batch: int | None = None
    log: EngineLog | None = None
    measured: MeasuredMachine | None = None
    results: Sequence[BenchmarkResult] = ()
    every_batch: RecordedFacts | None = None

    @cached_property
    def timed(self) -> bool:
        """Whether it is known when the kernels ran; a table of sums does not tell."""
        return not self.bundle.meta.settings.get("summed")

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The model's configuration as Hugging Face writes it; empty where it was not recorded."""
        return mapping_in(self.bundle.facts(self.rank), "model_config")

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The samples of hardware counters; empty without any."""
        return self.bundle.frame("counters", self.rank)

    @cached_property
    def evidence(self) -> KernelEvidence:
        """What tells on which unit and in which precision a kernel ran."""
        return (
            self.every_batch.evidence if self.every_batch else evidence_of(self.bundle, self.rank)
        )

    @cached_property
    def all_kernels(self) -> pd.DataFrame:
        """What `place_kernels` returned, `stream` among it, of all steps, from own starts on."""
        if self.every_batch:
            return self.every_batch.all_kernels
        rows = place_kernels(self.bundle, self.rank, ["stream", "module", "graph_node"])
        return with_own_starts(rows)

    @cached_property
    def windows(self) -> Windows:
        """Where each step begins and ends, and which steps have no times."""
        if self.every_batch:
            return self.every_batch.windows
        return timed_windows(self.bundle, self.rank, self.all_kernels)

    @cached_property
    def placed(self) -> pd.DataFrame:
        """The kernels and copies that may run in these steps."""
        left_out = self.windows.left_out
        if self.batch is not None:
            index = self._judged.index.to_numpy(np.int64)
            left_out = np.append(left_out, index[self._of_other_sizes])
        if not len(left_out):
            return self.all_kernels
        # Kernels of another time line would fill the gaps of this one.
        rows = ~self.all_kernels["step"].isin(left_out)
        return self.all_kernels[rows].reset_index(drop=True)

    @cached_property
    def timed_only(self) -> pd.DataFrame:
        """The steps that were not profiled."""
        steps = timed_steps(self.bundle, self.rank)
        return steps if self.batch is None else steps[steps["decode_requests"] == self.batch]

    @cached_property
    def steps(self) -> pd.DataFrame:
        """What `step_times` returned; of kernels without times what `timed_windows` did."""
        return step_times(self._of_batch, self.placed) if self.timed else self._of_batch

    @cached_property
    def attributed(self) -> tuple[Attributed, OwnedTime] | tuple[None, None]:
        """Who owns each instant of the steps, by component and row by row; None without times."""
        return attributed_time(self.placed, self.steps) if self.timed else (None, None)

    @cached_property
    def all_layers(self) -> LayerTables:
        """The sums of the kernels in all layers that were found, and the model's layers."""
        windows = self.steps if self.timed else None
        sums = sums_of(self.placed, self.steps["phase"], windows, self.attributed[1])
        return LayerTables.of(self.bundle, self.rank, sums)

    @cached_property
    def unknown_layers(self) -> Parts:
        """The parts of layers whose kernels are not known."""
        return unknown_layers(self.all_layers)

    @cached_property
    def sums(self) -> pd.DataFrame:
        """What `sums_of` returned, without layers whose kernels are not known."""
        return without_layers(self.all_layers.sums, self.unknown_layers)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """The kernels and copies of all steps, without layers whose kernels are not known."""
        return without_layers(self.all_kernels, self.unknown_layers)

    @cached_property
    def kernels_of_steps(self) -> Flags:
        """Which rows of `placed` are kernels of these steps, no copies; none without times."""
        if not self.timed:
            return np.zeros(len(self.placed), bool)
        of_steps = positions(self.steps.index.to_numpy(), self.placed["step"].to_numpy()) >= 0
        return np.asarray(of_steps & ~copies_in(self.placed))

    @cached_property
    def _judged(self) -> pd.DataFrame:
        """The windows; with times each with whether it used a kernel for the first time."""
        if self.every_batch:
            return self.every_batch._judged
        steps, kernels = self.windows.steps, self.all_kernels
        if not self.timed:
            return steps
        us = (steps["finish_ns"] - steps["begin_ns"]) / 1e3
        computing = ~copies_in(kernels) & (kernels["component"] != "collective").to_numpy()
        step = positions(steps.index.to_numpy(), kernels["step"].to_numpy())
        step[~computing] = -1
        start, end = (kernels[name].to_numpy() for name in ("start_ns", "end_ns"))
        took = length_by_group(start, end, step, len(steps))
        uses = first_uses(steps.assign(step_us=us), took / 1e3)
        return steps.assign(first_use=uses.any, first_use_sure=uses.first)

    @cached_property
    def _of_batch(self) -> pd.DataFrame:
        return self._judged if self.batch is None else self._judged[~self._of_other_sizes]

    @cached_property
    def _of_other_sizes(self) -> Flags:
        """Which steps have another number of requests that decode."""
        decoding = self._judged["phase"].astype(str).isin(DECODING).to_numpy()
        sizes = self._judged["decode_requests"].to_numpy(np.int64)
        other_sizes = np.asarray(decoding & (sizes != self.batch))
        if other_sizes.sum() == decoding.sum():
            had = ", ".join(f"{size:,}" for size in np.unique(sizes[decoding]).tolist())
            recorded_sizes = f"its steps had {had}" if had else "no step decodes"
            raise CommandError(
                f"{self.bundle.label} has no step in which {self.batch:,} requests decode: "
                f"{recorded_sizes}"
            )
        return other_sizes
