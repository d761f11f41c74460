"""A made-up run: what its steps launch, when each kernel runs on each rank, and the bundle of it.

Times are whole ticks from the start of the run; `World.tick` is how many ns one of them takes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import facts_name, write_json
from tests.analyzers.graphs import Captured, clone_of
from tests.support import Piece, Recorded, call, engine, event, kernel, kineto, layer_row, step

PARTS: Mapping[str, tuple[str, str]] = {
    "prepare": ("step.prepare", "attention"),
    "finish": ("step.finish", "lm_head"),
    "sample": ("step.sample", "sampler"),
    "model": ("model", ""),
    "embed": ("model.embed_tokens", "embedding"),
    "layer": ("model.layers.{}", ""),
    "norm": ("model.layers.{}.input_layernorm", "norm"),
    "qkv": ("model.layers.{}.self_attn.qkv_proj", "qkv"),
    "attention": ("model.layers.{}.self_attn.attn", "attention"),
    "o_proj": ("model.layers.{}.self_attn.o_proj", "o_proj"),
    "router": ("model.layers.{}.mlp.gate", "router"),
    "experts": ("model.layers.{}.mlp.experts", "experts"),
    "lm_head": ("lm_head", "lm_head"),
}
"""The module of each part, and the component that the recorder says it is."""
NAMES: Mapping[str, str] = {
    "gemm": "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
    "norm": "void vllm::rms_norm_kernel<c10::BFloat16>(float)",
    "flash": "void flash::flash_fwd_kernel<int>(int)",
    "quantize": "void vllm::scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(int)",
    "cast": "triton_poi_fused__to_copy_0",
    "moe": "fused_moe_kernel",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "unknown": "other_kernel",
    "copy": "Memcpy DtoH (Device -> Pinned)",
    "memset": "Memset (Device)",
}
KINDS = {NAMES["copy"]: "memcpy", NAMES["memset"]: "memset"}
COLLECTIVE = NAMES["all_reduce"]
_CATEGORY = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_BETWEEN = 2  # ticks from one thing that the host does to the next


class Launch(NamedTuple):
    """One kernel, copy or memset of a step.

    It starts so many ticks after everything before it has ended; where `gap` is negative, before
    that, as a kernel on another stream, or one that waits for its predecessor, does.
    """

    part: str
    name: str
    ticks: int
    layer: int = -1
    gap: int = 0
    stream: int = 7
    bytes: int = 0

    @property
    def kind(self) -> str:
        """As the `kernels` table has it."""
        return KINDS.get(self.name, "kernel")


@dataclass(frozen=True)
class Step:
    """One iteration of the engine."""

    launches: tuple[Launch, ...]
    phase: str = "decode"
    requests: int = 1  # that decode
    prompts: int = 0  # requests whose prompt it reads
    prompt_tokens: int = 0
    tokens: int = 1  # that each decoding request gets; more with speculation
    host: int = 5  # from when all is launched, and the device free, to its first kernel
    tail: int = 7  # from its last kernel to the scheduler's update
    ahead: int = 0  # by how much the next one is scheduled before this one's kernels are over


class Ran(NamedTuple):
    """A launch as it ran."""

    step: int
    launch: Launch
    launched: int  # by the host
    start: int
    end: int


class Host(NamedTuple):
    """What the host did in a step."""

    schedule: int
    start: int  # of the worker
    end: int
    update: int


@dataclass(frozen=True)
class World:
    """A run. What is not given is as in an eager run of one rank that was recorded whole."""

    steps: tuple[Step, ...]
    layers: int = 1
    ranks: int = 1
    graphs: bool = False  # whether decode steps are one CUDA graph, whose capture was seen
    tick: int = 1
    skew: int = 0  # by how many ticks at most a kernel takes longer on ranks above 0
    clocks: tuple[int, ...] = ()  # by how many ns the clock of each rank is ahead
    hidden: frozenset[str] = frozenset()  # paths of modules whose ranges were not recorded
    loading: int = 0  # kernels that ran before the first step
    pieces: int = 1  # in how many flushes it was written
    shuffled: int = 0  # seed of the order in which events were written, 0 for that of time
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)  # bytes of each part's module

    @cached_property
    def modules(self) -> list[dict[str, Any]]:
        """The `modules` table."""
        found = []
        for part, (path, component) in PARTS.items():
            layers = range(self.layers) if "{}" in path else [-1]
            found += [
                {"path": path.format(n), "type": part, "layer": n, "component": component}
                for n in layers
            ]
        return found

    @cached_property
    def played(self) -> tuple[dict[int, list[Ran]], dict[int, list[Host]]]:
        """What ran on each rank, and what each host did: all ranks leave a collective together."""
        ran: dict[int, list[Ran]] = {rank: [] for rank in range(self.ranks)}
        hosts: dict[int, list[Host]] = {rank: [] for rank in range(self.ranks)}
        free = [0] * self.ranks  # when the device of each has done everything
        cpu = 10
        for number, one in enumerate(self.steps):
            begin = cpu
            launched = begin + _BETWEEN * 2
            cpu_end = begin + _BETWEEN * (len(one.launches) * 5 + 6)
            cursor = [max(cpu_end, free[rank]) + one.host for rank in range(self.ranks)]
            for place, launch in enumerate(one.launches):
                launched = begin + _BETWEEN * (5 * place + 4)
                # Nothing starts before it was launched.
                starts = [max(at + launch.gap, launched + 1) for at in cursor]
                ends = [s + self._ticks(launch, rank, number, place) for rank, s in
                        enumerate(starts)]  # fmt: skip
                if launch.name == COLLECTIVE:
                    ends = [max(starts) + launch.ticks] * self.ranks
                for rank in range(self.ranks):
                    ran[rank].append(Ran(number, launch, launched, starts[rank], ends[rank]))
                cursor = [max(at, end) for at, end in zip(cursor, ends, strict=True)]
            done = [max(a, b) if one.launches else a for a, b in zip(free, cursor, strict=True)]
            free = done
            update = max([cpu_end, *free]) + one.tail
            for rank in range(self.ranks):
                hosts[rank].append(Host(begin - 1, begin, cpu_end, update))
            cpu = max(cpu_end + 2, update + 2 - one.tail - one.ahead if one.ahead else update + 2)
        return ran, hosts

    def _ticks(self, launch: Launch, rank: int, step: int, place: int) -> int:
        late = (7 * place + 13 * rank + 5 * step) % (self.skew + 1) if rank else 0
        return launch.ticks + late

    def bundle(self, folder: Path, only: Sequence[int] | None = None) -> Bundle:
        """The bundle of a new folder, with those ranks only if they are given."""
        ranks = range(self.ranks) if only is None else only
        recorded = Recorded(
            {rank: self._pieces(rank) for rank in ranks},
            {0: self._engine()} if 0 in ranks else {},
            self._facts(),
            [
                layer_row(m["path"], m["layer"], m["component"], bytes=self.weights[m["type"]])
                for m in self.modules
                if m["type"] in self.weights
            ],
            self.modules,
        )
        pieces = self._captured().write(recorded, folder) if self.graphs else recorded.write(folder)
        for rank in ranks if len(self.clocks) > 1 else ():
            lists = {"modules": self.modules, "layers": list(recorded.layers)}
            named = {
                "process": f"rank{rank}",
                "rank": rank,
                "host": f"host-{rank}",
                "boot": f"boot-{rank}",
            }
            write_json(pieces, facts_name(f"rank{rank}"), lists | self._facts() | named)
        return assemble(folder, state="complete")

    def _facts(self) -> dict[str, Any]:
        execution = "eager, CUDA graphs (FULL)" if self.graphs else "eager"
        parallel = {"tensor": self.ranks, "pipeline": 1, "data": 1}
        host = {"host": "one-host", "boot": "one-boot"}
        return {"execution": execution, "parallel": parallel} | host | dict(self.facts)

    def _ns(self, ticks: int, rank: int = 0) -> int:
        return ticks * self.tick + (self.clocks[rank] if self.clocks else 0)

    def _engine(self) -> list[dict[str, int]]:
        return [
            engine(number, self._ns(host.schedule), self._ns(host.update),
                   output_tokens=one.requests * one.tokens + one.prompts,
                   output_requests=one.requests + one.prompts)
            for number, (one, host) in enumerate(zip(self.steps, self.played[1][0], strict=True))
        ]  # fmt: skip

    def _pieces(self, rank: int) -> list[Piece]:
        size = -(-len(self.steps) // self.pieces)
        groups = [range(at, min(at + size, len(self.steps))) for at in
                  range(0, len(self.steps), size)]  # fmt: skip
        return [self._piece(rank, group) for group in groups]

    def _piece(self, rank: int, group: range) -> Piece:
        ran, hosts = (played[rank] for played in self.played)
        rows, calls, events = [], [], []
        for number in group:
            one, host = self.steps[number], hosts[number]
            counts = {
                "decode_requests": one.requests, "decode_tokens": one.requests * one.tokens,
                "prefill_requests": one.prompts, "prefill_tokens": one.prompt_tokens,
            }  # fmt: skip
            begin, end = self._ns(host.start, rank), self._ns(host.end, rank)
            rows.append(step(number, begin, end, one.phase, **counts))
            own = [each for each in ran if each.step == number]
            if number == 0:
                events += self._loading(rank)
            calls += self._calls(own, rank) if not self._replays(one) else []
            events += self._events(own, rank)
        if self.shuffled:
            random.Random(self.shuffled).shuffle(events)
        return Piece(rows, calls, kineto(*events))

    def _replays(self, one: Step) -> bool:
        return self.graphs and one.phase == "decode"

    def _calls(self, ran: Sequence[Ran], rank: int) -> list[tuple[int, int]]:
        numbers = {module["path"]: at for at, module in enumerate(self.modules)}
        found: list[tuple[int, int]] = []
        for path, first, last in _open_modules(ran):
            if path not in self.hidden:
                times = self._ns(first, rank), self._ns(last, rank)
                found += call(numbers[path], *times)
        return found

    def _events(self, ran: Sequence[Ran], rank: int) -> Iterator[dict[str, Any]]:
        replayed = bool(ran) and self._replays(self.steps[ran[0].step])
        for place, (number, launch, launched, start, end) in enumerate(ran):
            correlation = 1000 * number + place + 1
            more: dict[str, Any] = {"correlation": correlation, "device": 0,
                                    "stream": launch.stream}  # fmt: skip
            if replayed and launch.kind == "kernel":
                more["correlation"] = correlation = 1000 * number + 999
                more["graph node id"] = clone_of(place)
            if launch.bytes:
                more["bytes"] = launch.bytes
            if not (replayed and launch.kind == "kernel") or place == _first_kernel(ran):
                api = "cudaLaunchKernel" if launch.kind == "kernel" else "cudaMemcpyAsync"
                api = "cudaGraphLaunch" if replayed and launch.kind == "kernel" else api
                begin = self._ns(launched, rank)
                yield event("cuda_runtime", api, begin, begin + self.tick, correlation=correlation)
            yield event(_CATEGORY[launch.kind], launch.name, self._ns(start, rank),
                        self._ns(end, rank), launch.stream, **more)  # fmt: skip

    def _loading(self, rank: int) -> Iterator[dict[str, Any]]:
        for number in range(self.loading):
            yield from kernel(NAMES["gemm"], self._ns(3 * number + 2, rank),
                              self._ns(3 * number + 4, rank), 900 + number,
                              self._ns(number, rank))  # fmt: skip

    def _captured(self) -> Captured:
        """The capture of the graph of all decode steps, whose launches differ in time only."""
        one = next(one for one in self.steps if one.phase == "decode")
        ran = [Ran(0, launch, 10 * place + 20, 0, 0) for place, launch in enumerate(one.launches)]
        numbers = {module["path"]: at for at, module in enumerate(self.modules)}
        calls = [
            edge
            for path, first, last in _open_modules(ran)
            if path not in self.hidden
            for edge in call(numbers[path], first, last)
        ]
        return Captured([each.launched for each in ran], calls)

    # Other worlds that are made of this one.

    def with_steps(self, steps: Sequence[Step]) -> World:
        """The same of other steps."""
        return replace(self, steps=tuple(steps))

    def with_gap(self, number: int, place: int, ticks: int) -> World:
        """With nothing running for so much longer before a launch of a step."""
        one = self.steps[number]
        launches = list(one.launches)
        launches[place] = launches[place]._replace(gap=launches[place].gap + ticks)
        steps = list(self.steps)
        steps[number] = replace(one, launches=tuple(launches))
        return self.with_steps(steps)

    def renamed(self, name: str, to: str) -> World:
        """With that kernel under another name."""
        return self.with_steps([
            replace(one, launches=tuple(x._replace(name=to) if x.name == name else x
                                        for x in one.launches))
            for one in self.steps
        ])  # fmt: skip


def _first_kernel(ran: Sequence[Ran]) -> int:
    return next(place for place, each in enumerate(ran) if each.launch.kind == "kernel")


def _open_modules(ran: Sequence[Ran]) -> Iterator[tuple[str, int, int]]:
    """Every call of a module around these launches: its path, and when it was entered and left."""
    for each in ran:
        path = PARTS[each.launch.part][0].format(each.launch.layer)
        if each.launch.part not in ("model", "layer"):
            yield path, each.launched - 1, each.launched + _BETWEEN
    for group in _runs(ran, lambda each: each.launch.layer):
        if group[0].launch.layer >= 0:
            path = PARTS["layer"][0].format(group[0].launch.layer)
            yield path, group[0].launched - 2, group[-1].launched + _BETWEEN + 1
    for group in _runs(ran, lambda each: PARTS[each.launch.part][0].startswith("model")):
        if PARTS[group[0].launch.part][0].startswith("model"):
            yield "model", group[0].launched - 3, group[-1].launched + _BETWEEN + 2


def _runs(ran: Sequence[Ran], key: Any) -> list[list[Ran]]:
    found: list[list[Ran]] = []
    for each in ran:
        if not found or key(found[-1][-1]) != key(each):
            found.append([])
        found[-1].append(each)
    return found


def owner_of(launch: Launch) -> tuple[str, int]:
    """The component that a launch works for, and its layer."""
    if launch.kind != "kernel":
        return "memcpy", launch.layer
    if launch.name == COLLECTIVE:
        return "collective", launch.layer
    return PARTS[launch.part][1], launch.layer
