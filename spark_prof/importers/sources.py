"""Opens whatever a person has, and makes a bundle of it: traces, reports, archives, folders.

Windows are written as they are read, so that memory does not grow with a trace that comes in many.
A trace that is one window can be looked at as a whole: where its steps or layers have no ranges,
they are looked for in what repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError, one_line
from spark_prof.importers.imported_layers import (
    Capture,
    Layers,
    ReferenceTrace,
    captures_of,
    reference_of,
)
from spark_prof.importers.imported_process import ProcessWriter
from spark_prof.importers.modules import Stacks, names_module, with_stacks
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, client_frames
from spark_prof.traces.bundle import (
    HIGHEST_RANK,
    IMPORTED,
    META_FILE,
    SCHEMA,
    Bundle,
    Meta,
    TableFiles,
    own_version,
)
from spark_prof.traces.checkpoint import is_model
from spark_prof.traces.claim import Claim, staged
from spark_prof.traces.foreign import Foreign, ForeignProcess
from spark_prof.traces.formats import (
    BENCHMARK,
    BUNDLE,
    BY_NAME,
    FOLDER,
    PIECES,
    FormatError,
    format_of,
)
from spark_prof.traces.rank_files import SAME_RANK, holds_captures, rank_named, why_several
from spark_prof.traces.readers.graph_stacks import FORMAT as GRAPH_STACKS
from spark_prof.traces.readers.graph_stacks import graph_stacks
from spark_prof.traces.readers.ncu_csv import FORMAT as NCU
from spark_prof.traces.readers.ncu_csv import kernels_of_csv, measured_trace
from spark_prof.traces.readers.ncu_report import kernels_of_report


def write_import(
    source: str,
    traces: Iterable[Foreign],
    out: Path | Claim,
    *,
    results: Sequence[BenchmarkResult] = (),
    layers: Layers | None = None,
    lost: Sequence[str] = (),
) -> Bundle:
    """Reads the traces and writes the bundle, whole or not at all."""
    with staged(out) as staging:
        with TableFiles(staging) as tables:
            writer = _Writer(source, tables, layers or Layers(), lost)
            for foreign in traces:
                writer.add(foreign)
            writer.finish(results)
        writer.meta(tables.rows).write(staging)
    return Bundle(out if isinstance(out, Path) else out.folder)


class _Writer:
    """Writes trace after trace into the tables of one bundle."""

    def __init__(
        self, source: str, tables: TableFiles, layers: Layers, lost: Sequence[str]
    ) -> None:
        self._source, self._tables, self._layers = source, tables, layers
        self._facts: dict[str, dict[str, Any]] = {}
        self._formats: list[str] = []
        self._lost = list(lost)
        self._refused: list[str] = []
        self._lost_by_rank: dict[str, list[int]] = {}
        self._summed = False

    def add(self, foreign: Foreign) -> None:
        """Adds the processes of one trace; beside others Nsight Compute's only as counters."""
        if foreign.refusal:
            self._refused.append(foreign.refusal)
            return
        if foreign.format == NCU and any(name != NCU for name in self._formats):
            # To the first rank: a name is the same on all.
            rank = int(next(iter(self._facts)).removeprefix("rank"))
            self._tables.add("metrics", rank, foreign.processes[0].metrics)
            self._formats.append(foreign.format)
            return
        ranks = self._ranks(foreign.processes)
        writers = [
            ProcessWriter(process, rank, self._tables, self._layers, self._source)
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

    def finish(self, results: Sequence[BenchmarkResult]) -> None:
        """Adds what belongs to no trace."""
        if not any(name.startswith("steps-") for name in self._tables.rows):
            reason = f"{self._source} holds no work on a GPU or CPU"
            raise CommandError("; ".join(dict.fromkeys(self._refused)) or reason)
        self._lost += [f"not imported: {reason}" for reason in self._refused]
        runs = 0
        for result in results:
            for table, frame in client_frames(result, runs).items():
                self._tables.add(table, 0, frame)
            runs += len(result.runs)

    def meta(self, rows: dict[str, int]) -> Meta:
        """What the bundle says about itself."""
        settings: dict[str, Any] = {"source": self._source, "summed": self._summed}
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

    def _ranks(self, processes: Sequence[ForeignProcess]) -> list[int]:
        """A rank for each process: its own, else the next free number."""
        used = {int(name.removeprefix("rank")) for name in self._facts}
        ranks = []
        for process in processes:
            rank = process.rank
            # Replicas that know nothing of each other count their ranks from 0.
            if rank is None or (rank in used and process.facts.get("replica")):
                rank = next(n for n in range(len(used) + 1) if n not in used)
            elif not 0 <= rank <= HIGHEST_RANK:
                raise CommandError(
                    f"{self._source} says that it is of rank {rank}; ranks go from 0 to "
                    f"{HIGHEST_RANK}"
                )
            elif rank in used:
                raise CommandError(
                    f"{self._source} holds two traces of rank {rank}; of several runs make "
                    "a bundle each (--each), or give the one that has layers as --like"
                )
            used.add(rank)
            ranks.append(rank)
        return ranks


def read_trace(kind: str, path: Path) -> Foreign:
    """Begins to read a file of that format."""
    trace_format = BY_NAME[kind]
    module, function = trace_format.reader.split(".")
    read: Callable[..., Foreign] = getattr(
        import_module(f"spark_prof.traces.readers.{module}"), function
    )
    return read(path, names_module) if trace_format.scoped else read(path)


@dataclass
class _Inputs:
    """What was found under the names that the user gave."""

    traces: list[tuple[str, Path]] = field(default_factory=list)
    results: list[Path] = field(default_factory=list)
    stacks: list[Path] = field(default_factory=list)  # of the nodes of graphs
    passed_over: list[str] = field(default_factory=list)
    # What held several traces that nobody named one by one, and those.
    containers: list[tuple[Path, list[Path]]] = field(default_factory=list)


def import_files(sources: Sequence[Path], out: Path | Claim, like: Path | None = None) -> Bundle:
    """Makes one bundle of traces of one run: its ranks, its benchmark results.

    Args:
        out: the bundle's folder, claimed or not, which must not exist or be empty.
        like: a bundle or trace of the same model whose layers are known.
    """
    from spark_prof.traces.benchmarks.read import read_benchmark

    with ExitStack() as stack:
        inputs = _Inputs()
        for source in sources:
            _look(source, inputs, stack, named=True)
        if not inputs.traces:
            _refuse(sources, inputs)
        traces, captures = _without_captures(inputs.traces)
        _check_one_run(inputs, captures)
        layers = _layers(like, stack) if like else Layers(captures=_captures(captures, inputs))
        name = ", ".join(source.name or str(source) for source in sources)
        return write_import(
            name,
            # Counters belong to a trace, where there is one, and so come after it.
            _read(traces, {rank_named(path.name): graph_stacks(path) for path in inputs.stacks}),
            out,
            results=[read_benchmark(path) for path in inputs.results],
            layers=layers,
            lost=_not_imported(inputs.passed_over),
        )


@contextmanager
def open_source(path: Path) -> Iterator[Bundle]:
    """A bundle, or a trace as a bundle that is gone afterwards."""
    if format_of(path) in (BUNDLE, PIECES):
        yield open_bundle(path)
        return
    with temporary_folder() as folder:
        yield import_files([path], folder / path.name)


def _look(path: Path, inputs: _Inputs, stack: ExitStack, *, named: bool) -> None:
    """Adds what a path is, or holds; what the user did not name may be anything."""
    try:
        kind = format_of(path)
    except CommandError as error:
        if named:
            raise
        # What could be given instead goes without saying here.
        if isinstance(error, FormatError):
            error = CommandError(f"{path.name} {error.fault}")
        inputs.passed_over.append(str(error))
        return
    if kind == BENCHMARK:
        inputs.results.append(path)
    elif kind == GRAPH_STACKS:
        inputs.stacks.append(path)
    elif kind == "nsys-rep":
        from spark_prof.traces.nsys_tool import export_report

        into = stack.enter_context(temporary_folder())
        inputs.traces.append(("nsys-sqlite", export_report(path, into)))
    elif kind in BY_NAME and BY_NAME[kind].reader:
        inputs.traces.append((kind, path))
    elif named and kind == FOLDER:
        _look_at_all(path, _files(path), inputs, stack)
    elif named and kind == "archive":
        from spark_prof.traces.compressed import unpacked

        into = stack.enter_context(temporary_folder())
        _look_at_all(path, unpacked(path, into), inputs, stack)
    elif named and (path.parent / META_FILE).exists():
        raise CommandError(f"{path} is a part of the recording {path.parent}; give its folder")
    elif named:
        raise CommandError(f"{path} is a {kind}, which is imported already; report it as it is")
    else:
        inputs.passed_over.append(f"{path.name} is a {kind}")


def _look_at_all(holder: Path, files: Iterable[Path], inputs: _Inputs, stack: ExitStack) -> None:
    before = len(inputs.traces)
    for file in files:
        _look(file, inputs, stack, named=False)
    # Of tables each is a part, and of counters each kernel.
    timed = [path for kind, path in inputs.traces[before:] if BY_NAME[kind].endings]
    inputs.containers.append((holder, timed))


def _check_one_run(inputs: _Inputs, captures: Sequence[Path]) -> None:
    """Refuses a folder of several recordings: only its ranks are one, whoever reads it."""
    for holder, paths in inputs.containers:
        runs = [path for path in paths if path not in captures]
        # The writer tells two of one rank.
        if len(runs) > 1 and (why := why_several(runs)) and why != SAME_RANK:
            raise CommandError(
                f"{holder} holds {len(runs)} recordings and {why}; make a bundle of each (--each), "
                "or name files that are ranks one by one"
            )


_MOST_FILES = 10_000
_MOST_TOLD = 20


def _files(folder: Path) -> list[Path]:
    """The files in a folder, hidden ones left out; links to folders are not followed."""
    files = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            files.append(path)
        if len(files) > _MOST_FILES:
            raise CommandError(f"{folder} holds more than {_MOST_FILES:,} files; name the traces")
    return files


def _layers(like: Path, stack: ExitStack) -> Layers:
    bundle = stack.enter_context(open_source(like))
    if not bundle.ranks:
        raise CommandError(f"{like} has no steps, so nothing can be aligned with it")
    references: dict[int | None, ReferenceTrace] = {
        rank: reference_of(bundle, rank) for rank in bundle.ranks
    }
    return Layers(references | {None: references[bundle.ranks[0]]})


_MEASURED = {NCU: kernels_of_csv, "ncu-rep": kernels_of_report}
"""Formats of kernels that Nsight Compute measured, one by one, and what reads them."""


def _read(
    traces: Sequence[tuple[str, Path]], stacks: Mapping[int | None, Stacks]
) -> Iterator[Foreign]:
    """The traces, one after another; kernels that were measured alone come last, as one."""
    for kind, path in traces:
        if kind not in _MEASURED:
            yield with_stacks(read_trace(kind, path), stacks)
    alone = [(path, *_MEASURED[kind](path)) for kind, path in traces if kind in _MEASURED]
    if alone:
        yield measured_trace(alone)


def _without_captures(
    traces: list[tuple[str, Path]],
) -> tuple[list[tuple[str, Path]], list[Path]]:
    """The traces of a run and those of its graphs' captures; alone they are traces like others."""
    several = len(traces) > 1
    captures = [p for kind, p in traces if several and kind == "kineto" and holds_captures(p)]
    rest = [(kind, path) for kind, path in traces if path not in captures]
    return (rest, captures) if rest else (traces, [])


def _captures(paths: Sequence[Path], inputs: _Inputs) -> dict[int | None, list[Capture]]:
    """The captured graphs of each rank."""
    graphs: dict[int | None, list[Capture]] = {}
    for path in paths:
        foreign = read_trace("kineto", path)
        captures = captures_of(foreign, path)
        graphs.setdefault(foreign.processes[0].rank, []).extend(captures)
        if not captures:
            inputs.passed_over.append(f"{path.name} holds no captured graph of a whole model")
    return graphs


def _not_imported(lines: Sequence[str]) -> tuple[str, ...]:
    """What was passed over; of many files the first ones."""
    remarks = [f"not imported: {line}" for line in lines[:_MOST_TOLD]]
    if len(lines) > _MOST_TOLD:
        remarks.append(f"not imported: {len(lines) - _MOST_TOLD:,} other files")
    return tuple(remarks)


def _refuse(sources: Sequence[Path], inputs: _Inputs) -> None:
    names = ", ".join(map(str, sources))
    if len(sources) == 1 and is_model(names):
        raise CommandError(f"{names} is a model and no recording; ask: spark-prof doctor {names}")
    if inputs.stacks:
        raise CommandError(f"{names} holds stacks of graph nodes but no trace; give the trace too")
    if inputs.results:
        raise CommandError(
            f"{names} holds results of load generators but no trace; give the trace too, or look "
            "at a result with: spark-prof report RESULT"
        )
    reasons = "; ".join(inputs.passed_over[:3])
    raise CommandError(
        f"{names} holds no trace{f' ({reasons})' if reasons else ''}; give a recording of "
        "spark-prof, a trace of another tool, or a folder of them"
    )
