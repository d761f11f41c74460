"""A recording whose kernels nsys takes: runs the command under nsys, then brings in its reports.

Options: `nsys profile --help`, `nsys stop --help` and `nsys export --help` of nsys 2022.4 and
2023.4, and NVIDIA's user guide for later ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import Command, option_value
from spark_prof.profiler.program import find_program
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunks import append_log
from spark_prof.traces.nsys_chunks import link_exports
from spark_prof.traces.nsys_tool import Nsys, Say, find_nsys

REPORT_SUFFIX = ".nsys-rep"
UNIMPORTED_SUFFIX = ".qdstrm"
"""What nsys writes while it records, and leaves where it cannot make the report."""

PROFILE_OPTIONS = (
    # Kernels and API calls; NVTX for the marks by which the two clocks are compared. System calls
    # (osrt) are left out: Python's threads make many, and none of them is about a kernel.
    "--trace=cuda,nvtx",
    # By default a CUDA graph is one row: no kernel in it has a name.
    "--cuda-graph-trace=node",
    # vLLM's engine and workers may be forked without exec.
    "--trace-fork-before-exec=true",
    # Both cost time on the processor and say nothing about kernels.
    "--sample=none",
    "--cpuctxsw=none",
    # The end of the recording is not the end of the command; a server goes on.
    "--kill=none",
    # Without nsys nobody would wait for what the command leaves behind either.
    "--wait=primary",
    # The report is exported afterwards, where its progress and its failure can be told.
    "--export=none",
    "--force-overwrite=true",
)
"""Recording begins with the command, because vLLM captures its graphs while it starts."""

_RAY_OPTION = "--ray-workers-use-nsight"
_EXECUTOR = "--distributed-executor-backend"


def profile_command(nsys: Path, command: Command, report: Path, session: str) -> list[str]:
    """The command line that runs a command under nsys.

    The report is named without its suffix, the session as `Nsys.stop` finds it.
    """
    program = find_program(command.argv)
    if command.kind == "container":
        raise CommandError(
            f"nsys does not see into a container that {program.name} starts; install spark-prof "
            "and Nsight Systems in the image and run 'spark-prof record --backend nsys' inside, "
            "or leave --backend out"
        )
    if "sudo" in command.argv[: program.index]:
        raise CommandError(
            "sudo drops what nsys sets for the processes that it watches; "
            "write 'sudo spark-prof record --backend nsys ...' instead"
        )
    output = str(report).replace("%", "%%")  # where nsys would put numbers and names
    options = [*PROFILE_OPTIONS, f"--session-new={session}", f"--output={output}"]
    return [str(nsys), "profile", *options, *command.argv]


def runs_on_ray(command: Command) -> bool:
    """Whether a vLLM command line asks for workers that Ray starts, outside its process tree."""
    if command.kind not in ("vllm-serve", "vllm-bench"):
        return False
    words = command.argv[find_program(command.argv).index :]
    return option_value(words, _EXECUTOR) == "ray" or _has_ray_option(words)


def _has_ray_option(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0].replace("_", "-") == _RAY_OPTION for word in words)


def with_ray_workers(argv: Sequence[str]) -> list[str]:
    """The command line with vLLM's own option that lets Ray start each worker under nsys.

    vLLM 0.24 to 0.33 pass Ray `-t cuda,cudnn,cublas --cuda-graph-trace=node`.
    """
    return [*argv] if _has_ray_option(argv) else [*argv, _RAY_OPTION]


REPORT = "nsys"  # name of the report in the bundle's folder, without its suffix

_RAY_SECONDS = 120.0
_POLL_SECONDS = 5.0


class NsysRun:
    """One command under nsys.

    Attributes:
        by_ray: Ray starts each worker under its own nsys, whose report is there when it has ended.
    """

    def __init__(self, nsys: Nsys, command: Command, settings: Settings, say: Say) -> None:
        self._nsys = nsys
        self._settings = settings
        self._say = say
        self._session = f"spark-prof-{os.getpid()}"
        self._begun = time.time()
        self.by_ray = runs_on_ray(command)
        report = settings.folder / REPORT
        self.argv = (
            with_ray_workers(command.argv)
            if self.by_ray
            else profile_command(nsys.path, command, report, self._session)
        )

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
        reports = sorted(self._settings.folder.glob(f"{REPORT}*{REPORT_SUFFIX}"))
        by_others = list(ray_reports(os.environ, self._begun))
        if self.by_ray:
            by_others = self._wait_for_ray(by_others)
        if not reports and not by_others:
            unimported = any(self._settings.folder.glob(f"{REPORT}*{UNIMPORTED_SUFFIX}"))
            self._complain(
                f"{self._nsys.path} left a {UNIMPORTED_SUFFIX} that it cannot turn into a report: "
                "its importer is missing; install the whole of Nsight Systems"
                if unimported
                else "nsys wrote no report; see its output"
            )
        return reports + by_others

    def _wait_for_ray(self, reports: list[Path]) -> list[Path]:
        """Waits until every worker that recorded on this host has left its report."""
        ranks = len(list(self._settings.pieces.glob("rank*.facts.json")))
        end = time.monotonic() + _RAY_SECONDS
        while len(reports) < ranks and time.monotonic() < end:
            self._say(f"waiting for the nsys reports of Ray's workers, {len(reports)} of {ranks}")
            time.sleep(_POLL_SECONDS)
            reports = list(ray_reports(os.environ, self._begun))
        return reports

    def _complain(self, line: str) -> None:
        self._say(line)
        append_log(self._settings.pieces, "nsys", time.time_ns(), line)


def plan_nsys(command: Command, settings: Settings, say: Say) -> NsysRun | None:
    """How that command is run under nsys; None where the settings do not ask for it."""
    if settings.backend != "nsys":
        return None
    nsys = find_nsys()
    say(f"nsys {'.'.join(map(str, nsys.version))} at {nsys.path} watches the kernels")
    return NsysRun(nsys, command, settings, say)


def ray_reports(environment: Mapping[str, str], since: float) -> Iterator[Path]:
    """The reports that workers of Ray left on this host since then, in seconds since the epoch.

    Ray puts them into logs/nsight of its session, under RAY_TMPDIR, TMPDIR or /tmp.
    """
    roots = [environment.get("RAY_TMPDIR"), environment.get("TMPDIR"), "/tmp"]
    reports = (
        path.resolve()
        for root in filter(None, roots)
        for path in sorted(Path(root, "ray").glob(f"session_*/logs/nsight/*{REPORT_SUFFIX}"))
    )
    for path in dict.fromkeys(reports):
        with suppress(OSError):
            if path.stat().st_mtime >= since:
                yield path
