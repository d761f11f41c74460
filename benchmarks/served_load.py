"""A token's time of a report against the scheduler's own log of the same load: within 1 %.

100 requests of mixed lengths, 50 at a time, go through a vLLM engine on the CPU while it is
recorded; 10 are aborted, and the KV cache is too small for all of them, so that requests are
preempted. The engine runs in a process of its own, where vLLM's scheduler is wrapped by code that
knows nothing of spark-prof: it logs when each batch was chosen and which request got how many
tokens, and when the model runner began with it. From that log follows what a token took: the time
of each step, counted for every request that generates and got tokens of it, over those tokens. What
the engine waits while a piece of the recording is written is in neither: by the log, how much later
than usual the runner begins with the first batch of a piece.

usage: python benchmarks/served_load.py [--requests 100] [--at-once 50] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import write_model  # noqa: E402
from spark_prof import load  # noqa: E402
from spark_prof.analyzers.summary import summarize  # noqa: E402

BAR = 0.01
BLOCK, BLOCKS = 32, 110
ENGINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONPATH": str(ROOT),
}


def main() -> int:
    """Runs the load under `spark-prof record` and compares; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        serve(options.engine, options.requests, options.at_once, Path(os.environ["SERVED_LOG"]))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model = write_model("tiny-dense", folder / "model")
        load_of = [f"--requests={options.requests}", f"--at-once={options.at_once}"]
        command = [sys.executable, __file__, f"--engine={model}", *load_of]
        record = [sys.executable, "-m", "spark_prof.cli.main", "record", "--steps", "0"]
        environment = dict(os.environ) | ENGINE | {"SERVED_LOG": str(folder / "log.json")}
        subprocess.run(
            [*record, "-o", str(folder / "bundle"), "--", *command], env=environment, check=True
        )
        return compare(folder / "bundle", json.loads((folder / "log.json").read_text()))


def compare(bundle: Path, log: list[dict[str, Any]]) -> int:
    """Prints both figures and their ratio."""
    recorded = load(bundle)
    report = summarize(recorded)
    steps = recorded.frame("steps", 0).sort_values("step")
    print(f"steps: {len(steps)} recorded, {len(log)} of the scheduler")
    piece = steps["piece"].to_numpy()
    apart = {n for n in range(1, len(piece)) if piece[n] != piece[n - 1]}
    left_out = {use.step for use in report.steps.first_use_steps}
    ready = [step["begun"] - step["chosen"] for step in log]
    usual = statistics.median(us for n, us in enumerate(ready) if n not in apart)
    time_us, waited_us, tokens = 0.0, 0.0, 0
    requests: dict[str, list[tuple[float, int]]] = {}
    preempted = sum(len(step["preempted"]) for step in log)
    for number, step in enumerate(log):
        last = number + 1 == len(log) or not step["unfinished"] or number + 1 in apart
        end = step["updated"] if last else log[number + 1]["chosen"]
        tokens_of = {
            name: count for name, count in step["given"].items() if name in step["decodes"]
        }
        waited = max(0.0, ready[number] - usual) if number in apart else 0.0
        waited_us += waited / 1e3
        if number not in left_out:
            time_us += (end - step["chosen"] - waited) / 1e3 * len(tokens_of)
            tokens += sum(tokens_of.values())
        for name, count in step["given"].items():
            requests.setdefault(name, []).append((step["updated"] / 1e3, count))
    truth = time_us / tokens
    token = report.steps.token
    assert token is not None
    rows = steps["decode_requests"].tolist()
    same = rows == [len(step["decodes"]) for step in log]
    print(f"requests that decode, step by step: {'equal' if same else 'NOT equal'}")
    print(f"preemptions: {report.steps.preemptions} told, {preempted} of the scheduler")
    print(f"first uses left out: {sorted(left_out)}")
    told_us = float(steps["paused_ns"].sum()) / 1e3
    print(f"pauses for {len(apart)} pieces: {told_us:,.0f} us told, {waited_us:,.0f} us by the log")
    spans = [
        (outputs[-1][0] - outputs[0][0], sum(n for _, n in outputs[1:]))
        for outputs in requests.values()
        if len(outputs) > 1
    ]  # fmt: skip
    per_request = sum(us for us, _ in spans) / sum(n for _, n in spans)
    print(f"from a request's first token to its last, pauses included: {per_request:,.1f} us")
    print(f"token time: {token.token_us:,.1f} us told, {truth:,.1f} us by the scheduler's log: "
          f"{token.token_us / truth:.4f} x")  # fmt: skip
    alone = f"{token.decode_only_us:,.1f} us" if token.decode_only_us else "unknown"
    print(f"of {token.steps} steps, {token.mixed} of them mixed; {alone} when nothing is read")
    return 0 if abs(token.token_us / truth - 1) <= BAR and same else 1


