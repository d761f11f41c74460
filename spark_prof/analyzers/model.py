"""What a report says, as plain data: analyzers fill these records, dashboards draw them.

All times are microseconds, all shares are fractions of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.analyzers.answers.model import Answer
from spark_prof.analyzers.classify.model import CodeRow, Conflict
from spark_prof.analyzers.clients.model import ClientRow
from spark_prof.analyzers.conversions.model import (
    ChargedConversion,
    FusedConversion,
    LayerConversions,
    LoadTimeConversion,
    RepeatedQuantization,
)
from spark_prof.analyzers.counters.model import Counters
from spark_prof.analyzers.fallbacks.model import Audit
from spark_prof.analyzers.roofline.model import Roofline
from spark_prof.analyzers.shapes.model import Shapes
from spark_prof.analyzers.step_accounting import Books, Spread
from spark_prof.analyzers.step_time import Ledger


@dataclass(frozen=True)
class Clocks:
    """The GPU's clock when the last recorded step had ended, as its driver told it.

    Attributes:
        sm_mhz: of the multiprocessors.
        highest_mhz: what they may reach; None where the driver does not tell.
        throttled: what held the clocks down; empty where nothing did or nothing tells.
    """

    sm_mhz: int
    highest_mhz: int | None
    throttled: tuple[str, ...]


@dataclass(frozen=True)
class Gpu:
    """The GPU that was recorded; the processor's name and None for a CPU engine."""

    name: str
    compute_capability: str | None
    """What its vendor calls its architecture, such as 9.0 or gfx942."""
    vendor: str | None = None
    """NVIDIA or AMD; None where nothing tells."""
    clocks: Clocks | None = None
    """None where the recording did not look at them."""


@dataclass(frozen=True)
class Run:
    """What was recorded, and with what; a text is empty where the recording does not tell it."""

    source: str
    model: str
    command: str
    vllm: str
    torch: str
    backend: str
    recorded_at: str
    execution: str
    """How the model ran, such as "eager" or "torch.compile, CUDA graphs"."""
    state: str
    """complete, interrupted or salvaged."""
    units: str
    """What one row of the kernels table is on this engine: "kernel" or "op"."""


@dataclass(frozen=True)
class Steps:
    """Engine iterations of the analyzed window."""

    count: int
    prefill: int
    decode: int
    mixed: int
    tokens: int
    """Tokens that the requests received."""
    scheduled_tokens: int
    """Tokens that the steps computed: prompts, generated tokens and drafts."""
    prompt_tokens: int
    decode_us: Spread | None
    prefill_us: Spread | None
    mixed_us: Spread | None
    tpot_us: Spread | None
    """Decode step time over tokens accepted per sequence."""
    host_gap_us: Spread | None
    """Time inside a decode step in which nothing ran (any step, where no step decodes)."""
    unknown: int = 0
    """Steps of which nothing tells what they worked on."""
    unknown_us: Spread | None = None
    left_out: int = 0
    """Recorded steps that count nowhere, because a clock was set while they ran."""


@dataclass(frozen=True)
class Coverage:
    """Shares of the summed kernel time whose owner is known, by how it is known.

    The last four add up to 1. What has a component that belongs to a layer, but no layer, is
    unknown there unless it is a guess. See vocabulary.BASIS_CLASSES.

    Attributes:
        layer: in a decoder layer, or in what belongs to none by its nature; no guess counts.
        component: in a component other than `other`; no guess counts.
        engine: on an engine other than `unknown`.
        unplaced_us: kernel time with neither a layer nor a named component.
        placed: as `layer`, guesses included.
        proven: the kernel reads its owner's weight, cache or state, or its module was open.
        derived: it shares data with a kernel whose owner is proven.
        guessed: its place in a layer or its name tells, or another trace.
        unknown: nothing tells.
    """

    layer: float
    component: float
    engine: float
    unplaced_us: float
    placed: float
    proven: float
    derived: float
    guessed: float
    unknown: float


@dataclass(frozen=True)
class ComponentRow:
    """Time of one component over all steps, and by phase."""

    name: str
    us: float
    share: float
    kernels: int
    prefill_us: float
    decode_us: float
    mixed_us: float
    unknown_us: float
    decode_us_per_step: float


@dataclass(frozen=True)
class LayerRow:
    """Time of one component in one decoder layer; layer None is outside the layers."""

    layer: int | None
    component: str
    us: float
    kernels: int
    basis: str = "none"
    """On what the owners of most of its time stand; see vocabulary.BASES."""


