"""What commands that write something say of it: lines for a person, or JSON on stdout.

With JSON what other programs print meanwhile goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spark_prof.cli.options import report_command, show

if TYPE_CHECKING:
    from spark_prof.analyzers.breakdown import Coverage
    from spark_prof.traces.bundle import Bundle


class Answer(StrEnum):
    """How a command that writes something says what it wrote."""

    TEXT = "text"
    JSON = "json"


AnswerOption = Annotated[
    Answer, typer.Option("--format", help="How to say what was written: JSON goes to stdout.")
]
Kind = Literal["bundle", "bundles", "zip", "perfetto", "csv", "parquet", "program"]


@dataclass(frozen=True)
class Written:
    """What was written."""

    command: str  # that wrote it, without its options
    path: str  # as it was asked for
    kind: Kind  # what it is; bundles are a folder of them
    next: str  # what to type next; empty where nothing is
    notes: tuple[str, ...] = ()  # what is missing, and other things to know
    state: str | None = None  # complete, interrupted or salvaged; null for what is no bundle
    ranks: tuple[int, ...] = ()  # of the bundle
    steps: int | None = None  # of all ranks together
    kernels: int | None = None  # of all ranks, copies among them
    coverage: Coverage | None = None  # of the lowest rank; null without kernels
    exit_code: int | None = None  # of the command that was recorded
    schema: int = 1  # raised when a key changes its meaning or goes; new keys do not raise it


def told(
    answer: str, command: str, path: Path | str, kind: Kind, notes: Sequence[str] = (),
    then: str | None = None,
) -> bool:  # fmt: skip
    """Prints what was written where JSON is the answer; whether it did.

    Args:
        then: what to type next, by default `report`.
    """
    then = report_command(path) if then is None else then
    if answer == Answer.JSON:
        say_json(Written(command, str(path), kind, then, tuple(notes)))
    return answer == Answer.JSON


def told_bundle(
    answer: str, command: str, path: Path | str, bundle: Bundle, notes: Sequence[str],
    exit_code: int | None = None,
) -> bool:  # fmt: skip
    """The same of a bundle, with what it holds."""
    if answer != Answer.JSON:
        return False
    from spark_prof.analyzers.summary import summarize

    steps, kernels = (
        sum(n for name, n in bundle.meta.tables.items() if name.startswith(f"{table}-"))
        for table in ("steps", "kernels")
    )
    coverage = summarize(bundle).coverage if kernels else None
    say_json(
        Written(
            command, str(path), "bundle", report_command(path), tuple(notes), bundle.meta.state,
            tuple(bundle.ranks), steps, kernels, coverage, exit_code,
        )
    )  # fmt: skip
    return True


def say_json(record: object) -> None:
    """Prints what JSON has of a record."""
    from spark_prof.dashboards.render import json_report

    show(json_report.write(record).rstrip())


@contextmanager
def stdout_is_ours(answer: Answer) -> Iterator[None]:
    """Where JSON is the answer, what commands print meanwhile goes to stderr."""
    if answer is Answer.TEXT:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
