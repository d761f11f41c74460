"""Finds and runs the tools of the CUDA toolkit that read machine code.

They are looked for as PyPI wheels install them (extra `sass`), then on the PATH, then in the CUDA
toolkit. What they print is read line by line; a tool that hangs is stopped.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from spark_prof.errors import CommandError

__all__ = ["ToolError", "find_tool", "missing_tool", "run_tool"]

_SAID = 1 << 22
"""Bytes of a tool's complaints that are kept."""


class ToolError(CommandError):
    """A tool failed; `said` is what it printed on stderr, empty where it was stopped."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


def find_tool(name: str) -> Path | None:
    """The tool's file, such as that of nvdisasm; None where it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    found = sorted((path for folder in wheels for path in folder.glob(f"cu*/bin/{name}")),
                   key=lambda path: path.parts[-3], reverse=True)  # fmt: skip
    on_path = shutil.which(name)
    homes = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    others = [Path(on_path)] if on_path else [Path(home) / "bin" / name for home in homes if home]
    usable = (path for path in (*found, *others) if path.is_file() and os.access(path, os.X_OK))
    return next(usable, None)


def missing_tool(name: str) -> str:
    """What to do where the tool is not installed."""
    return f"{name} is not installed; run: pip install 'spark-prof[sass]'"


def run_tool(
    command: Sequence[str | Path],
    seconds: float,
    on_line: Callable[[bytes], object],
    folder: Path | None = None,
) -> None:
    """Runs a tool and hands over what it prints.

    Args:
        command: the tool and its options.
        seconds: how long it may take.
        on_line: told each line of its standard output.
        folder: where it runs and leaves files, the current one if None.

    Raises:
        ToolError: it cannot be started, failed or took too long.
    """
    name = Path(command[0]).name
    stopped = threading.Event()
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                [os.fspath(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=complaints, env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"cannot run {name}: {error.strerror or error}") from error

        def stop() -> None:
            stopped.set()
            process.kill()

        timer = threading.Timer(max(seconds, 0.0), stop)
        timer.start()
        try:
            with process, suppress(ValueError):
                assert process.stdout is not None
                for line in process.stdout:
                    on_line(line)
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
        if stopped.is_set():
            raise ToolError(f"{name} was stopped after {seconds:.0f} seconds")
        if process.returncode:
            complaints.seek(0)
            said = complaints.read(_SAID).decode(errors="replace").strip()
            first = said.partition("\n")[0] or f"exit code {process.returncode}"
            raise ToolError(f"{name} failed: {first:.200}", said)
