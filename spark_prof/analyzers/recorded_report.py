"""The report of a recording: a cached property a topic, computed from the facts when first read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd

from spark_prof.analyzers.breakdown import (
    ComponentRow,
    Copies,
    Coverage,
    KernelRow,
    LayerRow,
    TypicalKernel,
    code_of,
    component_rows,
    conflicts_of,
    copies_of,
    coverage_of,
    kernel_rows,
    layer_rows,
    typical_kernels,
)
from spark_prof.analyzers.classify.code_rows import CodeRow, Conflict
from spark_prof.analyzers.clients.client_comparison import ClientRow, clients_of
from spark_prof.analyzers.context.context_costs import context_cost
from spark_prof.analyzers.context.context_rows import ContextCost
from spark_prof.analyzers.conversions.conversion_costs import conversions_of
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.counters.counter_batches import Counters, counters_of
from spark_prof.analyzers.facts import RecordedFacts
from spark_prof.analyzers.fallbacks.audit import audit_of
from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.graph_use import GraphUse, graph_use
from spark_prof.analyzers.host.host_rows import HostCode
from spark_prof.analyzers.host.host_summary import host_of
from spark_prof.analyzers.layer_consistency import without_layers
from spark_prof.analyzers.lookup import copies_in
from spark_prof.analyzers.model import (
    Answer,
    Collectives,
    Invariant,
    LazyReport,
    ModuleRow,
    RankRow,
    ReplicaRow,
    Report,
    modules_of,
)
from spark_prof.analyzers.overhead import Overhead, overhead_of
from spark_prof.analyzers.prefill_costs import Prefill, prefill_of
from spark_prof.analyzers.rank_layout import Parallel, parallel_of
from spark_prof.analyzers.ranks.rank_rows import rank_row, replica_load
from spark_prof.analyzers.ranks.rank_summary import collectives_of
from spark_prof.analyzers.recorded_run import (
    MarkerRow,
    RecordedGpu,
    RecordingSetup,
    gpu_of,
    markers_of,
    run_of,
)
from spark_prof.analyzers.report_notes import (
    Pauses,
    notes_of,
    notes_of_dependent,
    notes_of_timed,
    pauses_of,
)
from spark_prof.analyzers.requests.request_times import RequestSummary
from spark_prof.analyzers.requests.served import served_of
from spark_prof.analyzers.roofline.roofline_rows import Roofline
from spark_prof.analyzers.roofline.step_roofline import roofline_of
from spark_prof.analyzers.shapes.shape_rows import Shapes
from spark_prof.analyzers.shapes.shape_summary import shapes_of
from spark_prof.analyzers.speculation.draft_costs import speculation_of
from spark_prof.analyzers.speculation.speculation_rows import Speculation
from spark_prof.analyzers.startup.held_memory import memory_of
from spark_prof.analyzers.startup.marked_start import marked_start
from spark_prof.analyzers.startup.start_account import startup_of
from spark_prof.analyzers.startup.start_rows import MemoryAccount, Startup
from spark_prof.analyzers.step_accounting import Steps, steps_of
from spark_prof.analyzers.step_time import StepAccount, step_accounts
from spark_prof.analyzers.swapped_run import swaps_of
from spark_prof.traces.benchmarks.load_test import imported_runs
from spark_prof.traces.engine_starts import starts_in
from spark_prof.traces.swapped import layers_of


class RecordedReport(LazyReport):
    """The topics of a report as they were recorded, before they are checked; no findings yet.

    RecordedReport(Facts(bundle, 0)).conversions.us

    Args:
        every_batch: the report of all steps, where the facts are of one batch size: what does not
            depend on that size is taken over.
    """

    facts: RecordedFacts
    every_batch: Report | None
    findings: tuple[Finding, ...] = ()
    answers: tuple[Answer, ...] = ()
    invariants: tuple[Invariant, ...] = ()

    def __init__(self, facts: RecordedFacts, every_batch: Report | None = None) -> None:
        super().__init__()
        vars(self).update(facts=facts, every_batch=every_batch)

    @cached_property
    def run(self) -> RecordingSetup:
        """What was recorded, and with what."""
        run = self._run
        swaps = swaps_of(self.facts.bundle, self.facts.rank, lambda: self.kernels)
        return replace(run, swaps=swaps)

    @cached_property
    def gpu(self) -> RecordedGpu:
        """The GPU of the rank."""
        return gpu_of(self.facts.bundle.facts(self.facts.rank))

    @cached_property
    def steps(self) -> Steps:
        """The steps, with the time of a token."""
        steps = steps_of(self.facts.steps, self.facts.timed_only)
        steps = replace(steps, left_out=len(self.facts.windows.left_out))
        if self._run.tells_steps:
            return steps
        # What has the rows of one step is the whole recording.
        return replace(steps, count=0, unknown=0, unknown_us=None, host_gap_us=None)

    @cached_property
    def accounts(self) -> tuple[StepAccount, ...]:
        """Where the time of steps and tokens goes; none without times."""
        facts, token = self.facts, self.steps.token
        if not (attributed := facts.attributed[0]):
            return ()
        sizes = () if token is None else (token, *self.steps.batches)
        rows = step_accounts(attributed, facts.steps, facts.sums, sizes)
        if self._run.tells_steps:
            return rows
        return tuple(
            replace(row, steps=0, sums=row.sums and replace(row.sums, steps=0)) for row in rows
        )

    @cached_property
    def wall_us(self) -> float | None:
        """First step's start to last step's end; None without times."""
        return _wall_us(self.facts.steps, self.facts.batch) if self.facts.timed else None

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the kernel time has a known owner."""
        return coverage_of(self.facts.sums, self.kernels)

    @cached_property
    def components(self) -> tuple[ComponentRow, ...]:
        """Kernel time by component."""
        return component_rows(self.facts.sums)

    @cached_property
    def layers(self) -> tuple[LayerRow, ...]:
        """Kernel time by layer and component."""
        return layer_rows(self.facts.sums)

    @cached_property
    def kernels(self) -> tuple[KernelRow, ...]:
        """Kernel time by kernel and component."""
        return kernel_rows(self.facts.sums, self.facts.evidence.label)

    @cached_property
    def typical(self) -> tuple[TypicalKernel, ...]:
        """The kernels of the typical step of each phase."""
        return typical_kernels(self.facts.sums, self.accounts)

    @cached_property
    def conversions(self) -> Conversions:
        """What changing formats costs."""
        facts = self.facts
        placed = without_layers(facts.placed, facts.unknown_layers)
        return conversions_of(
            placed, facts.steps, self.steps, self.kernels, facts.evidence.label,
            facts.attributed[1], timed=facts.timed,
        )  # fmt: skip

    @cached_property
    def modules(self) -> tuple[ModuleRow, ...]:
        """The modules of the live model."""
        return modules_of(self.facts.bundle, self.facts.rank)

    @cached_property
    def copies(self) -> Copies:
        """What copy engines and memsets did."""
        whole = self.all_steps
        busy_us = whole.busy_us if whole else None
        return copies_of(self.facts.placed, self.facts.steps.index, busy_us)

    @cached_property
    def ranks(self) -> tuple[RankRow, ...]:
        """The time of each rank; none without times."""
        if self.every_batch is not None:
            return self.every_batch.ranks
        facts, (_, shares) = self.facts, self._collectives
        return tuple(
            rank_row(
                facts.bundle, rank, facts.steps if rank == facts.rank else None,
                shares.get(rank, {}),
            )
            for rank in facts.bundle.ranks
            if facts.timed
        )  # fmt: skip

    @cached_property
    def collectives(self) -> Collectives:
        """What the ranks of a parallel run did to each other."""
        return self.every_batch.collectives if self.every_batch else self._collectives[0]

    @cached_property
    def replicas(self) -> tuple[ReplicaRow, ...]:
        """What each data-parallel replica had to do."""
        return replica_load(self.facts.bundle)

    @cached_property
    def parallel(self) -> Parallel | None:
        """Of which run this is a rank."""
        return parallel_of(self.facts.bundle, self.facts.rank)

    @cached_property
    def overhead(self) -> tuple[Overhead, ...]:
        """The profiling overhead, by batch size."""
        return overhead_of(self.facts.bundle, self.facts.rank) if self.facts.timed else ()

    @cached_property
    def pauses(self) -> Pauses | None:
        """When the engine stood still to write what was recorded."""
        return pauses_of(self.facts.bundle, self.facts.rank)

    @cached_property
    def requests(self) -> RequestSummary | None:
        """The requests that the scheduler saw."""
        if self.every_batch is not None:
            return self.every_batch.requests
        return served_of(self.facts.bundle, self.facts.rank)

    @cached_property
    def clients(self) -> tuple[ClientRow, ...]:
        """What load generators saw of the same server."""
        facts = self.facts
        runs = [
            *imported_runs(facts.bundle),
            *(run for result in facts.results for run in result.runs),
        ]
        # A trace of sums alone does not say when a step began.
        steps = facts.steps if facts.timed else facts.steps[:0]
        return clients_of(runs, steps, facts.bundle.facts(facts.rank), self.overhead)

    @cached_property
    def counters(self) -> Counters | None:
        """What hardware counters sampled."""
        facts = self.facts
        weights = layers_of(facts.bundle, facts.rank)[["component", "bytes"]]
        return counters_of(facts.samples, facts.placed, facts.steps, weights, facts.config)

    @cached_property
    def markers(self) -> tuple[MarkerRow, ...]:
        """The recorded NVTX ranges that took the longest."""
        return markers_of(self.facts.bundle, self.facts.rank)

    @cached_property
    def machine_code(self) -> tuple[CodeRow, ...]:
        """The machine code of the kernels."""
        return code_of(self.facts.evidence, self.kernels)

    @cached_property
    def conflicts(self) -> tuple[Conflict, ...]:
        """The kernels whose names better evidence contradicts."""
        return conflicts_of(self.facts.evidence, self.kernels)

    @cached_property
    def roofline(self) -> Roofline | None:
        """What the steps of each phase need at least."""
        facts = self.facts
        return roofline_of(
            facts.bundle,
            facts.rank,
            facts.placed,
            facts.steps,
            self.typical,
            self.kernels,
            self.accounts,
            self.counters,
            facts.measured,
        )

    @cached_property
    def shapes(self) -> Shapes | None:
        """The launch shapes of decode steps."""
        facts = self.facts
        return shapes_of(
            facts.bundle, facts.rank, facts.kernels, facts.steps, facts.sums, self.counters
        )

    @cached_property
    def audit(self) -> Audit | None:
        """Which kernels run which layers."""
        steps = self.facts.steps
        # How many decode steps compute how many tokens.
        sizes = Counter(sorted(steps.loc[steps["phase"] == "decode", "decode_tokens"].tolist()))
        facts = self.facts
        return audit_of(facts.bundle, facts.rank, self.kernels, sizes, facts.log)

    @cached_property
    def graphs(self) -> tuple[GraphUse, ...]:
        """The CUDA graphs that the steps ran."""
        return graph_use(self.facts.bundle, self.facts.rank)

    @cached_property
    def ahead_us(self) -> float:
        """How long kernels waited on their stream for the one before them."""
        return _ahead_us(self.facts.placed, self.facts.steps)

    @cached_property
    def speculation(self) -> Speculation | None:
        """How many drafts were accepted, and what they cost."""
        facts = self.facts
        return speculation_of(
            facts.bundle, facts.rank, facts.placed, facts.steps, self.steps, facts.batch
        )

    @cached_property
    def context(self) -> ContextCost | None:
        """What context costs a decode step, at the batch size that tells most."""
        if self.every_batch is not None:
            return self.every_batch.context
        facts = self.facts
        return context_cost(
            facts.bundle, facts.rank, facts.placed, facts.steps, facts.timed_only, self.roofline
        )

    @cached_property
    def prefill(self) -> Prefill | None:
        """What reading prompts takes."""
        if self.every_batch is not None:
            return self.every_batch.prefill
        facts = self.facts
        budget = self.requests.max_num_batched_tokens if self.requests else None
        return prefill_of(
            facts.bundle, facts.rank, facts.placed, facts.steps, self.kernels, self.roofline, budget
        )

    @cached_property
    def startup(self) -> Startup | None:
        """What the engine's start took: by its processes' marks, else by its log."""
        facts = self.facts
        marked = marked_start(starts_in(facts.bundle))
        return marked or (startup_of(facts.log) if facts.log else None)

    @cached_property
    def memory(self) -> tuple[MemoryAccount, ...]:
        """What takes the memory of GPUs and host."""
        return memory_of(self.facts.bundle)

    @cached_property
    def host(self) -> HostCode | None:
        """Which code of the host the GPU waits for, in steps of all batch sizes."""
        if self.every_batch is not None:
            return self.every_batch.host
        facts = self.facts
        if not facts.timed:
            return None
        return host_of(facts.bundle, facts.rank, facts.placed, facts.steps)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was lost, and what to know before believing a figure."""
        facts = self.facts
        # What fails a check is told there, and is not for want of a place.
        coverage = coverage_of(facts.all_layers.sums, self.kernels)
        return (
            *facts.windows.notes,
            *notes_of_timed(self.steps, len(facts.timed_only)),
            *notes_of(facts.bundle, facts.rank, self.steps, coverage, self.all_steps),
            *notes_of_dependent(facts.sums, self._run, self.ahead_us),
            *facts.evidence.lost,
        )

    @cached_property
    def _run(self) -> RecordingSetup:
        """The run without its swaps, which kernels tell."""
        facts = self.facts
        return run_of(facts.bundle, facts.rank, facts.placed, facts.steps)

    @cached_property
    def _collectives(self) -> tuple[Collectives, Mapping[int, Mapping[str, Any]]]:
        return collectives_of(self.facts.bundle) if self.facts.timed else (Collectives(), {})


def _ahead_us(placed: pd.DataFrame, steps: pd.DataFrame) -> float:
    """How long kernels of these steps waited on their stream for the one before them."""
    if "ahead_ns" not in placed:
        return 0.0
    chosen = ~copies_in(placed) & placed["step"].isin(steps.index).to_numpy()
    return int(placed["ahead_ns"].to_numpy()[chosen].sum()) / 1e3


def _wall_us(steps: pd.DataFrame, batch: int | None) -> float:
    """How long the steps took, piece by piece: between two pieces others may have run."""
    if batch is not None:  # and between two steps of one batch size
        return float(steps["step_us"].sum())
    pieces = steps.groupby("piece")
    return float((pieces["finish_ns"].max() - pieces["begin_ns"].min()).sum()) / 1e3
