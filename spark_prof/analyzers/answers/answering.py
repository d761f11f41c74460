"""Answers all questions for one run."""

from __future__ import annotations

from collections.abc import Callable

from spark_prof.analyzers.answers.decode import formats, memory, overhead, shapes
from spark_prof.analyzers.answers.model import Answer
from spark_prof.analyzers.answers.shares import shares
from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.model import KernelRow, Report

_QUESTION = "Does it compute on tensor cores, and in which precision?"
_FP4 = "fp4"
_CORES = {"tensor-core": "tensor cores", "cuda-core": "CUDA cores", "copy": "copy engines"}


def tensor_cores(report: Report) -> Answer | None:
    """Engine, precision and weight format of the products; None where a run has none on a GPU."""
    decode = report.steps.decode > 0
    times = {row: row.decode_us if decode else row.us for row in report.kernels}
    products = [row for row in report.kernels if times[row] and is_gemm(row.name)]
    total = sum(times[row] for row in products)
    if not total or report.run.units == "op":
        return None
    parts = shares((_formats(row), times[row]) for row in products)
    everything = sum(times.values())
    steps = "decode kernel time" if decode else "kernel time"
    text = f"Matrix products take {100 * total / everything:.1f} % of the {steps}: {parts}."
    if any(row.weights == _FP4 for row in products) and not any(
        row.precision == _FP4 for row in products
    ):
        text += " FP4 is how weights are stored; no product computes in it."
    basis = shares((row.evidence, times[row]) for row in products)
    return Answer("tensor-cores", _QUESTION, text, f"Of the products' time: {basis}.")


def _formats(row: KernelRow) -> str:
    if row.engine == "unknown":
        return "on cores that nothing tells"
    stored = f" from {row.weights} weights" if row.weights and row.weights != row.precision else ""
    return f"{row.precision or 'unknown precision'} on {_CORES[row.engine]}{stored}"


QUESTIONS: tuple[Callable[[Report], Answer | None], ...] = (
    tensor_cores, formats, memory, shapes, overhead,
)  # fmt: skip


def answers_of(report: Report) -> tuple[Answer, ...]:
    """The answers that the run can give, in the order of the questions."""
    return tuple(answer for ask in QUESTIONS if (answer := ask(report)))
