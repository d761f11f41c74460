"""Runs the same function of one file on many files: in processes here, or on a Ray cluster.

The function and what it returns travel between processes by pickle, as multiprocessing and Ray
do; no file is ever unpickled.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from spark_prof.ending import interrupted_by, stopped_with, temporary_folder
from spark_prof.errors import CommandError, SparkProfError
from spark_prof.extras import install_command

Item = TypeVar("Item")
Value = TypeVar("Value")

_DIED = "the process that read it died, perhaps for want of memory"
_LONGEST = 300
_PR_SET_PDEATHSIG = 1  # of prctl: the signal that a process gets when its parent ends


class Executor(StrEnum):
    """Where the work is done."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True)
class ItemOutcome(Generic[Value]):
    """What became of one item: a value, or the reason why there is none."""

    value: Value | None
    reason: str = ""


def run_each(
    function: Callable[[Item], Value], items: Sequence[Item], engine: Executor
) -> list[ItemOutcome[Value]]:
    """What the function returns for each item, in their order; a failure ends none of the others.

    Every worker must be able to import the function, and to find the items' paths.
    """
    if engine is Executor.RAY:
        return list(_on_ray(function, items))
    workers = min(len(items), os.cpu_count() or 1)
    if workers < 2:
        return [_attempt(function, item) for item in items]
    return list(_in_processes(function, items, workers))


def _attempt(function: Callable[[Item], Value], item: Item) -> ItemOutcome[Value]:
    """Runs in the worker: a broken file must not end the others, whatever it brings about."""
    try:
        return ItemOutcome(function(item))
    except SparkProfError as error:
        return ItemOutcome(None, str(error))
    except MemoryError:
        return ItemOutcome(None, "there is not enough memory for it")
    except Exception as error:
        text = " ".join(str(error).split())[:_LONGEST]
        return ItemOutcome(None, f"unexpected {type(error).__name__}: {text}; please report this")


def _in_processes(
    function: Callable[[Item], Value], items: Sequence[Item], workers: int
) -> Iterator[ItemOutcome[Value]]:
    # Not forked: a fork copies the locks of Arrow's and DuckDB's threads as they stand.
    context = multiprocessing.get_context("spawn")
    with (
        temporary_folder() as folder,  # theirs too: a worker that is killed removes nothing
        ProcessPoolExecutor(workers, context, _begin, (str(folder), os.getpid())) as pool,
        interrupted_by(_end_workers),
    ):
        futures = [pool.submit(_attempt, function, item) for item in items]
        for item, future in zip(items, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:
                if stopped_with():
                    raise
                # One that dies takes all that wait with it: each gets a process of its own.
                with ProcessPoolExecutor(1, context, _begin, (str(folder), os.getpid())) as alone:
                    try:
                        yield alone.submit(_attempt, function, item).result()
                    except BrokenProcessPool:
                        yield ItemOutcome(None, _DIED)


def _begin(folder: str, parent: int) -> None:
    """Has a worker put its temporary files there, and end with who started it, by no other way."""
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # of Linux alone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _end_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()


def _on_ray(
    function: Callable[[Item], Value], items: Sequence[Item]
) -> Iterator[ItemOutcome[Value]]:
    try:
        import ray
    except ImportError as error:
        raise CommandError(f"--engine ray needs Ray; run: {install_command('ray')}") from error
    found_running = ray.is_initialized()
    if not found_running:
        # Joins the cluster that RAY_ADDRESS or Ray itself knows of, or starts one here.
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            text = _first_line(error)
            raise CommandError(
                f"cannot reach the Ray cluster: {text}; check RAY_ADDRESS"
            ) from error
    try:
        # Spread, or Ray fills the first machine before it uses the next.
        task = ray.remote(_attempt).options(scheduling_strategy="SPREAD", num_cpus=1)
        waiting = [task.remote(function, item) for item in items]
        for one in waiting:
            try:
                yield ray.get(one)
            except ray.exceptions.RayError as error:
                yield ItemOutcome(None, f"{_DIED} ({_first_line(error)})")
    finally:
        if not found_running:
            ray.shutdown()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:_LONGEST]
