"""A decode step of a live vLLM engine, side by side: wall clock, time on the device, kernels.

Each side is an engine of its own with the same random weights in a model's real shapes, measured
one after another. The engine runs as vLLM would by default, in a process of its own. The device's
time is the union of its kernels and of gaps under 8 us between them, by PyTorch's profiler over
some steps; waits for the host are left out. The wall clock is taken without the profiler. The first
side of a model is what its others are compared with.

usage: python benchmarks/engine_steps.py RESULT.json --sides [MODEL:]SIDE ... [--model NAME]
           [--batch-sizes 1,8] [--together] [--lock FILE] [--engine JSON]
       python benchmarks/engine_steps.py RESULT.json --show

    python benchmarks/engine_steps.py steps.json --sides stock \
        "layer=spark_prof!,o=spark_prof!,lm_head=spark_prof!" "layer=mxfp4,o=mxfp4,lm_head=mxfp4"
exit code: 1 if an engine failed
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import MODELS, write_model  # noqa: E402
from spark_prof.swaps.swap_settings import SWAPS_ENVIRONMENT, SwapSettings, parse_swaps  # noqa: E402

PROMPT, STEPS, PROFILED = 127, 200, 24
LONGEST_GAP_US = 8.0
GRAPHS = [1, 2, 4, 8, 16]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--model", default="gpt-oss-20b", help="of sides that name none")
    parser.add_argument("--sides", nargs="+", default=["stock", "moe=spark_prof"])
    parser.add_argument("--batch-sizes", default="1,8")
    parser.add_argument("--together", action="store_true", help="start all engines at once")
    parser.add_argument(
        "--lock", type=Path, help="measure while nobody else holds this file's lock"
    )
    parser.add_argument("--engine", default="{}", help="further arguments of vllm.LLM, as JSON")
    parser.add_argument("--show", action="store_true", help="run nothing, print what is there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        batches = [int(size) for size in options.batch_sizes.split(",")]
        options.result.write_text(json.dumps(measured(options.model, options.engine, batches)))
        return 0
    if not options.show:
        sides = []
        for side in all_measured(options):
            sides.append(side)
            options.result.write_text(json.dumps(sides, indent=1))
    sides = json.loads(options.result.read_text())
    show(sides)
    return int(any("failed" in side for side in sides))


def all_measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each side's engine measures; an engine that ends early has a line in its place."""
    jobs = []
    for text in options.sides:
        model, _, side = text.partition(":")
        jobs.append((model, side) if model in MODELS else (options.model, text))
    groups = [jobs] if options.together else [[job] for job in jobs]
    with tempfile.TemporaryDirectory() as folder:
        for number, group in enumerate(groups):
            engines = [
                (job, *started(*job, Path(folder) / f"{number}-{place}", options))
                for place, job in enumerate(group)
            ]
            # None is measured while another one loads.
            for _, engine, path in engines:
                while engine.poll() is None and not path.with_suffix(".ready").exists():
                    time.sleep(0.1)
            for (model, side), engine, path in engines:
                with open(options.lock or path.with_suffix(".lock"), "w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    engine.communicate(b"go\n")
                row = (
                    json.loads(path.read_text()) if path.exists() else {"failed": engine.returncode}
                )
                yield {"side": side, "model": model, **row}


def started(
    model: str, side: str, path: Path, options: argparse.Namespace
) -> tuple[subprocess.Popen[bytes], Path]:
    """The process of a side's engine, and the file of what it measures."""
    settings = SwapSettings({"a": parse_swaps("" if side == "stock" else side)})
    environment = {
        SWAPS_ENVIRONMENT: settings.to_json(),
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions of this file start the profiler
    }
    command = [
        *(sys.executable, __file__, str(path), "--child", "--model", model),
        *("--batch-sizes", options.batch_sizes, "--engine", options.engine),
    ]
    engine = subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.PIPE, stdout=sys.stderr
    )
    return engine, path


