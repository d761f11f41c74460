"""Ways in which a recorder of a running server dies or is starved; each hits one in a process.

`benchmarks/dying_recorders.py` tries them on a real vLLM, tests/profiler/test_dying.py on a server
made by hand (tests/attachable.py).
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

RECORD = """
import sys
from spark_prof.cli.options import say
from spark_prof.errors import CommandError
from spark_prof.profiler.attach import attach
from spark_prof.profiler.settings import Settings
port, folder, backend, piece = sys.argv[1:]
try:
    attach(port, Settings(folder, steps=0, backend=backend, steps_per_piece=int(piece)), say)
except CommandError as error:
    say(f"error: {error}")
    sys.exit(error.exit_code)
"""


@dataclass
class Recorder:
    """A recorder in a process of its own, and the folder that it records into."""

    process: subprocess.Popen[bytes]
    folder: Path
    output: Path

    def send(self, sent: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(sent)

    def has_said(self, text: str) -> bool:
        return text in self.output.read_text(errors="replace")


@contextmanager
def recorder(
    port: int, folder: Path, backend: str, piece: int, *options: str
) -> Iterator[Recorder]:
    """Attaches to the server at that port without a number of steps."""
    output = folder.with_name(f"{folder.name}.said")
    argv = [sys.executable, "-c", RECORD, str(port), str(folder), backend, str(piece), *options]
    with open(output, "wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    try:
        yield Recorder(process, folder, output)
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def killed(found: Recorder) -> None:
    found.send(signal.SIGKILL)


def hung_up(found: Recorder) -> None:
    found.send(signal.SIGHUP)


def terminated(found: Recorder) -> None:
    found.send(signal.SIGTERM)


def interrupted(found: Recorder) -> None:
    found.send(signal.SIGINT)


def without_memory(found: Recorder) -> None:
    """No byte more, and then it has to make the bundle."""
    resource.prlimit(found.process.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    found.send(signal.SIGTERM)


def stopped(found: Recorder) -> None:
    found.send(signal.SIGSTOP)


def folder_deleted(found: Recorder) -> None:
    shutil.rmtree(found.folder, ignore_errors=True)
    shutil.rmtree(found.folder, ignore_errors=True)  # what was written meanwhile


def folder_moved(found: Recorder) -> None:
    found.folder.rename(found.folder.with_name(f"{found.folder.name}-moved"))


def folder_of_another(found: Recorder) -> None:
    """Moved, and an empty one is there."""
    folder_moved(found)
    found.folder.mkdir()


def killed_while_it_writes(found: Recorder) -> None:
    found.send(signal.SIGTERM)
    end = time.monotonic() + 20
    while not found.has_said("writing the bundle") and time.monotonic() < end:
        time.sleep(0.005)
    found.send(signal.SIGKILL)


def disk_full(found: Recorder) -> None:
    """Whatever is left of its file system, which is to be a small one."""
    fill(found.folder.parent)


def disk_full_at_its_end(found: Recorder) -> None:
    fill(found.folder.parent)
    found.send(signal.SIGTERM)


def fill(folder: Path) -> None:
    """Leaves no byte of the file system free."""
    with open(folder / "others", "ab", buffering=0) as file:
        block = 1 << 20
        while block:
            try:
                file.write(bytes(block))
            except OSError:
                block //= 2


@dataclass(frozen=True)
class Way:
    """One way to die."""

    what: str
    do: Callable[[Recorder], None]
    small_disk: bool = False  # needs a file system of its own
    early: bool = False  # hits before the first step is recorded
    lost: bool = False  # whether the folder is gone, and the steps with it


WAYS = (
    Way("SIGKILL", killed),
    Way("SIGKILL at once", killed, early=True),
    Way("SIGKILL while it writes the bundle", killed_while_it_writes),
    Way("SIGHUP", hung_up),
    Way("SIGTERM", terminated),
    Way("SIGINT", interrupted),
    Way("out of memory", without_memory),
    Way("folder deleted", folder_deleted, lost=True),
    Way("folder moved", folder_moved, lost=True),
    Way("folder moved, another in its place", folder_of_another, lost=True),
    Way("disk full", disk_full, small_disk=True),
    Way("disk full, then SIGTERM", disk_full_at_its_end, small_disk=True),
)


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path | None]:
    """A file system of that size; None where this user may mount none."""
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "spark-prof-test", str(folder)]
    if not shutil.which("mount") or subprocess.run(argv, capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def registry() -> Path:
    """Where servers started with this TMPDIR say what they record."""
    return Path(os.environ["TMPDIR"]) / f"spark-prof-{os.getuid()}"
