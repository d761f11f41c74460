"""Small bundles made by hand, through the same pieces and the same assembly as real ones.

Times are ns after `ORIGIN`, so that a test can write small numbers.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import (
    DRAFT_DTYPE,
    ENGINE_DTYPE,
    EVENT_DTYPE,
    RECORDING_FILE,
    STEP_DTYPE,
    array_name,
    facts_name,
    kineto_name,
    pieces_folder,
    tensors_name,
    write_array,
    write_json,
)
from spark_prof.vocabulary import PHASES

ORIGIN = 1_800_000_000_000_000_001
"""An odd time in 2027: as a float it would lose its last two digits."""

THREAD = 4242
PREPARE, FINISH, SAMPLE, MODEL, LAYER, QKV, ATTENTION, EXPERTS = range(8)
MODULES = [
    {"path": "step.prepare", "type": "", "layer": -1, "component": "attention"},
    {"path": "step.finish", "type": "", "layer": -1, "component": "lm_head"},
    {"path": "step.sample", "type": "", "layer": -1, "component": "sampler"},
    {"path": "model", "type": "TinyForCausalLM", "layer": -1, "component": ""},
    {"path": "model.layers.0", "type": "TinyLayer", "layer": 0, "component": ""},
    {"path": "model.layers.0.qkv_proj", "type": "Linear", "layer": 0, "component": "qkv"},
    {"path": "model.layers.0.attn", "type": "Attention", "layer": 0, "component": "attention"},
    {"path": "model.layers.0.mlp.experts", "type": "MoE", "layer": 0, "component": "experts"},
]
"""The marked modules of a model with one layer, by the numbers above."""


def rows(dtype: np.dtype[Any], *items: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """An array with these fields; what an item leaves out is 0."""
    array = np.zeros(len(items), dtype)
    for index, item in enumerate(items):
        for name, value in item.items():
            array[index][name] = value
    return array


def step(number: int, start: int, end: int, phase: str = "decode", **counts: int) -> dict[str, int]:
    """A step; its key is its number plus 100, and it has one request unless `counts` says so."""
    kind = "prefill" if phase == "prefill" else "decode"
    usual = {"key": number + 100, f"{kind}_requests": 1, f"{kind}_tokens": 1, "watched": 1}
    times = {"start_ns": ORIGIN + start, "end_ns": ORIGIN + end}
    fixed = {"step": number, "phase": PHASES.index(phase), "thread": THREAD}
    return usual | counts | fixed | times


def engine(number: int, schedule: int, update: int, **counts: int) -> dict[str, int]:
    """The scheduler's row of that step: one token for one request, and work left to do."""
    usual = {"output_tokens": 1, "output_requests": 1, "scheduled_tokens": 1, "unfinished": 1}
    times = {"schedule_ns": ORIGIN + schedule, "update_ns": ORIGIN + update}
    return {"key": number + 100} | usual | counts | times


def drafted(number: int, proposed: int, accepted: int, **more: int) -> dict[str, int]:
    """The drafts of the first request in that step, which has 10 tokens unless `more` says so."""
    usual = {"request": 0, "context": 10, "proposed": proposed, "accepted": accepted}
    return {"key": number + 100} | usual | more


def call(module: int, start: int, end: int) -> list[tuple[int, int]]:
    """The two events of one call of a module."""
    return [(ORIGIN + start, module + 1), (ORIGIN + end, -(module + 1))]


def event(
    category: str, name: Any, start: int, end: int, tid: Any = THREAD, **arguments: Any
) -> dict[str, Any]:
    """One Kineto event."""
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "args": arguments,
            "ts": start / 1000, "dur": (end - start) / 1000}  # fmt: skip


def operator(name: str, start: int, end: int, tid: Any = THREAD) -> dict[str, Any]:
    """A CPU operator."""
    return event("cpu_op", name, start, end, tid)


