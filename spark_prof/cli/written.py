"""What commands that write something say of it: lines for a person, or JSON on stdout.

With JSON what other programs print meanwhile goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spark_prof.cli.options import report_command, show

if TYPE_CHECKING:
    from spark_prof.analyzers.breakdown import Coverage
    from spark_prof.traces.bundle import Bundle


class WriteReceipt(StrEnum):
    """How a command that writes something says what it wrote."""

    TEXT = "text"
    JSON = "json"


AnswerOption = Annotated[
    WriteReceipt, typer.Option("--format", help="How to say what came of it; JSON goes to stdout.")
]
Kind = Literal["bundle", "bundles", "zip", "perfetto", "speedscope", "csv", "parquet", "program"]


@dataclass(frozen=True)
class WriteRecord:
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


def print_json_answer(
    answer: str, command: str, path: Path | str, kind: Kind, notes: Sequence[str] = (),
    then: str | None = None, bundle: Bundle | None = None, exit_code: int | None = None,
) -> bool:  # fmt: skip
    """Prints the record of a file where the answer is to be JSON; False where it is not.

    Args:
        then: what to type next, by default `report`.
        bundle: what was written, whose figures are told too.
    """
    if answer != WriteReceipt.JSON:
        return False
    then = report_command(path) if then is None else then
    record = WriteRecord(command, str(path), kind, then, tuple(notes), exit_code=exit_code)
    if bundle is not None:
        from spark_prof.analyzers.summary import summary_of

        steps, kernels = (
            sum(n for name, n in bundle.meta.tables.items() if name.startswith(table))
            for table in ("steps-", "kernels-")
        )
        record = replace(
            record, state=bundle.meta.state, ranks=tuple(bundle.ranks), steps=steps,
            kernels=kernels, coverage=summary_of(bundle).report.coverage if kernels else None,
        )  # fmt: skip
    say_json(record)
    return True


def say_json(record: object) -> None:
    """Prints what JSON has of a record."""
    from spark_prof.dashboards.render import json_report

    show(json_report.write(record).rstrip())


@contextmanager
def stdout_is_ours(answer: WriteReceipt) -> Iterator[None]:
    """Where JSON is the answer, what commands print meanwhile goes to stderr."""
    if answer is WriteReceipt.TEXT:
        yield
        return
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
