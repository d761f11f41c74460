"""One damaged file through import, analysis and drawing, watched for time, memory and litter."""

from __future__ import annotations

import csv
import faulthandler
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from types import FrameType

from spark_prof.analyzers.ceilings.ceiling_rows import Question
from spark_prof.analyzers.ceilings.checkpoint_ceilings import ceilings_of
from spark_prof.analyzers.classify.listing import list_code
from spark_prof.analyzers.clients.client_comparison import clients_of
from spark_prof.analyzers.comparing.attribute_gain import summarize as attribute
from spark_prof.analyzers.comparing.swap_attribution import SwapOnSide, Untraced
from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.findings.audit_findings import findings_of_audit
from spark_prof.analyzers.summary import ReportWithRows, summarize, summary_of
from spark_prof.errors import CommandError
from spark_prof.importers.sources import import_files
from spark_prof.rules.gpus import GPUS
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.checkpoint import read_checkpoint
from spark_prof.traces.code_files import code_files
from spark_prof.traces.machine_code import read_machine_code
from spark_prof.traces.readers.engine_log import read_engine_log
from tests.fuzz import checks
from tests.fuzz.fixtures import CODE, DATA, LOG, MODEL, PIECES, RESULT, TRACE, Fixture
from tests.fuzz.mutations import mutate

MOST_SECONDS = 60
"""A case that takes longer hangs; a sound one takes a tenth of a second."""

MOST_BYTES = 500 << 20
"""A case may need so much memory; the files are below 2 MiB."""

_ADDRESS_SPACE = 4 << 30
"""Bytes that a worker may have beyond what it starts with; most of them are never touched."""

_FORMATS = ("text", "md", "json", "text", "json", "md", "json", "md", "html")


