"""Answers all questions for one run."""

from __future__ import annotations

from collections.abc import Callable

from spark_prof.analyzers.answers.decode import formats, memory, overhead, shapes
from spark_prof.analyzers.answers.model import Answer
from spark_prof.analyzers.answers.products import tensor_cores
from spark_prof.analyzers.model import Report

__all__ = ["QUESTIONS", "answers_of"]

QUESTIONS: tuple[Callable[[Report], Answer | None], ...] = (
    tensor_cores, formats, memory, shapes, overhead,
)  # fmt: skip


def answers_of(report: Report) -> tuple[Answer, ...]:
    """The answers that the run can give, in the order of the questions."""
    return tuple(answer for ask in QUESTIONS if (answer := ask(report)))
