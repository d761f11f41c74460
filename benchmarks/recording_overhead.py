"""What recording costs: decode step time recorded over unrecorded, alternating in one engine.

Three kinds of stretches alternate: dormant (spark-prof installed, nothing recorded), recorded with
the torch backend, and recorded with ranges and steps only. Times are the engine's own, first to
last token of a batch. A stretch fits into one piece, so that the pause of a flush, which no step
contains, is measured on its own.

usage: python benchmarks/recording_overhead.py MODEL_FOLDER [--compile] [--stretches 8]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from spark_prof.profiler.attach import recordable_among, request_recording
from spark_prof.profiler.control import STOP_FILE
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.watch import Watcher
from spark_prof.traces.pieces import pieces_folder

TOKENS = 30
PROMPT = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="not eager: vLLM's default")
    parser.add_argument("--stretches", type=int, default=8)
    parser.add_argument("--memory", type=float, default=0.4)
    options = parser.parse_args()

    from vllm import LLM

    engine: dict[str, Any] = (
        {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}} if options.compile else {}
    )
    llm = LLM(
        model=options.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=4,
        gpu_memory_utilization=options.memory,
        enforce_eager=not options.compile,
        enable_prefix_caching=False,
        disable_log_stats=False,
        **engine,
    )
    for _ in range(3):
        stretch(llm, options.batch)
    times: dict[str, list[float]] = {"dormant": [], "torch": [], "none": []}
    pauses: list[float] = []
    for _ in range(options.stretches):
        for backend, found in times.items():
            if backend == "dormant":
                found.append(stretch(llm, options.batch))
                continue
            recording = Recording(backend)
            stretch(llm, options.batch, tokens=2)  # finds and marks the modules
            found.append(stretch(llm, options.batch))
            before = time.perf_counter()
            recording.stop()
            if backend == "torch":
                pauses.append(time.perf_counter() - before)
    base = statistics.median(times["dormant"])
    print(f"dormant               {base * 1e3:8.3f} ms per decode step")
    for backend, label in (("none", "ranges and steps"), ("torch", "torch backend")):
        middle = statistics.median(times[backend])
        print(f"{label:20}  {middle * 1e3:8.3f} ms, {middle / base:.3f} x dormant")
    again = times["dormant"]
    half = len(again) // 2
    spread = statistics.median(again[:half]) / statistics.median(again[half:])
    print(f"dormant, first half over second half: {spread:.3f} (the noise of this machine)")
    print(f"ending a recording of {TOKENS} steps: {statistics.median(pauses):.2f} s")


class Recording:
    """One recording of this process's engine, into a folder that is thrown away."""

    def __init__(self, backend: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="overhead-"))
        pieces_folder(self.folder).mkdir()
        processes = recordable_among(psutil.Process())
        if not processes:
            raise SystemExit("no process of this engine can be recorded")
        settings = Settings(str(self.folder), steps=0, backend=backend, steps_per_piece=1000)
        request_recording(processes, settings)
        self.watcher = Watcher(pieces_folder(self.folder), 0, lambda _: None)
        if not self.watcher.wait(lambda: bool(self.watcher.ranks()), 10):
            raise SystemExit("the engine did not begin to record")

    def stop(self) -> None:
        """Ends the recording and throws its folder away."""
        (pieces_folder(self.folder) / STOP_FILE).touch()
        self.watcher.wait(self.watcher.done, 30)
        self.watcher.wait_for_engine()
        shutil.rmtree(self.folder)


def stretch(llm: Any, batch: int, tokens: int = TOKENS) -> float:
    """Seconds per decode step of one batch, by the engine's clock."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0)
    prompts = [{"prompt_token_ids": list(range(3, 3 + PROMPT))} for _ in range(batch)]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    metrics = [output.metrics for output in outputs]
    first = max(m.first_token_ts for m in metrics)
    last = max(m.last_token_ts for m in metrics)
    return (last - first) / (tokens - 1)


if __name__ == "__main__":
    main()