@dataclass(frozen=True)
class Case:
    """A fixture and the number from which its damage is drawn."""

    fixture: Fixture
    number: int

    @property
    def again(self) -> str:
        """The command that runs this case alone."""
        return f"FUZZ_CASE={self.fixture.name}:{self.number} pytest tests/fuzz/test_mutated.py"


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        refused: the error line; empty where the file was read.
        failure: what must not have happened; empty where all was well.
    """

    case: str
    refused: str
    failure: str


class _HangsError(BaseException):
    """The case took too long; no handler of Exception may take it."""


@contextmanager
def workers(folder: Path) -> Iterator[Callable[[Iterable[Case]], Iterator[Outcome]]]:
    """Gives a function that says what becomes of cases, in their order; the folder stays empty.

    A worker that ends, or hangs where no signal reaches Python, breaks the pool: that is an error
    of its own, `BrokenProcessPool`.
    """
    context = multiprocessing.get_context("forkserver")
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, context, _begin) as pool:
        yield lambda cases: pool.map(partial(_bounded, folder), cases, chunksize=2)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _bounded(folder: Path, case: Case) -> Outcome:
    # A case that hangs is told by itself; this is for one that hangs outside of Python.
    faulthandler.dump_traceback_later(2 * MOST_SECONDS, exit=True)
    try:
        return run(case, folder)
    finally:
        faulthandler.cancel_dump_traceback_later()


def run(case: Case, folder: Path) -> Outcome:
    """Runs one case below an existing folder, which is left as it was."""
    chance = Random(f"{case.fixture.name}:{case.number}")
    place = Path(tempfile.mkdtemp(dir=folder))
    done, refused, failure = "", "", ""
    before = 0
    try:
        source = _copy(case.fixture, place / "source")
        done = mutate(chance.choice(sorted(p for p in source.rglob("*") if p.is_file())), chance)
        if case.fixture.path.is_file():
            source = next(source.iterdir())
        before = _resident(reset=True)
        with _watched(place), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                _use(case.fixture, source, place, chance)
            except CommandError as error:
                refused = str(error)
                checks.check_line(refused, source, place)
    except (Exception, _HangsError):
        failure = traceback.format_exc(limit=-12)
    peak = _resident(reset=False) - before
    if not failure and peak > MOST_BYTES:
        failure = f"{peak >> 20} MiB of memory"
    if failure:
        failure = f"{case.again}\n({done})\n{failure}"
    shutil.rmtree(place)
    return Outcome(f"{case.fixture.name}:{case.number}", refused, failure)


def _use(fixture: Fixture, source: Path, place: Path, chance: Random) -> None:
    if fixture.kind == RESULT:
        (bundle, found), runs = _recording(), read_benchmark(source).runs
        clients = clients_of(runs, found.steps, bundle.facts(0), found.report.overhead)
        checks.check_report(replace(found.report, clients=clients), chance.choice(_FORMATS))
        return
    if fixture.kind in _DIAGNOSED:
        for line in _DIAGNOSED[fixture.kind](source):
            checks.check_line(line, source, place)
        return
    bundle = _import(source, place) if fixture.kind == TRACE else open_bundle(source)
    if fixture.kind in (TRACE, PIECES):
        for line in bundle.meta.lost:
            checks.check_line(line, source, place)
    checks.check_report(summarize(bundle), chance.choice(_FORMATS))
    _attribute(bundle, source, place)
    _export(bundle, place, chance)


def _attribute(bundle: Bundle, source: Path, place: Path) -> None:
    """Where a gain came from, between the bundle and itself."""
    swap = SwapOnSide("b", "moe", "model.layers.0.mlp.experts", "spark_prof")
    try:
        found = attribute(bundle, bundle, [swap], Untraced(900.0, 800.0))
    except CommandError as error:
        checks.check_line(str(error), source, place)
        return
    json.dumps(asdict(found), allow_nan=False)


def _classify(path: Path) -> Iterable[str]:
    with code_files(path, None) as files:
        code = read_machine_code(files.cubins)
        if not list_code(code.rows, files.compiled_by_driver):
            raise CommandError(next(iter(code.lost), f"{path} holds no kernel"))
        return code.lost


def _audit(path: Path) -> Iterable[str]:
    log = read_engine_log(path)
    findings_of_audit(audit_of_log(log, "", "12.1"))
    return log.lost


def _ceilings(path: Path) -> Iterable[str]:
    checkpoint = read_checkpoint(path)
    ceilings_of(checkpoint, Question(), GPUS)
    return checkpoint.lost


_DIAGNOSED = {CODE: _classify, LOG: _audit, MODEL: _ceilings}


@cache
def _recording() -> tuple[Bundle, ReportWithRows]:
    """The recording that results of load generators are compared with."""
    bundle = open_bundle(DATA / "benchmarks" / "vllm-serve-bundle")
    return bundle, summary_of(bundle)


def _export(bundle: Bundle, place: Path, chance: Random) -> None:
    kind = chance.randrange(12)
    if kind == 0:
        checks.check_perfetto(bundle)
    elif kind == 1:
        csv.field_size_limit(1 << 30)
        checks.check_csv(bundle, place / "csv")


def _import(source: Path, place: Path) -> Bundle:
    """Imports a trace; whatever comes of it, nothing but the bundle may be left."""
    out = place / "out" / "bundle"
    try:
        return import_files([source], out)
    except CommandError:
        assert not list(out.parent.glob("*")), "a half-written bundle is left"
        raise
    finally:
        left = list((place / "temporary").iterdir())
        assert not left, f"temporary files are left: {left}"
        assert {p.name for p in out.parent.glob("*")} <= {"bundle"}, "files beside the bundle"


def _copy(fixture: Fixture, target: Path) -> Path:
    if fixture.path.is_dir():
        return Path(shutil.copytree(fixture.path, target))
    target.mkdir()
    shutil.copyfile(fixture.path, target / fixture.path.name)
    return target


@contextmanager
def _watched(place: Path) -> Iterator[None]:
    """Temporary files come below `place`, and what takes too long is stopped."""

    def stop(_: int, frame: FrameType | None) -> None:
        raise _HangsError

    temporary, earlier = place / "temporary", tempfile.tempdir
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        tempfile.tempdir = earlier


def _resident(*, reset: bool) -> int:
    """The most memory since the last reset, in bytes; 0 on systems that do not tell."""
    if sys.platform != "linux":
        return 0
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10
