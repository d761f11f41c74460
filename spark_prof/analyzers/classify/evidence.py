"""Where a kernel ran and in which precision, by the best evidence that a bundle has.

Counters that were read for the kernel come first, then the instructions of the machine code that
was loaded, then its name. Where several pieces of machine code have the kernel's name and they
disagree, they say nothing.

A count of matrix operations proves tensor cores, a count of none proves their absence only where
the counter sees all of them. That the tensor pipe was busy proves them only since compute
capability 10: before, HFMA2.MMA, an ordinary multiply-add, runs in that pipe too (on an H100 a
norm without one matrix instruction counts thousands, tests/data/ncu-h100). Names and meanings of
the counters: Nsight Compute's profiling guide, "Metrics Reference", and `ncu --query-metrics`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import Label, classify, spelling
from spark_prof.analyzers.classify.code_rows import CodeRow, Conflict, code_rows
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.recorded_run import device_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.machine_code import machine_code_of


@dataclass(frozen=True)
class Counter:
    """Counters of tensor-core work."""

    # Regular expression for the counter's name, without the unit (`sm__`, `smsp__`) before it and
    # the rollup (`.sum`) behind it.
    pattern: str
    example: str  # a metric of it
    precision: str | None = None  # of the operands, None where the name does not tell
    # Major compute capabilities on which it counts the work of all tensor cores.
    complete_on: frozenset[int] = frozenset()
    proves_on: frozenset[int] | None = None  # those on which it counts nothing else; None for all


_NO_HFMA2_MMA = frozenset({10, 12})
_FORMATS_ON = {9: frozenset({"bf16", "fp16", "tf32", "fp8", "int8"})}
"""All formats of this project's words that the tensor cores of a compute capability know."""

_OPS = r"ops_path_tensor_(?:op_[a-z]+_)?src_"

