"""What vLLM's own torch profiler sees in an engine that spark-prof recorded, over one it never did.

Each engine goes through an order of events: p is a profile by `LLM.start_profile`, r a recording
that is attached and ends. "off" is the engine without spark-prof, whose profiles differ among
themselves by the steps' own variation.

usage: python benchmarks/other_profiler.py MODEL_FOLDER [--orders off:pp,graphs:p,graphs:rp,...]
           [--compile]

An order is SETTING:EVENTS; the setting is off, graphs (the plugin watches for an attach) or record
(recorded from the start, by `spark-prof record`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ORDERS = "off:pp,graphs:p,graphs:rp,graphs:prp,graphs:rprp,record:p"
TOKENS, BATCH, STEPS = 12, 2, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--orders", default=ORDERS)
    parser.add_argument("--compile", action="store_true", help="not eager: vLLM's default")
    parser.add_argument("--together", action="store_true", help="all engines at once")
    parser.add_argument("--engine", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        run_engine(options)
        return
    running: list[tuple[str, Any]] = []
    results: dict[str, list[dict[str, int]]] = {}
    for order in options.orders.split(","):
        running.append((order, start(options, order)))
        if not options.together:
            results |= dict(collected(running))
        else:
            time.sleep(10)
    results |= dict(collected(running))
    off = results.get("off:pp", [{}])[0]
    event_kind = "kernels" if off.get("kernels") else "operators"  # a CPU engine has no kernels
    base = off.get(event_kind, 0)
    for order, events in results.items():
        print(order, end="")
        for event in events:
            text = ", ".join(f"{value} {name}" for name, value in event.items())
            if base and event_kind in event:
                text += f" ({event[event_kind] / base:.4f} x)"
            print(f"  [{text}]", end="")
        print(flush=True)


def start(options: argparse.Namespace, order: str) -> Any:
    """Starts the engine of that order; its last line will be what each event saw."""
    setting = order.partition(":")[0]
    command = [sys.executable, str(Path(__file__).resolve()), options.model, "--engine", order]
    command += ["--compile"] if options.compile else []
    environment = {**os.environ, "SPARK_PROF": "graphs" if setting == "graphs" else "off"}
    if setting == "record":
        del environment["SPARK_PROF"]
        folder = tempfile.mkdtemp(prefix="recorded-")
        record = [sys.executable, "-m", "spark_prof.cli.main", "record", "--steps", str(STEPS)]
        command = [*record, "-o", f"{folder}/bundle", "--", *command]
    log = open(f"/tmp/other-profiler-{order.replace(':', '-')}.log", "w")  # noqa: SIM115
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)


def collected(running: list[tuple[str, Any]]) -> Iterator[tuple[str, list[dict[str, int]]]]:
    """What each engine printed, once it has ended."""
    while running:
        order, process = running.pop(0)
        text, _ = process.communicate()
        lines = [line for line in text.splitlines() if line.startswith("[{")]
        yield order, json.loads(lines[-1]) if lines else [{"failed": process.returncode}]


def run_engine(options: argparse.Namespace) -> None:
    """One engine that goes through its events."""
    from vllm import LLM, SamplingParams

    traces = Path(tempfile.mkdtemp(prefix="traces-"))
    engine: dict[str, Any] = (
        {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}} if options.compile else {}
    )
    llm = LLM(
        model=options.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=4,
        kv_cache_memory_bytes=1 << 29,
        gpu_memory_utilization=0.05,
        enforce_eager=not options.compile,
        enable_prefix_caching=False,
        profiler_config={"profiler": "torch", "torch_profiler_dir": str(traces)},
        **engine,
    )
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False, temperature=0)

    def generate() -> None:
        prompts: Any = [{"prompt_token_ids": list(range(3, 35))} for _ in range(BATCH)]
        llm.generate(prompts, sampling, use_tqdm=False)

    for _ in range(3):
        generate()
    events = []
    for event in options.engine.partition(":")[2]:
        if event == "r":
            events.append({"recorded_kernels": recorded(generate)})
            continue
        before = set(traces.rglob("*"))
        llm.start_profile()
        generate()
        llm.stop_profile()
        time.sleep(2)
        events.append(event_counts([path for path in traces.rglob("*") if path not in before]))
    print(json.dumps(events), flush=True)


def recorded(generate: Any) -> int:
    """Kernels in a recording that is attached, while the engine generates."""
    from spark_prof.profiler.attach import recordable_among, registered, request_recording
    from spark_prof.profiler.control import STOP_FILE
    from spark_prof.profiler.settings import Settings
    from spark_prof.profiler.watch import Watcher
    from spark_prof.traces.assemble import assemble
    from spark_prof.traces.chunks import REFUSED_FILE, pieces_folder

    folder = Path(tempfile.mkdtemp(prefix="attached-"))
    pieces_folder(folder).mkdir()
    processes = recordable_among(psutil.Process())
    if not processes:
        raise SystemExit("no process of this engine can be recorded")
    request_recording(registered(processes), Settings(str(folder), steps=STEPS))
    time.sleep(2)
    watcher = Watcher(pieces_folder(folder), 0, lambda _: None)
    generate()
    generate()
    (pieces_folder(folder) / STOP_FILE).touch()
    watcher.wait(watcher.all_finished, 30)
    watcher.wait_for_engine()
    refused = pieces_folder(folder) / REFUSED_FILE
    if refused.exists():
        print(refused.read_text(encoding="utf-8"), file=sys.stderr)
        return 0
    bundle = assemble(folder, state="complete")
    return sum(len(bundle.frame("kernels", rank, ["name"])) for rank in bundle.ranks)


def event_counts(files: list[Path]) -> dict[str, int]:
    """Kernels, operators and calls in these traces."""
    counts = {"kernels": 0, "calls": 0, "operators": 0}
    kinds = {"kernel": "kernels", "cuda_runtime": "calls", "cpu_op": "operators"}
    for path in files:
        if ".json" not in path.name:
            continue
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        for row in json.loads(text)["traceEvents"]:
            if row.get("cat") in kinds and row.get("ph") == "X":
                counts[kinds[row["cat"]]] += 1
    return counts


if __name__ == "__main__":
    main()
