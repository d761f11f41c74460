"""What to type next about a finding, and what after the change, from the recorded command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.measured_steps import measured_step
from spark_prof.analyzers.findings.other_backends import OPTIONS, other_backends
from spark_prof.analyzers.findings.rule import runs_eagerly, runs_graphs
from spark_prof.analyzers.model import Report
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import Run, Tuned, known_runs
from spark_prof.rules.backends import BACKENDS
from spark_prof.rules.tune_candidates import MOST_TOKENS, SWAPS

_SLOTS = {part: swap.slot for swap in SWAPS for part in swap.components} | {"router": "moe"}
"""The slot of `spark-prof ab` that holds the kernels of a component."""
_ROUTED = ("router", "experts")
"""Whose small kernels the package's experts take in: they route, activate and sum by themselves."""
_SAME_BYTES = 0.02
"""How far two weights of one shape may be apart in bytes: padding and factors are among them."""
_ROUNDS = " It rounds weights to 4 bits: compare answers."
_LONGEST = 1000  # characters of a command that somebody copies
_NARROWING = ("bf16-weights-dominate", "lm-head-not-quantized")
"""Findings whose BF16 weights a kernel of this package can quantize to MXFP4 at load."""


class Gain(NamedTuple):
    """A kernel of this package that was measured to be faster in one slot."""

    slot: str
    text: str  # how much faster than which kernel, for which weights: the least of the slot's
    machine: str  # on which it was measured


def with_next_command(finding: Finding, report: Report, page: str) -> Finding:
    """The finding with the command that takes it further, and what is known of its gain."""
    found = _with_command(finding, report, page)
    return replace(found, verify=_verify(found, report))


def _verify(finding: Finding, report: Report) -> str:
    """What shows whether the change helped: the A/B of both, else another recording beside this.

    The new folder is called after; what is new on a machine is seen by the doctor.
    """
    if finding.command.startswith("spark-prof ab "):
        return finding.command
    if finding.id in _MACHINE:
        return "spark-prof doctor"
    compare = f"spark-prof compare {shlex.quote(report.run.source)} after"
    again = _record(report, f"{_RECORD.get(finding.id, '')} -o after".strip())
    both = f"{again} && {compare}" if again else compare
    return both if len(both) <= _LONGEST else compare


def _with_command(finding: Finding, report: Report, page: str) -> Finding:
    for answer in (_kernels, _options, _again):
        found = answer(finding, report)
        if found is not None and len(found[0]) <= _LONGEST:
            command, measured = found
            return replace(finding, command=command, measured=measured)
    if finding.id in _MACHINE:
        return replace(finding, command="spark-prof doctor")
    source, section = shlex.quote(report.run.source), _SECTIONS.get(page, "findings")
    command = f"spark-prof report {source} --section {section}"
    if finding.id == "small-kernels":
        finding = replace(finding, measured="No command is known that fuses them in this run.")
    return replace(finding, command=command if len(command) <= _LONGEST else "")


_Answer = tuple[str, str] | None


def _kernels(finding: Finding, report: Report) -> _Answer:
    """Kernels of this package, where they were measured to be faster for these layers."""
    kernel = "mxfp4" if narrows(finding) else "spark_prof"
    small = finding.id == "small-kernels"
    step = measured_step(finding.components, report, kernel)
    if step is not None and report.run.command:
        text = step.text + (_ROUNDS if narrows(finding) else "")
        return _ab(report, f"--b {step.side}"), text
    gains = {
        gain.slot: gain
        for component in finding.components
        if not small or component in _ROUTED
        if (gain := measured_gain(component, report, kernel)) is not None
    }
    if not gains or not report.run.command:
        return None
    side = ",".join(f"{slot}={kernel}" for slot in gains)
    machines = ", ".join(dict.fromkeys(gain.machine for gain in gains.values()))
    text = f"Measured on {machines}: {_said(list(gains.values()), briefly=small)}."
    if narrows(finding):
        text += _ROUNDS
    if small:
        text = f"moe=spark_prof routes, multiplies and sums in 3 kernels a layer. {text}"
    return _ab(report, f"--b {side}"), text


