"""What kernels of this package were measured to bring, and whether a recording may quote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from spark_prof import rules
from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.analyzers.findings.other_backends import kernel_families
from spark_prof.analyzers.model import Report
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import (
    ALONE,
    ELSEWHERE,
    SHIPPED,
    Tuned,
    TuningRun,
    known_runs,
    read,
)
from spark_prof.rules import thresholds
from spark_prof.rules.backends import choice_of, family_of_kernel
from spark_prof.rules.environment import UNKNOWN, Version, version_of
from spark_prof.rules.tune_candidates import IN_LAYER, MOST_TOKENS, SWAPS

_SLOTS = {part: swap.slot for swap in SWAPS for part in swap.components} | {"router": "moe"}
"""The slot of `spark-prof ab` that holds the kernels of a component."""
_SAME_BYTES = thresholds.SAME_BYTES.value


@dataclass(frozen=True)
class Gain:
    """A kernel of this package that was measured in one slot, and against what.

    `holds` says whether that is the recording's case: its GPU, and the kernel that runs there.
    Else nobody measured it there, and only an A/B tells.
    """

    slot: str
    factor: float  # how many times as fast, the least of the slot's weights
    other: str  # the kernel that it was measured against, such as vLLM Marlin
    machine: str  # the GPU's name
    vllm: str  # its version, empty where there was none
    shape: str  # rows, columns, format, experts and tokens
    running: str  # the family of the kernel that runs in the recording; empty where unknown
    holds: bool
    here: str = ""  # the GPU and vLLM of the recording

    @property
    def text(self) -> str:
        """The figure; only to be shown where it holds."""
        return f"{self.factor:.2f} x as fast as {self.other} ({self.shape})"

    @property
    def where(self) -> str:
        """The GPU and the version of vLLM that it was measured on."""
        version = f" with vLLM {self.vllm}" if self.vllm else ""
        return f"{self.machine}{version}"

    @property
    def untold(self) -> str:
        """Why it is not quoted, in place of the figure."""
        return (
            f"An A/B would tell what {self.slot} brings {self.here} against "
            f"{self.running or 'what runs here'}, which was not measured. It was on {self.where}, "
            f"against {self.other}."
        )


def family_of(other: str) -> str:
    """The family of GPU kernels that a competitor of the benchmark is of.

    family_of("vLLM Marlin") == "Marlin"
    """
    name = other.removeprefix("vLLM ").removesuffix(" BF16")
    choice = choice_of(name)
    family = family_of_kernel(name.lower()) or (
        choice.traced[0] if choice and choice.traced else ""
    )
    return family or name


def running_family(report: Report, component: str) -> str:
    """The family of the kernel that takes most of a component's time; empty where unknown."""
    times: dict[str, float] = {}
    for row in report.kernels:
        family = family_of_kernel(row.name) if row.component == component else ""
        if family:
            times[family] = times.get(family, 0.0) + row.us
    if times:
        return max(times, key=lambda family: times[family])
    engine, trace = kernel_families(report, component)
    families = trace or {family_of(name) for name in engine - {"unquantized"}}
    return families.pop() if len(families) == 1 else ""


def measured_gain(component: str, report: Report, kernel: str = "spark_prof") -> Gain | None:
    """What this package's kernel was measured to bring for all weights of a component.

    Only measurements on a GPU of the same architecture count, those on this one before others, of
    weights with the same format and number of bytes, at numbers of tokens around those of the
    recorded decode steps. `holds` of the answer says whether its figure may be quoted.

    Args:
        kernel: spark_prof, or mxfp4 for BF16 weights that are quantized at load.
    """
    slot = _SLOTS.get(component)
    if slot is None or report.roofline is None or report.roofline.decode is None:
        return None
    stored = {row.component: row.dtype for row in report.roofline.weights}
    owner = "experts" if slot == "moe" else component
    modules = [m for m in report.modules if m.component == owner and m.bytes]
    tokens = report.roofline.decode.tokens
    if not modules or tokens > MOST_TOKENS:
        return None
    architecture = f"sm_{(report.gpu.compute_capability or '').replace('.', '')}"
    try:
        runs = known_runs()
    except KernelError:  # of the user's own file, which a report can do without
        runs = read(SHIPPED)
    runs = tuple(run for run in runs if run.architecture.rstrip("af") == architecture)
    here = [run for run in runs if run.machine == report.gpu.name]
    running = running_family(report, owner)
    measurements = []
    for module in modules:
        stored_format = module.format or stored.get(owner, module.weight_dtype)
        of_weights = (module.bytes / module.count, slot, stored_format, kernel)
        rows = list(_around(tokens, _like(*of_weights, here)))
        rows = rows or list(_around(tokens, _like(*of_weights, runs)))
        if not rows or not all(run.speaks_for(row, report.gpu.name) for row, run in rows):
            return None
        measurements += rows
    row, run = min(measurements, key=lambda pair: _times(pair[0]))
    holds = all(
        run.machine == report.gpu.name and running == family_of(row.fallback)
        for row, run in measurements
    )
    version = f" with vLLM {report.run.vllm}" if version_of(report.run.vllm) != UNKNOWN else ""
    return Gain(
        slot, _times(row), row.fallback, run.machine, run.versions.get("vllm", ""),
        _shape(row), running, holds, f"on {report.gpu.name or 'this GPU'}{version}",
    )  # fmt: skip


def _shape(row: Tuned) -> str:
    of = row.work
    shape = f"{of.rows} x {of.columns} {of.format}"
    shape += f", {of.experts} experts" if of.experts > 1 else ""
    return shape + f", {of.tokens} token{'s' if of.tokens > 1 else ''}"