@dataclass(frozen=True)
class KernelRow:
    """All calls of one kernel that work for one component."""

    name: str
    calls: int
    us: float
    share: float
    component: str
    engine: str
    precision: str | None
    evidence: str
    conversion: str | None
    weights: str | None = None
    """Format in which its weights are stored, where that is not what it computes in."""
    decode_us: float = 0.0
    """What of its time belongs to decode steps."""
    basis: str = "none"
    """On what the owners of most of its time stand; see vocabulary.BASES."""
    roles: tuple[str, ...] = ()
    """The known roles of its calls, that with the most time first."""


@dataclass(frozen=True)
class CopyRow:
    """All copies or memsets of one name."""

    name: str
    kind: str
    """memcpy or memset."""
    calls: int
    us: float
    bytes: int
    """What they moved or set, 0 where unknown."""


@dataclass(frozen=True)
class Copies:
    """What copy engines and memsets did beside the kernels, whose sums contain none of it."""

    us: float = 0.0
    bytes: int = 0
    share: float | None = 0.0
    """Their time over that in which anything ran; None where nothing tells that."""
    items: tuple[CopyRow, ...] = ()


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
    bytes: int
    """Bytes of all of them."""
    format: str = ""
    """Of the largest weight, where it is a narrow one, such as nvfp4."""


@dataclass(frozen=True)
class RankRow:
    """One rank of a parallel run."""

    rank: int
    steps: int
    step_us: float | None
    """None where the kernels have no times, as `gap_us`."""
    kernels_us: float
    gap_us: float | None
    wait_us: float | None = None
    """In collectives, until the last rank had come; None where none could be matched."""
    transfer_us: float | None = None
    """In collectives, from then on."""
    slowest_steps: int | None = None
    """Steps in which the others of its tensor-parallel group waited for this rank the longest."""
    held_up_us: float | None = None
    """How long the others waited in those steps, on average, because this rank came last."""


@dataclass(frozen=True)
class ClockRow:
    """What is known about the clock of one rank against that of the reference rank."""

    rank: int
    reference: int
    same_host: bool
    """Whether both read the same clock; the offset then is a check and is not used."""
    offset_us: float | None
    """Positive where the rank's clock is ahead; None where nothing tells."""
    drift_ppm: float | None
    uncertainty_us: float | None
    events: int
    """Collectives or steps that the offset stands on, or that contradict each other."""
    basis: str
    """collectives, scheduler or none."""


@dataclass(frozen=True)
class CollectiveRow:
    """The matched collectives of one kind after one component of a layer; means over the ranks."""

    kind: str
    after: str
    """Component of the kernel that ran before; empty where it is the first of its step."""
    layer: int | None
    calls: int
    wait_us: float
    transfer_us: float


@dataclass(frozen=True)
class SlowStep:
    """One step of one tensor-parallel group."""

    step: int
    """Its number on the group's lowest rank."""
    stage: int
    """The group's pipeline stage."""
    replica: int
    """The group's data-parallel replica."""
    slowest: int | None
    """The rank that the others waited for the longest; None where the clocks cannot tell."""
    held_up_us: float
    """How long the others waited for it on average."""
    wait_us: float
    """All waits in the step's collectives, as mean over the ranks."""


@dataclass(frozen=True)
class Collectives:
    """What the ranks of a parallel run did to each other."""

    matched: int = 0
    """Collectives that were found on all ranks of their group, each counted once."""
    unmatched: int = 0
    """Calls on single ranks that were not."""
    steps: int = 0
    """Steps that all ranks of their group have."""
    steps_left_out: int = 0
    """Steps of which a rank has none, or in which the ranks ran different numbers of them."""
    wait_us: float = 0.0
    """Mean over the ranks."""
    transfer_us: float = 0.0
    clocks: tuple[ClockRow, ...] = ()
    items: tuple[CollectiveRow, ...] = ()
    slow_steps: tuple[SlowStep, ...] = ()
    notes: tuple[str, ...] = ()
    """What is missing here, and why."""


@dataclass(frozen=True)
class Conversions:
    """Kernels whose work is only changing a format, of the analyzed steps."""

    us: float
    share: float
    items: tuple[KernelRow, ...]
    us_per_token: float | None = None
    """In the time of one token of a sequence; None where nothing tells it."""
    charged: tuple[ChargedConversion, ...] = ()
    """The same time by what it was spent for, the most expensive in decode steps first."""
    layers: tuple[LayerConversions, ...] = ()
    """The same time by layer."""
    padding: tuple[ChargedConversion, ...] = ()
    """PyTorch's pads: fills and copies that only their order gives away; in none of the sums."""
    fused: tuple[FusedConversion, ...] = ()
    """Kernels that convert beside other work; their time is in none of the sums."""
    load_time: tuple[LoadTimeConversion, ...] = ()
    """What ran at load time or outside the steps; in none of the sums."""
    repeated: tuple[RepeatedQuantization, ...] = ()
    """Activations that are quantized once for each consumer."""


