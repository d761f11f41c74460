"""Opens whatever a person has: traces, reports, results, archives, and folders of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.importers.alignment import Reference, reference_of
from spark_prof.importers.captures import Capture, captures_of, holds_captures
from spark_prof.importers.imported_layers import Layers
from spark_prof.importers.importing import Import, write_import
from spark_prof.importers.modules import names_module
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.checkpoint import is_model
from spark_prof.traces.claim import Claim
from spark_prof.traces.foreign import Foreign
from spark_prof.traces.formats import BENCHMARK, BUNDLE, BY_NAME, FOLDER, PIECES, format_of
from spark_prof.traces.readers.ncu_csv import FORMAT as NCU
from spark_prof.traces.readers.ncu_csv import ncu_csv


def read_trace(kind: str, path: Path) -> Foreign:
    """Begins to read a file of that format."""
    known = BY_NAME[kind]
    module, function = known.reader.split(".")
    read: Callable[..., Foreign] = getattr(
        import_module(f"spark_prof.traces.readers.{module}"), function
    )
    return read(path, names_module) if known.scoped else read(path)


@dataclass
class _Found:
    """What was found under the names that the user gave."""

    traces: list[tuple[str, Path]] = field(default_factory=list)
    results: list[Path] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)


def import_files(sources: Sequence[Path], out: Path | Claim, like: Path | None = None) -> Bundle:
    """Makes one bundle of traces of one run: its ranks, its benchmark results.

    Args:
        out: the bundle's folder, claimed or not, which must not exist or be empty.
        like: a bundle or trace of the same model whose layers are known.

    Raises:
        CommandError: nothing of it can be imported, or the bundle cannot be written.
    """
    from spark_prof.traces.benchmarks.read import read_benchmark

    with ExitStack() as stack:
        found = _Found()
        for source in sources:
            _look(source, found, stack, named=True)
        if not found.traces:
            _refuse(sources, found)
        traces, captures = _without_captures(found.traces)
        layers = _layers(like, stack) if like else Layers(captures=_captures(captures, found))
        name = ", ".join(source.name or str(source) for source in sources)
        wanted = Import(
            source=name,
            # Counters belong to a trace, where there is one, and so come after it.
            traces=_read(traces),
            results=[read_benchmark(path) for path in found.results],
            layers=layers,
            lost=_not_imported(found.passed_over),
        )
        return write_import(wanted, out)


@contextmanager
def open_source(path: Path) -> Iterator[Bundle]:
    """A bundle, or a trace as a bundle that is gone afterwards.

    Raises:
        CommandError: it is neither, or damaged.
    """
    if format_of(path) in (BUNDLE, PIECES):
        yield open_bundle(path)
        return
    with temporary_folder() as folder:
        yield import_files([path], folder / path.name)


def _look(path: Path, found: _Found, stack: ExitStack, *, named: bool) -> None:
    """Adds what a path is, or holds; what the user did not name may be anything."""
    try:
        kind = format_of(path)
    except CommandError as error:
        if named:
            raise
        # What could be given instead goes without saying here.
        reason = str(error).replace(f"{path} ", f"{path.name} ", 1).partition(": give a")[0]
        found.passed_over.append(reason)
        return
    if kind == BENCHMARK:
        found.results.append(path)
    elif kind == "nsys-rep":
        from spark_prof.traces.nsys_tool import export_report

        into = stack.enter_context(temporary_folder())
        found.traces.append(("nsys-sqlite", export_report(path, into)))
    elif kind in BY_NAME and BY_NAME[kind].reader:
        found.traces.append((kind, path))
    elif named and kind == FOLDER:
        for file in _files(path):
            _look(file, found, stack, named=False)
    elif named and kind == "archive":
        from spark_prof.traces.archives import unpacked

        into = stack.enter_context(temporary_folder())
        for file in unpacked(path, into):
            _look(file, found, stack, named=False)
    elif named:
        raise CommandError(f"{path} is a {kind}, which is imported already; report it as it is")
    else:
        found.passed_over.append(f"{path.name} is a {kind}")


_MOST_FILES = 10_000
_MOST_TOLD = 20


def _files(folder: Path) -> list[Path]:
    """The files in a folder, hidden ones left out; links to folders are not followed."""
    found = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            found.append(path)
        if len(found) > _MOST_FILES:
            raise CommandError(f"{folder} holds more than {_MOST_FILES:,} files; name the traces")
    return found


def _layers(like: Path, stack: ExitStack) -> Layers:
    bundle = stack.enter_context(open_source(like))
    if not bundle.ranks:
        raise CommandError(f"{like} has no steps, so nothing can be aligned with it")
    references: dict[int | None, Reference] = {
        rank: reference_of(bundle, rank) for rank in bundle.ranks
    }
    return Layers(references | {None: references[bundle.ranks[0]]})


def _read(traces: Sequence[tuple[str, Path]]) -> Iterator[Foreign]:
    """The traces, one after another; kernels that were measured alone come last, as one."""
    for kind, path in traces:
        if kind != NCU:
            yield read_trace(kind, path)
    if alone := [path for kind, path in traces if kind == NCU]:
        yield ncu_csv(*alone)


def _without_captures(
    traces: list[tuple[str, Path]],
) -> tuple[list[tuple[str, Path]], list[Path]]:
    """The traces of a run and those of its graphs' captures; alone they are traces like others."""
    several = len(traces) > 1
    captures = [p for kind, p in traces if several and kind == "kineto" and holds_captures(p)]
    rest = [(kind, path) for kind, path in traces if path not in captures]
    return (rest, captures) if rest else (traces, [])


def _captures(paths: Sequence[Path], found: _Found) -> dict[int | None, list[Capture]]:
    """The captured graphs of each rank."""
    graphs: dict[int | None, list[Capture]] = {}
    for path in paths:
        foreign = read_trace("kineto", path)
        captures = captures_of(foreign, path)
        graphs.setdefault(foreign.processes[0].rank, []).extend(captures)
        if not captures:
            found.passed_over.append(f"{path.name} holds no captured graph of a whole model")
    return graphs


def _not_imported(lines: Sequence[str]) -> tuple[str, ...]:
    """What was passed over; of many files the first ones."""
    told = [f"not imported: {line}" for line in lines[:_MOST_TOLD]]
    if len(lines) > _MOST_TOLD:
        told.append(f"not imported: {len(lines) - _MOST_TOLD:,} other files")
    return tuple(told)


def _refuse(sources: Sequence[Path], found: _Found) -> None:
    names = ", ".join(map(str, sources))
    if len(sources) == 1 and is_model(names):
        raise CommandError(f"{names} is a model and no recording; ask: spark-prof doctor {names}")
    if found.results:
        raise CommandError(
            f"{names} holds results of load generators but no trace; give the trace too, or look "
            "at a result with: spark-prof report RESULT"
        )
    reasons = "; ".join(found.passed_over[:3])
    raise CommandError(f"{names} holds no trace" + (f" ({reasons})" if reasons else ""))
