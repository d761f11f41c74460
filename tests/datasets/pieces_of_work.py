"""Functions that worker processes run; they must be importable there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from spark_prof.dashboards.dataset_report import render_dataset
from spark_prof.dashboards.section import Layout
from spark_prof.datasets.engines import Executor
from spark_prof.datasets.every_recording import summarize_dataset
from spark_prof.errors import CommandError
from spark_prof.traces.resolve import Folder, resolve


def process_of(item: int) -> int:
    """The process in which the item was handled."""
    return os.getpid()


def node_of(item: int) -> str:
    """The node of the Ray cluster; slow enough that one node cannot take all items."""
    import ray

    time.sleep(0.5)
    found: str = ray.get_runtime_context().get_node_id()
    return found


def some_fail(item: int) -> int:
    """The item squared; some items fail as files do."""
    if item == 1:
        raise CommandError("item 1 is damaged; record again")
    if item == 2:
        raise ValueError("of two\nlines")
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def report_dataset(folder: Path, kind: str, engine: str) -> str:
    """The report of a folder of recordings, drawn."""
    found = resolve(str(folder))
    assert isinstance(found, Folder)
    return render_dataset(summarize_dataset(found, Executor(engine)), Layout(kind, 100, False))