def _said(gains: Sequence[Gain], *, briefly: bool) -> str:
    """What was measured; of several kernels without their shapes, which `kernels list` has."""
    if len(gains) == 1 and not briefly:
        return f"{gains[0].slot} {gains[0].text}"
    by_other: dict[str, list[str]] = {}
    for gain in gains:
        times, _, other = gain.text.partition(" (")[0].partition(" as fast as ")
        by_other.setdefault(other, []).append(f"{gain.slot} {times}")
    return "; ".join(f"{', '.join(own)} as fast as {other}" for other, own in by_other.items())


def _options(finding: Finding, report: Report) -> _Answer:
    """An option of vLLM's that this model and version have."""
    if not report.run.command:
        return None
    sides = _SIDES.get(finding.id)
    side = sides(report) if sides else ""
    if not side and (named := _OPTION.search(finding.fix)):
        side = f"--b {shlex.quote(named[0])}"
    if not side and (named := _PASS.search(finding.fix)):
        side = f"{_CONFIG}pass_config.{named[0]}=true"
    if finding.id != "small-kernels":  # which backend has fewer kernels is not known
        side = side or _backend(finding, report)
    return (_ab(report, side), "") if side else None


def _backend(finding: Finding, report: Report) -> str:
    """A backend that the advice names, or another of the option that it names, if it runs here."""
    asked = {found[1]: found[2] for found in _BACKEND.finditer(finding.fix)}
    for component in finding.components or OPTIONS:
        others = other_backends(report, component)
        if others is None or not others.values or others.option not in asked:
            continue
        value = asked[others.option] or (others.values[0] if finding.components else "")
        if value in others.values:
            return f"--b={others.option}={value}"
    return ""


def _again(finding: Finding, report: Report) -> _Answer:
    """Another recording, where this one cannot tell more."""
    options = _RECORD.get(finding.id)
    return (_record(report, options), "") if options and report.run.command else None


def _record(report: Report, options: str) -> str:
    """The command that records the same engine; empty where nothing tells how it was started."""
    if not report.run.command:
        return ""
    words = engine_words(report.run.command, report.run.model)
    starts = report.run.command
    if words == shlex.split(starts) and words[0] != "vllm":  # as `ab` records: a model, no program
        starts = f"vllm serve {starts}"
    return f"spark-prof record {options} -- {starts}"


_OPTION = re.compile(
    r"--cudagraph-capture-sizes [\d ]*\d|--enable-prefix-caching|--async-scheduling|"
    r"--quantization fp8"
)
"""Options that a rule's advice names whole: with a value, and not as one of several."""


_VALUES = "|".join(sorted({row.value for row in BACKENDS}, key=len, reverse=True))
_BACKEND = re.compile(rf"(--(?:moe|linear|attention)-backend)(?:[= ]({_VALUES})\b)?")
"""An option for backends, with its value where the advice names one."""

_PASS = re.compile(r"\benable_qk_norm_rope_fusion|\bfuse_[a-z_]+")
"""A fusion that a rule's advice names: it does so only where the model has what is fused."""
_CONFIG = "--b=--compilation-config."
_EAGER = "--a=--enforce-eager --b stock"
_FULL = "FULL_AND_PIECEWISE"


def _graphs(report: Report) -> str:
    if not runs_graphs(report):
        return _EAGER
    return "" if _FULL in report.run.execution else f"{_CONFIG}cudagraph_mode={_FULL}"


_SIDES: Mapping[str, Callable[[Report], str]] = {
    "host-gaps": _graphs,
    "idle-gpu": lambda report: _EAGER if runs_eagerly(report) else "",
    "eager-mode": lambda _: _EAGER,
    "small-kernels": lambda report: _EAGER if runs_eagerly(report) else "",
    "nccl-all-reduce": lambda _: f"{_CONFIG}pass_config.fuse_allreduce_rms=true",
}
"""Sides of an A/B by finding; an empty text where this model has not what the option is for."""
_RECORD: Mapping[str, str] = {
    "slow-steps": "--warmup-steps 32",
    "copies-in-decode": "--nvtx",
    "read-more-than-needed": "--counters",
    "idle-gpu": "--steady --batch-sizes 1",
    "compiled-in-flight": "--warmup-steps 32",
}
_MACHINE = ("library-missing", "ignored-environment-variable", "plain-architecture-build")


