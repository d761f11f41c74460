"""What the explorer shows of one rank of a source: its report, kernels, steps and layers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import kernels_in_order
from spark_prof.analyzers.clients.client_comparison import ClientRow, clients_of
from spark_prof.analyzers.instants import recorded_starts, with_own_starts
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_accounting import step_times
from spark_prof.analyzers.summary import ReportWithRows, summary_of
from spark_prof.analyzers.views.layer_cells import (
    LAUNCH_COLUMNS,
    PLACED_COLUMNS,
    KernelColumns,
    columns_of,
)
from spark_prof.analyzers.views.waterfall import whole
from spark_prof.arrays import Int64s
from spark_prof.datasets.opened import ceilings_for, opened
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.assemble import snapshot
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.resolve import RecordingInProgress, is_bundle, resolve
from spark_prof.traces.swapped import layers_of

_NEED_TIMES = ("step_us", "union_us", "overlap_us", "gap_us", "residual_us", "engine_us")
"""Columns of `step_times` that say nothing where nothing tells when kernels ran."""


class Columns:
    """Makes the columns of every kernel when they are first asked for."""

    def __init__(self, bundle: Bundle, rank: int, kernels: pd.DataFrame, steps: Int64s) -> None:
        self._lock = threading.Lock()
        # The other columns are not held until somebody asks.
        needed = kernels[[name for name in PLACED_COLUMNS if name in kernels]]
        self._source: tuple[Bundle, int, pd.DataFrame, Int64s] | None = bundle, rank, needed, steps
        self._columns: KernelColumns | None = None

    @property
    def ready(self) -> bool:
        """Whether nobody has to wait for them."""
        return self._columns is not None

    def __call__(self) -> KernelColumns:
        """The columns; whoever asks meanwhile waits."""
        with self._lock:
            if self._source:
                bundle, rank, kernels, steps = self._source
                self._columns = columns_of(kernels, steps, _launches(bundle, rank, kernels))
                self._source = None  # the rows are more than twice as large
            assert self._columns is not None
            return self._columns


def _launches(bundle: Bundle, rank: int, kernels: pd.DataFrame) -> pd.DataFrame:
    """LAUNCH_COLUMNS of the same rows in the same order."""
    recorded = bundle.frame("kernels", rank, ["start_ns"])["start_ns"].to_numpy()
    if np.array_equal(recorded, recorded_starts(kernels)):
        return bundle.frame("kernels", rank, list(LAUNCH_COLUMNS))
    columns = ["start_ns", "end_ns", *LAUNCH_COLUMNS]
    return with_own_starts(kernels_in_order(bundle, rank, columns))


@dataclass(frozen=True)
class Prepared:
    """One rank of a source: its report, and the columns that a page draws."""

    source: str
    rank: int
    ranks: tuple[int, ...]
    report: Report
    columns: Columns = field(repr=False, compare=False)
    # The rows of `step_times` in order: step, phase, begin_ns, step_us, gap_us .
    steps: pd.DataFrame = field(repr=False, compare=False)
    layers: pd.DataFrame = field(repr=False, compare=False)
    sums: pd.DataFrame = field(repr=False, compare=False)  # as `Summary` has them
    live: bool = False  # whether the source was still being recorded
    # Whether anything tells when the kernels ran; where nothing does, as in a table of sums, they
    # lie end to end, and steps have no times.
    timed: bool = True

    @property
    def kernels(self) -> KernelColumns:
        """Every kernel; made when first asked for: of ten million that takes a second."""
        return self.columns()


def prepare(source: str, rank: int | None = None) -> Prepared:
    """Reads a bundle, a recording that goes on, a trace, or the URL of one, for all pages."""
    try:
        with _opened(source) as (bundle, live):
            return _prepared(source, bundle, rank, live)
    except CommandError:
        raise
    except UnicodeEncodeError as error:
        name = source.encode("utf-8", "replace").decode()
        raise CommandError(f"{name} cannot be read: its name is no UTF-8; rename it") from error
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CommandError(f"{source} could not be read: {reason}") from error
    except Exception as error:
        # One page says so; the others, and other sources, are shown.
        fault = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        text = f"{source} cannot be read, by a fault of spark-prof: {fault}"
        raise CommandError(text) from error


@contextmanager
def _opened(source: str) -> Iterator[tuple[Bundle, bool]]:
    recording = resolve(source)
    if not isinstance(recording, RecordingInProgress):
        with opened(recording) as bundle:
            yield bundle, False
        return
    with temporary_folder() as folder:
        live_bundle = snapshot(recording.path, folder)
        live_bundle.named = source  # nobody has ever heard of the snapshot's folder
        yield live_bundle, True


def _prepared(source: str, bundle: Bundle, rank: int | None, live: bool) -> Prepared:
    summary = summary_of(bundle, rank, measured=ceilings_for(bundle, rank))
    rank_of_report = bundle.ranks[0] if rank is None else rank
    report = whole(summary.report)  # a trace is only there for now
    if live:
        report = replace(report, run=replace(report.run, source=source))
    columns = Columns(bundle, rank_of_report, summary.kernels, summary.steps.index.to_numpy())
    if live or not is_bundle(Path(source)):
        columns()  # the bundle of a trace is only there for now
    return Prepared(
        source=source,
        rank=rank_of_report,
        ranks=tuple(bundle.ranks),
        report=report,
        columns=columns,
        steps=_steps(summary),
        layers=layers_of(bundle, rank_of_report),
        live=live,
        timed=summary.timed,
        sums=summary.sums,
    )


def _steps(summary: ReportWithRows) -> pd.DataFrame:
    """The rows of `step_times`; without times NaN where they would need them."""
    steps = summary.steps
    if not summary.timed:
        steps = step_times(steps, summary.kernels).assign(
            **dict.fromkeys(_NEED_TIMES, float("nan"))
        )
    return steps.reset_index(drop=True)


def clients_beside(prepared: Prepared, results: Sequence[Path]) -> tuple[ClientRow, ...]:
    """The runs that the recording holds, then those of the results, each beside its steps."""
    runs = [run for path in results for run in read_benchmark(path).runs]
    if not runs:
        return prepared.report.clients
    steps = prepared.steps if prepared.timed else pd.DataFrame()
    facts: Mapping[str, Any] = {}
    # A trace would have to be read again for those of its process.
    if not prepared.live and is_bundle(Path(prepared.source)):
        with opened(prepared.source) as bundle:
            facts = bundle.facts(prepared.rank)
    return (*prepared.report.clients, *clients_of(runs, steps, facts, prepared.report.overhead))
