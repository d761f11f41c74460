"""SIGTERM and Ctrl-C at any moment: one line, no temporary file, no child, no half of an output."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pyarrow.parquet as pq
import pytest

from spark_prof import ending
from spark_prof.ending import (
    TerminatedError,
    ended_by_signals,
    removed_afterwards,
    temporary_folder,
    unhurried,
)
from spark_prof.traces.bundle import Bundle
from tests.nsys_files import Export
from tests.support import Recorded, eager_decode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions are found as on Linux")

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
SLOW_SQL = "select count(*) from range(100000000000) a, range(1000) b"
MOST_SECONDS = 60

COMMANDS = {
    "report": "report trace.json.gz",
    "report of an export": "report export.sqlite",
    "report of a folder": "report traces",
    "import": "import trace.json.gz -o out/bundle",
    "import of an export": "import export.sqlite -o out/bundle",
    "export": "export trace.json.gz -o out/trace.json",
    "export of tables": "export bundle --format parquet -o out/tables",
    "compare": "compare trace.json.gz bundle",
    "classify": "classify trace.json.gz",
    "classify of a library": "classify library.so",
    "doctor": "doctor trace.json.gz",
    "merge": "merge bundle other -o out/merged",
    "salvage": "salvage pieces",
    "query": "query trace.json.gz SQL",
    "query into a file": "query bundle SQL -o out/rows.parquet",
    "explore": "explore trace.json.gz --no-open",
    "kernels": "kernels check rms_norm --device cpu",
    "record": "record -o out/recorded -- vllm serve model",
    "ab": "ab -o out/ab --b norm=spark_prof -- model",
}
"""A command line of each kind that makes temporary folders or output files."""

QUICK = ("import", "merge", "query into a file", "record", "ab")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    trace = DATA / "kineto" / "gpt-oss-eager.json.gz"
    shutil.copyfile(trace, folder / "trace.json.gz")
    (folder / "traces").mkdir()
    for number in range(4):
        shutil.copyfile(trace, folder / "traces" / f"run{number}.json.gz")
    export = Export()
    for number in range(20_000):
        export.launch(100 * number, number, "cudaLaunchKernel")
        export.kernel("k", 100 * number + 10, 100 * number + 90, number)
    export.write(folder / "export.sqlite")
    for name, run in (("bundle", "a"), ("other", "b")):
        shutil.copytree(DATA / "ab-h100" / f"recording-{run}-1", folder / name)
    Recorded({0: [eager_decode()] * 20}).write(folder / "pieces")
    packed = (DATA / "cubins" / "library.so.xz").read_bytes()
    (folder / "library.so").write_bytes(lzma.decompress(packed))
    (folder / "bin").mkdir()
    vllm = folder / "bin" / "vllm"  # an engine that starts for ever
    vllm.write_text("#!/bin/sh\nexec sleep 600\n")
    vllm.chmod(0o755)
    return folder


@pytest.fixture
def place(sources: Path, tmp_path: Path) -> Path:
    """The sources, and an empty folder for each of the output and the temporary files."""
    shutil.copytree(sources, tmp_path / "in")
    for name in ("out", "tmp", "cache"):
        (tmp_path / "in" / name).mkdir()
    return tmp_path / "in"


def started(place: Path, line: str) -> subprocess.Popen[bytes]:
    words = [SLOW_SQL if word == "SQL" else word for word in line.split()]
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {"TMPDIR": str(place / "tmp"), "XDG_CACHE_HOME": str(place / "cache"), "PATH": path}
    return subprocess.Popen(
        [sys.executable, "-m", "spark_prof.cli.main", *words],
        cwd=place, env=os.environ | own, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def in_session(session: int) -> Iterator[psutil.Process]:
    """The processes that are still alive of those that a command started."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (OSError, psutil.Error):
            continue


def ended(child: subprocess.Popen[bytes], sent: int) -> tuple[int, list[str]]:
    """The exit code and the lines on stderr of a command that was sent a signal."""
    child.send_signal(sent)
    try:
        lines = child.communicate(timeout=MOST_SECONDS)[1].decode().splitlines()
    except subprocess.TimeoutExpired:
        pytest.fail(f"it goes on {MOST_SECONDS} s after the signal")
    finally:
        for process in in_session(child.pid):
            process.kill()
    return child.returncode, lines


