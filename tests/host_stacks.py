"""A recording whose stacks are known: what each moment of a step is spent on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import (
    ACCOUNT_FILE,
    HOST,
    STACK_DTYPE,
    array_name,
    stacks_name,
    write_array,
    write_json,
)
from tests.support import ORIGIN, Piece, Recorded, call, engine, kernel, kineto, step

MS = 1_000_000
STEP_NS, KERNEL_NS = 10 * MS, 6 * MS
STEPS = 60
PID, ENGINE_PID, OTHER_PID = 4000, 4001, 4002
CORE = "vllm/v1/engine/core.py:EngineCore.step"
SCHEDULER = "vllm/v1/core/sched/scheduler.py:Scheduler"
SLOW = f"{CORE}\n{SCHEDULER}.schedule\npolicy.py:slow_policy"
UPDATE = f"{CORE}\n{SCHEDULER}.update_from_output"
FORWARD = (
    f"{CORE}\nvllm/v1/worker/gpu_model_runner.py:GPUModelRunner.execute_model\n"
    "vllm/model_executor/models/llama.py:LlamaModel.forward"
)
WAITS = "vllm/distributed/device_communicators/shm_broadcast.py:MessageQueue.dequeue"
BESIDE = "threading.py:Thread._bootstrap\nthreading.py:Condition.wait"
TEXTS = (SLOW, UPDATE, FORWARD, WAITS, BESIDE)
"""A step: 3 ms SLOW, 6 ms of kernels beside FORWARD, 1 ms UPDATE."""


def recorded() -> Recorded:
    """Steps of 10 ms with 6 ms of kernels each, 3 ms after they begin."""
    steps, calls, kernels, rows = [], [], [], []
    for number in range(STEPS):
        at = number * STEP_NS
        steps.append(step(number, at, at + 9 * MS))
        calls += call(5, at + 2 * MS + 10, at + 9 * MS)
        kernels += kernel("gemm", at + 3 * MS, at + 9 * MS, number + 1, at + 2 * MS + 20)
        rows.append(engine(number, at, at + STEP_NS))
    pieces = {0: [Piece(steps, calls, kineto(*kernels))]}
    facts = {"pid": PID, "environment": {"OMP_NUM_THREADS": "4"}}
    return Recorded(pieces, {0: rows}, facts=facts)


def plant(pieces: Path, looks: int = 600, error_ns: int = 100_000, split: bool = False) -> None:
    """Adds looks at every thread, evenly through the steps; split by worker and scheduler."""
    rows = []
    every = STEPS * STEP_NS // looks
    for number in range(looks):
        at = number * every + every // 3
        into = at % STEP_NS
        stack = 0 if into < 3 * MS else 2 if into < 9 * MS else 1
        if split:
            rows.append((ORIGIN + at, PID, 1, 2 if stack == 2 else 3))
            rows.append((ORIGIN + at, ENGINE_PID, 1, stack))
        else:
            rows.append((ORIGIN + at, PID, 1, stack))
        rows += [(ORIGIN + at, PID, 2, 4), (ORIGIN + at, OTHER_PID, 1, 4)]
    write_array(pieces, array_name(HOST, "stacks", 0), np.array(rows, STACK_DTYPE))
    texts = {"stacks": TEXTS, "error_ns": error_ns, "rounds": looks}
    write_json(pieces, stacks_name(0), texts, symbols=True)
    write_json(pieces, ACCOUNT_FILE, ACCOUNT)


def _thread(thread: int, name: str, python: bool, share: float) -> dict[str, Any]:
    return {"pid": PID, "thread": thread, "name": name, "python": python,
            "cpu_ns": round(share * 1e9), "wall_ns": 10**9}  # fmt: skip


ACCOUNT = {
    "threads": [
        _thread(PID, "VLLM::Worker", True, 1.0),
        _thread(PID + 7, "pt_main_thread", False, 0.98),
        _thread(PID + 8, "cuda-EvtHandlr", False, 0.01),
    ],
    "figures": [
        {"pid": PID, "name": name, "value": value}
        for name, value in (("cpus", 16.0), ("cpu_quota", 2.5), ("periods", 200.0),
                            ("throttled_periods", 50.0), ("throttled_ns", 3e8))
    ],
    "frontends": [],
}  # fmt: skip


def bundle(folder: Path, split: bool = False, **planted: Any) -> Bundle:
    """The bundle of it; split: the scheduler has a process of its own."""
    pieces = recorded().write(folder)
    if split:
        facts = {"process": "engine0", "rank": 0, "pid": ENGINE_PID, "modules": [], "layers": []}
        write_json(pieces, "engine0.facts.json", facts)
    plant(pieces, split=split, **planted)
    return assemble(folder, state="complete")