def measured(model: str, engine: str, batches: Sequence[int]) -> dict[str, Any]:
    """Starts the engine that the environment asks for, and measures its steps when it is told."""
    from vllm import LLM, SamplingParams

    path = Path(sys.argv[1])
    llm = LLM(
        model=str(write_model(model, path.with_suffix(".model") / model)), load_format="dummy",
        seed=1, skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=16,
        disable_log_stats=True, enable_prefix_caching=False,
        compilation_config={"cudagraph_capture_sizes": GRAPHS},
        worker_extension_cls="spark_prof.swaps.extension.Extension", **json.loads(engine),
    )  # fmt: skip
    swaps = llm.collective_rpc("spark_prof_swaps")[0]["swaps"]
    path.with_suffix(".ready").touch()
    sys.stdin.readline()

    def generate(count: int, tokens: int) -> float:
        sampling = SamplingParams(
            max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0.0
        )
        prompts = [
            {"prompt_token_ids": [(7 * j + i) % 5000 + 100 for j in range(PROMPT)]}
            for i in range(count)
        ]
        begin = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - begin

    step_times = {}
    for count in batches:
        generate(count, STEPS + 20)  # what is compiled for as long a context is compiled here
        wall = generate(count, STEPS + 20) - generate(count, 20)
        llm.collective_rpc(begin_profile)
        generate(count, PROFILED)
        step_times[str(count)] = {
            "wall_ms": wall / STEPS * 1e3,
            **llm.collective_rpc(end_profile)[0],
        }
    return {
        "gpu": gpu_name(), "batches": step_times,
        "swaps": Counter(f"{row['slot']}: {row['state']} {row['why']}".strip() for row in swaps),
        "lines": Counter(row["line"] for row in swaps if row["line"]),
    }  # fmt: skip


def gpu_name() -> str:
    command = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]


def begin_profile(worker: Any) -> None:
    import torch

    activities = [torch.profiler.ProfilerActivity.CUDA]
    worker.spark_prof_profiler = torch.profiler.profile(activities=activities)
    worker.spark_prof_profiler.start()


def end_profile(worker: Any) -> dict[str, Any]:
    """What `on_device` says of the steps since `begin_profile`."""
    worker.spark_prof_profiler.stop()
    return on_device(worker.spark_prof_profiler.events())


def on_device(events: Any) -> dict[str, Any]:
    """Time and kernels of a step; steps are told apart by the sampler's argmax."""
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    )
    spans = spans[len(spans) * 6 // 10 :]  # behind the prompts
    cuts = [at for at, (_, _, name) in enumerate(spans) if "ArgMax" in name]
    steps = len(cuts) - 2
    if not 0 < steps <= PROFILED:  # another sampler, or several such kernels in a step
        return {"device_ms": None, "kernels": None}
    spans = spans[cuts[1] : cuts[-1]]
    busy = gaps = 0.0
    last = spans[0][0]
    for begin, end, _ in spans:
        gaps += begin - last if 0 < begin - last < LONGEST_GAP_US else 0.0
        busy += max(0.0, end - max(begin, last))
        last = max(last, end)
    calls = Counter(name for _, _, name in spans)
    return {
        "device_ms": (busy + gaps) / steps / 1e3, "gaps_us": gaps / steps, "steps": steps,
        "kernels": len(spans) / steps,
        "calls": {name[:100]: count / steps for name, count in calls.most_common(12)},
    }  # fmt: skip


def show(sides: list[dict[str, Any]]) -> None:
    """Prints each side beside the first one of its model."""
    for side in sides:
        if "failed" in side:
            print(f"{side['model']}, {side['side']}: its engine ended with {side['failed']}")
            continue
        baseline = next(row for row in sides if row["model"] == side["model"])
        for count, step in side["batches"].items():
            base = baseline.get("batches", {}).get(count) if side is not baseline else None
            figures = [
                f"{step[key]:.3f} ms {where}"
                + (f" ({base[key] / step[key]:.2f} x)" if base and base[key] else "")
                for key, where in (("wall_ms", "a step"), ("device_ms", "on the device"))
                if step[key]
            ]
            if step["kernels"]:
                figures.append(f"{step['kernels']:.0f} kernels")
            name = f"{side['model']}, {side['side']}, batch {count}, {side['gpu']}"
            print(f"{name}: {', '.join(figures) or 'not measured'}")


if __name__ == "__main__":
    sys.exit(main())