def kernel(
    name: str, start: int, end: int, correlation: int, launched: int, *,
    api: str = "cudaLaunchKernel", tid: Any = THREAD, stream: int = 7, **arguments: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """A GPU kernel and the call that launched it."""
    return [
        event("cuda_runtime", api, launched, launched + 1, tid, correlation=correlation),
        event("kernel", name, start, end, stream, correlation=correlation, device=0,
              stream=stream, **arguments),
    ]  # fmt: skip


def kineto(*events: Any, **more: Any) -> str:
    """A Kineto trace."""
    flat = [e for item in events for e in (item if isinstance(item, list) else [item])]
    return json.dumps({"baseTimeNanoseconds": ORIGIN, "traceEvents": flat} | more)


@dataclass
class Piece:
    """What one flush writes; without a trace the backend wrote none."""

    steps: Sequence[Mapping[str, int]]
    events: Sequence[tuple[int, int]] = ()
    trace: str | None = None

    def write(self, folder: Path, process: str, number: int) -> None:
        """Writes the piece's files."""
        logged = sorted(self.events, key=lambda pair: pair[0])
        write_array(folder, array_name(process, "events", number), np.array(logged, EVENT_DTYPE))
        name = array_name(process, "steps", number)
        write_array(folder, name, rows(STEP_DTYPE, *self.steps))
        if self.trace is not None:
            (folder / kineto_name(process, number)).write_text(self.trace)


@dataclass
class Recorded:
    """A recording before it is a bundle: pieces by rank, scheduler rows by replica."""

    ranks: Mapping[int, Sequence[Piece]]
    engines: Mapping[int, Sequence[Mapping[str, int]]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    layers: Sequence[Mapping[str, Any]] = ()
    modules: Sequence[Mapping[str, Any]] = tuple(MODULES)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tensors: Sequence[Mapping[str, Any]] | None = None
    drafts: Mapping[int, Sequence[Mapping[str, int]]] = field(default_factory=dict)

    def write(self, bundle: Path) -> Path:
        """Writes the pieces; returns their folder."""
        folder = pieces_folder(bundle)
        folder.mkdir(parents=True)
        for rank, pieces in self.ranks.items():
            lists = {"modules": list(self.modules), "layers": list(self.layers)}
            self._facts(folder, f"rank{rank}", rank, lists | dict(self.facts))
            if self.tensors is not None:
                write_json(folder, tensors_name(f"rank{rank}"), {"tensors": list(self.tensors)})
            for number, piece in enumerate(pieces):
                piece.write(folder, f"rank{rank}", number)
        for index, found in self.engines.items():
            self._facts(folder, f"engine{index}", index, {"modules": [], "layers": []})
            name = array_name(f"engine{index}", "engine", 0)
            write_array(folder, name, rows(ENGINE_DTYPE, *found))
            if index in self.drafts:
                name = array_name(f"engine{index}", "drafts", 0)
                write_array(folder, name, rows(DRAFT_DTYPE, *self.drafts[index]))
        recording = {"command": ["vllm", "serve", "tiny"], "settings": dict(self.settings)}
        write_json(folder, RECORDING_FILE, recording)
        return folder

    def assemble(self, bundle: Path, state: str = "complete") -> Bundle:
        """The bundle."""
        self.write(bundle)
        return assemble(bundle, state=state)

    @staticmethod
    def _facts(folder: Path, process: str, rank: int, facts: Mapping[str, Any]) -> None:
        write_json(folder, facts_name(process), {"process": process, "rank": rank} | dict(facts))


def layer_row(path: str, layer: int, component: str, **more: Any) -> dict[str, Any]:
    """A row of the `layers` table: a linear layer of 100 bytes."""
    usual = {"type": "Linear", "quant_method": "Unquantized", "kernel": "", "bytes": 100,
             "weight_dtype": "bfloat16", "shape": "5x10", "parameters": ""}  # fmt: skip
    return usual | {"path": path, "layer": layer, "component": component} | more


def tensor_row(module: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    """A row of the `tensors` table: a weight of the first layer."""
    usual = {"kind": "weight", "name": "weight", "type": "Linear", "layer": 0, "component": "qkv",
             "shape": f"{size}", "dtype": "uint8", "format": "nvfp4"}  # fmt: skip
    return {"address": address, "bytes": size} | usual | {"module": module} | more


def eager_decode(first: int = 0, begin: int = 0) -> Piece:
    """Two decode steps of 1000 ns, each with a kernel in qkv and one in attention."""
    steps, calls, kernels = [], [], []
    for index in range(2):
        at = begin + 1000 * index
        steps.append(step(first + index, at, at + 900))
        calls += call(PREPARE, at, at + 50) + call(QKV, at + 100, at + 200)
        calls += call(ATTENTION, at + 200, at + 300)
        number = 10 * (first + index) + 1
        kernels += kernel("gemm_qkv", at + 150, at + 350, number, at + 110)
        kernels += kernel("flash_fwd", at + 400, at + 800, number + 1, at + 210)
    return Piece(steps, calls, kineto(*kernels))


@contextmanager
def refusal(words: str = "", kind: type[Exception] = CommandError) -> Iterator[Any]:
    """What is done inside is refused in one line, which has these words."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert getattr(caught.value, "exit_code", 2) == 2


def program(path: Path, script: str) -> Path:
    """A shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Lets no file of this process become larger, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
