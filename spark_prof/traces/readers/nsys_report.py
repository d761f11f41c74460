"""Turns a report of Nsight Systems, `.nsys-rep`, into an SQLite export with an installed nsys.

The format of a report is NVIDIA's own. Its first line names the version that wrote it, such as
`NVIDIA Tegra Profiler Report 2025@6@1@190-`.
"""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from spark_prof.errors import CommandError
from spark_prof.traces.nsys_tool import find_nsys

_HEAD = re.compile(rb"NVIDIA Tegra Profiler Report (\d{1,6}(?:@\d{1,6}){1,4})")
_HEAD_BYTES = 256


def report_version(path: Path) -> str | None:
    """The version of nsys that wrote a report; None for a file that is no report.

    Raises:
        CommandError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = _HEAD.match(file.read(_HEAD_BYTES))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    return found[1].decode().replace("@", ".") if found else None


def export_report(path: Path, folder: Path) -> Path:
    """Exports a report with the nsys of this machine.

    Args:
        path: the report, which is only read.
        folder: where the export is put.

    Returns:
        The export.

    Raises:
        CommandError: it is no report, or there is no nsys that can export it.
    """
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
        why = str(error).split("; install ")[0]
        raise CommandError(
            f"{path} was written by nsys {version} and must be exported first ({why}); where that "
            f"version or a newer one is, run: {command}"
        ) from error
    return export
