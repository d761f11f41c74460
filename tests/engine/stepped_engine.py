"""Plans, measures and taps the steps of one live engine; prints what came of it.

usage: python -m tests.engine.stepped_engine MODEL_FOLDER FOLDER eager|compiled
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLAN = [["a", 4], ["b", 4], ["b", 4], ["a", 4]]
TOKENS = 24
BATCHES = (1, 3)


def main() -> None:
    from vllm import LLM, SamplingParams

    model, folder, mode = sys.argv[1:]
    llm = LLM(
        model=model, load_format="dummy", skip_tokenizer_init=True, max_model_len=256,
        max_num_seqs=4, gpu_memory_utilization=0.3, enforce_eager=mode == "eager", seed=1,
        enable_prefix_caching=False, max_num_batched_tokens=16,
        worker_extension_cls="tests.engine.stepped_extension.TestedExtension",
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False, temperature=0.0)

    def call(name: str, *arguments: Any) -> Any:
        return llm.collective_rpc(f"spark_prof_{name}", args=arguments)[0]

    def answer(requests: int) -> list[list[int]]:
        """Prompts longer than a batch, so that a prompt comes in parts."""
        prompts = [{"prompt_token_ids": [5 + i, *range(3, 22)]} for i in range(requests)]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    call("test_sides", ["a", "b"])
    result: dict[str, Any] = {"warm": answer(3)}
    result["clock"] = {str(requests): planned(call, answer, requests) for requests in BATCHES}
    result["prefill"] = prefilled(call, answer)
    call("side", "a")
    file = str(Path(folder) / "logits.npy")
    result["recorded"] = tapped(call, answer, "record", file)
    result["same"] = tapped(call, answer, "compare", file)
    result["moved"] = [call("disturb")]
    result["disturbed"] = tapped(call, answer, "compare", file)
    result["moved"] += [call("disturb")]
    result["calm"] = tapped(call, answer, "compare", file)
    call("test_negate")
    result["negated"] = tapped(call, answer, "compare", file)
    result["untapped"] = answer(3)
    call("test_negate")
    result["afterwards"] = answer(3)
    result["refused"] = {
        "side": call("side", "c"),
        "plan": call("plan", [["c", 3]], 1, False),
        "tap": call("tap", "listen", file, 1),
        "file": call("tap", "compare", str(Path(folder) / "absent.npy"), 1),
        "nothing": call("tap", "off", "", 0),
    }
    call("tap", "compare", file, 1)
    llm.generate([{"prompt_token_ids": [7, 8, 9]}], sampling, use_tqdm=False)
    result["refused"]["other prompt"] = call("compared")
    call("tap", "off", "", 0)
    print("STEPPED " + json.dumps(result), flush=True)


def planned(
    call: Callable[..., Any], answer: Callable[[int], list[list[int]]], requests: int
) -> dict[str, Any]:
    """Runs the plan; what the clock measured, and when the host began and ended."""
    call("test_log")
    call("plan", PLAN, requests, False)
    begin = time.time_ns()
    answer(requests)
    end = time.time_ns()
    return {"times": call("times"), "log": call("test_log"), "begin": begin, "end": end,
            "again": call("times")}  # fmt: skip


def prefilled(call: Callable[..., Any], answer: Callable[[int], list[list[int]]]) -> Any:
    """A plan of prefills: the prompt of one request comes in two steps."""
    call("plan", [["b", 1], ["a", 1], ["b", 5]], 0, True)
    answer(1)
    return call("times")


def tapped(
    call: Callable[..., Any], answer: Callable[[int], list[list[int]]], mode: str, file: str
) -> dict[str, Any]:
    """Answers with the tap on; the tokens and what was compared."""
    call("tap", mode, file, 3)
    tokens = answer(3)
    compared = call("compared")
    call("tap", "off", "", 0)
    return {"tokens": tokens, "compared": compared}


if __name__ == "__main__":
    main()
