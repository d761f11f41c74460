"""Makes Kineto traces of any size out of a real one, and times spark-prof and its peers on them.

The real trace is of OWLv2, a Hugging Face model on an H100 (132 152 events, half of them Python
frames). It is repeated with times moved on and ids counted up, and written compactly.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from benchmarks.cost import Cost, line, measure

SOURCE = (
    Path(__file__).resolve().parents[2]
    / "shared/traces/kineto/google_owlv2-large-patch14-ensemble__1016001.json.gz"
)
EVENTS = 132_152
"""Events of the real trace."""

BARS = {20: (10.0, 1.5), 10: (5.0, 1.5)}
"""Seconds and GiB for import and report, by how often the trace is repeated."""

_MOST_FOR_PEERS = 20
"""Beyond this many repetitions json.load and the peers need more memory than the machine has."""

_PERIOD_US = 1_300_000.0
"""Longer than the trace, in us."""

_IDS = ("correlation", "External id", "Python id", "Python parent id", "Ev Idx")
_FREE_ID = 10_000_000
"""Ids of the trace are smaller than this."""

_JSON = "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))"
_READER = """
import sys
from pathlib import Path
from spark_prof.traces.readers.kineto import kineto_trace
kineto_trace(Path(sys.argv[1]), lambda name: True)
"""
_HTA = """
import sys
from hta.common.trace import parse_trace_file
parse_trace_file(sys.argv[1])
"""
_TRACELENS = """
import sys
from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
generate_perf_report_pytorch(profile_json_path=sys.argv[1], output_xlsx_path=sys.argv[2])
"""
_PEERS = {
    "HTA parse_trace_file": ("hta", _HTA), "TraceLens report": ("TraceLens", _TRACELENS),
}  # fmt: skip


def make_trace(source: Path, copies: int, target: Path) -> None:
    """Writes the trace repeated `copies` times."""
    with gzip.open(source) as file:
        document = msgspec.json.decode(file.read())
    events: list[dict[str, Any]] = document.pop("traceEvents")
    encode = msgspec.json.Encoder().encode
    with igzip.open(target, "wb", compresslevel=2) as out:
        out.write(encode(document)[:-1] + b',"traceEvents":[')
        for copy in range(copies):
            if copy:
                for event in events:
                    _move_on(event)
            out.write((b"," if copy else b"") + encode(events)[1:-1])
        out.write(b"]}")


def _move_on(event: dict[str, Any]) -> None:
    if "ts" in event:
        event["ts"] = round(event["ts"] + _PERIOD_US, 3)
    if "id" in event:
        event["id"] += _FREE_ID
    arguments = event.get("args", {})
    for name in _IDS:
        if isinstance(arguments.get(name), int):
            arguments[name] += _FREE_ID


def run_kineto(copies: int, folder: Path, peers: str | None) -> Cost | None:
    """Times everything on one trace and prints a line each; returns what spark-prof took."""
    trace = folder / f"owlv2x{copies}.json.gz"
    if not trace.exists():
        # In a process of its own: a child's peak memory counts what its parent held.
        subprocess.run([sys.executable, __file__, str(copies), str(trace)], check=True)
    print(f"\nKineto, {copies * EVENTS:,} events, {trace.stat().st_size / 1e6:.0f} MB compressed")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        bundle = str(Path(scratch) / "bundle")
        spark_prof = [sys.executable, "-m", "spark_prof.cli.main"]
        read = measure([*spark_prof, "import", str(trace), "-o", bundle])
        report = measure([*spark_prof, "report", bundle])
        total = Cost(read.seconds + report.seconds, max(read.memory, report.memory)) \
            if read and report else None  # fmt: skip
        line("spark-prof import", read, total)
        line("spark-prof report", report, total)
        line("both", total, total)
        line("its reader alone", measure([sys.executable, "-c", _READER, str(trace)]), total)
        line("gunzip", measure(["gunzip", "-c", str(trace)]), total)
        if copies > _MOST_FOR_PEERS:
            return total
        line("json.load", measure([sys.executable, "-c", _JSON, str(trace)]), total)
        for name, (module, code) in _PEERS.items():
            missing = f"import importlib.util; exit(not importlib.util.find_spec('{module}'))"
            if not peers or not measure([peers, "-c", missing]):
                print(f"{name:24} absent (--peers PYTHON, one that can import {module})")
                continue
            output = str(Path(scratch) / "peer.xlsx")
            line(name, measure([peers, "-c", code, str(trace), output]), total)
    return total


def meets_bar(copies: int, total: Cost | None) -> bool:
    """Whether import and report of that trace were fast and small enough."""
    seconds, memory = BARS.get(copies, (float("inf"), 1.5))
    return total is not None and total.seconds <= seconds and total.memory <= memory * 2**30


if __name__ == "__main__":
    make_trace(SOURCE, int(sys.argv[1]), Path(sys.argv[2]))
