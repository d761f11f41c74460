"""Where a kernel ran and in which precision, by the best evidence that a bundle has.

Counters that were read for the kernel come first, then the instructions of the machine code that
was loaded, then its name. Where several pieces of machine code have the kernel's name and they
disagree, they say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from spark_prof.analyzers.classify.classifier import Label, classify
from spark_prof.analyzers.classify.code_rows import CodeRow, Conflict, code_rows
from spark_prof.analyzers.classify.counted_kernels import Counted, CountedKernels
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.machine_code import machine_code_of

_MOST_OPCODES = 3
_STORED = ("fp4", "fp6", "fp8", "int4", "int8")


class Evidence:
    """What is known about kernels, by name.

    Args:
        metrics: rows of the `metrics` table; None for none.
        capability: the GPU's compute capability, such as 12.1; None where unknown.
        lost: what of the machine code could not be read, one line each.
    """

    def __init__(
        self,
        metrics: pd.DataFrame | None = None,
        capability: str | None = None,
        codes: Iterable[CodeRow] = (),
        lost: Iterable[str] = (),
    ) -> None:
        self.lost = tuple(lost)
        self._counted = CountedKernels(metrics, capability)
        self._code: dict[str, list[CodeRow]] = {}
        for row in codes:
            self._code.setdefault(row.name, []).append(row)

    def label(self, name: str) -> Label:
        """What is known about the kernel."""
        label = classify(name)
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
        says = {(row.engine, row.precision) for row in rows}
        return rows[0] if len(says) == 1 else None

    def codes(self, names: Iterable[str]) -> tuple[CodeRow, ...]:
        """The machine code of these kernels, all of it."""
        return tuple(row for name in names for row in self._code.get(name, ()))

    def conflicts(self, names: Iterable[str]) -> tuple[Conflict, ...]:
        """The kernels whose names contradict better evidence."""
        found = (self._conflict(name) for name in names)
        return tuple(conflict for conflict in found if conflict)

    def _conflict(self, name: str) -> Conflict | None:
        label = classify(name)
        if label.evidence != "name":
            return None
        by_name = _says(label.engine, label.precision)
        counted, code = self._counted.find(name), self.code(name)
        if counted is not None and (truth := _contradiction(label, counted)):
            return Conflict(name, by_name, truth, "counter", counted.metric)
        if counted is not None and counted.engine is not None:
            return None
        if code is None or code.engine is None:
            return None
        if code.engine == label.engine and (
            code.precision is None or label.precision in (None, code.precision)
        ):
            return None
        most = [row.opcode for row in code.products[:_MOST_OPCODES]]
        basis = ", ".join(most) or "no tensor-core instruction"
        if code.reads and code.products:
            basis += f", stored as {' and '.join(code.reads)}"
        return Conflict(name, by_name, _says(code.engine, code.precision), "sass", basis)


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
        stored = [found for found in code.reads if found in _STORED and found != precision]
        weights = stored[0] if len(stored) == 1 else None
    return replace(label, engine=code.engine, precision=precision, evidence="sass", weights=weights)


def evidence_of(bundle: Bundle, rank: int) -> Evidence:
    """The evidence for a rank of a bundle: its own counters, else those of the others.

    Measurements of Nsight Compute that were imported beside a trace are ranks of their own. Where
    they come from different kinds of GPU, those of the first kind count.
    """
    code = machine_code_of(bundle)
    codes = code_rows(code.rows)
    if not (own := bundle.frame("metrics", rank)).empty:
        return Evidence(own, _capability(bundle, rank), codes, code.lost)
    found = {r: rows for r in bundle.ranks if not (rows := bundle.frame("metrics", r)).empty}
    capability = next((_capability(bundle, r) for r in found), None)
    alike = [rows for r, rows in found.items() if _capability(bundle, r) == capability]
    texts = {"name": str, "metric": str, "unit": str}
    metrics = pd.concat([own, *alike]).astype(texts) if alike else own
    return Evidence(metrics, capability, codes, code.lost)


def _contradiction(label: Label, counted: Counted) -> str | None:
    """What the counters say instead."""
    if counted.engine is None:
        tensor = label.engine == "tensor-core"
        return "nothing of that" if tensor and label.precision in counted.absent else None
    other = counted.precision and label.precision and counted.precision != label.precision
    if counted.engine != label.engine or other:
        return _says(counted.engine, counted.precision)
    return None


def _says(engine: str, precision: str | None) -> str:
    return f"{engine} {precision or ''}".strip()


def _capability(bundle: Bundle, rank: int) -> str | None:
    gpu = bundle.facts(rank).get("gpu")
    capability = gpu.get("compute_capability") if isinstance(gpu, dict) else None
    return str(capability) if capability else None