@dataclass(frozen=True)
class Finding:
    """Something worth changing.

    Attributes:
        id: of the rule that found it.
        ms_per_token: what the fix should bring in each token's time, at most; None where unknown.
        text: what was found, with its figures.
        fix: what to do about it.
        evidence: what it stands on, one sentence each.
    """

    id: str
    ms_per_token: float | None
    text: str
    fix: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Overhead:
    """What watching cost at one batch size, by turns of watched and merely timed steps.

    Attributes:
        batch_size: requests that decode.
        ratio: time of a watched step over that of a timed one, median over the stretches.
        lowest: the smallest ratio of a stretch.
        highest: the largest.
        stretches: watched stretches that lie between two timed ones.
        watched_us: median time of a watched step.
        timed_us: median time of a timed step.
        run_ratio: the whole run, switches and writing included, over as many timed steps.
    """

    batch_size: int
    ratio: float
    lowest: float
    highest: float
    stretches: int
    watched_us: float
    timed_us: float
    run_ratio: float


@dataclass(frozen=True)
class MarkerRow:
    """The NVTX ranges of one name.

    Attributes:
        name: their message.
        domain: who set them; empty for the default domain.
        calls: how many, marks included.
        us: time from begin to end on the host, ranges inside them included.
    """

    name: str
    domain: str
    calls: int
    us: float


@dataclass(frozen=True)
class Invariant:
    """One thing that must hold in every report, as `analyzers.invariants` found it.

    Attributes:
        id: of the check.
        ok: whether it holds; None where there was nothing to look at.
        text: what must hold, or what does not.
        where: the part of the report that fails; empty where none does.
    """

    id: str
    ok: bool | None
    text: str
    where: str


@dataclass(frozen=True)
class Broken:
    """One place where a check fails.

    Attributes:
        text: what is wrong, in a sentence.
        where: the part of the report, in the words of its JSON.
        key: the same for what leaves the figure out of the report.
    """

    text: str
    where: str
    key: tuple[object, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything that one report says."""

    run: Run
    gpu: Gpu
    steps: Steps
    books: tuple[Books, ...]
    """One for all steps first, then one a phase that occurs; none without times."""
    wall_us: float | None
    """First step's start to last step's end, without what lies between two flushed pieces; None
    where the kernels have no times."""
    coverage: Coverage
    components: tuple[ComponentRow, ...]
    layers: tuple[LayerRow, ...]
    kernels: tuple[KernelRow, ...]
    conversions: Conversions
    modules: tuple[ModuleRow, ...]
    ranks: tuple[RankRow, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What the recording lost and what the reader must know before believing a figure."""
    copies: Copies = Copies()
    collectives: Collectives = Collectives()
    """Of a run with several ranks; empty for one rank."""
    overhead: tuple[Overhead, ...] = ()
    """What watching cost, one row a batch size; empty without stretches."""
    counters: Counters | None = None
    """What the hardware counters say; None where they were not sampled."""
    markers: tuple[MarkerRow, ...] = ()
    """The recorded NVTX ranges that took the longest."""
    clients: tuple[ClientRow, ...] = ()
    """What load generators saw of the same server, beside the steps."""
    machine_code: tuple[CodeRow, ...] = ()
    """The machine code of its kernels, the most expensive first; empty where none was read."""
    conflicts: tuple[Conflict, ...] = ()
    """Kernels whose names say something else than counters or machine code."""
    roofline: Roofline | None = None
    """How far kernels are from their floor; None where nothing tells what they need."""
    shapes: Shapes | None = None
    """How the kernels of decode steps were launched; None where nothing tells their shapes."""
    tokens: tuple[Ledger, ...] = ()
    """Where the time of a step and a token goes; none without times."""
    answers: tuple[Answer, ...] = ()
    """What the run says to the questions that people ask first."""
    audit: Audit | None = None
    """Which kernels were chosen for which layers, and why; None where nothing tells."""
    invariants: tuple[Invariant, ...] = ()
    """What was checked; the figures that failed are left out above."""

    @property
    def broken(self) -> tuple[str, ...]:
        """What does not hold in this report, a sentence each."""
        return self.failed("")

    def failed(self, check: str) -> tuple[str, ...]:
        """What fails of the checks whose name begins so, a sentence each."""
        rows = (row for row in self.invariants if row.ok is False)
        return tuple(row.text for row in rows if row.id.startswith(check))

    @property
    def decode_ledger(self) -> Ledger | None:
        """The typical decode step of any batch size; None where there is none."""
        return next((t for t in self.tokens if t.phase == "decode" and t.batch_size is None), None)
