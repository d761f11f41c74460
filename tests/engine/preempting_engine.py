"""Generates with a KV cache that is too small for its requests; prints what its scheduler did.

The truth is read from the scheduler's own requests, beneath spark-prof's wraps: a request reads,
its prompt or what it has to compute again, where more than its last known token is left to compute.

usage: python -m tests.engine.preempting_engine MODEL_FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    from vllm import LLM, SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler

    rows: list[list[int]] = []
    schedule = Scheduler.schedule

    def told(self: Any, *arguments: Any, **named: Any) -> Any:
        before = {name: request.num_preemptions for name, request in self.requests.items()}
        output = schedule(self, *arguments, **named)
        reads = decodes = 0
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            first = request.num_computed_tokens - tokens
            if first < request.num_tokens - 1 or not request.num_output_tokens:
                reads += tokens
            else:
                decodes += tokens
        preempted = sum(self.requests[name].num_preemptions - n for name, n in before.items())
        if reads or decodes:
            rows.append([reads, decodes, preempted])
        return output

    Scheduler.schedule = told  # type: ignore[method-assign]  # before spark-prof binds it
    llm = LLM(
        model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, max_model_len=256,
        max_num_seqs=6, gpu_memory_utilization=0.3, enforce_eager=True, seed=1,
        block_size=32, num_gpu_blocks_override=20, max_num_batched_tokens=48,
        enable_prefix_caching=False,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=90, ignore_eos=True, detokenize=False, temperature=0.0)
    prompts = [{"prompt_token_ids": [5 + i, *range(3, 40 + 9 * i)]} for i in range(6)]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    print("PREEMPTED " + json.dumps({"rows": rows, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