def _ab(report: Report, sides: str) -> str:
    words = engine_words(report.run.command, report.run.model)
    if "--enforce-eager" in sides:
        words = [word for word in words if word != "--enforce-eager"]
    return f"spark-prof ab {sides} -- {shlex.join(words)}"


def engine_words(command: str, model: str) -> list[str]:
    """What `spark-prof ab` takes after `--` to start the engine of a recorded command.

    Of a command that runs in a container that is what runs inside; of a script it is the model.

        engine_words("numactl -N 0 vllm serve m/x", "x (X)") == ["vllm", "serve", "m/x"]
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    names = [PurePath(word).name for word in words]
    if "vllm" in names[:-1]:
        begun = words[names.index("vllm") + 1 :]
        if PurePath(begun[0]).name in ("serve", "bench"):
            return ["vllm", *begun]
    if "--model" in words[:-1]:
        return ["vllm", "serve", *words[words.index("--model") + 1 :]]
    name = model.split(" ")[0]
    if names and names[0] == name:
        return words
    return [next((word for word in words if PurePath(word).name == name and name), name or "MODEL")]


def narrows(finding: Finding) -> bool:
    """Whether what it is about is mended by quantizing BF16 weights at load."""
    return finding.id in _NARROWING


def measured_gain(component: str, report: Report, kernel: str = "spark_prof") -> Gain | None:
    """What this package's kernel was measured to bring for all weights of a component.

    Only measurements on a GPU of the same architecture count, those on this one before others, of
    weights with the same format and number of bytes, at numbers of tokens around those of the
    recorded decode steps.

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
        runs = [run for run in known_runs() if run.architecture.rstrip("af") == architecture]
    except KernelError:  # of the user's own file, which a report can do without
        return None
    here = [run for run in runs if run.machine == report.gpu.name]
    found = []
    for module in modules:
        written = module.format or stored.get(owner, module.weight_dtype)
        of_weights = (module.bytes / module.count, slot, written, kernel)
        rows = list(_around(tokens, _like(*of_weights, here)))
        rows = rows or list(_around(tokens, _like(*of_weights, runs)))
        if not rows or not all(run.speaks_for(row, report.gpu.name) for row, run in rows):
            return None
        found.append(min(rows, key=lambda pair: _times(pair[0])))
    row, run = min(found, key=lambda pair: _times(pair[0]))
    of = row.work
    shape = f"{of.rows} x {of.columns} {of.format}"
    shape += f", {of.experts} experts" if of.experts > 1 else ""
    shape += f", {of.tokens} token{'s' if of.tokens > 1 else ''}"
    return Gain(slot, f"{_times(row):.2f} x as fast as {row.fallback} ({shape})", run.machine)


def _times(row: Tuned) -> float:
    return (row.fallback_us or 0.0) / row.us


def _like(
    size: float, slot: str, written: str, kernel: str, runs: Sequence[Run]
) -> Iterator[tuple[Tuned, Run]]:
    """Measurements of weights of a format and so many bytes.

    Those of a kernel that quantizes BF16 at load stand beside the same GPU's cuBLAS of the BF16
    weights.
    """
    stored = {"bfloat16": "bf16"}.get(written, written)
    computed = stored if kernel == "spark_prof" else kernel
    rows = [(row, run) for run in runs for row in run.rows]
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


def _around(tokens: float, rows: Iterable[tuple[Tuned, Run]]) -> Iterator[tuple[Tuned, Run]]:
    """Of the measurements those at the next smaller and the next larger number of tokens."""
    ordered = sorted(rows, key=lambda pair: pair[0].work.tokens)
    below = max((r.work.tokens for r, _ in ordered if r.work.tokens <= tokens), default=None)
    above = min((r.work.tokens for r, _ in ordered if r.work.tokens >= tokens), default=None)
    if below is not None and above is not None:
        yield from ((r, run) for r, run in ordered if r.work.tokens in (below, above))


_SECTIONS: Mapping[str, str] = {
    "kernels": "kernels",
    "timeline": "components",
    "steps": "steps",
    "conversions": "conversions",
    "ranks": "ranks",
}
"""The section, one that every report with such a finding has, that has a page's evidence."""
