"""Makes a bundle out of foreign traces.

Windows are written as they are read, so that memory does not grow with a trace that comes in many.
A trace that is one window can be looked at as a whole: where its steps or layers have no ranges,
they are looked for in what repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

from spark_prof.errors import CommandError, one_line
from spark_prof.importers.imported_layers import Layers
from spark_prof.importers.imported_process import BehindTables, ProcessWriter
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, client_frames
from spark_prof.traces.bundle import (
    HIGHEST_RANK,
    IMPORTED,
    SCHEMA,
    Bundle,
    Meta,
    TableFiles,
    own_version,
)
from spark_prof.traces.claim import Claim, staged
from spark_prof.traces.foreign import Foreign, Process
from spark_prof.traces.readers.ncu_csv import FORMAT as NCU


@dataclass(frozen=True)
class Import:
    """What is to become one bundle."""

    source: str  # what the user named, for the report
    traces: Iterable[Foreign]
    results: Sequence[BenchmarkResult] = ()
    layers: Layers = field(default_factory=Layers)
    lost: tuple[str, ...] = ()  # what is missing before anything is read


def write_import(wanted: Import, out: Path | Claim) -> Bundle:
    """Reads the traces and writes the bundle, whole or not at all.

    Raises:
        CommandError: a trace is damaged or holds nothing, two are of one rank, or the bundle cannot
            be written.
    """
    with staged(out) as staging:
        with TableFiles(staging) as tables, BehindTables(tables) as behind:
            writer = _Writer(wanted, behind)
            for foreign in wanted.traces:
                writer.add(foreign)
            writer.finish()
        writer.meta(tables.rows).write(staging)
    return Bundle(out if isinstance(out, Path) else out.folder)


class _Writer:
    """Writes trace after trace into the tables of one bundle."""

    def __init__(self, wanted: Import, tables: BehindTables) -> None:
        self._wanted, self._tables = wanted, tables
        self._facts: dict[str, dict[str, Any]] = {}
        self._formats: list[str] = []
        self._lost = list(wanted.lost)
        self._refused: list[str] = []
        self._lost_by_rank: dict[str, list[int]] = {}
        self._summed = False

    def add(self, foreign: Foreign) -> None:
        """Adds the processes of one trace; beside others Nsight Compute's only as counters."""
        if foreign.refusal:
            self._refused.append(foreign.refusal)
            return
        if foreign.format == NCU and any(name != NCU for name in self._formats):
            self._add_counters(foreign)
            return
        ranks = self._ranks(foreign.processes)
        writers = [
            ProcessWriter(process, rank, self._tables, self._wanted.layers, self._wanted.source)
            for process, rank in zip(foreign.processes, ranks, strict=True)
        ]
        windows = iter(foreign.windows)
        first = list(islice(windows, len(writers) + 1))
        whole = len({window.process for window in first}) == len(first) <= len(writers)
        for window in chain(first, windows):
            writers[window.process].add(window, whole)
        for writer in writers:
            writer.finish()
            self._facts[f"rank{writer.rank}"] = writer.facts()
            for line in dict.fromkeys(writer.lost):
                self._lost_by_rank.setdefault(line, []).append(writer.rank)
            self._summed |= bool(writer.process.facts.get("summed"))
        self._formats.append(foreign.format)
        self._lost += foreign.lost

    def _add_counters(self, foreign: Foreign) -> None:
        """Adds what was measured of kernels to the first rank: a name is the same on all."""
        rank = int(next(iter(self._facts)).removeprefix("rank"))
        self._tables.add("metrics", rank, foreign.processes[0].metrics)
        self._formats.append(foreign.format)

    def finish(self) -> None:
        """Adds what belongs to no trace."""
        if not any(name.startswith("steps-") for name in self._tables.rows()):
            reason = f"{self._wanted.source} holds no work on a GPU or CPU"
            raise CommandError("; ".join(dict.fromkeys(self._refused)) or reason)
        self._lost += [f"not imported: {reason}" for reason in self._refused]
        runs = 0
        for result in self._wanted.results:
            for table, frame in client_frames(result, runs).items():
                self._tables.add(table, 0, frame)
            runs += len(result.runs)

    def meta(self, rows: dict[str, int]) -> Meta:
        """What the bundle says about itself."""
        settings: dict[str, Any] = {"source": self._wanted.source, "summed": self._summed}
        return Meta(
            schema=SCHEMA,
            spark_prof=own_version(),
            state="complete",
            command=(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            backend=IMPORTED + ", ".join(dict.fromkeys(self._formats)),
            settings=settings,
            facts=self._facts,
            lost=tuple(dict.fromkeys(map(one_line, [*self._all_lost(), *self._lost]))),
            tables=rows,
        )

    def _all_lost(self) -> list[str]:
        """What the processes lack, each line once, with the ranks where it is not all of them."""
        return [
            line
            if len(ranks) == len(self._facts)
            else f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {line}"
            for line, ranks in self._lost_by_rank.items()
        ]

    def _ranks(self, processes: Sequence[Process]) -> list[int]:
        """A rank for each process: its own, else the next free number."""
        taken = {int(name.removeprefix("rank")) for name in self._facts}
        ranks = []
        for process in processes:
            rank = process.rank
            # Replicas that know nothing of each other count their ranks from 0.
            if rank is None or (rank in taken and process.facts.get("replica")):
                rank = next(n for n in range(len(taken) + 1) if n not in taken)
            elif not 0 <= rank <= HIGHEST_RANK:
                raise CommandError(
                    f"{self._wanted.source} says that it is of rank {rank}; ranks go from 0 to "
                    f"{HIGHEST_RANK}"
                )
            elif rank in taken:
                raise CommandError(
                    f"{self._wanted.source} holds two traces of rank {rank}; of several runs make "
                    "a bundle each (--each), or give the one that has layers as --like"
                )
            taken.add(rank)
            ranks.append(rank)
        return ranks