COUNTERS = (
    Counter(_OPS + r"bf16(?:_.+)?", "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "bf16"),
    Counter(_OPS + r"fp16(?:_.+)?", "sm__ops_path_tensor_src_fp16_dst_fp16.sum", "fp16"),
    Counter(_OPS + r"tf32(?:_.+)?", "sm__ops_path_tensor_src_tf32_dst_fp32.sum", "tf32"),
    Counter(_OPS + r"fp8(?:_(?!fp).+)?", "sm__ops_path_tensor_src_fp8.sum", "fp8"),
    Counter(_OPS + r"fp4(?:_(?!fp).+)?", "sm__ops_path_tensor_src_fp4_dst_fp32.sum", "fp4"),
    Counter(_OPS + r"int8(?:_.+)?", "sm__ops_path_tensor_src_int8.sum", "int8"),
    # One counter for several formats, and formats without a word of their own.
    Counter(r"ops_path_tensor.*", "sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp32.sum"),
    # Warp-group products, HMMA stands for fp16, bf16 and tf32, IMMA for int8 and int4: the
    # operation is no precision.
    Counter(r"inst_executed_pipe_tensor_op_(?!hmma).+",
        "sm__inst_executed_pipe_tensor_op_gmma.sum"),
    Counter(r"inst_executed_pipe_tensor_op_hmma(?!_type_hfma2).*",
        "sm__inst_executed_pipe_tensor_op_hmma.sum", proves_on=_NO_HFMA2_MMA),
    # Since Hopper a warp group's product is one instruction, which not every unit counts here.
    Counter(r"inst_executed_pipe_tensor", "sm__inst_executed_pipe_tensor.sum",
        complete_on=frozenset({7, 8, 12}), proves_on=_NO_HFMA2_MMA),
    Counter(r"pipe_tensor(?:_op_hmma)?_type_hmma.+_cycles_active",
        "sm__pipe_tensor_op_hmma_type_hmma_hgmma_qgmma_cycles_active.sum"),
    Counter(r"pipe_tensor_op_.+_cycles_active", "sm__pipe_tensor_op_hmma_cycles_active.sum",
        proves_on=_NO_HFMA2_MMA),
    # Compute capability 10 has a second pipe, for tcgen05.
    Counter(r"pipe_tensor(?:_v2)?_cycles_active", "sm__pipe_tensor_cycles_active.sum",
        complete_on=frozenset({7, 8, 9, 12}), proves_on=_NO_HFMA2_MMA),
    Counter(r"(?:inst_executed_)?pipe_tc(?:_.+)?", "sm__pipe_tc_cycles_active.max"),
)  # fmt: skip
"""The counters that tell of tensor cores; the first row that fits a metric counts."""

_COMPILED = tuple((counter, re.compile(counter.pattern)) for counter in COUNTERS)
_UNITS = ("sm__", "smsp__")
_EXACT = frozenset({"sum", "max"})
"""Rollups whose zero is a zero, not a small number that was rounded when it was printed."""
_CONSTANT = "peak_sustained"
"""A rollup that tells what the hardware could do, not what the kernel did."""


@dataclass(frozen=True)
class Counted:
    """What the counters say about a kernel."""

    engine: str | None  # tensor-core or cuda-core; None where they do not tell
    precision: str | None  # of the tensor-core work, None where they do not tell
    absent: frozenset[str]  # precisions of which no tensor-core work was counted
    metric: str  # the metric that tells


class CountedKernels:
    """What counters say about kernels, by name; arguments are those of `Evidence`."""

    def __init__(self, metrics: pd.DataFrame | None, capability: str | None) -> None:
        major = (capability or "").partition(".")[0]
        self._major = int(major) if major.isdecimal() else None
        self._exact: dict[str, Counted] = {}
        self._spelled: dict[str, Counted | None] = {}
        if metrics is None:
            return
        measured = metrics[~np.isnan(metrics["value"].to_numpy(np.float64))]
        for name, rows in measured.groupby("name", observed=True):
            most = rows.groupby("metric", observed=True)["value"].max()
            counted = self._counted(dict(zip(most.index.astype(str), most, strict=True)))
            if counted:
                self._exact[str(name)] = counted
                # Kernels that share a spelling must agree.
                same = self._spelled.setdefault(spelling(str(name)), counted)
                verdict = counted.engine, counted.precision
                if same is None or (same.engine, same.precision) != verdict:
                    self._spelled[spelling(str(name))] = None

    def find(self, name: str) -> Counted | None:
        """What they say about the kernel; None where they say nothing."""
        if not self._exact:
            return None
        return self._exact.get(name) or self._spelled.get(spelling(name))

    def _counted(self, values: dict[str, float]) -> Counted | None:
        tensor_metrics: dict[str, str | None] = {}
        none: list[tuple[str, Counter]] = []
        for metric, value in values.items():
            counter = find_counter(metric)
            if counter is None:
                continue
            if value > 0:
                if counter.proves_on is None or self._major in counter.proves_on:
                    tensor_metrics[metric] = counter.precision
            elif value == 0 and metric.rpartition(".")[2] in _EXACT:
                none.append((metric, counter))
        precisions = {p for p in tensor_metrics.values() if p}
        absent = frozenset(c.precision for _, c in none if c.precision) - precisions
        if tensor_metrics:
            precision = precisions.pop() if len(precisions) == 1 else None
            metric = next(
                (m for m, p in tensor_metrics.items() if p == precision), next(iter(tensor_metrics))
            )
            return Counted("tensor-core", precision, absent, metric)
        formats = _FORMATS_ON.get(self._major or 0)
        for metric, counter in none:
            if self._major in counter.complete_on or (formats and formats <= absent):
                return Counted("cuda-core", None, absent, metric)
        return Counted(None, None, absent, none[0][0]) if none else None


def find_counter(metric: str) -> Counter | None:
    """The row that knows the metric; None where it does not tell what the kernel did."""
    base, _, rollup = metric.partition(".")
    unit = next((unit for unit in _UNITS if base.startswith(unit)), None)
    if unit is None or any(part.startswith(_CONSTANT) for part in rollup.split(".")):
        return None
    name = base.removeprefix(unit)
    return next((counter for counter, pattern in _COMPILED if pattern.fullmatch(name)), None)


_MOST_OPCODES = 3
_STORED = ("fp4", "fp6", "fp8", "int4", "int8")


_OF_NVIDIA = ("tensor-core", "cuda-core")


class KernelEvidence:
    """What is known about kernels, by name.

    Args:
        metrics: rows of the `metrics` table; None for none.
        capability: the GPU's compute capability, such as 12.1; None where unknown.
        lost: what of the machine code could not be read, one line each.
        nvidia: whether the GPU may be of NVIDIA, whose units the names of kernels tell; on another
            the same name says nothing of where it runs.
    """

    def __init__(
        self,
        metrics: pd.DataFrame | None = None,
        capability: str | None = None,
        codes: Iterable[CodeRow] = (),
        lost: Iterable[str] = (),
        nvidia: bool = True,
    ) -> None:
        self.lost = tuple(lost)
        self._nvidia = nvidia
        self._counted = CountedKernels(metrics, capability)
        self._code: dict[str, list[CodeRow]] = {}
        for row in codes:
            self._code.setdefault(row.name, []).append(row)

    def label(self, name: str) -> Label:
        """What is known about the kernel."""
        label = classify(name)
        if not self._nvidia and label.engine in _OF_NVIDIA:
            return replace(label, engine="unknown", evidence="unknown")
        code = self.code(name)
        if code is not None:
            label = with_code(label, code)
        counted = self._counted.find(name)
        if counted is None or counted.engine is None:
            return label
        same = label.engine == counted.engine
        precision = counted.precision or (label.precision if same else None)
        return replace(label, engine=counted.engine, precision=precision, evidence="counter")

    def code(self, name: str) -> CodeRow | None:
        """The kernel's machine code; of several pieces that agree the first, else None."""
        rows = self._code.get(name, [])
        verdicts = {(row.engine, row.precision) for row in rows}
        return rows[0] if len(verdicts) == 1 else None

    def codes(self, names: Iterable[str]) -> tuple[CodeRow, ...]:
        """The machine code of these kernels, all of it."""
        return tuple(row for name in names for row in self._code.get(name, ()))

    def conflicts(self, names: Iterable[str]) -> tuple[Conflict, ...]:
        """The kernels whose names contradict better evidence."""
        conflicts = (self._conflict(name) for name in names)
        return tuple(conflict for conflict in conflicts if conflict)

    def _conflict(self, name: str) -> Conflict | None:
        label = classify(name)
        if label.evidence != "name":
            return None
        by_name = _engine_words(label.engine, label.precision)
        counted, code = self._counted.find(name), self.code(name)
        if counted is not None and (truth := _contradiction(label, counted)):
            return Conflict(name, by_name, truth, "counter", counted.metric)
        if (counted and counted.engine) or code is None or code.engine is None:
            return None
        fits = code.precision is None or label.precision in (None, code.precision)
        if code.engine == label.engine and fits:
            return None
        most = [row.opcode for row in code.products[:_MOST_OPCODES]]
        basis = ", ".join(most) or "no tensor-core instruction"
        if code.reads and code.products:
            basis += f", stored as {' and '.join(code.reads)}"
        return Conflict(name, by_name, _engine_words(code.engine, code.precision), "sass", basis)


def with_code(label: Label, code: CodeRow) -> Label:
    """A label by name, with what machine code knows better."""
    if code.engine is None:
        return label
    precision = code.precision
    if precision is None and label.engine == code.engine:
        fits = not code.precisions or label.precision in code.precisions
        precision = label.precision if fits else None
    weights = label.weights
    # What attention reads in another format is the KV cache.
    if weights is None and code.products and label.component != "attention":
        stored = [form for form in code.reads if form in _STORED and form != precision]
        weights = stored[0] if len(stored) == 1 else None
    return replace(label, engine=code.engine, precision=precision, evidence="sass", weights=weights)


def evidence_of(bundle: Bundle, rank: int) -> KernelEvidence:
    """The evidence for a rank of a bundle: its own counters, else those of the others.

    Measurements of Nsight Compute that were imported beside a trace are ranks of their own. Where
    they come from different kinds of GPU, those of the first kind count.
    """
    facts = bundle.facts(rank)
    if mapping_in(facts, "gpu").get("vendor") == "AMD":
        return KernelEvidence(nvidia=False)
    code = machine_code_of(bundle)
    codes = code_rows(code.rows)
    capabilities = {r: device_of(bundle.facts(r))[1] for r in bundle.ranks}
    if not (rank_metrics := bundle.frame("metrics", rank)).empty:
        return KernelEvidence(rank_metrics, capabilities[rank], codes, code.lost)
    metrics_by_rank = {
        r: rows for r in bundle.ranks if not (rows := bundle.frame("metrics", r)).empty
    }
    capability = next((capabilities[r] for r in metrics_by_rank), None)
    same_gpu = [rows for r, rows in metrics_by_rank.items() if capabilities[r] == capability]
    texts = {"name": str, "metric": str, "unit": str}
    metrics = pd.concat([rank_metrics, *same_gpu]).astype(texts) if same_gpu else rank_metrics
    return KernelEvidence(metrics, capability, codes, code.lost)


def _contradiction(label: Label, counted: Counted) -> str | None:
    if counted.engine is None:
        wrong = label.engine == "tensor-core" and label.precision in counted.absent
        return "nothing of that" if wrong else None
    other = counted.precision and label.precision and counted.precision != label.precision
    if counted.engine != label.engine or other:
        return _engine_words(counted.engine, counted.precision)
    return None


def _engine_words(engine: str, precision: str | None) -> str:
    return f"{engine} {precision or ''}".strip()
