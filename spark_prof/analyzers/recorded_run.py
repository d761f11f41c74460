"""What was recorded, with what and on which GPU, as the recording tells it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from spark_prof.analyzers.lookup import mapping_in
from spark_prof.traces.bundle import Bundle, is_import, table_file
from spark_prof.traces.execution import Execution
from spark_prof.traces.swapped import SwappedSlot

_SINCE_EPOCH_NS = 10**18  # times before this, in 2001, count from something else than the epoch
NOTHING = "nothing"  # what tells the steps of a recording in which no step is known
_HIGHEST_MHZ = 100_000  # no GPU's clock is higher
_MOST_MARKERS = 100
_PLAIN = r"(?!-)[\w./:~+=@%-]{1,1000}"  # a path or a URL that no shell reads otherwise


@dataclass(frozen=True)
class RecordingSetup:
    """What was recorded, and with what; a text is empty where the recording does not tell it."""

    source: str
    model: str
    command: str
    vllm: str
    torch: str
    backend: str
    recorded_at: str
    execution: str  # how the model ran, such as "eager" or "torch.compile, CUDA graphs"
    state: str  # complete, interrupted or salvaged
    units: str  # what one row of the kernels table is on this engine: "kernel" or "op"
    # What tells the steps: the engine, ranges, optimizer steps, CUDA graphs; or nothing, where the
    # one step of the tables is the whole recording.
    steps_by: str = "engine"
    training: bool = False  # whether gradients were computed
    model_name: str = ""  # the last name of the model's path, which is in `model` with more
    architecture: str = ""  # the model's class, such as LlamaForCausalLM
    swaps: tuple[SwappedSlot, ...] = ()  # where kernels of this package ran, not vLLM's

    @property
    def mode(self) -> Execution:
        """How the model ran, to be asked."""
        return Execution.read(self.execution)

    @property
    def imported(self) -> bool:
        """Whether the trace is another tool's."""
        return is_import(self.backend)

    @property
    def tells_steps(self) -> bool:
        """Whether steps are known; else figures of a step are none, and stand for everything."""
        return self.steps_by != NOTHING


@dataclass(frozen=True)
class Clocks:
    """The GPU's clock when the last recorded step had ended, as its driver told it."""

    sm_mhz: int  # of the multiprocessors
    highest_mhz: int | None  # what they may reach; None where the driver does not tell
    # What held the clocks down; empty where nothing did or nothing tells.
    throttled: tuple[str, ...]


@dataclass(frozen=True)
class RecordedGpu:
    """The GPU that was recorded; the processor's name and None for a CPU engine."""

    name: str
    compute_capability: str | None  # what its vendor calls its architecture, such as 9.0 or gfx942
    vendor: str | None = None  # NVIDIA or AMD; None where nothing tells
    clocks: Clocks | None = None  # none where the recording did not look at them


@dataclass(frozen=True)
class MarkerRow:
    """The NVTX ranges of one name."""

    name: str
    domain: str  # who set them; empty for the default domain
    calls: int  # how many, marks included
    us: float  # time from begin to end on the host, ranges inside them included


def run_of(bundle: Bundle, rank: int, kernels: pd.DataFrame, steps: pd.DataFrame) -> RecordingSetup:
    """What the bundle tells of the run of a rank; kernels need `kind`, steps `start_ns`."""
    facts = bundle.facts(rank)
    on_cpu = bool(len(kernels)) and bool((kernels["kind"] == "op").all())
    return RecordingSetup(
        source=_source(bundle),
        model=_model_name(facts),
        command=shlex.join(bundle.meta.command),
        vllm=str(facts.get("vllm") or ""),
        torch=str(facts.get("torch") or ""),
        backend=bundle.meta.backend,
        recorded_at=_recorded_at(bundle, steps),
        execution=_execution(facts),
        state=bundle.meta.state,
        units="op" if on_cpu else "kernel",
        steps_by=steps_by(bundle, rank),
        training=bool(facts.get("training")),
        model_name=model_folder(facts, "unknown model"),
        architecture=_architecture(facts),
    )


def steps_by(bundle: Bundle, rank: int) -> str:
    """What tells the steps of a rank, as `Run.steps_by`."""
    facts = bundle.facts(rank)
    if not bundle.imported:
        return "engine"
    # Imports of before the fact was kept have one step that is the whole trace.
    old = bundle.meta.tables.get(table_file("steps", rank)) == 1
    return str(facts.get("steps_by") or (NOTHING if old else "ranges"))


