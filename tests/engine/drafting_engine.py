"""Generates with drafts; prints how many the engine's own metrics say were accepted, by position.

Runs in its own process as the engine core does, so that its counters are those of every step.

usage: python -m tests.engine.drafting_engine MODEL_FOLDER SPECULATIVE_CONFIG_AS_JSON [--async]
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def main() -> None:
    """Generates, and prints the counters."""
    from vllm import LLM, SamplingParams

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("drafts", type=json.loads)
    parser.add_argument("--async", action="store_true", dest="ahead")
    options = parser.parse_args()
    llm = LLM(
        model=options.model, load_format="dummy", skip_tokenizer_init=True, max_model_len=256,
        max_num_seqs=4, gpu_memory_utilization=0.3, enforce_eager=True, seed=1,
        enable_prefix_caching=False, disable_log_stats=False, async_scheduling=options.ahead,
        speculative_config=options.drafts,
    )  # fmt: skip
    # Of different lengths, so that requests end while others go on; some prompts repeat themselves.
    prompts = [{"prompt_token_ids": [3 + i, *([5, 6, 7, 8] * (3 + i))]} for i in range(6)]
    sampling = [
        SamplingParams(max_tokens=12 + 5 * i, ignore_eos=True, detokenize=False, temperature=0.0)
        for i in range(6)
    ]
    llm.generate(prompts, sampling, use_tqdm=False)
    found: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("vllm:spec_decode_")
        if name in COUNTERS:
            found[name] = getattr(metric, "values", None) or getattr(metric, "value", 0)
    print("DRAFTED " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
