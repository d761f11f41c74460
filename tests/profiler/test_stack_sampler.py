"""py-spy beside a process: what is kept of it, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler import py_spy_program, stack_sampler
from spark_prof.profiler.py_spy_program import check_allowed, find_py_spy
from spark_prof.profiler.stack_sampler import StackSampler
from spark_prof.traces.chunk_files import log_lines
from spark_prof.traces.chunks import facts_name, pid_namespace, progress_name, write_json
from spark_prof.traces.host_stacks import host_tables

WORK = """
import threading, time
def busy_work():
    end = time.monotonic() + 0.004
    while time.monotonic() < end:
        pass
def rest():
    time.sleep(0.004)
threading.Thread(target=time.sleep, args=(600,), name="beside", daemon=True).start()
print("up", flush=True)
while True:
    busy_work()
    rest()
"""


@pytest.fixture(scope="module")
def py_spy() -> str:
    try:
        program = find_py_spy()
        check_allowed(program)
    except CommandError as error:
        pytest.skip(str(error))
    return program


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def recorded(pieces: Path, pid: int, state: str = "RECORDING") -> dict[str, dict[str, object]]:
    """Pieces of a worker that is recorded, and its facts."""
    pieces.mkdir(exist_ok=True)
    fact = {"process": "rank0", "rank": 0, "pid": pid, "pid_namespace": pid_namespace()}
    write_json(pieces, facts_name("rank0"), fact)
    write_json(pieces, progress_name("rank0"), {"state": state, "recorded": 1})
    return {"rank0": fact}


def wait_for_py_spy() -> psutil.Process:
    """The py-spy below this process."""
    for _ in range(600):
        for child in psutil.Process().children():
            if child.name() == "py-spy":
                return child
        time.sleep(0.05)
    raise AssertionError("no py-spy was started")


def wait_for_stacks(pieces: Path) -> None:
    """Waits for the first slice that was kept."""
    for _ in range(1200):
        if [*pieces.glob("host.*.stacks.npy")]:
            return
        time.sleep(0.05)


@pytest.mark.slow
def test_stacks_have_times_and_names(
    tmp_path: Path, py_spy: str, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampler, "_SLICE_SECONDS", 4)
    facts = recorded(tmp_path, worker.pid)
    began = time.time_ns()
    sampler = StackSampler(tmp_path, py_spy)
    sampler.start()
    wait_for_stacks(tmp_path)
    sampler.finish(30.0)
    added = host_tables(tmp_path, facts)
    assert added.lost == ()
    stacks = added.tables[0][1]
    main = stacks[stacks["main"]]
    assert set(stacks["process"]) == {"rank0"}
    assert main["time_ns"].is_monotonic_increasing
    assert began < main["time_ns"].min() <= main["time_ns"].max() < time.time_ns()
    leaves = main["stack"].astype(str).str.rpartition("\n")[2]
    assert {"<string>:busy_work", "<string>:rest"} <= set(leaves)
    assert len(stacks[~stacks["main"]]["thread"].unique()) == 1  # beside
    account = {table for table, _ in added.tables}
    assert account == {"stacks", "threads", "host_figures"}
    # On a busy machine the thread that tells the time may be missing in a slice, which is told.
    told = [line["message"] for line in log_lines(tmp_path)]
    assert all("thread that tells the time" in str(message) for message in told)
    assert {p.name for p in psutil.Process().children() if p.name() == "py-spy"} == set()


@pytest.mark.slow
def test_a_process_that_says_late_that_it_is_recorded_keeps_its_samples(
    tmp_path: Path, py_spy: str, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampler, "_SLICE_SECONDS", 4)
    write_json(tmp_path, progress_name("rank0"), {"state": "WAITING", "recorded": 0})
    sampler = StackSampler(tmp_path, py_spy)
    sampler.start()
    wait_for_py_spy()
    facts = recorded(tmp_path, worker.pid)
    wait_for_stacks(tmp_path)
    sampler.finish(30.0)
    tables = dict(host_tables(tmp_path, facts).tables)
    assert tables["stacks"]["main"].any()
    assert set(tables["threads"]["process"]) == {"rank0"}


def test_nothing_is_kept_where_no_step_was_recorded(
    tmp_path: Path, py_spy: str, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, worker.pid, "WAITING")
    sampler = StackSampler(tmp_path, py_spy)
    sampler.start()
    wait_for_py_spy()
    sampler.finish(30.0)
    assert not [*tmp_path.glob("host.*.npy")]
    assert "none was sampled" in log_lines(tmp_path)[0]["message"]
    assert worker.poll() is None


def stubborn_children() -> list[psutil.Process]:
    """What runs of the stand-in; pytest's own workers may be children too."""
    return [c for c in psutil.Process().children() if c.name() in ("sh", "sleep")]


def test_py_spy_that_does_not_end_is_killed(
    tmp_path: Path, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = tmp_path / "py-spy"
    stubborn.write_text("#!/bin/sh\ntrap '' INT TERM\nexec sleep 600\n")
    stubborn.chmod(0o755)
    pieces = tmp_path / "pieces"
    recorded(pieces, worker.pid)
    sampler = StackSampler(pieces, str(stubborn))
    monkeypatch.setattr("spark_prof.profiler.host_account.threads_of", lambda *_: ())
    sampler.start()
    for _ in range(600):
        if stubborn_children():
            break
        time.sleep(0.05)
    sampler.finish(0.0)
    assert stubborn_children() == []
    assert "did not end in time" in log_lines(pieces)[0]["message"]


def test_what_py_spy_says_when_it_fails_is_kept(
    tmp_path: Path, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "py-spy"
    failing.write_text("#!/bin/sh\necho 'Error: Failed to find python version' >&2\nexit 1\n")
    failing.chmod(0o755)
    pieces = tmp_path / "pieces"
    recorded(pieces, worker.pid)
    monkeypatch.setattr("spark_prof.profiler.host_account.threads_of", lambda *_: ())
    sampler = StackSampler(pieces, str(failing))
    sampler.start()
    for _ in range(600):
        if log_lines(pieces):
            break
        time.sleep(0.05)
    sampler.finish(5.0)
    message = log_lines(pieces)[0]["message"]
    assert message == "stacks: py-spy ended with exit code 1: Failed to find python version"


def test_a_missing_py_spy_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandError, match="--host needs py-spy: pip install 'py-spy"):
        find_py_spy()


@pytest.mark.parametrize(
    ("scope", "advice"), [("1\n", "ptrace_scope is 1; set it to 0"), ("0\n", "cap-add SYS_PTRACE")]
)
def test_a_refused_ptrace_is_told_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, advice: str
) -> None:
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Permission Denied: Try running again' >&2\nexit 1\n")
    refused.chmod(0o755)
    yama = tmp_path / "ptrace_scope"
    yama.write_text(scope)
    monkeypatch.setattr(py_spy_program, "_YAMA", yama)
    with pytest.raises(CommandError, match=advice):
        check_allowed(str(refused))


def test_py_spy_outlives_nobody_for_long(tmp_path: Path, py_spy: str) -> None:
    """Whoever kills the recorder: each py-spy has a bound on its time."""
    argv = py_spy_program.sampling_command(py_spy, os.getpid(), 100, 7, tmp_path / "out.json")
    assert argv[argv.index("--duration") + 1] == "7"
    assert "--nonblocking" in argv
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
