"""py-spy as a program: where it is, and whether it may look into other processes here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spark_prof.errors import CommandError
from spark_prof.extras import install_command

_SECONDS = 30.0
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


class PythonThread(msgspec.Struct):
    """A thread with a Python interpreter's frames, as `py-spy dump --json` tells it."""

    thread_id: int
    os_thread_id: int | None = None
    thread_name: str | None = None


def find_py_spy() -> str:
    """The program, beside this Python or on the path; CommandError where there is none."""
    beside = str(Path(sys.executable).parent)
    program = shutil.which("py-spy", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if program is None:
        raise CommandError(f"--host needs py-spy: {install_command('host')}")
    return program


def check_allowed(program: str) -> None:
    """Raises CommandError where py-spy may not look into processes of this user.

    It looks into this process, which it is as far from as from the engine: it is no child of it.
    """
    try:
        threads_of(program, os.getpid())
    except PermissionError as error:
        raise CommandError(
            f"--host: py-spy may not look into processes here: {_cause()}"
        ) from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CommandError(
            f"--host: py-spy cannot look into this Python ({error}); "
            f"another version may: {install_command('host')}"
        ) from error


def _cause() -> str:
    try:
        scope = int(_YAMA.read_text(encoding="ascii"))
    except (OSError, ValueError):
        scope = 0
    if scope:
        return (
            f"kernel.yama.ptrace_scope is {scope}; set it to 0 (sudo sysctl "
            "kernel.yama.ptrace_scope=0), or record as root"
        )
    return "start the container with --cap-add SYS_PTRACE, or record as root"


def threads_of(program: str, pid: int) -> tuple[PythonThread, ...]:
    """The threads of a process that have an interpreter.

    Raises:
        PermissionError: it may not be looked into.
        ValueError: py-spy does not find its way in it.
        OSError: py-spy cannot be started.
        subprocess.SubprocessError: it does not end.
    """
    argv = (program, "dump", "--nonblocking", "--json", "--pid", str(pid))
    run = subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=False)
    if run.returncode:
        output = run.stderr.decode(errors="replace").strip()
        if "ermission denied" in output.lower() or "operation not permitted" in output.lower():
            raise PermissionError(first_line(output))
        raise ValueError(first_line(output))
    return tuple(msgspec.json.decode(run.stdout, type=list[PythonThread]))


def first_line(text: str) -> str:
    """The first line that says something, shortened."""
    lines = (line.strip() for line in text.splitlines())
    return next(filter(None, lines), "it says nothing")[:200].removeprefix("Error: ")


def sampling_command(program: str, root: int, rate: int, seconds: int, out: Path) -> Sequence[str]:
    """What samples a process and those below it for so long, and never stops one for it."""
    return (
        program, "record", "--pid", str(root), "--subprocesses", "--nonblocking", "--idle",
        "--nolineno", "--rate", str(rate), "--duration", str(seconds),
        "--format", "chrometrace", "--output", str(out),
    )  # fmt: skip
