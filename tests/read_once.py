"""Recordings of `tests/data` that are opened and summed up once, however many commands ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spark_prof.analyzers.comparing.comparison import ComparedRecording
    from spark_prof.analyzers.summary import ReportWithRows
    from spark_prof.traces.bundle import Bundle
    from spark_prof.traces.resolve import Source

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
_MOST = 6  # recordings that are open at a time, between tests
_active = False
_open = ExitStack()
_bundles: dict[tuple[str, Path], Bundle] = {}
_summaries: dict[tuple[Path, str, int | None], ReportWithRows] = {}
_sides: dict[tuple[str, Path, int | None], ComparedRecording] = {}


def forget() -> None:
    """Closes all, after which recordings are read anew."""
    for memory in (_bundles, _summaries, _sides):
        memory.clear()
    _open.close()


def _name(source: str | Source) -> str:
    return source if isinstance(source, str) else source.name


def _is_data(name: str) -> bool:
    """Whether nobody changes it: that, and the examples that the package brings."""
    path = Path(name).resolve()
    return path.is_relative_to(DATA) or path.parent == ROOT / "spark_prof"


def _opened_once(read: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def opened(source: str | Source) -> Iterator[Bundle]:
        name = _name(source)
        if not _is_data(name):
            with read(source) as bundle:
                yield bundle
            return
        key = name, Path.cwd()
        if key not in _bundles:
            _bundles[key] = _open.enter_context(read(source))
        yield _bundles[key]

    return opened


def _summed_once(sum_up: Callable[..., ReportWithRows]) -> Callable[..., ReportWithRows]:
    def summary_of(
        bundle: Bundle,
        rank: int | None = None,
        log: Any = None,
        measured: Any = None,
        results: Sequence[Any] = (),
        batch: int | None = None,
    ) -> ReportWithRows:
        if log or measured or results or batch or bundle not in _bundles.values():
            return sum_up(bundle, rank, log, measured, results, batch)
        key = bundle.path, bundle.label, bundle.ranks[0] if rank is None and bundle.ranks else rank
        if key not in _summaries:
            _summaries[key] = sum_up(bundle, rank)
        return _summaries[key]

    return summary_of


def _sides_once(read: Callable[..., ComparedRecording]) -> Callable[..., ComparedRecording]:
    def read_side(source: str | Source, rank: int | None = None) -> ComparedRecording:
        name = _name(source)
        if not _is_data(name):
            return read(source, rank)
        key = name, Path.cwd(), rank
        if key not in _sides:
            _sides[key] = read(source, rank)
        return _sides[key]

    return read_side


@contextmanager
def reading_once() -> Iterator[None]:
    """Lets every command and function read a recording of `tests/data` once for a while."""
    global _active
    if _active:
        yield
        return
    from spark_prof.analyzers import summary
    from spark_prof.datasets import opened

    instead = {
        "opened": (opened.opened, _opened_once(opened.opened)),
        "summary_of": (summary.summary_of, _summed_once(summary.summary_of)),
        "read_side": (opened.read_side, _sides_once(opened.read_side)),
    }
    _replace(instead)
    _active = True
    try:
        yield
    finally:
        _active = False
        _replace({name: (once, usual) for name, (usual, once) in instead.items()})
        forget()


def _replace(functions: dict[str, tuple[Any, Any]]) -> None:
    """Wherever a module has the first of two functions under that name, it gets the second."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("spark_prof", "tests")):
            for name, (usual, other) in functions.items():
                if vars(module).get(name) is usual:
                    setattr(module, name, other)


@pytest.fixture(scope="package", autouse=True)
def recordings_read_once() -> Iterator[None]:
    """For the `conftest.py` of a folder whose tests read recordings of `tests/data` as they are."""
    with reading_once():
        yield


@pytest.fixture(autouse=True)
def few_recordings_open(recordings_read_once: None) -> Iterator[None]:
    """Closes what earlier tests read, once it is much."""
    yield
    if len(_bundles) > _MOST or len(_sides) > _MOST:
        forget()
