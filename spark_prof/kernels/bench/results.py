"""What a run of the benchmark found, on which machine, and the file and the line that say so."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles

import torch

from spark_prof.kernels.bench.shapes import Kind, Recorded
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import architecture
from spark_prof.kernels.tuning import Tuned, TunedShape, TuningRun, save

OURS = "spark-prof"


@dataclass(frozen=True)
class TimeSpread:
    """A measured figure: the median of its repeats, and its quartiles."""

    median: float
    lower: float
    upper: float
    repeats: int


@dataclass(frozen=True)
class ImplementationResult:
    """How one competitor did at one piece of work."""

    contestant: str
    us: TimeSpread | None  # microseconds a call, None if it failed
    # The relative L2 distance of its output from the reference, None if it was not computed.
    error: float | None
    failed: str = ""  # why there is no time, one line; empty if there is one
    abstained: bool = False  # whether it does not take this work, and nothing is wrong
    nodes: float | None = None  # kernels a call, in its CUDA graph; None where nothing tells
    early_nodes: float = 0.0  # of these, by programmatic dependent launch


@dataclass(frozen=True)
class BenchCell:
    """One piece of work and how every competitor did at it."""

    kind: Kind
    work: TunedShape
    label: str
    weight_bytes: int  # what must be read of weights and their scales in one call
    bytes: int  # that and the activations that are read and written
    is_lm_head: bool
    results: tuple[ImplementationResult, ...]
    # Of this project's kernel, by name; empty where it has none.
    config: dict[str, int] = field(default_factory=dict)
    subject: str = OURS
    # With the configuration that it had before a search, in the same race; None without a search.
    before_us: float | None = None
    # What a recorded run took for it, in that run: no competitor.
    recorded: Recorded | None = None

    def result(self, competitor: str) -> ImplementationResult | None:
        """The result of a competitor; None if it took no part."""
        return next((r for r in self.results if r.contestant == competitor), None)

    def us(self, competitor: str) -> float | None:
        """Median time of a competitor in microseconds; None if it has none."""
        result = self.result(competitor)
        return result.us.median if result and result.us else None

    @property
    def ours(self) -> float | None:
        """Median time of the subject, mostly this project's kernel."""
        return self.us(self.subject)

    def best_peer(self, *named: str) -> tuple[str, float] | None:
        """The fastest other competitor, of those whose names begin like one of these if given."""
        times = [
            (result.us.median, result.contestant)
            for result in self.results
            if result.us and result.contestant != self.subject
            if result.contestant.startswith(named or ("",))
        ]
        return min(times)[::-1] if times else None


@dataclass(frozen=True)
class MachineCeilings:
    """What the machine reaches, measured in the same run."""

    read: TimeSpread  # bytes a second that a kernel reads which does nothing else
    copy: TimeSpread  # bytes a second, read and written, of a copy
    launch_us: TimeSpread  # microseconds of an empty kernel among others in a CUDA graph
    read_by: str
    copied_by: str
    launched: str
    # What one more node of a graph costs; None where that was not measured.
    node_us: TimeSpread | None = None
    early_node_us: TimeSpread | None = None  # one that is launched programmatically

    def bytes_us(self, cell: BenchCell) -> float:
        """A call's bytes at read bandwidth."""
        return cell.bytes / self.read.median * 1e6

    def nodes_us(self, cell: BenchCell) -> float:
        """What the subject's nodes cost beside its bytes; one launch where they are not known.

        Nodes that start early may read while they wait: they cost what is more, bytes or price.
        """
        result = cell.result(cell.subject)
        if result is None or result.nodes is None or not self.node_us or not self.early_node_us:
            return self.launch_us.median
        waiting = (result.nodes - result.early_nodes) * self.node_us.median
        early = result.early_nodes * self.early_node_us.median
        return waiting + max(early - self.bytes_us(cell), 0.0)

    def floor_us(self, cell: BenchCell) -> float:
        """What a call of the subject cannot take less than: its bytes, and its nodes."""
        return self.bytes_us(cell) + self.nodes_us(cell)

    def nodes_of_distance(self, cell: BenchCell) -> float | None:
        """The nodes' share of what the subject takes beyond its bytes; None where not known."""
        result = cell.result(cell.subject)
        if result is None or result.nodes is None or result.us is None or not self.node_us:
            return None
        distance = result.us.median - self.bytes_us(cell)
        return min(self.nodes_us(cell) / distance, 1.0) if distance > 0 else None

    def share(self, cell: BenchCell, us: float) -> float:
        """The share of read bandwidth at which a call that took so long read its weights."""
        return cell.weight_bytes / us * 1e6 / self.read.median


def spread(repeats: Sequence[float]) -> TimeSpread:
    """Median and quartiles of at least two repeats."""
    lower, _, upper = quantiles(repeats, n=4, method="inclusive")
    return TimeSpread(median(repeats), lower, upper, len(repeats))


@dataclass(frozen=True)
class UnmeasuredShape:
    """A shape that there was no time for, or that failed as a whole, and why, in one line."""

    what: str
    why: str


