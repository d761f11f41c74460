"""Runs a few batches through vLLM's offline engine and prints, as JSON, what came back.

The printed times are the engine's own: from each batch's first scheduling to its last token.

usage: python -m demo.workload MODEL_FOLDER [--batch 2] [--prompt 32] [--tokens 32] [--rounds 2]

`--batch 1,8` runs its rounds with one batch size after the other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any


def main() -> None:
    """Runs the workload that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=_sizes, default=(2,), help="one size, or several: 1,8")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="not eager: vLLM's default")
    parser.add_argument("--graphs", help="vLLM's cudagraph_mode, with --compile or without")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--memory", type=float, default=0.4, help="share of the memory to use")
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="further arguments of vllm.LLM, as JSON"
    )
    parser.add_argument("--show-tokens", action="store_true", help="print the generated tokens")
    options = parser.parse_args()

    from vllm import LLM, SamplingParams

    engine: dict[str, Any] = {}
    if options.compile or options.graphs:
        compilation: dict[str, Any] = {"cudagraph_capture_sizes": sorted({1, 2, 4, *options.batch})}
        if options.graphs:
            compilation["cudagraph_mode"] = options.graphs
        if not options.compile:
            compilation["mode"] = 0
        engine["compilation_config"] = compilation
    engine |= {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": max(1024, options.prompt + options.tokens),
        "max_num_seqs": max(4, *options.batch),
        "gpu_memory_utilization": options.memory,
        "enforce_eager": not (options.compile or options.graphs),
        "tensor_parallel_size": options.tensor_parallel,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    llm = LLM(model=options.model, **(engine | options.engine))
    sampling = SamplingParams(
        max_tokens=options.tokens, ignore_eos=True, detokenize=False, temperature=0.0
    )
    rounds = []
    for number, size in itertools.product(range(options.rounds), options.batch):
        prompts = [
            {"prompt_token_ids": [3 + (7 * i + j + number) % 500 for j in range(options.prompt)]}
            for i in range(size)
        ]
        begin = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        wall = time.perf_counter() - begin
        metrics = [output.metrics for output in outputs if output.metrics is not None]
        first = min((m.scheduled_ts for m in metrics), default=0.0)
        last = max((m.last_token_ts for m in metrics), default=0.0)
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        rounds.append(
            {
                "wall_s": wall,
                "engine_s": last - first,
                "tokens": sum(map(len, tokens)),
                "output": tokens if options.show_tokens else None,
            }
        )
    print("WORKLOAD " + json.dumps({"rounds": rounds}), flush=True)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


if __name__ == "__main__":
    main()
