"""A driver process without vLLM: it speaks the messages, and its times are drawn from a model.

usage: python fake_driver.py SOCKET

The variable FAKE_ENGINE is JSON: gain (of side b), noise, wrong (side b's logits differ by so many
nats), hidden (bits of b's swaps), die, hang and fail (at the request of that name), capture,
full (allocations that failed in an engine of side b, as torch logs them),
slow (seconds that an engine of side b takes to start),
slower (the host, by so much at each generation than at the one before); and
by words of a side, which may be options: gains, wrong_in, dies_with, hangs_with, falls_back.
Of an engine with a drafter drafts: what a step takes in us without one and with it, what a draft
adds, and the share of steps that accept each position: [1000, 1100, 100, [0.8, 0.5]].
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.ab.messages import (
    Answer,
    Compare,
    DescribeSwaps,
    Draft,
    Drafted,
    DraftStep,
    Facts,
    Failed,
    Generate,
    RankAnswers,
    Request,
    RequestDrafts,
    Shutdown,
    Start,
    Switch,
    Times,
    receive,
    send,
)

MODEL: dict[str, Any] = json.loads(os.environ.get("FAKE_ENGINE", "{}"))
SWAPS: dict[str, Any] = {}
RANDOM = random.Random(MODEL.get("seed", 1))
GENERATED = itertools.count(1)
NAMED: list[str] = []
SIDES: list[str] = []


def read_sides() -> None:
    SWAPS.update(json.loads(os.environ.get("SPARK_PROF_SWAPS", "{}")))
    NAMED[:] = [side for side, swaps in SWAPS.items() if isinstance(swaps, str)]
    SIDES[:] = NAMED + (["a2"] if SWAPS.get("twin") else [])


def main() -> None:
    connection = Client(sys.argv[1], "AF_UNIX")
    while True:
        try:
            line = receive(connection, None)
        except EOFError:
            return
        request = msgspec.json.decode(line or b"", type=Request)
        name = type(request).__name__
        if isinstance(request, Start):
            os.environ |= request.environment
            read_sides()
            if os.environ.get("FAKE_SIDE") == "b":
                time.sleep(MODEL.get("slow", 0))
        print(f"{name} came at {time.monotonic()}\nasked {name}", flush=True)
        if name == "Start" and os.environ.get("FAKE_SIDE") == "b":
            for _ in range(MODEL.get("full", 0)):
                print("[rank0]:[W1130] memory allocation failed with OOM on device 0", flush=True)
        only = MODEL.get("die_in", (SIDES or ["a"])[0])
        if MODEL.get("die") == name and only in ((SIDES or ["a"])[0], os.environ.get("FAKE_SIDE")):
            print("ValueError: torch.OutOfMemoryError: CUDA out of memory", flush=True)
            os._exit(9)
        if MODEL.get("hang") == name:
            time.sleep(3600)
        failed = MODEL.get("fail") == name
        response = Failed("RuntimeError: made to fail") if failed else answer(request)
        if isinstance(request, Start):
            print(f"started at {time.monotonic()}", flush=True)
        send(connection, response)
        if isinstance(request, Shutdown):
            return


def answer(request: Request) -> Answer:
    if isinstance(request, Start):
        ARGUMENTS[:] = request.arguments
        if ends_with("dies_with"):
            os._exit(9)
        if ends_with("hangs_with"):
            time.sleep(3600)
        drafts = DRAFTS["drafts"] = drafts_of(request)
        return msgspec.structs.replace(
            facts(list(request.arguments)),
            drafting="chosen" if drafts else "", drafts=drafts, acceptance_fixed=bool(drafts),
        )  # fmt: skip
    if isinstance(request, Draft):
        return drafted(request)
    if isinstance(request, DescribeSwaps):
        return RankAnswers([swaps()])
    if isinstance(request, Generate):
        return Times(times(request), 0.001 * sum(steps for _, steps in request.plan))
    if isinstance(request, Compare):
        return compared(request)
    if isinstance(request, Switch) and request.side not in SIDES:
        return Failed(f"CommandError: there is no side {request.side}")
    return RankAnswers()


def words_of(side: str) -> list[str]:
    """Swaps of a side, and what the whole engine has."""
    swaps = SWAPS.get(side, "")
    own = [name for name in MODEL.get("variables", ()) if os.environ.get(name)]
    return [*filter(None, swaps.split(",")), *ARGUMENTS, *own]


def ends_with(key: str) -> bool:
    return any(word in MODEL.get(key, ()) for side in NAMED for word in words_of(side))


def facts(arguments: list[str]) -> Facts:
    longest = 4096
    if "--max-model-len" in arguments:
        longest = int(arguments[arguments.index("--max-model-len") + 1])
    return Facts(
        versions={"vllm": "0.32.0", "torch": "2.13.0"}, gpu="", uuids=(), gpus=1,
        processor="none", model="fake", longest=longest, most_requests=16,
        most_tokens=2048, vocabulary=1000, cache_tokens=100_000, load_seconds=1.5,
        execution="eager", dummy=bool(MODEL.get("dummy")),
        layers=3, routed=False,
    )  # fmt: skip


def swaps() -> dict[str, Any]:
    rows = []
    for side in NAMED:
        for word in filter(None, SWAPS.get(side, "").split(",")):
            slot, _, kernel = word.partition("=")
            why = MODEL.get("fell_back", "") or MODEL.get("falls_back", {}).get(word, "")
            rows += [
                {
                    "slot": slot, "name": f"model.layers.{layer}.{slot}", "kernel": kernel,
                    "side": side, "state": "fell back" if why else "live", "why": why,
                    "bits": "" if why else MODEL.get("bits", "kept"), "bytes": 1 << 20,
                    "rounded": MODEL.get("rounded", ""), "line": "", "calls": {"a": 0, "b": 3},
                    "layer_error": {
                        "relative_l2": MODEL.get("layer_error", 0.001), "row": 0, "tokens": "",
                        "beyond": False,
                    },
                }
                for layer in range(3)
            ]  # fmt: skip
    return {
        "rank": 0, "swaps": rows, "sides": SIDES, "captured": dict.fromkeys(SIDES, 5),
        "seconds": {"build": 2.0, "trial": 0.1, "capture": dict.fromkeys(SIDES, 0.5)},
        "memory_bytes": {"second_copy": 3 << 20},
    }  # fmt: skip


def times(request: Generate) -> list[Any]:
    requests = 1 if request.batch.alone else request.batch.requests
    base = 1_000_000 + 50_000 * requests + (2_000_000 if request.prefill else 0)
    is_b = "b" in SIDES or os.environ.get("FAKE_SIDE") == "b" or "--moe-backend" in ARGUMENTS
    base = int(base * MODEL.get("slower", 1.0) ** next(GENERATED))
    rows: list[Any] = []
    place = 0
    now = time.time_ns()
    for block, (side, steps) in enumerate(request.plan):
        faster = side == "b" or (len(SIDES) == 1 and is_b)
        for index in range(steps):
            gain = MODEL.get("gain", 1.0) if faster else 1.0
            gain *= math.prod(MODEL.get("gains", {}).get(word, 1.0) for word in words_of(side))
            mean = base / gain + 20 * place
            ahead = MODEL.get("ahead")
            if request.held_us and "device_us" in MODEL:
                mean, ahead = MODEL["device_us"][faster] * 1e3, True
            duration = int(mean * RANDOM.gauss(1, MODEL.get("noise", 0.001)))
            now += duration
            context = requests * (request.batch.prompt_tokens + place)
            prefill = request.batch.prompt_tokens if request.prefill else 0
            rows.append(
                [
                    *(block, side, index, duration, now, prefill, requests),
                    *(0 if prefill else context, ahead),
                ]
            )
            place += 1
    return rows


def compared(request: Compare) -> Answer:
    path = Path(request.path)
    if request.keep:
        path.write_text("logits")
        return RankAnswers()
    if not path.exists():
        return Failed(f"CommandError: {path} is not there")
    wrong = MODEL.get("wrong", 0.0) if request.side == "b" else 0.0
    if len(SIDES) == 1 and os.environ.get("FAKE_SIDE") == "b":
        wrong = MODEL.get("wrong", 0.0)
    if any(word in MODEL.get("wrong_in", ()) for word in words_of(request.side)):
        wrong = 5.0
    if DRAFTS.get("drafts") and not request.side:
        wrong = MODEL.get("wrong_drafts", 0.0)
    rows = [
        {
            "step": step, "row": row, "token_a": 5, "token_b": 6 if wrong else 5,
            "margin_a": 2.0, "kl_nats": wrong or 1e-6,
            "worst": wrong or 0.01, "scale": 2.0,
            "loss_a": 1.5 * bool(request.text), "loss_b": (1.5 + wrong) * bool(request.text),
        }
        for step in range(request.batch.tokens)
        for row in range(request.batch.requests)
    ]  # fmt: skip
    return RankAnswers(rows)


def drafts_of(request: Start) -> int:
    """The most drafts of a step; how many at which batch size is kept."""
    words = [word for word in request.arguments if word.startswith("{")]
    config = json.loads(words[-1]) if words else {}
    SERVED[:] = config.get("num_speculative_tokens_per_batch_size", ()) if request.as_served else ()
    if not request.drafts:
        return 0
    return int(config["num_speculative_tokens"]) if request.as_served else max(request.drafts)


def drafted(request: Draft) -> Drafted:
    """A step without drafts takes less where there is no drafter; all are as if accepted."""
    plain_us, loaded_us, draft_us, accepted = MODEL["drafts"]
    requests, most = request.batch.requests, DRAFTS["drafts"]
    rows = [most, *(count for begin, _, count in SERVED if begin <= requests)]
    served = rows[-1] if request.drafts is None else request.drafts
    counts = [count for count, steps in request.plan for _ in range(steps)]
    tokens = 1 + sum(accepted[:served])
    counts = counts or [served] * round(request.batch.tokens / tokens)
    now = 0
    steps = [DraftStep(now, -1, 0, 0, 0, requests, 0)]
    for count in counts:
        us = (loaded_us + draft_us * count) if most else plain_us
        now += int(1e3 * us * RANDOM.gauss(1, MODEL.get("noise", 0.001)))
        got = round(requests * (1 + sum(accepted[:count])))
        steps.append(DraftStep(now, requests, count, count, count * requests, got, 0))
    of_each = [round(1000 * share) for share in [*accepted, *[0] * most][:most]]
    rows_of = [RequestDrafts(1000, (1000,) * most, tuple(of_each))] * max(2, requests)
    return Drafted(steps, rows_of, [[5] * request.batch.tokens] * requests, now / 1e9)


ARGUMENTS: list[str] = []
SERVED: list[list[int]] = []
DRAFTS: dict[str, int] = {}

if __name__ == "__main__":
    main()
