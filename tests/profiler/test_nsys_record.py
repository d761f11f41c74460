"""Whole recordings under a program that stands in for nsys, and the reports of Ray's workers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler.backends.choose import mark_clock
from spark_prof.profiler.launcher import record
from spark_prof.profiler.nsys_record import ray_reports
from spark_prof.profiler.settings import Settings
from tests.support import program

from .conftest import Script, until

FAKE = Path(__file__).parent / "fake_nsys.py"


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with the program that stands in for nsys."""
    nsys = program(tmp_path / "bin" / "nsys", f'exec {sys.executable} {FAKE} "$@"')
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    monkeypatch.setenv("PATH", f"{nsys.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_NSYS_SESSIONS", str(sessions))
    return nsys


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(str(tmp_path / "b"), steps=0, backend="nsys")


@pytest.mark.slow
def test_a_command_that_ends_by_itself(nsys: Path, settings: Settings, script: Script) -> None:
    said: list[str] = []
    bundle, code = record(script(), settings, said.append)
    assert code == 0
    assert bundle.meta.backend == "nsys"
    assert bundle.meta.lost == ()
    kernels = bundle.frame("kernels", 0)
    assert kernels[["name", "step"]].to_numpy().tolist() == [["gemm", 0]]
    assert len(bundle.frame("steps", 0)) == 5
    assert (settings.folder / "nsys.nsys-rep").exists()
    assert not (settings.folder / "pieces").exists()
    assert said[0] == f"nsys 2025.3.2.47 at {nsys} watches the kernels"
    assert any("exporting the nsys report" in line for line in said)


@pytest.mark.slow
def test_the_command_goes_on_after_the_window(
    nsys: Path, settings: Settings, script: Script, tmp_path: Path
) -> None:
    ready, went_on = tmp_path / "ready", tmp_path / "went on"
    then = f"{until(ready)}; open({str(went_on)!r}, 'w')"

    def say(line: str) -> None:
        if "the command goes on" in line:
            ready.touch()

    wanted = Settings(settings.bundle, steps=2, backend="nsys")
    bundle, _ = record(script(then=then), wanted, say)
    assert len(bundle.frame("steps", 0)) == 2
    assert len(bundle.frame("kernels", 0)) == 1
    assert went_on.exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_there_is(
    nsys: Path, settings: Settings, script: Script, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    then = f"open({str(pid)!r}, 'w').write(str(__import__('os').getpid())); time.sleep(60)"

    def interrupt(line: str) -> None:
        if line.startswith("recording"):
            raise KeyboardInterrupt

    bundle, code = record(script(then=then), settings, interrupt)
    assert code == 0
    assert bundle.meta.state == "complete"
    assert len(bundle.frame("kernels", 0)) == 1
    assert not Path(f"/proc/{pid.read_text()}").exists()


@pytest.mark.slow
def test_an_export_that_fails_keeps_steps_and_report(
    nsys: Path, settings: Settings, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS_FAILS", "1")
    bundle, _ = record(script(), settings, lambda _: None)
    assert len(bundle.frame("steps", 0)) == 5
    assert bundle.frame("kernels", 0).empty
    assert any("Report was created by a newer nsys" in line for line in bundle.meta.lost)
    assert (settings.folder / "nsys.nsys-rep").exists()


def test_no_nsys_costs_no_folder(
    settings: Settings, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("spark_prof.traces.nsys_tool._PLACES", ())
    with pytest.raises(CommandError, match="nsys is not found on PATH"):
        record(script(), settings, lambda _: None)
    assert not settings.folder.exists()


def test_ray_reports_of_this_run(tmp_path: Path) -> None:
    logs = tmp_path / "ray" / "session_2026" / "logs" / "nsight"
    logs.mkdir(parents=True)
    (tmp_path / "ray" / "session_latest").symlink_to("session_2026")
    since = time.time() - 10
    for name, age in (("worker_process_7.nsys-rep", 0), ("old.nsys-rep", 100), ("log.txt", 0)):
        (logs / name).write_text("")
        os.utime(logs / name, (time.time() - age,) * 2)
    found = list(ray_reports({"RAY_TMPDIR": str(tmp_path)}, since))
    assert [path.name for path in found] == ["worker_process_7.nsys-rep"]


def test_clock_marks_name_the_time() -> None:
    marks: list[str] = []
    before = time.time_ns()
    mark_clock(marks.append)
    named = [int(mark.removeprefix("spark_prof clock ")) for mark in marks]
    assert len(named) > 1
    assert before <= named[0] <= named[-1] <= time.time_ns()