def _source(bundle: Bundle) -> str:
    """The bundle's folder; of an import what it was made of, as its folder may be gone by then."""
    made_of = str(bundle.meta.settings.get("source") or "") if bundle.imported else ""
    if not re.fullmatch(_PLAIN, made_of):  # a bundle may say anything of what it was made of
        made_of = ""
    # Of what was unpacked the folder is gone, too.
    return str(bundle.named or made_of or bundle.path)


def _recorded_at(bundle: Bundle, steps: pd.DataFrame) -> str:
    """When the recording ended, of an import when its first step began; empty where unknown."""
    if not bundle.imported:
        return bundle.meta.created
    begin = int(steps["start_ns"].min())
    if begin < _SINCE_EPOCH_NS:
        return ""
    return datetime.fromtimestamp(begin // 10**9, UTC).isoformat(timespec="seconds")


def _architecture(facts: Mapping[str, Any]) -> str:
    architectures = mapping_in(facts, "model_config").get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    return str(named or facts.get("architecture") or "")


def _model_name(facts: Mapping[str, Any]) -> str:
    path = model_folder(facts, "unknown model")
    # An import may have no other name of the model than its class.
    architecture = _architecture(facts) if facts.get("model_config") else ""
    traits = [str(item) for item in (architecture, facts.get("quantization")) if item]
    return f"{path} ({', '.join(traits)})" if traits else path


def model_folder(facts: Mapping[str, Any], otherwise: str) -> str:
    """The last name of the model's path, as the engine was given it."""
    return str(facts.get("model") or otherwise).rstrip("/").rsplit("/", 1)[-1]


def _execution(facts: Mapping[str, Any]) -> str:
    mode = Execution.read(str(facts.get("execution") or ""))
    runner = str(facts.get("model_runner") or "")
    return str(replace(mode, runner=runner, asynchronous=bool(facts.get("async_scheduling"))))


def device_of(facts: Mapping[str, Any]) -> tuple[str, str | None]:
    """The recorded GPU or processor by its driver's name, and its compute capability."""
    gpu = mapping_in(facts, "gpu")
    capability = gpu.get("compute_capability")
    return str(gpu.get("name") or "unknown"), str(capability) if capability else None


def gpu_of(facts: Mapping[str, Any]) -> RecordedGpu:
    """The GPU of a rank, or the processor of a CPU engine, by what its worker said of itself."""
    gpu, (name, capability) = mapping_in(facts, "gpu"), device_of(facts)
    vendor = gpu.get("vendor") or ("NVIDIA" if name.startswith("NVIDIA") else None)
    return RecordedGpu(
        name,
        capability,
        str(vendor) if vendor else None,
        _clocks(mapping_in(facts, "device_after_steps"), mapping_in(gpu, "clocks_mhz")),
    )


def _clocks(after: Mapping[str, Any], before: Mapping[str, Any]) -> Clocks | None:
    clock = _megahertz(after.get("sm_mhz"))
    if clock is None:
        return None
    reasons = after.get("throttled")
    held_down = tuple(map(str, reasons)) if isinstance(reasons, list | tuple) else ()
    return Clocks(clock, _megahertz(before.get("sm_max")), held_down)


def _megahertz(value: object) -> int | None:
    plausible = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _HIGHEST_MHZ
    return value if plausible and isinstance(value, int) else None


def markers_of(bundle: Bundle, rank: int) -> tuple[MarkerRow, ...]:
    """The names that took the longest, by host time; a range counts what is inside it too."""
    columns = ["name", "domain", "start_ns", "end_ns"]
    markers = bundle.frame("markers", rank, columns)
    markers = markers.assign(us=(markers["end_ns"] - markers["start_ns"]) / 1e3)
    groups = markers.groupby(["name", "domain"], observed=True)["us"].agg(["size", "sum"])
    rows = (
        MarkerRow(str(name), str(domain), int(calls), float(us))
        for (name, domain), calls, us in groups.itertuples(name=None)
    )
    return tuple(sorted(rows, key=lambda row: (-row.us, row.name, row.domain))[:_MOST_MARKERS])
