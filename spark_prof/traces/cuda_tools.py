"""Finds and runs the tools of the CUDA toolkit that read machine code.

They are looked for as PyPI wheels install them (extra `sass`), then on the PATH, then in the CUDA
toolkit; where SPARK_PROF_CUDA_TOOLS names a folder, only there. What they print is read line by
line; a tool that hangs is stopped.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from spark_prof.errors import CommandError

FOLDER_VARIABLE = "SPARK_PROF_CUDA_TOOLS"
"""Environment variable that names the tools' folder."""

_LONGEST_LINE = 1 << 16
_SAID = 1 << 22
"""Bytes of a tool's complaints that are kept."""


class ToolError(CommandError):
    """A tool failed; `said` is what it printed on stderr, empty where it was stopped."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


def find_tool(name: str) -> Path | None:
    """The tool's file, such as that of nvdisasm; None where it is not installed."""
    usable = (path for path in _places(name) if path.is_file() and os.access(path, os.X_OK))
    return next(usable, None)


def _places(name: str) -> Iterator[Path]:
    if chosen := os.environ.get(FOLDER_VARIABLE):
        yield Path(chosen) / name
        return
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    wheels = [path for folder in folders for path in folder.glob(f"cu*/bin/{name}")]
    yield from sorted(wheels, key=lambda path: path.parts[-3], reverse=True)
    if on_path := shutil.which(name):
        yield Path(on_path)
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if home:
            yield Path(home) / "bin" / name


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
        folder: where it runs and leaves files, the current one if None.

    Raises:
        ToolError: it cannot be started, failed or took too long.
    """
    name = Path(command[0]).name
    stopped = threading.Event()
    with TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                [os.fspath(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=said, env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"cannot run {name}: {error.strerror or error}") from error

        def stop() -> None:
            stopped.set()
            process.kill()

        timer = threading.Timer(max(seconds, 0.0), stop)
        with process:
            stdout = process.stdout
            assert stdout is not None
            timer.start()
            try:
                for line in iter(lambda: stdout.readline(_LONGEST_LINE), b""):
                    on_line(line)
                process.wait()
            except BaseException:
                process.kill()
                raise
            finally:
                timer.cancel()
        said.seek(0)
        text = said.read(_SAID).decode(errors="replace").strip()
    if stopped.is_set():
        raise ToolError(f"{name} was stopped after {seconds:.0f} seconds")
    if process.returncode:
        first = text.partition("\n")[0] or f"exit code {process.returncode}"
        raise ToolError(f"{name} failed: {first:.200}", text)
