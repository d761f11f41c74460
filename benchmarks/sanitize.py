"""What NVIDIA's compute-sanitizer says of the package's kernels in `spark-prof kernels check`.

Each tool watches only this package's kernels; the checks themselves say whether results are right.
initcheck has to watch all, since it takes what an unwatched kernel wrote for never written; what it
says of others' kernels is not counted. It needs much memory: --jobs 3 beside nothing else.
Errors of API calls are left out: cuda-bindings asks the driver for functions that it may not have.
A check that takes longer than its share is ended, and said to be.

usage: python benchmarks/sanitize.py FOLDER [--tools memcheck ...] [--checks layer-attention ...]
           [--seconds S] [--jobs N]
exit code: 1 if a tool has found something or was ended, 2 without compute-sanitizer
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = {
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
    "synccheck": (),
    "initcheck": ("--check-api-memory-access", "no"),
}
CHECKS = (
    "layer-attention", "layer-experts", "layer-linear", "layer-mlp", "router-topk", "moe-w4a16",
    "moe-w8a16", "moe-w16a16", "o-w16a16", "o-fp8", "o-int4", "o-w4a16",
)  # fmt: skip
KERNELS = ("dense", "gate_up", "down", "route", "norm_route", "row_norm", "attention")
_LIMITS = {"initcheck": "2000"}
_OURS = re.compile(rf"^=+ +(?:at|Device Frame:) (?:{'|'.join(KERNELS)})\+0x", re.M)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_CASES = re.compile(r"(\d+) passed; (\d+) failed; (\d+) skipped")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the logs")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=tuple(TOOLS))
    parser.add_argument("--checks", nargs="+", default=CHECKS)
    parser.add_argument("--seconds", type=float, default=300, help="of each tool in each check")
    parser.add_argument("--jobs", type=int, default=16, help="that run at a time")
    options = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the PATH", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        clean = [
            pool.submit(run, tool, check, options.folder, options.seconds)
            for tool in options.tools
            for check in options.checks
        ]
    return int(not all(future.result() for future in clean))


def run(tool: str, check: str, folder: Path, seconds: float) -> bool:
    """Runs one check under one tool, keeps its log and prints a line; whether nothing was found."""
    names = [word for name in KERNELS for word in ("--kernel-name", f"kernel_substring={name}")]
    watched = () if tool == "initcheck" else names
    command = [
        *("compute-sanitizer", "--tool", tool, *TOOLS[tool], *watched),
        *("--print-limit", _LIMITS.get(tool, "20")),
        *(sys.executable, "-m", "spark_prof.cli.main", "kernels", "check", check),
    ]
    log = folder / f"{tool}-{check}.log"
    ended = ""
    with log.open("wb") as file:
        try:
            subprocess.run(
                command,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            ended = f", ended after {seconds:.0f} s"
    text = log.read_text(errors="replace")
    summaries = [int(count) for count in _SUMMARY.findall(text)]
    error_count = max(summaries, default=0)
    if tool == "initcheck":
        error_count = sum(bool(_OURS.search(block)) for block in text.split("Uninitialized")[1:])
    cases = _CASES.search(text)
    errors = f"{error_count} found" if summaries or error_count else "no summary"
    case_count = " ".join(cases.group().split()) if cases else "cases not counted"
    print(f"{tool} {check}: {errors}; {case_count}{ended}", flush=True)
    return not error_count and not ended


if __name__ == "__main__":
    sys.exit(main())
