"""Answers with an engine whose kernels are swapped, some for faulty ones; prints what came of it.

usage: python -m tests.engine.swapped_engine MODEL_FOLDER eager|compiled RANKS SIDE...
"""

from __future__ import annotations

import json
import sys

PROMPTS = [[5 + i, *range(3, 12)] for i in range(3)]
TOKENS = 48


def main() -> None:
    from vllm import LLM, SamplingParams

    model, mode, ranks, *sides = sys.argv[1:]
    llm = LLM(
        model=model, load_format="dummy", skip_tokenizer_init=True, max_model_len=256,
        max_num_seqs=4, gpu_memory_utilization=0.3, enforce_eager=mode == "eager", seed=1,
        enable_prefix_caching=False, tensor_parallel_size=int(ranks),
        max_num_batched_tokens=256,  # kernels are tried on so many, of the CPU's usual 4096
        worker_extension_cls="spark_prof.swaps.extension.Extension",
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False, temperature=0.0)
    answers = {}
    for side in sides:
        llm.collective_rpc("spark_prof_side", args=(side,))
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        answers[side] = [list(output.outputs[0].token_ids) for output in outputs]
    result = {"answers": answers, "swaps": llm.collective_rpc("spark_prof_swaps")}
    try:
        llm.collective_rpc("reload_weights")
        result["reloaded"] = ""
    except Exception as error:
        result["reloaded"] = str(error)
    print("SWAPPED " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
