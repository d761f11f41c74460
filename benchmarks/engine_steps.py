"""A decode step of a live vLLM engine, side by side: wall clock, time on the device, kernels.

Each side is an engine of its own, one after another, with the same random weights in a model's real
shapes. The device's time is the union of its kernels and of gaps under 8 us between them, by
PyTorch's profiler over some steps; waits for the host are left out. The wall clock is taken without
the profiler. The first side is what the others are compared with.

usage: python benchmarks/engine_steps.py RESULT.json [--model NAME] [--sides stock SIDE ...]
           [--batch-sizes 1,8] [--engine JSON]
       python benchmarks/engine_steps.py RESULT.json --show

    python benchmarks/engine_steps.py steps.json --sides stock \
        "layer=spark_prof!,o=spark_prof!,lm_head=spark_prof!" "layer=mxfp4,o=mxfp4,lm_head=mxfp4"
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from spark_prof.swaps.swap_settings import SWAPS_ENVIRONMENT, SwapSettings, parse_swaps  # noqa: E402

PROMPT, STEPS, PROFILED = 127, 200, 24
LONGEST_GAP_US = 8.0
GRAPHS = [1, 2, 4, 8, 16]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--model", default="gpt-oss-20b", help="of demo.models")
    parser.add_argument("--sides", nargs="+", default=["stock", "moe=spark_prof"])
    parser.add_argument("--batch-sizes", default="1,8")
    parser.add_argument("--engine", default="{}", help="further arguments of vllm.LLM, as JSON")
    parser.add_argument("--show", action="store_true", help="run nothing, print what is there")
    parser.add_argument(
        "--side", help=argparse.SUPPRESS
    )  # the engine of one, in a process of its own
    options = parser.parse_args()
    batches = [int(size) for size in options.batch_sizes.split(",")]
    if options.side is not None:
        options.result.write_text(json.dumps(measured(options, batches)))
        return 0
    if not options.show:
        options.result.write_text(
            json.dumps([started(s, options) for s in options.sides], indent=1)
        )
    show(json.loads(options.result.read_text()))
    return 0


def started(side: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the engine of one side measures."""
    settings = SwapSettings({"a": parse_swaps("" if side == "stock" else side)})
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", SWAPS_ENVIRONMENT: settings.to_json(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "side.json"
        command = [
            *(sys.executable, __file__, str(path), "--model", options.model, "--side", side),
            *("--batch-sizes", options.batch_sizes, "--engine", options.engine),
        ]
        subprocess.run(command, env=os.environ | environment, check=True, stdout=sys.stderr)
        return {"side": side, "model": options.model, **json.loads(path.read_text())}


def measured(options: argparse.Namespace, batches: list[int]) -> dict[str, Any]:
    """Starts the engine that the environment asks for, and measures its steps."""
    model = options.model
    import spark_prof.plugin
    from demo.models import write_model

    spark_prof.plugin.install()
    import torch
    from vllm import LLM, SamplingParams

    folder = tempfile.TemporaryDirectory()  # until the engine is gone
    llm = LLM(
        model=str(write_model(model, Path(folder.name) / model)), load_format="dummy", seed=1,
        skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=16, disable_log_stats=True,
        enable_prefix_caching=False, compilation_config={"cudagraph_capture_sizes": GRAPHS},
        worker_extension_cls="spark_prof.swaps.extension.Extension", **json.loads(options.engine),
    )  # fmt: skip
    swaps = llm.collective_rpc("spark_prof_swaps")[0]["swaps"]

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

    found = {}
    for count in batches:
        generate(count, 32)
        wall = generate(count, STEPS + 20) - generate(count, 20)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            generate(count, PROFILED)
        found[str(count)] = {"wall_ms": wall / STEPS * 1e3, **on_device(profiler.events())}
    return {
        "gpu": torch.cuda.get_device_name(), "batches": found,
        "swaps": Counter(f"{row['slot']}: {row['state']} {row['why']}".strip() for row in swaps),
    }  # fmt: skip


def on_device(events: Any) -> dict[str, Any]:
    """Time and kernels of a step; steps are told apart by their longest kernel, the lm_head's."""
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    )
    spans = spans[len(spans) * 6 // 10 :]  # behind the prompts
    longest = max(spans, key=lambda span: span[1] - span[0])
    least = 0.6 * (longest[1] - longest[0])
    cuts = [
        at
        for at, (begin, end, name) in enumerate(spans)
        if name == longest[2] and end - begin > least
    ]
    steps = len(cuts) - 2
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
        first = next(each for each in sides if each["model"] == side["model"])
        for count, step in side["batches"].items():
            base = first["batches"].get(count) if side is not first else None
            wall, device = (
                f" ({base[key] / step[key]:.2f} x)" if base else ""
                for key in ("wall_ms", "device_ms")
            )
            print(
                f"{side['model']}, {side['side']}, batch {count}, {side['gpu']}:"
                f" {step['wall_ms']:.3f} ms a step{wall},"
                f" {step['device_ms']:.3f} ms on the device{device}, {step['kernels']:.0f} kernels"
            )


if __name__ == "__main__":
    sys.exit(main())
