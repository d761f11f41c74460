"""Finds nsys on this machine and runs what is short about it: version, stop, export.

The format of a report, `.nsys-rep`, is NVIDIA's own: only nsys turns it into an SQLite export. Its
first line names the version that wrote it, such as `NVIDIA Tegra Profiler Report 2025@6@1@190-`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from spark_prof.errors import CommandError, os_errors

OLDEST = (2022, 4)
"""The oldest nsys seen to take every option, and to export the nodes of CUDA graphs."""

_PLACES = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
    "usr/lib/*/nsight-systems/target-linux-*/nsys",
)
_INSTALL = (
    "install Nsight Systems, the package nsight-systems of NVIDIA's CUDA repository, or leave "
    "--backend out"
)
_VERSION_SECONDS, _STOP_SECONDS, _EXPORT_SECONDS = 30.0, 1800.0, 7200.0
_SAY_SECONDS = 10.0
_BAR = re.compile(r"\[[\d/]+\]|\[[^\]]*%|^Processing \d+ events")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Nsys:
    """An nsys that can be used."""

    path: Path
    version: tuple[int, ...]  # year, release, and what follows

    def stop(self, session: str, say: Say) -> bool:
        """Ends a recording and waits for its report; False where nothing is recorded any more."""
        command = [str(self.path), "stop", f"--session={session}"]
        code, _ = _run(command, _STOP_SECONDS, "nsys writes its report", say)
        return code == 0

    def export(self, report: Path, export: Path, say: Say) -> None:
        """Turns a report into an SQLite file."""
        task = f"exporting the nsys report ({report.stat().st_size >> 20} MiB)"
        say(task)
        options = ["--type=sqlite", "--force-overwrite=true", f"--output={export}"]
        command = [str(self.path), "export", *options, str(report)]
        code, output = _run(command, _EXPORT_SECONDS, task, say)
        if code or not export.exists():
            why = _last_line(output) or f"exit code {code}"
            raise CommandError(f"nsys cannot export {report}: {why}; the report is kept")


class NoNsysError(CommandError):
    """No nsys of this machine is of use."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"{why}; {_INSTALL}")


def find_nsys(path: str | None = None, root: Path = Path("/")) -> Nsys:
    """The nsys on PATH, else the newest where NVIDIA's packages put it."""
    refused: list[str] = []
    on_path = shutil.which("nsys", path=path)
    for candidates in ([Path(on_path)] if on_path else [], _installed(root)):
        usable = []
        for candidate in candidates:
            try:
                usable.append(_probe(candidate))
            except CommandError as error:
                refused.append(str(error))
        if usable:
            return max(usable, key=lambda nsys: nsys.version)
    refused.append("nsys is not found on PATH or in /opt/nvidia")
    raise NoNsysError(refused[0])


def _installed(root: Path) -> Iterator[Path]:
    programs: set[Path] = set()
    for place in _PLACES:
        for path in sorted(root.glob(place)):
            if os.access(path, os.X_OK) and (real := path.resolve()) not in programs:
                programs.add(real)
                yield path


def _probe(path: Path) -> Nsys:
    """What that program is; a CommandError says why it is no nsys of use."""
    if "nsight-compute" in str(path.resolve()):
        raise CommandError(f"{path} is part of Nsight Compute and cannot make a report")
    code, output = _run([str(path), "--version"], _VERSION_SECONDS)
    match = re.search(r"version (\d{4}(?:\.\d+)+)", output)
    if code or not match:
        raise CommandError(f"{path} does not say its version ({_last_line(output) or code})")
    version = tuple(map(int, match[1].split(".")))
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise CommandError(f"{path} is version {match[1]}, spark-prof needs {oldest} or later")
    return Nsys(path, version)


def _run(
    command: Sequence[str], seconds: float, task: str = "", say: Say | None = None
) -> tuple[int, str]:
    """Runs a program to its end, says every ten seconds that it still runs.

    Its own process group keeps a Ctrl-C in the terminal away from it.
    """
    with os_errors(f"cannot start {command[0]}"):
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            process_group=0,
        )  # fmt: skip
    begun = time.monotonic()
    try:
        while True:
            try:
                output, _ = child.communicate(timeout=_SAY_SECONDS)
            except subprocess.TimeoutExpired:
                passed = time.monotonic() - begun
                if passed > seconds:
                    raise CommandError(f"{command[0]} did not end in {passed:.0f} s") from None
                if say is not None and task:
                    say(f"{task}: {passed:.0f} s")
            else:
                return child.returncode, output.decode("utf-8", "replace")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _last_line(output: str) -> str:
    lines: Iterable[str] = re.split(r"[\r\n]+", output)
    texts = [line.strip() for line in lines if line.strip() and not _BAR.search(line)]
    return texts[-1][:300] if texts else ""


_HEAD = re.compile(rb"NVIDIA Tegra Profiler Report (?:(\d{1,6}(?:@\d{1,6}){1,4})|\d+\.)")
_HEAD_BYTES = 256


def report_version(path: Path) -> str | None:
    """The version of nsys that wrote a report, empty where it does not say; None for no report.

    Older ones, such as those of 2023.1, have the version of their format there, `1.`.
    """
    with os_errors(f"cannot read {path}"), path.open("rb") as file:
        match = _HEAD.match(file.read(_HEAD_BYTES))
    return (match[1] or b"").decode().replace("@", ".") if match else None


def export_report(path: Path, folder: Path) -> Path:
    """Exports a report with the nsys of this machine."""
    version = report_version(path)
    if version is None:
        raise CommandError(
            f"{path} is no Nsight Systems report; give the .nsys-rep that nsys wrote"
        )
    export = folder / f"{path.stem}.sqlite"
    try:
        find_nsys().export(path, export, lambda _: None)
    except CommandError as error:
        command = f"nsys export --type sqlite -o {quote(export.name)} {quote(path.name)}"
        why = error.why if isinstance(error, NoNsysError) else str(error)
        writer = f"nsys {version}" if version else "an older nsys"
        raise CommandError(
            f"{path} was written by {writer} and must be exported first ({why}); where that "
            f"version or a newer one is, run: {command}"
        ) from error
    return export
