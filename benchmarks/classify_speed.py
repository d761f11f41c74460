"""Time of `spark-prof classify` on a bundle of 1 000 distinct kernels with their machine code.

The functions are drawn from a library such as vLLM's, for one GPU. Cold is with an empty cache,
warm the next calls; "in the bundle" is one whose recording disassembled them, and the last one has
100 times as many launches. The peers disassemble the same cubins whole and print them as text.

usage: python benchmarks/classify_speed.py LIBRARY [--arch sm_90] [--kernels 1000] [--no-peers]

It fails where cold takes longer than 30 s or warm longer than 2 s, or where 100 times as many
launches take more than a second longer.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.traces.bundle import Bundle, TableFiles
from spark_prof.traces.code_files import code_files
from spark_prof.traces.cuda_tools import find_tool
from spark_prof.traces.demangle import demangled
from spark_prof.traces.machine_code import CUBINS_FOLDER, read_machine_code
from spark_prof.traces.tables import TABLES, empty_table

ROOT = Path(__file__).resolve().parent.parent
CAPTURE = ROOT / "tests" / "data" / "h100-gpt-oss-20b-mxfp4-graphs"
LAUNCHES, MORE_LAUNCHES = 100_000, 10_000_000
BAR_COLD, BAR_WARM, BAR_LAUNCHES = 30.0, 2.0, 1.0
ROWS_AT_ONCE = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        bundle = folder / "bundle"
        chosen = draw(options.library, options.arch, options.kernels, bundle / CUBINS_FOLDER)
        make_bundle(bundle, chosen, LAUNCHES)
        size = sum(path.stat().st_size for path in chosen)
        print(f"{sum(map(len, chosen.values()))} kernels of {len(chosen)} cubins, "
              f"{size / 2**20:.0f} MiB; 2 cores")  # fmt: skip
        cold = classify(bundle)
        print(f"cold                       {cold:7.2f} s")
        warm = statistics.median(classify(bundle) for _ in range(3))
        print(f"warm                       {warm:7.2f} s")
        disassembled = folder / "kept"
        shutil.copytree(bundle, disassembled)
        make_bundle(disassembled, chosen, LAUNCHES, disassemble=True)
        short_seconds = statistics.median(classify(disassembled) for _ in range(3))
        print(f"in the bundle              {short_seconds:7.2f} s with {LAUNCHES:,} launches")
        make_bundle(disassembled, chosen, MORE_LAUNCHES, disassemble=True)
        longer_seconds = statistics.median(classify(disassembled) for _ in range(3))
        print(f"                           {longer_seconds:7.2f} s with {MORE_LAUNCHES:,} launches")
        if not options.no_peers:
            for name, words in (("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])):
                print(f"{name:10} on whole cubins {peer(name, words, list(chosen)):7.2f} s")
    return int(cold > BAR_COLD or warm > BAR_WARM or longer_seconds - short_seconds > BAR_LAUNCHES)


def draw(library: Path, architecture: str, count: int, folder: Path) -> dict[Path, set[str]]:
    """Copies the library's cubins under their hashes; of each the functions that were drawn."""
    folder.mkdir(parents=True)
    with code_files(library, architecture) as code:
        functions = [
            (path, name) for path, kernels in code.cubins.items() for name in sorted(kernels or ())
        ]
        if len(functions) < count:
            raise SystemExit(f"{library} has only {len(functions)} kernels for {architecture}")
        chosen: dict[Path, set[str]] = {}
        names: set[str] = set()
        random.Random(1).shuffle(functions)
        for path, name in functions:
            if name in names:
                continue
            names.add(name)
            key = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            target = folder / f"{key}.cubin"
            if not target.exists():
                shutil.copyfile(path, target)
            chosen.setdefault(target, set()).add(name)
            if len(names) == count:
                break
    return chosen


def make_bundle(
    folder: Path, chosen: Mapping[Path, set[str]], launches: int, disassemble: bool = False
) -> None:
    """Writes a bundle that launched the functions in turn."""
    capture = Bundle(CAPTURE)
    names = demangled(name for functions in chosen.values() for name in sorted(functions))
    kernels = capture.frame("kernels", 0)
    row = kernels[kernels["kind"] == "kernel"].iloc[[0]]
    with TableFiles(folder) as files:
        for name in TABLES:
            files.add(name, 0, empty_table(name).to_pandas())
        files.add("steps", 0, capture.frame("steps", 0))
        cubins = [(p.stem, p.stat().st_size, "driver", "\n".join(sorted(functions)))
                  for p, functions in chosen.items()]  # fmt: skip
        files.add("cubins", 0, pd.DataFrame(cubins, columns=TABLES["cubins"].schema.names))
        if disassemble:
            files.add("functions", 0, read_machine_code(dict(chosen)).rows)
        for first in range(0, launches, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, launches - first)
            rows = row.loc[row.index.repeat(count)].reset_index(drop=True)
            index = np.arange(first, first + count)
            rows["name"] = pd.Categorical.from_codes(index % len(names), pd.Index(names))
            rows["start_ns"] += index * 2000
            rows["end_ns"] = rows["start_ns"] + 1000
            files.add("kernels", 0, rows)
    replace(capture.meta, tables=files.rows, lost=()).write(folder)


def classify(bundle: Path) -> float:
    """Seconds of the whole command."""
    command = [sys.executable, "-m", "spark_prof.cli.main", "classify", str(bundle)]
    begin = time.perf_counter()
    process = subprocess.run([*command, "--format", "json"], capture_output=True)
    if process.returncode or process.stdout.count(b'"sass"') == 0:
        raise SystemExit(f"failed: {' '.join(command)}: {process.stderr.decode()}")
    return time.perf_counter() - begin


def peer(name: str, words: list[str], cubins: list[Path]) -> float:
    """Seconds to disassemble all cubins, two at a time."""
    tool = find_tool(name)
    if tool is None:
        return float("nan")
    begin = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(
            lambda path: subprocess.run([tool, *words, path], stdout=subprocess.DEVNULL), cubins
        ))  # fmt: skip
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
