"""Time and memory of `spark-prof report --format json` on bundles of 1 to 16 million kernels.

A bundle is one decode step of a real capture, repeated. Of the kind eager it was made 48 layers
deep out of its second layer. Of the kind compiled the same kernels come as torch.compile leaves
them: only attention, KV write and experts know their layer, the rest is placed by its order, and
every kernel has a launch of its own. Of the kind graphs it is a step of CUDA graphs as it was
recorded. The floor is a fresh process that only reads the same columns with pyarrow. All of them
find the bytecode of their modules, as an installed package has it.

usage: python benchmarks/report_speed.py [--kind eager|compiled|graphs] [--capture BUNDLE]
       [--millions 1,2,4,8,10,16] [--runs 3] [--keep FOLDER]

It fails where 10 million kernels take longer or more memory than the bar, or twice as many kernels
more than 2.1 times as long.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.traces.bundle import Bundle, TableFiles, table_file
from spark_prof.traces.tables import TABLES, empty_table

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
CAPTURES = {
    "eager": "h100-gpt-oss-20b-mxfp4-eager",
    "compiled": "h100-gpt-oss-20b-mxfp4-eager",
    "graphs": "h100-gpt-oss-20b-mxfp4-graphs",
}
LAYERS, STEPS_PER_PIECE = 48, 32
BAR_MILLIONS, BAR_SECONDS, BAR_MEMORY, BAR_DOUBLING = 10, 4.0, 3 << 29, 2.1
ANCHORS = r"\.impl\.(?:forward|do_kv_cache_update)$|\.experts\b"
FLOOR = """
import sys, pyarrow.parquet as pq
columns = "name kind start_ns end_ns part step module layer correlation".split()
pq.read_table(sys.argv[1], columns=columns, read_dictionary=["name", "kind"])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=CAPTURES, default="eager")
    parser.add_argument("--capture", type=Path, help="a bundle with such steps")
    parser.add_argument("--millions", default="1,2,4,8,10,16", help="sizes, by commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="make the bundles there and keep them")
    options = parser.parse_args()
    capture = Bundle(options.capture or DATA / CAPTURES[options.kind])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(f"report --format json, {options.kind}, 2 cores, "
          f"median of {options.runs} runs")  # fmt: skip
    print("   kernels   seconds  processor  memory MiB   reading only")
    seconds_of: dict[int, float] = {}
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{temporary}/bytecode"
        report = [sys.executable, "-m", "spark_prof.cli.main", "report"]
        measure([*report, str(capture.path), "--format", "json"])  # writes it
        for millions in (int(size) for size in options.millions.split(",")):
            folder = (options.keep or Path(temporary)) / f"{millions}m-{options.kind}"
            if not folder.exists():
                make_bundle(capture, folder, options.kind, millions * 10**6)
            command = [*report, str(folder), "--format", "json"]
            seconds, busy, memory = median_of(options.runs, command)
            kernels = folder / table_file("kernels", 0)
            floor, _, _ = median_of(options.runs, [sys.executable, "-c", FLOOR, str(kernels)])
            rows = Bundle(folder).meta.tables[kernels.name]
            print(
                f"{rows:10,}  {seconds:8.2f}  {busy:9.2f}  {memory / 2**20:10.0f}  {floor:9.2f} s"
            )
            seconds_of[millions] = seconds
            if millions == BAR_MILLIONS:
                failed |= seconds > BAR_SECONDS or memory > BAR_MEMORY
            if not options.keep:
                shutil.rmtree(folder)
    for millions, seconds in seconds_of.items():
        if half := seconds_of.get(millions // 2) if millions % 2 == 0 else None:
            print(f"{millions // 2} to {millions} million: {seconds / half:.2f} times as long")
            failed |= seconds / half > BAR_DOUBLING
    return int(failed)


def median_of(runs: int, command: list[str]) -> tuple[float, float, int]:
    """Median wall and processor time in seconds and peak memory in bytes of fresh processes."""
    measurements = [measure(command) for _ in range(runs)]
    seconds, busy, memory = (
        statistics.median(values) for values in zip(*measurements, strict=True)
    )
    return seconds, busy, int(memory)


def measure(command: list[str]) -> tuple[float, float, int]:
    """Wall and processor time in seconds and peak memory in bytes of a fresh process."""
    begin = time.perf_counter()
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    wall = time.perf_counter() - begin
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def make_bundle(capture: Bundle, folder: Path, kind: str, kernel_count: int) -> int:
    """Writes a bundle of at least so many kernels, and returns how many it has."""
    deep = kind != "graphs"
    one, modules = deep_step(capture, kind == "compiled") if deep else graph_step(capture)
    count = -(-kernel_count // len(one))
    steps = capture.frame("steps", 0)
    step = steps[steps["phase"] == "decode"].iloc[len(steps) // 2]
    engine = capture.frame("engine", 0).set_index("key").loc[[step["key"]]].iloc[[0]].reset_index()
    # The repeated step is as long as its kernels, so that the steps follow each other.
    length = int(one["end_ns"].max()) + 2000
    origin = int(step["start_ns"])
    layers = capture.frame("layers", 0)
    if deep:
        number = layers["layer"]
        copies = [number.where(number < 0, number + 24 * copy) for copy in range(LAYERS // 24)]
        layers = pd.concat([layers.assign(layer=copy) for copy in copies])
    folder.mkdir(parents=True)
    with TableFiles(folder) as files:
        for name in TABLES:
            files.add(name, 0, empty_table(name).to_pandas())
        files.add("modules", 0, modules)
        files.add("layers", 0, layers)
        files.add("graph_nodes", 0, capture.frame("graph_nodes", 0))
        for first in range(0, count, STEPS_PER_PIECE):
            index = np.arange(first, min(first + STEPS_PER_PIECE, count))
            begin = origin + index * length
            kernels = pd.concat([one] * len(index), ignore_index=True)
            kernels["step"] = np.repeat(index, len(one))
            kernels["correlation"] += np.repeat(index * len(one), len(one))
            kernels[["start_ns", "end_ns"]] += np.repeat(begin, len(one))[:, None]
            launched = kernels.drop_duplicates("correlation")
            api = np.where(launched["graph_node"] > 0, "cudaGraphLaunch", "cudaLaunchKernel")
            host = pd.DataFrame({"name": api, "start_ns": launched["start_ns"] - 5000,
                                 "end_ns": launched["start_ns"] - 4000, "thread": 1,
                                 "correlation": launched["correlation"]})  # fmt: skip
            steps = pd.DataFrame([step] * len(index)).assign(
                step=index, key=index, piece=first // STEPS_PER_PIECE, start_ns=begin,
                end_ns=begin + length - 1000)  # fmt: skip
            update = begin + length - 600
            record = pd.concat([engine] * len(index)).assign(
                key=index, schedule_ns=begin - 500, update_ns=update, unfinished=1
            )
            for name, frame in (("kernels", kernels), ("host", host), ("steps", steps),
                                ("engine", record)):  # fmt: skip
                files.add(name, 0, frame)
    execution = "eager" if kind == "eager" else "torch.compile, CUDA graphs"
    facts = {"rank0": capture.facts(0) | {"execution": execution}}
    replace(capture.meta, tables=files.rows, facts=facts).write(folder)
    return count * len(one)


def deep_step(capture: Bundle, compiled: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The kernels of a decode step with many layers, from time 0, and the modules they name."""
    steps = capture.frame("steps", 0)
    decode = steps.loc[steps["phase"] == "decode", "step"]
    kernels = capture.frame("kernels", 0)
    step = kernels[kernels["step"] == decode.iloc[len(decode) // 2]].reset_index(drop=True)
    modules = capture.frame("modules", 0).astype({"component": object})
    inside = np.flatnonzero(step["layer"] == 1)
    outside = step["layer"] < 0
    before, after = outside & (step.index < inside[0]), outside & (step.index > inside[0])
    layer_modules = modules[modules["layer"] == 1]
    parts, paths = [step[before]], [modules[modules["layer"] < 0]]
    free = int(modules["module"].max()) + 1
    for layer in range(LAYERS):
        renumbered = dict(
            zip(layer_modules["module"], range(free, free + len(layer_modules)), strict=True)
        )
        free += len(layer_modules)
        copy = layer_modules.assign(layer=layer, module=list(renumbered.values()))
        copy["path"] = layer_modules["path"].str.replace("layers.1", f"layers.{layer}", regex=False)
        paths.append(copy)
        rows = step.iloc[inside]
        parts.append(rows.assign(layer=layer, module=rows["module"].map(renumbered).fillna(-1)))
    parts.append(step[after])
    modules = pd.concat(paths, ignore_index=True)
    step = pd.concat(parts, ignore_index=True)
    if compiled:
        path = modules.set_index("module")["path"].reindex(step["module"]).fillna("")
        loose = (step["layer"] >= 0).to_numpy() & ~path.str.contains(ANCHORS).to_numpy()
        model = int(modules.loc[modules["path"] == "model", "module"].iloc[0])
        step.loc[loose, ["module", "layer"]] = model, -1
    length = (step["end_ns"] - step["start_ns"]).to_numpy()
    start = np.cumsum(length + 1000) - length
    numbers = np.arange(1, len(step) + 1)
    step = step.assign(start_ns=start, end_ns=start + length, device=0, correlation=numbers)
    return step, modules


def graph_step(capture: Bundle) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The kernels of a decode step inside CUDA graphs, from time 0, and all modules."""
    steps = capture.frame("steps", 0)
    decode = steps.loc[steps["phase"] == "decode", "step"]
    kernels = capture.frame("kernels", 0)
    step = kernels[kernels["step"] == decode.iloc[len(decode) // 2]].reset_index(drop=True)
    step[["start_ns", "end_ns"]] -= step["start_ns"].min()
    # Numbered anew, so that the steps' launches do not share a number.
    launch = pd.factorize(step["correlation"])[0] + 1
    return step.assign(correlation=launch), capture.frame("modules", 0)


if __name__ == "__main__":
    sys.exit(main())
