"""What a row of the table of known issues is made of: an issue, and what shows that a run has it.

A row's conditions are data; `analyzers.fallbacks.known_issues` asks a log or a recording for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.rules.vllm_versions import VersionWindow


@dataclass(frozen=True)
class Capability:
    """The GPU's compute capability is in one of these spans; 121 is 12.1."""

    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Model:
    """The model's architecture, name or folder has this pattern."""

    pattern: str


@dataclass(frozen=True)
class Runs:
    """Kernels of that kind run: their format and name have this pattern.

    Kinds are linear, moe, attention and gdn, for the prompts of gated delta nets. Names are
    `nvfp4 FLASHINFER_CUTLASS`, as the log writes backends with their format before them, or the
    class of a live engine.
    """

    kind: str
    pattern: str


@dataclass(frozen=True)
class CheckpointScheme:
    """The checkpoint asks for this scheme, such as W4A4, in layers of that kind."""

    kind: str
    pattern: str


@dataclass(frozen=True)
class EngineSetting:
    """A setting of the engine has a value that this whole pattern matches."""

    name: str  # as vLLM's configuration calls it
    pattern: str
    default: str = ""  # its value where all that was given is known and it is not among that


@dataclass(frozen=True)
class AtLeast:
    """A setting of the engine is a number of at least that."""

    name: str
    least: int
    default: str = ""


@dataclass(frozen=True)
class EnvironmentCondition:
    """An environment variable has a value that this whole pattern matches."""

    name: str
    pattern: str
    default: str = ""  # what counts where it is not set


@dataclass(frozen=True)
class LogSays:
    """A line of the log has this pattern."""

    pattern: str


@dataclass(frozen=True)
class Traced:
    """A kernel of the recording has this pattern in its name."""

    pattern: str


SingleCondition = (
    Capability
    | Model
    | Runs
    | CheckpointScheme
    | EngineSetting
    | AtLeast
    | EnvironmentCondition
    | LogSays
    | Traced
)


@dataclass(frozen=True)
class AnyOf:
    """A condition that holds where one of several does."""

    conditions: tuple[SingleCondition, ...]


Condition = SingleCondition | AnyOf


@dataclass(frozen=True)
class IssueReference:
    """Where something was reported."""

    thread: str  # repository#number
    date: str  # of what was read there, as in 2026-08-23
    kind: str = "issues"  # issues or pull, as GitHub's addresses have it

    @property
    def url(self) -> str:
        """Its address."""
        repository, _, number = self.thread.partition("#")
        return f"https://github.com/{repository}/{self.kind}/{number}"


KINDS = ("speed", "answers", "start", "load", "message")
"""What an issue harms: time, what is answered, starting or going on, what else needs the
processor; or it only misleads."""


@dataclass(frozen=True)
class Issue:
    """One known issue of vLLM, or of what it runs on."""

    id: str  # words joined by hyphens
    kind: str  # one of `KINDS`
    what: str  # what is the case, in one sentence without its full stop
    effect: str  # what was reported of it, with the figures and machines that were reported
    vllm: VersionWindow  # the versions that have it
    gpus: str  # on which GPUs, in words; empty for any
    when: tuple[Condition, ...]  # all of them hold in a run that has it
    reported: tuple[IssueReference, ...]  # the first one names the issue
    remedy: str = ""  # what to do, in words; empty where `side` says all
    side: str = ""  # the same as a side of `spark-prof ab`; empty where no setting changes it
    as_of: str = "2026-11-28"  # when the row was last checked

    @property
    def needs_start(self) -> bool:
        """Whether an engine that has it does not come to serve, so that nothing can be timed."""
        return self.kind == "start"


HOPPER = Capability(((90, 90),))
SM12X = Capability(((120, 129),))
GB10 = Capability(((121, 121),))
DELTA_NET = Model(r"Qwen3_?Next|Qwen3_5|Qwen3[.-](5|6|8|Next)")
"""Models with gated delta nets, by their class or their name."""