_UNKNOWN_CACHE = 64 << 20
_PACKAGES = ("spark-prof", "torch", "triton", "vllm", "cuda-core", "nvidia-cuda-nvrtc")
_NVML = ("pynvml", "vllm.third_party.pynvml")


@dataclass(frozen=True)
class BenchMachine:
    """The GPU, its driver and the versions that a figure was measured with."""

    name: str  # of the GPU as its driver tells it, or of the processor
    architecture: str  # what kernels are compiled for there, such as sm_90a; cpu for a processor
    driver: str  # its version, empty where nothing tells it
    cuda: str  # the CUDA version that torch was built with, empty for a build without
    cache_bytes: int  # of the last cache before the memory
    date: str  # of the measurement, ISO 8601 in UTC
    versions: dict[str, str]  # of what took part and is installed, by package


def machine_of(device: torch.device) -> BenchMachine:
    """The machine as it is now."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return BenchMachine(
        name=gpu_name(device),
        architecture=architecture(device),
        driver=_driver() if device.type == "cuda" else "",
        cuda=str(torch.version.cuda or ""),
        cache_bytes=cache_bytes(device),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions,
    )


def gpu_name(device: torch.device) -> str:
    """Name of the GPU as its driver tells it, or of the processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return platform.processor() or platform.machine()


def cache_bytes(device: torch.device) -> int:
    """Size of the last cache before the memory; 0 of a processor, whose times say nothing here."""
    if device.type != "cuda":
        return 0
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return int(size) or _UNKNOWN_CACHE


def _driver() -> str:
    for module in _NVML:
        # Absent package, or a machine without NVML.
        with suppress(Exception):
            nvml = importlib.import_module(module)
            nvml.nvmlInit()
            version = nvml.nvmlSystemGetDriverVersion()
            return version.decode() if isinstance(version, bytes) else str(version)
    return ""


@dataclass
class BenchReport:
    """Everything that a run found until now."""

    machine: BenchMachine
    ceilings: MachineCeilings
    cells: list[BenchCell] = field(default_factory=list)
    left_out: list[UnmeasuredShape] = field(default_factory=list)
    schema: int = 1  # of the file that benchmarks/kernels.py writes

    def add(self, entry: BenchCell | UnmeasuredShape) -> None:
        """Takes the next result of a run; a cell takes the place of one of the same work."""
        if isinstance(entry, UnmeasuredShape):
            self.left_out.append(entry)
            return
        for place, cell in enumerate(self.cells):
            if (cell.work, cell.label, cell.subject) == (entry.work, entry.label, entry.subject):
                self.cells[place] = entry
                return
        self.cells.append(entry)


def keep(report: BenchReport, path: Path | None = None) -> Path:
    """Adds a run to the file of measurements, by default the user's own; returns its path."""
    run = run_of(report)
    if not run.rows:
        raise KernelError("nothing was timed, so there is nothing to keep")
    return save(run, path)


def run_of(report: BenchReport) -> TuningRun:
    """What the dispatcher needs of a run: our kernels' times and those of the fastest others."""
    rows = []
    for cell in report.cells:
        if cell.ours is not None:
            other, us = cell.best_peer() or ("", None)
            rows.append(Tuned(cell.work, cell.config, cell.ours, other, us))
    machine = report.machine
    return TuningRun(
        machine.architecture, machine.name, machine.date, machine.driver, machine.versions,
        tuple(rows),
    )  # fmt: skip


def work_text(cell: BenchCell) -> str:
    """What was computed: `dense nvfp4 5120 x 2880, M 4`."""
    work = cell.work
    experts = f", {work.experts} experts, top {work.top_k}" if work.experts > 1 else ""
    return f"{work.kernel} {work.format} {work.rows} x {work.columns}{experts}, M {work.tokens}"


def cell_line(cell: BenchCell, ceilings: MachineCeilings) -> str:
    """Our time, its share of read bandwidth, its floor, and how many times as long others take."""
    parts = [f"{work_text(cell):44}"]
    ours = cell.ours
    if ours is not None:
        floor = ceilings.floor_us(cell)
        us = next(r.us for r in cell.results if r.contestant == cell.subject and r.us)
        parts.append(f"{us.median:8.2f} us [{us.lower:.2f}, {us.upper:.2f}]")
        parts.append(f"{ceilings.share(cell, ours):4.0%} of read")
        parts.append(f"floor {floor:6.2f} x {ours / floor:.2f}")
    parts += [_other(r, ours) for r in cell.results if r.contestant != cell.subject or r.us is None]
    if cell.before_us is not None:
        parts.append(f"before {cell.before_us:.2f} us")
    if cell.recorded is not None:
        parts.append(f"recorded {cell.recorded.us:.2f} us")
    return "  ".join(parts)


def _other(result: ImplementationResult, ours: float | None) -> str:
    if result.us is None:
        return f"{result.contestant}: failed"
    ratio = "" if ours is None else f" = {result.us.median / ours:.2f} x"
    return f"{result.contestant} {result.us.median:.2f} us{ratio}"
