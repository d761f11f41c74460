"""A recording whose kernels nsys takes: runs the command under nsys, then brings in its reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from spark_prof.errors import CommandError
from spark_prof.profiler.backends.nsys import (
    REPORT_SUFFIX,
    UNIMPORTED_SUFFIX,
    profile_command,
    runs_on_ray,
    with_ray_workers,
)
from spark_prof.profiler.commands import Command
from spark_prof.profiler.settings import Settings
from spark_prof.traces.nsys_pieces import link_exports
from spark_prof.traces.nsys_tool import Nsys, find_nsys
from spark_prof.traces.pieces import append_log

REPORT = "nsys"
"""Name of the report in the bundle's folder, without its suffix."""

_RAY_SECONDS = 120.0
_POLL_SECONDS = 0.5

Say = Callable[[str], None]


class NsysRun:
    """One command under nsys.

    Args:
        nsys: the program.
        command: what starts vLLM.
        settings: the recording.
        say: shows one line of progress.

    Attributes:
        by_ray: Ray starts each worker under its own nsys, whose report is there when it has ended.
        argv: the command line to start instead of the command's own.
    """

    def __init__(self, nsys: Nsys, command: Command, settings: Settings, say: Say) -> None:
        self._nsys = nsys
        self._settings = settings
        self._say = say
        self._session = f"spark-prof-{os.getpid()}"
        self._begun = time.time()
        self.by_ray = runs_on_ray(command)
        if self.by_ray:
            self.argv = with_ray_workers(command.argv)
        else:
            self.argv = profile_command(nsys.path, command, settings.folder / REPORT, self._session)

    def stop(self) -> None:
        """Lets nsys write its report while the command goes on; Ray's workers must end for it."""
        if not self.by_ray:
            self._nsys.stop(self._session, self._say)

    def collect(self) -> None:
        """Exports the reports and ties them to the ranks; what goes wrong is in the bundle's log.

        The report itself stays beside the bundle's tables, for NVIDIA's own program.
        """
        exports = []
        for number, report in enumerate(self._reports()):
            export = self._settings.pieces / f"nsys{number}.export.sqlite"
            try:
                self._nsys.export(report, export, self._say)
                exports.append(export)
            except (CommandError, OSError) as error:
                self._complain(str(error))
        link_exports(self._settings.pieces, exports)

    def _reports(self) -> list[Path]:
        own = sorted(self._settings.folder.glob(f"{REPORT}*{REPORT_SUFFIX}"))
        others = list(ray_reports(os.environ, self._begun))
        if self.by_ray:
            others = self._wait_for_ray(others)
        if not own and not others:
            unimported = any(self._settings.folder.glob(f"{REPORT}*{UNIMPORTED_SUFFIX}"))
            self._complain(
                f"{self._nsys.path} left a {UNIMPORTED_SUFFIX} that it cannot turn into a report: "
                "its importer is missing; install the whole of Nsight Systems"
                if unimported
                else "nsys wrote no report; see its output"
            )
        return own + others

    def _wait_for_ray(self, reports: list[Path]) -> list[Path]:
        """Waits until every worker that recorded on this host has left its report."""
        ranks = len(list(self._settings.pieces.glob("rank*.facts.json")))
        end = time.monotonic() + _RAY_SECONDS
        while len(reports) < ranks and time.monotonic() < end:
            self._say(f"waiting for the nsys reports of Ray's workers, {len(reports)} of {ranks}")
            time.sleep(_POLL_SECONDS * 10)
            reports = list(ray_reports(os.environ, self._begun))
        return reports

    def _complain(self, line: str) -> None:
        self._say(line)
        append_log(self._settings.pieces, "nsys", time.time_ns(), line)


def plan_nsys(command: Command, settings: Settings, say: Say) -> NsysRun | None:
    """How that command is run under nsys; None where the settings do not ask for it.

    Raises:
        CommandError: there is no usable nsys, or it would not see vLLM through this command.
    """
    if settings.backend != "nsys":
        return None
    nsys = find_nsys()
    say(f"nsys {'.'.join(map(str, nsys.version))} at {nsys.path} watches the kernels")
    return NsysRun(nsys, command, settings, say)


def ray_reports(environment: Mapping[str, str], since: float) -> Iterator[Path]:
    """The reports that workers of Ray left on this host.

    Ray puts them into logs/nsight of its session, under RAY_TMPDIR, TMPDIR or /tmp.

    Args:
        environment: what says where Ray's folder is.
        since: seconds since the epoch; older reports are of another run.
    """
    given = [environment.get("RAY_TMPDIR"), environment.get("TMPDIR"), "/tmp"]
    seen: set[Path] = set()
    for root in filter(None, given):
        for path in sorted(Path(root, "ray").glob(f"session_*/logs/nsight/*{REPORT_SUFFIX}")):
            with suppress(OSError):
                real = path.resolve()
                if real not in seen and real.stat().st_mtime >= since:
                    seen.add(real)
                    yield real


def launched(plan: NsysRun | None, command: Command) -> Command:
    """The command as it is started: under nsys, where there is a plan."""
    return command if plan is None else replace(command, argv=tuple(plan.argv))


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below nsys, which ends before them once its report is written."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def end_processes(processes: Sequence[psutil.Process], seconds: float) -> None:
    """Waits for processes that have been asked to end, then ends them."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
