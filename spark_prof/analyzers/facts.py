"""What a report reads once of a rank of a bundle: its kernels, steps, owned times and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.classify.evidence import KernelEvidence, evidence_of
from spark_prof.analyzers.first_uses import first_uses
from spark_prof.analyzers.instants import Attributed, OwnedTime, with_own_starts
from spark_prof.analyzers.layer_consistency import (
    LayerTables,
    Parts,
    unknown_layers,
    without_layers,
)
from spark_prof.analyzers.lookup import copies_in, mapping_in, positions
from spark_prof.analyzers.step_accounting import step_books, sum_by_group
from spark_prof.analyzers.step_time import attributed_time
from spark_prof.analyzers.timed_steps import timed_steps
from spark_prof.analyzers.token_time import DECODING
from spark_prof.analyzers.windows import Windows, timed_windows
from spark_prof.arrays import Flags
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import BenchmarkResult
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.measured import MeasuredMachine
from spark_prof.traces.readers.engine_log import EngineLog


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
        """What `step_books` returned; of kernels without times what `timed_windows` did."""
        return step_books(self._of_batch, self.placed) if self.timed else self._of_batch

    @cached_property
    def attributed(self) -> Attributed | None:
        """Who owns each instant of the steps, by component; None without times."""
        return self._attributed[0] if self._attributed else None

    @cached_property
    def owned(self) -> OwnedTime | None:
        """The part of the steps that each row of `placed` has; None without times."""
        return self._attributed[1] if self._attributed else None

    @cached_property
    def all_layers(self) -> LayerTables:
        """The sums of the kernels in all layers that were found, and the model's layers."""
        windows = self.steps if self.timed else None
        sums = sums_of(self.placed, self.steps["phase"], windows, self.owned)
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
    def kernel_times(self) -> pd.DataFrame:
        """Start and end of the kernels of these steps, copies left out; empty without times."""
        if not self.timed:
            return self.placed[:0]
        of_steps = positions(self.steps.index.to_numpy(), self.placed["step"].to_numpy()) >= 0
        of_steps &= ~copies_in(self.placed)
        columns = self.placed[["start_ns", "end_ns"]]
        return columns if of_steps.all() else columns[of_steps]

    @cached_property
    def _attributed(self) -> tuple[Attributed, OwnedTime] | None:
        return attributed_time(self.placed, self._of_batch) if self.timed else None

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
        step = positions(steps.index.to_numpy(), kernels["step"].to_numpy()[computing])
        took = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()[computing]
        uses = first_uses(steps.assign(step_us=us), sum_by_group(took, step, len(steps)) / 1e3)
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
