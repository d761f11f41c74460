"""Serves 64 requests of mixed lengths with a small KV cache; prints what became of each of them.

The truth is the scheduler's own log, beneath spark-prof's wraps, and what vLLM's front end says of
each request. Without --in-process the scheduler has a process of its own, and no log.

usage: python -m tests.engine.requested_engine MODEL_FOLDER [--in-process]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from typing import Any

REQUESTS, AT_ONCE, BLOCK, BLOCKS, ABORTED = 64, 16, 32, 40, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--in-process", action="store_true")
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if options.in_process else "1"
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler

    batches: list[dict[str, Any]] = []
    order: list[str] = []
    if options.in_process:
        log_of(Scheduler, batches, order)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=options.model, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
            block_size=BLOCK, num_gpu_blocks_override=BLOCKS, max_model_len=256, dtype="float32",
            max_num_seqs=AT_ONCE, max_num_batched_tokens=128, enable_prefix_caching=True,
        )
    )  # fmt: skip
    chance = random.Random(11)
    beginning = [chance.randrange(5, 200) for _ in range(64)]
    waiting = list(range(REQUESTS))
    aborted = set(chance.sample(waiting, ABORTED))
    found: dict[str, dict[str, Any]] = {}
    open_ones: set[str] = set()
    while waiting or open_ones:
        while waiting and len(open_ones) < 2 * AT_ONCE:
            number = waiting.pop(0)
            prompt = beginning if number % 3 == 0 else []
            prompt = [*prompt, *(chance.randrange(5, 200) for _ in range(chance.randrange(8, 90)))]
            sampling = SamplingParams(
                max_tokens=chance.randrange(2, 70), ignore_eos=True, temperature=0,
                detokenize=False,
            )  # fmt: skip
            name = f"r{number}"
            found[name] = {"prompt": len(prompt), "aborted": number in aborted}
            open_ones.add(name)
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        for output in engine.step():
            own = found[output.request_id]
            own["output"] = len(output.outputs[0].token_ids)
            own["cached"] = output.num_cached_tokens
            if output.finished:
                stats = output.metrics
                own["ttft_s"] = stats.first_token_latency
                own["tokens_s"] = stats.last_token_ts - stats.first_token_ts
                own["queued_s"] = stats.scheduled_ts - stats.queued_ts
                own["preemptions"] = getattr(stats, "num_preemptions", None)  # 0.27 has none
                open_ones.discard(output.request_id)
        for name in [n for n in open_ones if found[n]["aborted"] and found[n].get("output", 0) > 1]:
            engine.abort_request([name])
            open_ones.discard(name)
    told = {"requests": list(found.values()), "batches": batches, "order": order}
    print("REQUESTED " + json.dumps(told), flush=True)


def log_of(scheduler: Any, batches: list[dict[str, Any]], order: list[str]) -> None:
    """Wraps the class: a row a batch with work, its times in ns since the epoch."""
    add, schedule, update = (
        scheduler.add_request, scheduler.schedule, scheduler.update_from_output,
    )  # fmt: skip

    def added(self: Any, request: Any) -> Any:
        order.append(request.request_id)
        return add(self, request)

    def chosen(self: Any, *args: Any, **more: Any) -> Any:
        begun = time.time_ns()
        known = {name: own.num_preemptions for name, own in self.requests.items()}
        reads = {
            name: own.num_tokens - own.num_computed_tokens for name, own in self.requests.items()
        }
        output = schedule(self, *args, **more)
        lost = [name for name, own in self.requests.items() if own.num_preemptions > known[name]]
        batches.append({
            "chosen": begun, "tokens": dict(output.num_scheduled_tokens), "lost": lost,
            "waiting": len(self.waiting), "running": len(self.running),
            "free": self.kv_cache_manager.block_pool.get_num_free_blocks(), "reads": reads,
        })  # fmt: skip
        return output

    def updated(self: Any, output: Any, *args: Any, **more: Any) -> Any:
        before = {name: own.num_output_tokens for name, own in self.requests.items()}
        own = dict(self.requests)
        answer = update(self, output, *args, **more)
        given = {name: own[name].num_output_tokens - before[name] for name in before}
        batches[-1] |= {
            "taken": time.time_ns(),
            "given": {name: count for name, count in given.items() if count},
        }
        return answer

    scheduler.add_request, scheduler.schedule = added, chosen
    scheduler.update_from_output = updated


if __name__ == "__main__":
    main()
