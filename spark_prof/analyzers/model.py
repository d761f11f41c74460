"""What a report says, as plain data: analyzers fill these records, dashboards draw them.

All times are microseconds, all shares are fractions of 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pandas as pd

from spark_prof.analyzers.breakdown import (
    ComponentRow,
    Copies,
    Coverage,
    KernelRow,
    LayerRow,
    TypicalKernel,
)
from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.classify.code_rows import CodeRow, Conflict
from spark_prof.analyzers.clients.client_comparison import ClientRow
from spark_prof.analyzers.context.context_rows import ContextCost
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.counters.counter_batches import Counters
from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.graph_use import GraphUse
from spark_prof.analyzers.host.host_rows import HostCode
from spark_prof.analyzers.overhead import Overhead
from spark_prof.analyzers.prefill_costs import Prefill
from spark_prof.analyzers.rank_layout import Parallel
from spark_prof.analyzers.recorded_run import MarkerRow, RecordedGpu, RecordingSetup
from spark_prof.analyzers.report_notes import Pauses
from spark_prof.analyzers.requests.request_times import RequestSummary
from spark_prof.analyzers.roofline.roofline_rows import Roofline, RooflinePhase, StreamedWeights
from spark_prof.analyzers.roofline.weight_bytes import stored_as, weights_of_tensors
from spark_prof.analyzers.shapes.shape_rows import Shapes
from spark_prof.analyzers.speculation.speculation_rows import Speculation
from spark_prof.analyzers.startup.start_rows import MemoryAccount, Startup
from spark_prof.analyzers.step_accounting import Steps
from spark_prof.analyzers.step_time import StepAccount, StepSums
from spark_prof.rules.components import DRAFTER, LM_HEAD
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.swapped import layers_of, tensors_of


@dataclass(frozen=True)
class ModuleRow:
    """Modules of the live model that are alike."""

    component: str
    type: str
    quant_method: str
    kernel: str
    weight_dtype: str
    shape: str
    count: int
    bytes: int  # bytes of all of them
    format: str = ""  # of the largest weight, where it is a narrow one, such as nvfp4
    part: str = ""  # drafter, of a head that a drafter has for itself; else empty


@dataclass(frozen=True)
class RankRow:
    """One rank of a parallel run."""

    rank: int
    steps: int
    step_us: float | None  # none where the kernels have no times, as `gap_us`
    kernels_us: float
    gap_us: float | None
    wait_us: float | None = None  # in collectives, until the last rank came; None if unmatched
    transfer_us: float | None = None  # in collectives, from then on
    slowest_steps: int | None = None  # in which others of its group waited longest for this rank
    held_up_us: float | None = None  # how long they waited in those steps, on average
    collective_us: float | None = None  # of all collectives in its steps, matched or not


@dataclass(frozen=True)
class ReplicaRow:
    """One data-parallel replica: what it had to do."""

    replica: int  # its number
    rank: int  # its lowest recorded one, which saw this
    steps: int
    prompt_tokens: int  # that were read, those read again after a preemption among them
    output_tokens: int | None  # None where its scheduler was not recorded
    batch: float | None  # mean of the requests that decode, over steps in which any does
    busy_us: float  # in steps


@dataclass(frozen=True)
class ClockRow:
    """What is known about the clock of one rank against that of the reference rank."""

    rank: int
    reference: int
    same_host: bool  # whether both read the same clock; the offset then is a check and is not used
    offset_us: float | None  # positive where the rank's clock is ahead; None where nothing tells
    drift_ppm: float | None
    uncertainty_us: float | None
    events: int  # collectives or steps that the offset stands on, or that contradict each other
    basis: str  # collectives, scheduler or none


@dataclass(frozen=True)
class CollectiveRow:
    """The matched collectives of one kind after one component of a layer; means over the ranks."""

    kind: str
    after: str  # component of the kernel that ran before; empty where it is the first of its step
    layer: int | None
    calls: int
    wait_us: float
    transfer_us: float


@dataclass(frozen=True)
class SlowStep:
    """One step of one tensor-parallel group."""

    step: int  # its number on the group's lowest rank
    stage: int  # the group's pipeline stage
    replica: int  # the group's data-parallel replica
    slowest: int | None  # that the others waited for the longest; None where clocks cannot tell
    held_up_us: float  # how long the others waited for it on average
    wait_us: float  # all waits in the step's collectives, as mean over the ranks


@dataclass(frozen=True)
class Lateness:
    """Ranks of one group that come to the collectives of usual decode steps later than the rest.

    The time is that of the least late of them against the latest of the others, as mean a step: a
    repair of all of them brings no more. The interval leaves zero out.
    """

    batch: int | None  # requests that decode in each of the steps; None for steps of any number
    place: str  # start: at a step's first collective; inside: at all behind it
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    stage: int
    replica: int
    steps: int  # decode steps that it stands on, without first uses of kernels
    us: float
    low_us: float
    high_us: float


@dataclass(frozen=True)
class Collectives:
    """What the ranks of a parallel run did to each other."""

    matched: int = 0  # collectives that were found on all ranks of their group, each counted once
    unmatched: int = 0  # calls on single ranks that were not
    steps: int = 0  # steps that all ranks of their group have
    steps_left_out: int = 0  # that a rank lacks, or in which ranks ran different numbers
    wait_us: float = 0.0  # mean over the ranks
    transfer_us: float = 0.0
    clocks: tuple[ClockRow, ...] = ()
    items: tuple[CollectiveRow, ...] = ()
    slow_steps: tuple[SlowStep, ...] = ()
    lateness: tuple[Lateness, ...] = ()  # of ranks that are slower than others beyond chance
    notes: tuple[str, ...] = ()  # what is missing here, and why


@dataclass(frozen=True)
class Answer:
    """What a run says to one of the questions."""

    id: str  # a word for the question
    question: str
    text: str  # the answer with its figures
    evidence: str  # what it stands on, and how much of the time that covers


@dataclass(frozen=True)
class Invariant:
    """One thing that must hold in every report, as `analyzers.invariants` found it."""

    id: str
    ok: bool | None  # whether it holds; None where there was nothing to look at
    text: str  # what must hold, or what does not
    where: str  # the part of the report that fails; empty where none does


@dataclass(frozen=True)
class Broken:
    """One place where a check fails."""

    text: str  # what is wrong, in a sentence
    where: str  # the part of the report, in the words of its JSON
    key: tuple[object, ...] = ()  # the same for what leaves the figure out of the report


@dataclass(frozen=True)
class Report:
    """Everything that one report says."""

    run: RecordingSetup
    gpu: RecordedGpu
    steps: Steps
    # Where the time of steps and tokens goes: of all steps first, then of each phase, then of each
    # batch size of decode; none without times.
    accounts: tuple[StepAccount, ...]
    # First step's start to last step's end, without what lies between two flushed pieces.
    wall_us: float | None
    coverage: Coverage
    components: tuple[ComponentRow, ...]
    layers: tuple[LayerRow, ...]
    kernels: tuple[KernelRow, ...]
    conversions: Conversions
    modules: tuple[ModuleRow, ...]
    ranks: tuple[RankRow, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]  # what was lost, and what to know before believing a figure
    copies: Copies = field(default_factory=Copies)
    # The kernels of the typical step of each phase; of several batch sizes as the screen is.
    typical: tuple[TypicalKernel, ...] = ()
    collectives: Collectives = Collectives()  # of a run with several ranks; empty for one rank
    replicas: tuple[ReplicaRow, ...] = ()  # of a data-parallel run; empty for one engine
    overhead: tuple[Overhead, ...] = ()  # what watching cost, by batch size; empty where unknown
    pauses: Pauses | None = None  # None where the recording does not tell, or had none
    counters: Counters | None = None  # None where the hardware counters were not sampled
    markers: tuple[MarkerRow, ...] = ()  # the recorded NVTX ranges that took the longest
    requests: RequestSummary | None = None  # that the scheduler saw; None where it was not recorded
    clients: tuple[ClientRow, ...] = ()  # what load generators saw of the same server
    machine_code: tuple[CodeRow, ...] = ()  # of its kernels, the most expensive first
    conflicts: tuple[Conflict, ...] = ()  # names that counters or code contradict
    roofline: Roofline | None = None  # None where nothing tells what kernels need
    shapes: Shapes | None = None  # launches of decode steps; None where nothing tells their shapes
    answers: tuple[Answer, ...] = ()  # what the run says to the questions that people ask first
    audit: Audit | None = None  # which kernels run which layers; None where nothing tells
    invariants: tuple[Invariant, ...] = ()  # what was checked; the figures that failed are left out
    parallel: Parallel | None = None  # of which run this is a rank
    graphs: tuple[GraphUse, ...] = ()  # the CUDA graphs that its steps ran; none where unknown
    # How long kernels waited on their stream for the one before them, which no other time has.
    ahead_us: float = 0.0
    speculation: Speculation | None = None  # None where no drafts were recorded
    # What context costs a decode step, at the batch size that tells most; None without such steps.
    context: ContextCost | None = None
    prefill: Prefill | None = None  # what reading prompts takes; None where no step reads any
    startup: Startup | None = None  # what the engine's start took; None where nothing tells
    # What takes the memory of each rank's GPU, of its process and of the host; none where nothing
    # measured it.
    memory: tuple[MemoryAccount, ...] = ()
    host: HostCode | None = None  # which code the GPU waits for; None where no stacks were sampled

    @property
    def broken(self) -> tuple[str, ...]:
        """What does not hold in this report, a sentence each."""
        return self.failed("")

    def failed(self, check: str) -> tuple[str, ...]:
        """What fails of the checks whose name begins so, a sentence each."""
        rows = (row for row in self.invariants if row.ok is False)
        return tuple(row.text for row in rows if row.id.startswith(check))

    @property
    def decode_roofline(self) -> RooflinePhase | None:
        """What decode steps need; None where it is not known."""
        return self.roofline.decode if self.roofline else None

    @property
    def streamed(self) -> tuple[StreamedWeights, ...]:
        """The weights that a decode step streams; none where they are not known."""
        return self.roofline.weights if self.roofline else ()

    @property
    def summed_steps(self) -> tuple[StepAccount, ...]:
        """The accounts of steps of any size that have sums: of all steps, then of each phase."""
        return tuple(row for row in self.accounts if row.sums and row.batch_size is None)

    @property
    def all_steps(self) -> StepSums | None:
        """How the time of all steps splits; None where nothing tells."""
        return self.summed_steps[0].sums if self.summed_steps else None

    @property
    def typical_steps(self) -> tuple[StepAccount, ...]:
        """The accounts that have a typical step: decode, other phases, then batch sizes."""
        rows = [row for row in self.accounts if row.step]
        return tuple(sorted(rows, key=lambda row: (bool(row.batch_size), row.phase != "decode")))

    @property
    def decode_step(self) -> StepAccount | None:
        """The typical decode step that the report is about; None where there is none."""
        account = self.drawn_step
        return account if account is not None and account.phase == "decode" else None

    @property
    def drawn_step(self) -> StepAccount | None:
        """The typical step whose time is taken apart: of the batch size with most of the time."""
        headline = self.steps.headline_and_screen
        size = headline.screen.batch if headline else None
        rows = self.typical_steps
        of_size = (row for row in rows if row.phase == "decode" and row.batch_size == size)
        return next(of_size, next(iter(rows), None))


class LazyReport(Report):
    """A report each of whose topics is computed when it is first read, and then stays.

    A subclass has a cached property for each topic that it computes; any other topic is that of the
    report beneath. `dataclasses.replace` makes a whole `Report` of it.

    LazyReport(report, roofline=None).kernels is report.kernels

    Args:
        topics: those that differ from the report's.
    """

    def __new__(cls, *_: Any, **topics: Any) -> Self:
        """Makes a plain report where every topic is there: that is what `replace` hands over."""
        if topics.keys() >= _TOPICS:
            return Report(**topics)  # type: ignore[return-value]
        return super().__new__(cls)

    def __init__(self, beneath: Report | None = None, **topics: Any) -> None:
        vars(self).update(topics, _beneath=beneath)

    def failed(self, check: str) -> tuple[str, ...]:
        """What fails of the checks whose name begins so, a sentence each."""
        beneath: Report | None = vars(self)["_beneath"]
        if beneath is None or "invariants" in vars(self):
            return super().failed(check)
        return beneath.failed(check)


class _OfBeneath:
    """A topic that a lazy report takes over."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __get__(self, report: LazyReport, _: type) -> Any:
        value = vars(report)[self._topic] = getattr(vars(report)["_beneath"], self._topic)
        return value


