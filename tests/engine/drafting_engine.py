"""Generates with drafts; prints how many the engine's own metrics say were accepted, by position.

With `--keep 2,0` the drafts of one step after the other are spoilt from the third, from the first
on: a draft model that is the model itself is right else. vLLM's `rejection_sample_method:
synthetic` would do the same, but not on a CPU.

usage: python -m tests.engine.drafting_engine MODEL_FOLDER SPECULATIVE_CONFIG_AS_JSON
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from typing import Any

COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def _spoil(kept: list[int]) -> None:
    """Lets one step after the other keep so many of its drafts; the next token is another one."""
    from vllm.v1.spec_decode.draft_model import DraftModelProposer

    propose, steps = DraftModelProposer.propose, itertools.cycle(kept)

    def spoilt(self: Any, *arguments: Any, **named: Any) -> Any:
        drafts = propose(self, *arguments, **named)
        drafts[:, next(steps) :] = (drafts[:, :1] + 1) % 100
        return drafts

    DraftModelProposer.propose = spoilt  # type: ignore[method-assign]


def main() -> None:
    """Generates, and prints the counters."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("drafts", type=json.loads)
    parser.add_argument("--async", action="store_true", dest="ahead")
    parser.add_argument("--keep", type=lambda text: [*map(int, text.split(","))], default=[])
    options = parser.parse_args()
    if options.keep:
        _spoil(options.keep)
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
