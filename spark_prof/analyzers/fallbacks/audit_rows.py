"""What the fallback audit says, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.finding import NONE, TypedCommand
from spark_prof.rules.environment import SettingRow
from spark_prof.traces.readers.engine_log import LoggedLoad
from spark_prof.traces.readers.log_errors import EngineFailure
from spark_prof.traces.readers.log_lines import UnknownLine


@dataclass(frozen=True)
class EngineSetup:
    """How an engine was set up; empty or None where nothing tells."""

    vllm: str = ""  # its version
    gpu: str = ""  # what the driver calls the GPU
    capability: str = ""  # the GPU's compute capability, such as 12.1
    quantization: str = ""  # the method, as vLLM calls it
    eager: bool | None = None  # whether it runs without CUDA graphs
    graph_mode: str = ""  # which CUDA graphs it uses, as vLLM calls it
    # Whether graphs of mixed steps are breakable: pieces, between which attention runs eagerly.
    breakable_graphs: bool | None = None
    graph_sizes: tuple[int, ...] = ()  # token counts of a step for which graphs were captured
    prefix_caching: bool | None = None  # whether common beginnings of prompts are kept
    moe_backend: str = ""  # what was asked for with --moe-backend, or auto
    linear_backend: str = ""  # the same with --linear-backend
    kv_cache: str = ""  # the format of the KV cache that was asked for
    serves: bool = False  # whether it answers requests over the network
    environment: tuple[tuple[str, str], ...] = ()  # its environment variables that matter, by name


@dataclass(frozen=True)
class EvidenceSource:
    """What one source says runs a group of layers."""

    who: str  # engine (the live model's own objects), log or trace
    kernel: str  # the class, backend or kernel in its own words
    family: str  # the library or method, such as Marlin
    activations: str  # their format in the product, 16-bit where they are not quantized


@dataclass(frozen=True)
class AuditRow:
    """Layers of one component that run alike."""

    layer: str  # a component; linear or moe, where only a log tells
    modules: int  # how many, 0 where only a log tells
    checkpoint: str  # the scheme that the checkpoint asks for, such as W4A4 nvfp4
    executed: str  # the scheme that runs
    witnesses: tuple[EvidenceSource, ...]  # they agree unless `conflict` says otherwise
    cause: str = ""  # what made vLLM choose it, where the checkpoint does not ask for it
    why: str = ""  # that cause in a sentence
    fix: str = ""  # what changes it in this vLLM; empty where nothing should
    conflict: str = ""  # who contradicts whom
    tries: tuple[str, ...] = ()  # options of vLLM's in the fix, as they are typed
    asked: tuple[str, str] = ("", "")  # formats of weights and activations in the checkpoint
    weights: str = ""  # format of the weights that run
    activations: str = ""  # format of the activations that run; 16-bit where none is quantized
    emulated: bool = False  # whether weights are widened and 16-bit numbers multiplied

    @property
    def is_told(self) -> bool:
        """Whether it is worth a line: layers that run in 16 bits only where more was asked for."""
        return self.executed != "16-bit" or self.cause == "unquantized"

    @property
    def weight_only(self) -> bool:
        """Whether quantized weights are multiplied with 16-bit activations."""
        return self._narrow and bits_of(self.activations) == 16

    @property
    def narrow_activations(self) -> bool:
        """Whether quantized weights are multiplied with 4-bit or 8-bit activations."""
        return self._narrow and bits_of(self.activations) in (4, 8)

    @property
    def _narrow(self) -> bool:
        return (bits_of(self.weights) or 16) < 16 and not self.emulated


class Disagreement(str):
    """What two sources say differently, in a sentence, and of what; a text in JSON."""

    subject: str

    def __new__(cls, text: str, subject: str = "") -> Disagreement:
        """The sentence."""
        disagreement = super().__new__(cls, text)
        disagreement.subject = subject
        return disagreement


@dataclass(frozen=True)
class BatchRow:
    """Decode steps of one size."""

    tokens: int  # that the step computes
    steps: int
    graph: int | None  # the captured size that such a step is padded to; None where there is none


@dataclass(frozen=True)
class LogRow:
    """What a log says, once for all lines that say the same."""

    id: str
    topic: str
    means: str
    value: str
    format: str
    layer: str
    detail: str
    line: int
    count: int
    text: str


@dataclass(frozen=True)
class KnownIssue:
    """A known issue that a run has for certain."""

    id: str  # its name in the table
    kind: str  # what it harms: speed, answers, start, load, or message where it only misleads
    what: str  # what is the case
    effect: str  # what was reported of it, with the figures of the report
    since: str  # the first version of vLLM known to have it
    last: str  # the last one
    fixed: str  # the first version known not to have it; empty where none is
    gpus: str  # on which GPUs; empty for any
    issue: str  # where it was reported first, repository#number
    reported: tuple[str, ...]  # addresses of all reports of it that were read
    date: str  # of the first of them
    as_of: str  # when that was last checked
    remedy: str  # what to do about it; empty where `side` says all
    side: str  # the setting that changes it, as a side of `spark-prof ab`; empty where none does
    command: TypedCommand = (
        NONE  # proves on this machine what the setting brings; empty where it cannot
    )
    evidence: tuple[str, ...] = ()  # what of this run shows it


@dataclass(frozen=True)
class FailureCause:
    """Why an engine ended."""

    id: str  # of a row of `rules.engine_failures`; other where no row knows the error
    what: str  # what failed, as the end of a sentence
    layers: str  # whose kernel failed, such as `the linear layers`; empty where nothing tells
    fix: str  # what to do; empty where nothing is known
    tells_reasons: bool = False  # whether `what` has the reasons that the log gives


@dataclass(frozen=True)
class Audit:
    """What was chosen for which layers, who says so, and what is set to no effect."""

    engine: EngineSetup
    rows: tuple[AuditRow, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    batches: tuple[BatchRow, ...] = ()
    log: tuple[LogRow, ...] = ()
    # Where two sources tell different things about the same run.
    conflicts: tuple[Disagreement, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be told, and why
    failure: EngineFailure | None = None  # how the last engine of the log that failed did
    failure_cause: FailureCause | None = None
    load: LoggedLoad | None = None  # how busy the log's server was
    # Warnings and errors of the log that no rule knows: each kind once, and how many in all.
    unknown: tuple[UnknownLine, ...] = ()
    unknown_count: int = 0
    writer: str = ""  # whose log it is: vLLM or SGLang; empty where nothing tells
    known_issues: tuple[KnownIssue, ...] = ()  # what is known of this version on this GPU

    def log_rows(self, *rules: str) -> tuple[LogRow, ...]:
        """What the log says by these rules."""
        return tuple(row for row in self.log if row.id in rules)
