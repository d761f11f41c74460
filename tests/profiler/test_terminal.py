"""Recordings in a real terminal: Ctrl-C as it arrives there, input, and Ctrl-Z."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.bundle import Bundle

from .conftest import Script

ROOT = Path(__file__).parents[2]
CTRL_C, CTRL_Z = b"\x03", b"\x1a"
SECONDS = 120

ENGINE = """
import os, signal, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from types import SimpleNamespace
sys.modules["vllm"] = SimpleNamespace(__version__="0.32.0")
import fakes
sys.modules["torch"] = fakes.torch()
from spark_prof.profiler.control import Control
from spark_prof.profiler.settings import Settings

signal.signal(signal.SIGINT, signal.SIG_DFL)  # as vLLM's engine, which is killed at once
worker = fakes.Worker()
Control().add_worker(worker, Settings.from_environment())
worker.compile_or_warm_up_model()
done = 0
while done != {steps}:
    assert fakes.run(worker, fakes.decode(done % 100)) == 5
    done += 1
    time.sleep(0.002)
    {each}
print("RAN", done, flush=True)
{then}
"""
"""An engine that dies of SIGINT where it is, with what it has not flushed."""


@dataclass
class Shown:
    """A process that has a terminal of its own, and what it has shown there."""

    pid: int
    terminal: int
    text: str = ""
    code: int | None = None
    states: list[int] = field(default_factory=list)

    def read(self, seconds: float = 0.1) -> None:
        """Takes in what comes within that time."""
        if select.select([self.terminal], [], [], seconds)[0]:
            try:
                self.text += os.read(self.terminal, 1 << 16).decode(errors="replace")
            except OSError:  # all have closed it
                time.sleep(seconds)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits until it has shown that."""
        end = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, f"{pattern!r} did not come: {self.text}"
            self.read()
        return found

    def type(self, keys: bytes) -> None:
        """Types keys."""
        os.write(self.terminal, keys)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        end = time.monotonic() + SECONDS
        while self.code is None:
            assert time.monotonic() < end, f"it goes on: {self.text}"
            self.read()
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.code = os.waitstatus_to_exitcode(status)
        self.read(0)
        return self.code


@pytest.fixture
def shown() -> Iterator[list[Shown]]:
    made: list[Shown] = []
    yield made
    for each in made:
        if each.code is None:
            os.kill(each.pid, signal.SIGKILL)
            os.waitpid(each.pid, 0)
        os.close(each.terminal)


def in_terminal(shown: list[Shown], argv: list[str], *, shell: str = "") -> Shown:
    """Starts a command in a terminal; under a shell with job control if it is given its line."""
    words = ["bash", "--norc", "-i"] if shell else argv
    pid, terminal = pty.fork()
    if not pid:
        os.environ |= {"PYTHONPATH": str(ROOT), "PS1": "READY> ", "TERM": "dumb"}
        os.chdir(ROOT)
        os.execvp(words[0], words)
    found = Shown(pid, terminal)
    shown.append(found)
    if shell:
        found.wait_for("READY> ")
        found.type(shell.encode() + b"\n")
    return found


def record(out: Path, command: list[str], *options: str) -> list[str]:
    words = [sys.executable, "-m", "spark_prof.cli.main", "record", "-o", str(out), "--steps", "0"]
    return [*words, *options, "--", *command]


def engine(folder: Path, *, steps: int = -1, each: str = "pass", then: str = "pass") -> list[str]:
    path = folder / "engine.py"
    tests = str(Path(__file__).parent)
    path.write_text(ENGINE.format(tests=tests, root=str(ROOT), steps=steps, each=each, then=then))
    return [sys.executable, str(path)]


def check_whole(out: Path, least: int = 1, state: str = "complete") -> Bundle:
    """Every step that was recorded is in the bundle."""
    bundle = open_bundle(out)
    assert [line for line in bundle.meta.lost if "not flushed" in line] == []
    steps = bundle.frame("steps", 0)["step"].tolist()
    assert steps == list(range(len(steps)))
    assert len(steps) >= least
    assert bundle.meta.state == state
    return bundle


@pytest.mark.parametrize(
    ("busy", "presses"),
    # tests/cli/test_live.py presses once while steps run.
    [(False, 2), *(pytest.param(*row, marks=pytest.mark.slow)
                   for row in ((True, 1), (True, 2), (False, 1)))],
)  # fmt: skip
def test_ctrl_c_keeps_every_step(
    shown: list[Shown], tmp_path: Path, busy: bool, presses: int
) -> None:
    """The steps run, or the last ones wait for a flush; one Ctrl-C, or two in quick succession."""
    command = engine(tmp_path, steps=-1 if busy else 40, then="time.sleep(600)")
    run = in_terminal(shown, record(tmp_path / "b", command))
    run.wait_for("recording step" if busy else "RAN 40")
    for _ in range(presses):
        run.type(CTRL_C)
        time.sleep(0.05)
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b", 40 if not busy else 1)
    assert "Traceback" not in run.text


@pytest.mark.slow
def test_a_third_ctrl_c_ends_what_does_not_end(shown: list[Shown], tmp_path: Path) -> None:
    stubborn = "signal.signal(signal.SIGINT, signal.SIG_IGN); " * 2 + (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('READY', flush=True); time.sleep(600)"
    )
    run = in_terminal(shown, record(tmp_path / "b", engine(tmp_path, steps=30, then=stubborn)))
    run.wait_for("READY")
    for _ in range(3):
        run.type(CTRL_C)
        time.sleep(1.5)
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b", 30)


