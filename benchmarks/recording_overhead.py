"""What recording costs: decode step time recorded over unrecorded, alternating in one engine.

Stretches alternate: dormant (spark-prof installed, nothing recorded), recorded with a backend,
recorded with ranges and steps only, and with counters only. Times are the engine's own, first to
last token of a batch. A stretch fits into one piece, so that the pause of a flush, which no step
contains, is measured on its own. Memory is that of the engine's processes, the largest seen.

With --starts, what spark-prof costs while an engine starts and captures its graphs: two engines
start at the same moment, one with the plugin and one without, so that both have the same machine.

`sampled` is what `spark-prof record` does with CUPTI: some steps watched, most only timed. With
--soak the engine decodes so many steps while it is recorded, and the memory it keeps is printed.

usage: python benchmarks/recording_overhead.py MODEL_FOLDER [--compile] [--stretches 8]
           [--kinds torch,none]      of sampled, cupti, torch, none, counters
           [--tensor-parallel 2] [--tokens 600] [--soak 20000]
       python benchmarks/recording_overhead.py MODEL_FOLDER [--compile] --starts 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from spark_prof.profiler.attach import recordable_among, registered, request_recording
from spark_prof.profiler.control import STOP_FILE
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.watch import Watcher
from spark_prof.traces.chunks import pieces_folder

PROMPT = 32
KV_BYTES = 1 << 30
"""Given, so that neither of two engines measures the memory that the other one takes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="not eager: vLLM's default")
    parser.add_argument("--stretches", type=int, default=8)
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--kinds", default="torch,none")
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--soak", type=int, default=0, help="steps recorded for the memory kept")
    parser.add_argument("--wait-for", help="a file before which nothing is measured")
    parser.add_argument("--starts", type=int, default=0, help="pairs of engines to start")
    parser.add_argument("--only-start", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.starts:
        compare_starts(options.starts)
        return
    if options.only_start:
        begin = time.perf_counter()
        started(options, {})
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
        os._exit(0)
    engine: dict[str, Any] = (
        {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}} if options.compile else {}
    )
    llm = started(options, engine)
    for _ in range(3):
        stretch(llm, options.batch, options.tokens)
    print("warm", flush=True)
    while options.wait_for and not Path(options.wait_for).exists():
        time.sleep(0.2)
    kinds = options.kinds.split(",")
    times: dict[str, list[float]] = {kind: [] for kind in ("dormant", *kinds)}
    memory = {kind: Memory() for kind in times}
    ending: list[float] = []
    pauses: dict[str, list[float]] = {kind: [] for kind in kinds}
    with memory["dormant"]:  # before anything was ever recorded
        stretch(llm, options.batch, options.tokens)
    for _ in range(options.stretches):
        for backend, durations in times.items():
            if backend == "dormant":
                with Memory():  # looking costs the same in every stretch
                    durations.append(stretch(llm, options.batch, options.tokens))
                continue
            recording = Recording(backend)
            stretch(llm, options.batch, tokens=2)  # finds and marks the modules
            with memory[backend]:
                durations.append(stretch(llm, options.batch, options.tokens))
                before = time.perf_counter()
                pauses[backend].append(max(recording.stop(), default=0.0))
            if backend == kinds[0]:
                ending.append(time.perf_counter() - before)
    base = statistics.median(times["dormant"])
    quiet = memory["dormant"].largest
    print(f"dormant     {base * 1e3:8.3f} ms per decode step, {quiet >> 20} MiB")
    for kind in kinds:
        middle = statistics.median(times[kind])
        growth_mib = (memory[kind].largest - quiet) / (1 << 20)
        paused = statistics.median(pauses[kind]) / options.tokens / base
        print(
            f"{kind:10}  {middle * 1e3:8.3f} ms, {middle / base:.3f} x dormant, "
            f"{growth_mib:+.0f} MiB;"
        )
        pairs = [b / a for a, b in zip(times["dormant"], times[kind], strict=True)]
        low, middle, high = statistics.quantiles(pairs, n=4)
        print(f"{'':10}  beside the dormant one before {middle:.3f} x ({low:.3f} to {high:.3f});")
        print(f"{'':10}  pauses, getting ready among them, are {paused:.3f} of a step")
    again = times["dormant"]
    half = len(again) // 2
    spread = statistics.median(again[:half]) / statistics.median(again[half:])
    print(f"dormant, first half over second half: {spread:.3f} (the noise of this machine)")
    print(f"ending a recording of {options.tokens} steps: {statistics.median(ending):.2f} s")
    if options.soak:
        soak(llm, options)