def serve(model: str, requests: int, at_once: int, log: Path) -> None:
    """The engine and its clients, with a log beneath whatever else wraps the scheduler."""
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    rows: list[dict[str, Any]] = []
    logs_of(Scheduler, GPUModelRunner, rows)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
            block_size=BLOCK, num_gpu_blocks_override=BLOCKS, max_model_len=256,
            max_num_seqs=at_once, max_num_batched_tokens=256, enable_prefix_caching=False,
            dtype="float32",
        )
    )  # fmt: skip
    rows.clear()
    chance = random.Random(7)
    waiting = [f"r{n}" for n in range(requests)]
    aborted = set(chance.sample(waiting, requests // 10))
    running: dict[str, int] = {}
    stop_after = {name: chance.randrange(5, 30) for name in aborted}
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            prompt = [chance.randrange(5, 200) for _ in range(chance.randrange(16, 90))]
            sampling = SamplingParams(
                max_tokens=chance.randrange(20, 70),
                ignore_eos=True,
                temperature=0,
                detokenize=False,
            )
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
            running[name] = 0
        for output in engine.step():
            name = output.request_id
            running[name] = len(output.outputs[0].token_ids)
            if output.finished:
                del running[name]
        for name in [n for n in running if n in aborted and running[n] >= stop_after[n]]:
            engine.abort_request([name])
            del running[name]
    log.write_text(json.dumps(rows))


def logs_of(scheduler: Any, runner: Any, rows: list[dict[str, Any]]) -> None:
    """Wraps the classes: a row a batch with work, its times in ns since the epoch."""
    schedule, update = scheduler.schedule, scheduler.update_from_output
    begin = runner._update_states  # the first that a runner does with a batch

    def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = time.time_ns()
        computed = {name: request.num_computed_tokens for name, request in self.requests.items()}
        output = schedule(self, *args, **kwargs)
        if output.total_num_scheduled_tokens:
            # One more token than is computed is known: that request generates.
            generates = [
                name for name, count in output.num_scheduled_tokens.items()
                if count == 1 and self.requests[name].num_output_tokens
                and computed[name] + 1 == self.requests[name].num_tokens
            ]  # fmt: skip
            lost = sorted(getattr(output, "preempted_req_ids", None) or ())
            rows.append({"chosen": begun, "decodes": generates, "preempted": lost})
        return output

    def updated(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        before = {name: request.num_output_tokens for name, request in self.requests.items()}
        requests = dict(self.requests)
        answer = update(self, output, *args, **kwargs)
        if output.total_num_scheduled_tokens:
            counts = {name: requests[name].num_output_tokens - before[name] for name in before}
            rows[-1] |= {
                "updated": time.time_ns(),
                "given": {name: count for name, count in counts.items() if count},
                "unfinished": self.get_num_unfinished_requests(),
            }
        return answer

    def begun(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        if output.total_num_scheduled_tokens and rows:
            rows[-1]["begun"] = time.time_ns()
        return begin(self, output, *args, **kwargs)

    scheduler.schedule, scheduler.update_from_output = chosen, updated
    runner._update_states = begun


if __name__ == "__main__":
    sys.exit(main())