@pytest.mark.slow
def test_ctrl_c_of_two_nodes_of_one_script(shown: list[Shown], tmp_path: Path) -> None:
    """Two recorders in the background of one shell script, which has them ignore SIGINT."""
    lines = []
    for node in (0, 1):
        (tmp_path / f"node{node}").mkdir()
        words = record(tmp_path / f"b{node}", engine(tmp_path / f"node{node}"))
        lines.append(f"{' '.join(words)} &")
    script = "\n".join(["trap '' INT", *lines, "wait"])
    run = in_terminal(shown, ["sh", "-c", script])
    run.wait_for(r"(?s)recording step.*recording step")
    time.sleep(1.5)
    run.type(CTRL_C)
    run.ended()
    for node in (0, 1):
        check_whole(tmp_path / f"b{node}")


def test_a_command_that_reads_lines_gets_them_and_ctrl_c_stays_ours(
    shown: list[Shown], tmp_path: Path
) -> None:
    each = "\n    ".join(
        ["if done % 20 == 0: print('LINE', input(f'ask{done}? '), flush=True)", "pass"]
    )
    run = in_terminal(shown, record(tmp_path / "b", engine(tmp_path, each=each)))
    for number in (20, 40, 60):
        run.wait_for(rf"ask{number}\?")
        run.type(f"answer{number}\n".encode())
        run.wait_for(f"LINE answer{number}")
    run.wait_for(r"ask80\?")
    time.sleep(0.5)  # it waits for a line, and the 20 steps for their flush
    run.type(CTRL_C)
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b", 80)


@pytest.mark.slow
def test_a_password_is_read_without_echo(shown: list[Shown], tmp_path: Path) -> None:
    """Its reader takes byte by byte, and begins anew when it is stopped, as sudo's does."""
    reader = "read -r -s -p 'word? ' word < /dev/tty; echo \"GOT $word\"; exec "
    words = engine(tmp_path, steps=20)
    run = in_terminal(shown, record(tmp_path / "b", ["bash", "-c", f"{reader} {' '.join(words)}"]))
    run.wait_for(r"word\? ")
    time.sleep(1.5)
    run.type(b"secret\n")
    run.wait_for("GOT secret")
    assert "secret" not in run.text.split("GOT")[0]
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b", 20)


@pytest.mark.slow
def test_ctrl_z_stops_all_and_fg_goes_on(shown: list[Shown], tmp_path: Path) -> None:
    """Under a shell with job control, as at a prompt."""
    command = engine(tmp_path, each="if not done % 100: print('AT', done, flush=True)")
    run = in_terminal(shown, [], shell=" ".join(record(tmp_path / "b", command)))
    run.wait_for("AT 300")
    run.type(CTRL_Z)
    run.wait_for(r"(?s)Stopped.*READY> ")
    run.read(0.5)
    begun = len(run.text)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        run.read()
    assert "AT" not in run.text[begun:], "the command goes on while the job is stopped"
    run.type(b"fg\n")
    end = time.monotonic() + SECONDS
    while "AT" not in run.text[begun:]:
        assert time.monotonic() < end, run.text
        run.read()
    run.type(CTRL_C)
    run.wait_for(r"spark-prof: \d+ steps in ")
    run.type(b"\nexit\n")
    run.ended()
    check_whole(tmp_path / "b", 300)


@pytest.mark.slow
def test_a_closed_terminal_keeps_every_step_and_ends_the_command(
    shown: list[Shown], tmp_path: Path
) -> None:
    """As of a lost ssh connection: SIGHUP, and nobody reads what is said."""
    pid = tmp_path / "pid"
    command = engine(tmp_path, each=f"done > 1 or open({str(pid)!r}, 'w').write(str(os.getpid()))")
    run = in_terminal(shown, record(tmp_path / "b", command))
    run.wait_for("recording step")
    other = os.open(os.devnull, os.O_RDWR)
    os.dup2(other, run.terminal)  # the last one of its other side
    os.close(other)
    assert run.ended() == 0
    check_whole(tmp_path / "b", state="interrupted")
    assert not Path(f"/proc/{pid.read_text()}").exists()


@pytest.mark.slow
def test_a_tee_that_ctrl_c_ends_takes_nothing_along(shown: list[Shown], tmp_path: Path) -> None:
    words = " ".join(record(tmp_path / "b", engine(tmp_path)))
    run = in_terminal(shown, ["sh", "-c", f"{words} 2>&1 | tee {tmp_path / 'log'}"])
    run.wait_for("recording step")
    run.type(CTRL_C)
    run.ended()
    end = time.monotonic() + SECONDS
    while not (tmp_path / "b" / "meta.json").exists() and time.monotonic() < end:
        time.sleep(0.1)
    check_whole(tmp_path / "b")


@pytest.mark.slow
def test_an_end_before_the_steps_that_were_asked_for_is_an_early_one(
    shown: list[Shown], script: Script, tmp_path: Path
) -> None:
    run = in_terminal(shown, record(tmp_path / "b", engine(tmp_path), "--steps", "100000"))
    run.wait_for("recording step")
    run.type(CTRL_C)
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b", state="interrupted")