def soak(llm: Any, options: argparse.Namespace) -> None:
    """Prints how the engine's private memory grows while it is recorded, and after that."""
    before = private_bytes()
    recording = Recording("sampled")
    steps, readings = 0, [before]
    while steps < options.soak:
        stretch(llm, options.batch, options.tokens)
        steps += options.tokens
        if steps // options.tokens % max(options.soak // options.tokens // 8, 1) == 0:
            readings.append(private_bytes())
    recording.stop()
    grown = " ".join(f"{(value - before) / 1e6:+.0f}" for value in readings)
    print(f"{steps} steps recorded: private memory {grown} MB, at the end ", end="")
    print(f"{(private_bytes() - before) / 1e6:+.0f} MB", flush=True)


def private_bytes() -> int:
    """What the engine's processes hold for themselves alone."""
    processes = recordable_among(psutil.Process())
    return sum(psutil.Process(process.pid).memory_full_info().uss for process in processes)


def started(options: argparse.Namespace, engine: dict[str, Any]) -> Any:
    """The engine, when it can answer."""
    from vllm import LLM

    return LLM(
        model=options.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=4,
        gpu_memory_utilization=options.memory,
        enforce_eager=not options.compile,
        enable_prefix_caching=False,
        disable_log_stats=False,
        tensor_parallel_size=options.tensor_parallel,
        kv_cache_memory_bytes=KV_BYTES,
        **engine,
    )


def compare_starts(pairs: int) -> None:
    """Starts pairs of engines, with the plugin and without; prints seconds and their ratio."""
    command = [sys.executable, *sys.argv, "--starts", "0", "--only-start"]
    ratios = []
    for number in range(pairs + 1):
        waiting = {
            name: subprocess.Popen(
                command,
                env={**os.environ, "VLLM_PLUGINS": plugins, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for name, plugins in (("without", ""), ("with", "spark_prof"))
        }
        printed = {name: process.communicate()[0] for name, process in waiting.items()}
        took = {
            name: json.loads(text.splitlines()[-1])["seconds"] for name, text in printed.items()
        }
        ratio = took["with"] / took["without"]
        outcome = "compiles, not counted" if not number else f"{ratio:.3f} x"
        print(f"with {took['with']:.1f} s, without {took['without']:.1f} s: {outcome}", flush=True)
        if number:
            ratios.append(ratio)
    print(f"start with the plugin: {statistics.median(ratios):.3f} x without, median of {pairs}")


class Memory:
    """The largest resident memory of the engine's processes while it is entered, in bytes."""

    largest = 0

    def __enter__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        processes = recordable_among(psutil.Process())
        while not self._end.wait(0.02):
            total = sum(psutil.Process(process.pid).memory_info().rss for process in processes)
            self.largest = max(self.largest, total)


class Recording:
    """One recording of this process's engine, into a folder that is thrown away."""

    def __init__(self, backend: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="overhead-"))
        pieces_folder(self.folder).mkdir()
        processes = recordable_among(psutil.Process())
        if not processes:
            raise SystemExit("no process of this engine can be recorded")
        settings = Settings(
            str(self.folder),
            steps=0,
            backend={"counters": "none", "sampled": "cupti"}.get(backend, backend),
            sampled=backend == "sampled",
            counters=backend == "counters",
            steps_per_piece=256 if backend == "sampled" else 10_000,
        )
        request_recording(registered(processes), settings)
        self.watcher = Watcher(pieces_folder(self.folder), 0, lambda _: None)
        if not self.watcher.wait(lambda: bool(self.watcher.ranks()), 10):
            raise SystemExit("the engine did not begin to record")

    def stop(self) -> list[float]:
        """Ends the recording and throws its folder away; the pauses of each rank, in seconds."""
        (pieces_folder(self.folder) / STOP_FILE).touch()
        self.watcher.wait(self.watcher.all_finished, 30)
        self.watcher.wait_for_engine()
        pauses = [rank.get("pauses", {}).get("total_ns", 0) / 1e9 for rank in self.watcher.ranks()]
        shutil.rmtree(self.folder)
        return pauses


def stretch(llm: Any, batch: int, tokens: int) -> float:
    """Seconds per decode step of one batch, by the engine's clock."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0)
    prompts = [{"prompt_token_ids": list(range(3, 3 + PROMPT))} for _ in range(batch)]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    metrics = [output.metrics for output in outputs]
    first = max(m.first_token_ts for m in metrics)
    last = max(m.last_token_ts for m in metrics)
    return float((last - first) / (tokens - 1))


if __name__ == "__main__":
    main()
