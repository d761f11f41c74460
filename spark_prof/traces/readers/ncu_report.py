"""Reads a report of Nsight Compute, `.ncu-rep`, with NVIDIA's own package ncu-report.

The package is proprietary and an extra, `ncu`: without it the report can be
printed by ncu and read as CSV. Its library parses in a process of its own, so that a damaged report
can end that process and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from spark_prof.errors import CommandError, one_line, os_errors
from spark_prof.extras import install_command
from spark_prof.traces.foreign import Foreign
from spark_prof.traces.readers.ncu_csv import MeasuredKernel, measured_trace

REPORT_MAGIC = b"NVR\0"

_SECONDS = 1800.0
_MOST_BYTES = 1 << 30
_NO_PACKAGE = 3
"""Exit code of the process that reads where the package is missing."""

_READ = f"""
import json, sys
try:
    import ncu_report
except ImportError:
    sys.exit({_NO_PACKAGE})
context = ncu_report.load_report(sys.argv[1])
for number in range(context.num_ranges()):
    span = context.range_by_idx(number)
    for place in range(span.num_actions()):
        action = span.action_by_idx(place)
        metrics = ((name, action.metric_by_name(name)) for name in action.metric_names())
        values = {{n: [str(m.value()), m.unit()] for n, m in metrics if m and m.has_value()}}
        kernel = action.workload_type() == action.WorkloadType_KERNEL
        name = action.name(action.NameBase_DEMANGLED) if kernel else ""
        print(json.dumps([name, values]))
"""
"""The program that reads: one line a measured workload, its kernel's name and its metrics."""

_CAPABILITY = "device__attribute_compute_capability_"
_AXES = ("x", "y", "z")


def ncu_report(path: Path) -> Foreign:
    """Reads a report as the CSV that ncu would print of it."""
    return measured_trace([(path, *kernels_of_report(path))])


def kernels_of_report(path: Path) -> tuple[list[MeasuredKernel], list[str]]:
    """The measured kernels of a report, and what it lacks."""
    lines = _lines(path)
    try:
        rows = [
            msgspec.json.decode(line, type=tuple[str, dict[str, tuple[str, str]]]) for line in lines
        ]
    except msgspec.MsgspecError as error:
        raise CommandError(
            f"{path} is not a complete report of Nsight Compute ({error})"
        ) from error
    kernels = [_measured(name, metrics) for name, metrics in rows if name]
    ranges = len(rows) - len(kernels)
    lost_line = f"{ranges} measured ranges or graphs are no single kernels, and left out"
    return kernels, [lost_line] if ranges else []


def _lines(path: Path) -> list[bytes]:
    command = [sys.executable, "-c", _READ, str(path.absolute())]
    with os_errors(f"cannot start {sys.executable}"):
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"{path} was not read in {_SECONDS:.0f} s; measure fewer kernels"
            ) from None
    if process.returncode == _NO_PACKAGE:
        raise CommandError(
            f"{path} is a report of Nsight Compute, which NVIDIA's package ncu-report reads: "
            f"{install_command('ncu')}, or print it with: "
            f"ncu --import {quote(str(path))} --csv --page raw"
        )
    if process.returncode or len(process.stdout) > _MOST_BYTES:
        last_line = process.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        why = one_line(last_line)[:200] or f"exit code {process.returncode}"
        raise CommandError(f"{path} is not a report that ncu-report can read ({why})")
    return process.stdout.splitlines()


def _measured(name: str, metrics: dict[str, tuple[str, str]]) -> MeasuredKernel:
    def value_of(metric: str) -> str:
        return metrics.get(metric, ("", ""))[0]

    def sizes(dimension: str) -> str:
        return ", ".join(value_of(f"launch__{dimension}_dim_{axis}") for axis in _AXES)

    about: dict[str, Any] = {
        "ID": "", "Process ID": "", "Kernel Name": name, "Device": value_of("launch__device_id"),
        "CC": ".".join(value_of(_CAPABILITY + part) for part in ("major", "minor")),
        "Block Size": sizes("block"), "Grid Size": sizes("grid"),
    }  # fmt: skip
    return MeasuredKernel(about, metrics)