_TOPICS = {topic.name for topic in fields(Report)}
for _topic in _TOPICS:
    setattr(LazyReport, _topic, _OfBeneath(_topic))


def modules_of(bundle: Bundle, rank: int) -> tuple[ModuleRow, ...]:
    """Rows of one component, type, format and shape, the largest first."""
    layers = layers_of(bundle, rank)
    stored = stored_as(tensors_of(bundle, rank))
    narrow = {path: form for path, form in stored.items() if (bits_of(form) or 16) < 16}
    layers = layers.assign(format=[narrow.get(path, "") for path in layers["path"]])
    keys = ["component", "type", "quant_method", "kernel", "weight_dtype", "shape", "format"]
    groups = layers.groupby(keys, observed=True, sort=False)["bytes"].agg(["size", "sum"])
    rows = (
        ModuleRow(component, kind, method, kernel, dtype, shape, int(count), int(total), form)
        for (component, kind, method, kernel, dtype, shape, form), count, total in (
            groups.itertuples(name=None)
        )
    )
    heads = _heads_of_drafter(bundle.frame("tensors", rank))
    return tuple(sorted((*rows, *heads), key=lambda row: -row.bytes))


def _heads_of_drafter(tensors: pd.DataFrame) -> Iterator[ModuleRow]:
    """The matrices with which a drafter computes logits, where it has its own."""
    for entry in weights_of_tensors(tensors, tied=False, drafter=True):
        if entry.component == LM_HEAD and entry.elements:
            row = tensors.loc[entry.tensor]
            narrow = entry.dtype if entry.quantized else ""
            yield ModuleRow(
                LM_HEAD, str(row["type"]), "", "", str(row["dtype"]), str(row["shape"]), 1,
                entry.bytes, narrow, DRAFTER,
            )  # fmt: skip