def check_whole(path: Path) -> None:
    """Reads an output to its end: a bundle, a folder of Parquet files, or a file."""
    if (path / "meta.json").exists():
        Bundle(path)
    elif path.is_dir():
        assert len([pq.read_table(file) for file in path.glob("*.parquet")]) > 3
    else:
        assert json.loads(path.read_bytes())["traceEvents"]


@pytest.mark.parametrize(
    "what",
    [what if what in QUICK else pytest.param(what, marks=pytest.mark.slow) for what in COMMANDS],
)
def test_nothing_is_left(what: str, place: Path) -> None:
    child = started(place, COMMANDS[what])
    time.sleep(0.2 + Random(f"moment of {what}").random() ** 2 * 4)
    child.send_signal(signal.SIGTERM)
    try:
        errors = child.communicate(timeout=MOST_SECONDS)[1].decode()
    finally:
        left = list(in_session(child.pid))
        for process in left:
            process.kill()
    assert not left, f"{left} go on"
    assert "Traceback" not in errors, errors
    assert sorted((place / "tmp").rglob("*")) == []
    hidden = [path for path in (place / "out").rglob("*") if path.name.startswith(".")]
    assert hidden == []
    for path in (place / "out").iterdir():  # it was finished when the signal came
        if what not in ("ab", "record"):
            check_whole(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_query_that_runs(place: Path, sent: int, code: int) -> None:
    child = started(place, "query bundle SQL")
    while not list((place / "tmp").glob("spark-prof-query-*/tables/*")):
        assert child.poll() is None
        time.sleep(0.05)
    time.sleep(1.0)  # DuckDB has the main thread by then
    assert ended(child, sent) == (code, ["spark-prof: stopped"])
    assert list((place / "tmp").iterdir()) == []


UNREACHED = """
import ctypes, subprocess
from spark_prof.ending import ended_by_signals, temporary_folder
with ended_by_signals(), temporary_folder() as folder:
    (folder / 'file').touch()
    subprocess.Popen(['sleep', '600'])
    while True:
        try:
            print('ready', flush=True)
            while True: ctypes.CDLL(None).sleep(600)
        except BaseException: pass
"""


@pytest.mark.slow
def test_what_no_exception_reaches_is_ended_nevertheless(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", UNREACHED], env=os.environ | {"TMPDIR": str(tmp_path)},
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=MOST_SECONDS)[1] == b"spark-prof: stopped\n"
    assert child.returncode == 143
    assert list(tmp_path.iterdir()) == []
    assert not list(in_session(child.pid))


def test_one_exception_unwinds_and_what_takes_its_time_hears_every_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This process has children and temporary files of other tests.
    monkeypatch.setattr(ending, "_end_children", lambda: None)
    monkeypatch.setattr(ending._state, "temporary", set())
    before = signal.getsignal(signal.SIGTERM)
    folders = []

    def command() -> None:
        with ended_by_signals(), temporary_folder() as folder:
            folders.append(folder)
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)  # while it unwinds
                assert folder.is_dir()

    with pytest.raises(TerminatedError):
        command()
    assert not folders[0].exists()
    assert signal.getsignal(signal.SIGTERM) is before
    with ended_by_signals(), unhurried():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)


def test_an_import_that_is_cut_short_prints_nothing(tmp_path: Path) -> None:
    """As numpy's, whose C code prints the exception and raises an ImportError in its place."""
    (tmp_path / "printing.py").write_text(
        "import os, signal, traceback\n"
        "try: os.kill(os.getpid(), signal.SIGTERM)\n"
        "except BaseException: traceback.print_exc()\n"
        "raise ImportError('failed to import')\n"
    )
    script = (
        "from spark_prof.ending import ended_by_signals, temporary_folder\n"
        "with ended_by_signals(), temporary_folder(): import printing\n"
    )
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=MOST_SECONDS,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (143, b"spark-prof: stopped\n")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_temporary_files_are_gone_afterwards(tmp_path: Path) -> None:
    with temporary_folder("x-", tmp_path) as folder:
        (folder / "a").mkdir()
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o077 == 0
    with removed_afterwards(tmp_path / "file") as path:
        path.write_bytes(gzip.compress(b""))
    with removed_afterwards(tmp_path / "never"):
        pass
    assert list(tmp_path.iterdir()) == []
