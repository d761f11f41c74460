"""Both accounts of one engine's start, time and memory, against the clock, NVML and /proc.

One engine of a model of demo.models with random weights is started and recorded. It says itself
when it is up, and waits for two seconds, in which the memory is looked at from outside. The bar: of
the time from the process's start until then, and of the GPU memory that NVML tells, at least 95 %
have a name in the report. What the engine prints comes as it is printed.

usage: python benchmarks/startup_account.py [--model gpt-oss-20b] [--compile] [--memory 0.6]
           [--tensor-parallel 2] [--out FOLDER]
exit code: 1 if an account names less than 95 %, 2 if nothing was recorded
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

BAR, GIB = 0.95, 1 << 30
WAITS_S = 2.0
BEGUN = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt-oss-20b")
    parser.add_argument("--compile", action="store_true", help="not eager: vLLM's default")
    parser.add_argument("--memory", type=float, default=0.6)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keeps the bundle")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        engine(options)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, options.model)
        subprocess.run([sys.executable, "-m", "demo.models", options.model, str(folder)],
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        bundle = options.out or Path(temporary, "bundle")
        readings = watched_start(options, folder, bundle)
        if not (bundle / "meta.json").exists():
            print("nothing was recorded")
            return 2
        return compare(bundle, readings)


def engine(options: argparse.Namespace) -> None:
    """In the recorded command: one engine, that says when it is up."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=options.folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=2048,
        max_num_seqs=16, enforce_eager=not options.compile, enable_prefix_caching=False,
        gpu_memory_utilization=options.memory, tensor_parallel_size=options.tensor_parallel,
    )  # fmt: skip
    print("UP " + json.dumps({"pid": os.getpid(), "time": time.time()}), flush=True)
    time.sleep(WAITS_S)
    prompts: Any = [{"prompt_token_ids": [3 + i % 500 for i in range(32)]}] * 2
    llm.generate(prompts, SamplingParams(max_tokens=12, ignore_eos=True, detokenize=False))


def watched_start(options: argparse.Namespace, folder: Path, bundle: Path) -> dict[str, Any]:
    """Starts it recorded; what was seen from outside when it was up."""
    again = [word for word in ("--compile",) if options.compile]
    program = [sys.executable, __file__, "--engine", "--folder", str(folder), *again, "--memory",
               str(options.memory), "--tensor-parallel", str(options.tensor_parallel)]  # fmt: skip
    recorder = [sys.executable, "-m", "spark_prof", "record", "--steps", "10", "--out", str(bundle)]
    before = gpu_memory()
    readings: dict[str, Any] = {}
    say(f"GPU memory in use before: {before or 'no NVML'}")
    child = subprocess.Popen([*recorder, "--", *program], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.STDOUT, errors="replace")  # fmt: skip
    beat = threading.Thread(target=heartbeat, args=(child,), daemon=True)
    beat.start()
    for line in child.stdout or ():
        say(line.rstrip()[:300])
        if line.startswith("UP ") and not readings:
            readings = json.loads(line[3:])
            process = psutil.Process(readings["pid"])
            readings["clock_s"] = readings["time"] - process.create_time()
            readings["gpus"] = {
                uuid: used - before.get(uuid, 0) for uuid, used in gpu_memory().items()
            }
            readings["rss"] = {
                one.pid: one.memory_info().rss for one in (process, *process.children(True))
            }
            say(
                f"up after {readings['clock_s']:.1f} s; from outside: {readings['gpus']}, "
                f"{readings['rss']}"
            )
    say(f"the recorder ended with {child.wait()}")
    return readings


def heartbeat(child: subprocess.Popen[str]) -> None:
    while child.poll() is None:
        time.sleep(15)
        say("...")


def gpu_memory() -> dict[str, int]:
    """The bytes in use on each GPU; none without NVML."""
    from spark_prof.profiler.memory_state import devices_in_use

    return dict(devices_in_use())


def compare(bundle: Path, readings: dict[str, Any]) -> int:
    """Prints both accounts and how they agree with what was seen from outside."""
    import spark_prof
    from spark_prof.analyzers.startup.start_rows import MemoryAccount
    from spark_prof.traces.bundle import Bundle
    from spark_prof.traces.engine_starts import starts_in

    report, ok = spark_prof.report(bundle), True
    starts = starts_in(Bundle(bundle))
    for start in starts:
        for mark in start.marks:
            begin, end = ((t - starts[0].started_ns) / 1e9 for t in (mark.begin_ns, mark.end_ns))
            say(f"{start.process:8} {mark.stage:20} {begin:8.2f} to {end:8.2f} s")
    if report.startup is None:
        say("no start was marked")
        return 1
    for row in report.startup.stages:
        say(f"{row.what or 'not named':60} {row.seconds:8.2f} s {row.share or 0:6.1%}")
    named_s = sum(row.seconds for row in report.startup.stages if row.id)
    share = named_s / readings["clock_s"]
    ok &= share >= BAR
    say(f"START: {named_s:.2f} s named of {readings['clock_s']:.2f} s by the clock: {share:.1%}")
    for note in report.startup.notes:
        say(note)

    def print_account(account: MemoryAccount) -> None:
        say(f"{account.of} memory, rank {account.rank}, by {account.source}:")
        for part in account.parts:
            say(f"  {part.what or 'not named':60} {part.bytes / GIB:8.3f} GiB {part.share:6.1%}")
        say(f"  {'together':60} {account.total / GIB:8.3f} GiB")

    for account in report.memory:
        print_account(account)
        named = sum(part.bytes for part in account.parts if part.id)
        if account.of == "gpu" and any(readings["gpus"].values()):
            outside = sorted(readings["gpus"].values(), reverse=True)
            rank = (account.rank or 0) if len(outside) > 1 else 0
            share = named / outside[min(rank, len(outside) - 1)]
            ok &= BAR <= share <= 2 - BAR
            say(f"MEMORY: {named / GIB:.3f} GiB named; NVML outside: {share:.1%}")
        elif account.of == "process":
            pid = next((s.pid for s in starts if s.process == f"rank{account.rank}"), 0)
            outside_rss = readings["rss"].get(pid, 0)
            say(f"RSS: {named / GIB:.3f} GiB named of {account.total / GIB:.3f}; /proc outside: "
                f"{outside_rss / GIB:.3f} GiB, {named / max(outside_rss, 1):.1%}")  # fmt: skip
    say("all accounts name at least 95 %" if ok else "an account names less than 95 %")
    return 0 if ok else 1


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGUN:7.1f} s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