def _times(row: Tuned) -> float:
    return (row.fallback_us or 0.0) / row.us


def _like(
    size: float, slot: str, weight_format: str, kernel: str, runs: Sequence[TuningRun]
) -> Iterator[tuple[Tuned, TuningRun]]:
    """Measurements of weights of a format and so many bytes.

    Those of a kernel that quantizes BF16 at load stand beside the same GPU's cuBLAS of the BF16
    weights. What was searched in a chain of layers was not timed beside another kernel.
    """
    stored = {"bfloat16": "bf16"}.get(weight_format, weight_format)
    computed = stored if kernel == "spark_prof" else kernel
    rows = [(row, run) for run in runs for row in run.rows if row.fallback != ALONE]
    wide = {
        (run.machine, replace(row.work, format="bf16")): row
        for row, run in rows
        if row.fallback.endswith("BF16")
    }
    for row, run in rows:
        of = row.work
        if of.format != computed or (of.kernel == "moe") is not (slot == "moe"):
            continue
        bytes_ = of.rows * of.columns * BYTES.get(stored, 0.0)
        bytes_ *= 1.5 * of.experts if of.kernel == "moe" else 1.0
        if abs(bytes_ - size) > _SAME_BYTES * size:
            continue
        if computed == stored:
            yield row, run
        elif other := wide.get((run.machine, replace(of, format="bf16"))):
            yield replace(row, fallback=other.fallback, fallback_us=other.fallback_us), run


def _around(
    tokens: float, rows: Iterable[tuple[Tuned, TuningRun]]
) -> Iterator[tuple[Tuned, TuningRun]]:
    """The measurements at the next smaller and the next larger number of tokens."""
    ordered = sorted(rows, key=lambda pair: pair[0].work.tokens)
    below = max((r.work.tokens for r, _ in ordered if r.work.tokens <= tokens), default=None)
    above = min((r.work.tokens for r, _ in ordered if r.work.tokens >= tokens), default=None)
    if below is not None and above is not None:
        yield from ((r, run) for r, run in ordered if r.work.tokens in (below, above))


@dataclass(frozen=True)
class MeasuredStep:
    """A step of one model on one GPU. Times and kernels: first of stock vLLM, then of the side."""

    model: str
    class_: str  # in vLLM
    layers: int
    experts: int  # bytes of one layer's
    tokens: int
    machine: str
    capability: str
    side: str
    kernel: str  # of the slot `layer`: spark_prof or mxfp4
    wall_ms: tuple[float, float]
    device_ms: tuple[float, float]
    kernels: tuple[int, int] | None  # None where they were not counted
    stock: str  # family of the kernels that stock vLLM's experts ran on
    vllm: str

    @property
    def text(self) -> str:
        """What was measured, as a finding says it."""
        tokens = f"{self.tokens} token{'s' if self.tokens > 1 else ''}"
        (stock, swapped), (stock_device, swapped_device) = self.wall_ms, self.device_ms
        counted = ""
        if self.kernels is not None:
            counted = f"; {self.kernels[1]} kernels, stock {self.kernels[0]}"
        return (
            f"Measured on {self.machine} with vLLM {self.vllm}, {self.model}, {tokens}: a step of"
            f" {swapped:.2f} ms, stock {stock:.2f}, on the device {swapped_device:.2f} and"
            f" {stock_device:.2f}{counted}."
        )


@cache
def measured_steps() -> tuple[MeasuredStep, ...]:
    """Those of `rules/measured_steps.json`, which `benchmarks/measured_steps.py` writes."""
    stored = Path(rules.__file__).with_name("measured_steps.json").read_bytes()
    return msgspec.json.decode(stored, type=tuple[MeasuredStep, ...])


def measured_step(
    components: tuple[str, ...], report: Report, kernel: str = "spark_prof"
) -> MeasuredStep | None:
    """What kernels of this package bring a recorded model's decode step as a whole.

    Of several measurements that against the kernels that run, under the recording's vLLM, else the
    newest. None where nobody measured it: another model, number of tokens or architecture, several
    GPUs, another attention than FlashAttention; or where these kernels ran already.

    Args:
        components: those that a change shall be for, one of them inside the slot `layer`.
        kernel: spark_prof, or mxfp4 for BF16 weights that are quantized at load.
    """
    decode = report.decode_roofline
    if decode is None or not {*IN_LAYER}.intersection(components) or len(report.ranks) > 1:
        return None
    attend = {m.kernel for m in report.modules if m.component == "attention" and m.kernel}
    if attend != {"FlashAttentionImpl"} or any(k.name == "attention" for k in report.kernels):
        return None
    experts = {(m.count, m.bytes // m.count) for m in report.modules if m.component == "experts"}
    running, fitting = running_family(report, "experts"), []
    for row in measured_steps():
        here = row.machine == report.gpu.name or row.wall_ms[0] >= ELSEWHERE * row.wall_ms[1]
        same = row.class_ == report.run.architecture and experts == {(row.layers, row.experts)}
        comparable = row.capability == report.gpu.compute_capability and row.tokens == decode.tokens
        if here and same and comparable and row.kernel == kernel:
            fitting.append(row)
    version = version_of(report.run.vllm)[:2]

    def nearness(row: MeasuredStep) -> tuple[bool, bool, Version]:
        of = version_of(row.vllm)
        return row.stock == running, of[:2] == version, of

    return max(fitting, key=nearness, default=None)
