"""Lets each hook of spark-prof fail in turn inside one live engine; prints what it answered.

usage: python -m tests.engine.fenced_engine MODEL_FOLDER FOLDER HOOK...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from spark_prof.profiler.attach import recordable_among, registered, request_recording
from spark_prof.profiler.control import STOP_FILE
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.watch import Watcher
from spark_prof.traces.chunks import pieces_folder


def main() -> None:
    from vllm import LLM, SamplingParams

    model, folder, *hooks = sys.argv[1:]
    llm = LLM(
        model=model, load_format="dummy", skip_tokenizer_init=True, max_model_len=256,
        max_num_seqs=4, gpu_memory_utilization=0.3, enforce_eager=True, seed=1,
        enable_prefix_caching=False,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False, temperature=0.0)
    prompts = [{"prompt_token_ids": [5 + i, *range(3, 20)]} for i in range(2)]

    def answer() -> list[list[int]]:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    result: dict[str, Any] = {"unrecorded": answer()}
    result["hooks"] = {
        hook or "none": recorded_with_fault(Path(folder) / (hook or "none"), hook, answer)
        for hook in ("", *hooks)
    }
    result["afterwards"] = answer()
    print("FENCED " + json.dumps(result), flush=True)


def recorded_with_fault(
    bundle: Path, hook: str, answer: Callable[[], list[list[int]]]
) -> dict[str, Any]:
    """Answers twice while a recording runs in which the hook fails; an empty hook fails nothing."""
    pieces = pieces_folder(bundle)
    pieces.mkdir(parents=True)
    settings = Settings(str(bundle), steps=0, faults=(hook,) if hook else ())
    request_recording(registered(recordable_among(psutil.Process())), settings)
    watcher = Watcher(pieces, 0, lambda _: None)
    watcher.wait(lambda: any(pieces.glob("engine*.facts.json")) or hook == "facts", 20)
    watcher.wait(lambda: bool(watcher.ranks()) or hook == "progress", 20)
    answers = [answer(), answer()]
    (pieces / STOP_FILE).touch()
    watcher.wait(watcher.all_finished, 5 if hook else 20)
    logs = "".join(path.read_text() for path in sorted(pieces.glob("*.log.jsonl")))
    lines = [json.loads(line)["message"] for line in logs.splitlines()]
    return {"answers": answers, "log": lines, "steps": watcher.recorded()}


if __name__ == "__main__":
    main()
