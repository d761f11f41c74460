"""What the parts of a run share: its options, what is compared, and the folder of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import with_options
from spark_prof.ab.engine_process import Engine
from spark_prof.ab.machine import Sampler
from spark_prof.ab.measuring import MeasuredShape
from spark_prof.ab.messages import Facts
from spark_prof.ab.result import (
    USUAL_CONTEXT,
    AbOutcome,
    Range,
    RankSwaps,
    SideCosts,
)
from spark_prof.ab.sides import Side
from spark_prof.errors import one_line, os_errors
from spark_prof.files import write_whole
from spark_prof.redact import redacted_value
from spark_prof.swaps.swap_settings import SWAPS_ENVIRONMENT, SwapSettings, kernel_folders
from spark_prof.traces.resolve import RESULT_FILE


class _Result(Protocol):
    @property
    def missing(self) -> tuple[str, ...]: ...


RunResult = TypeVar("RunResult", bound=_Result)


class Keeper(Generic[RunResult]):
    """The result of a run that goes on, on disk after every part, and as a page at the end."""

    def __init__(
        self,
        folder: Path,
        result: RunResult,
        to_json: Callable[[RunResult], bytes],
        draw: Callable[[RunResult], str] = lambda _: "",
    ) -> None:
        self._to_json, self._draw = to_json, draw
        self.folder = folder
        self.result: RunResult = redacted_value(result)
        self._write()

    def add(self, **parts: tuple[Any, ...]) -> None:
        """Appends to the parts of the result that these are named like."""
        self.set(**{name: getattr(self.result, name) + values for name, values in parts.items()})

    def set(self, **parts: Any) -> None:
        """Replaces parts of the result; secrets in them are hidden."""
        result: Any = self.result  # a dataclass, whichever
        self.result = replace(result, **redacted_value(parts))
        self._write()

    def miss(self, line: str) -> None:
        """Says what could not be measured, and why."""
        if line and one_line(line) not in self.result.missing:
            self.add(missing=(one_line(line),))

    def write_page(self) -> None:
        """Writes the page that stands alone beside the result."""
        put_page(self.folder, self._draw(self.result))

    def _write(self) -> None:
        put(self.folder / RESULT_FILE, self._to_json(self.result))


def put_page(folder: Path, drawn: str) -> None:
    """Writes the page that stands alone beside a result."""
    put(folder / "report.html", drawn.encode("utf-8", "backslashreplace"))


def put(path: Path, content: bytes) -> None:
    """Writes a file of a run whole; CommandError where that fails."""
    with os_errors(f"cannot write {path}"):
        write_whole(path, content)


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    folder: Path  # where everything goes
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Requests that decode at a time, one measurement each."""
    prefill: tuple[int, ...] = (128, 1024)  # lengths of prompts whose prefill is measured
    seconds: float = 20.0  # to spend on one measurement
    contexts: tuple[int, ...] = (USUAL_CONTEXT,)
    """Tokens of each prompt when decoding is measured, one measurement each at every batch size."""
    gate_tokens: int | None = None
    """That each request generates for the correctness gate; None for as many as make the gate's
    positions enough."""
    record: bool = True  # kernels of both sides are recorded, for where the gain comes from
    starts: int = 4  # of engines, where the sides need one each; two, or a multiple of four
    timeout: float = 600.0
    """Seconds after which an engine that neither answers nor logs is given up."""
    time_anyway: bool = False  # times are taken after a failed gate, too; they do not count
    text: Path | None = None  # held to by the gate in place of what side a would say
    at_once: bool = False  # engines of several starts load at the same time

    @property
    def shapes(self) -> tuple[MeasuredShape, ...]:
        """The shapes that are measured, those of decode steps first."""
        decode = (
            MeasuredShape("decode", size, context)
            for context in sorted(self.contexts)
            for size in self.batch_sizes
        )
        prefill = (MeasuredShape("prefill", 1, length) for length in self.prefill)
        return (*decode, *prefill)


@dataclass(frozen=True)
class AbRun:
    """One A/B: the engine's command, both sides and what to measure."""

    command: EngineCommand  # the engine, without what the sides add
    a: Side  # the side that is compared with
    b: Side  # the side that is asked about
    options: Options  # what to measure
    keeper: Keeper[AbOutcome]  # takes what is found
    say: Callable[[str], None]  # shows one line of progress

    @property
    def shapes(self) -> tuple[MeasuredShape, ...]:
        """The shapes that are measured, those of decode steps first."""
        return self.options.shapes

    def engine(self, side: Side, swaps: SwapSettings, log: str) -> Engine:
        """An engine with a side's options and environment."""
        arguments = with_options(self.command.arguments, side.options)
        command = replace(self.command, arguments=arguments)
        environment = {**dict(side.environment), SWAPS_ENVIRONMENT: swaps.to_json()}
        path = self.options.folder.absolute() / log
        files = [
            *kernel_folders((*self.a.swaps, *self.b.swaps)),
            *filter(None, [self.options.text]),
        ]
        return Engine(command, environment, path, self.options.timeout, files=files)

    def logits(self, shape: MeasuredShape) -> Path:
        """The file in which side a's logits wait for the other side."""
        return self.options.folder.absolute() / f".logits-{shape.requests}-{shape.prompt_tokens}"


def costs_of(side: str, facts: Facts, ranks: tuple[RankSwaps, ...]) -> SideCosts:
    """What a side costs beside its steps, of the rank where that is most."""
    swap_bytes = [sum(swap.bytes for swap in rank.swaps if swap.side == side) for rank in ranks]
    capture = [r.seconds.capture[side] for r in ranks if side in r.seconds.capture]
    graphs = [rank.captured[side] for rank in ranks if side in rank.captured]
    used = [r.memory_bytes["device"] for r in ranks if "device" in r.memory_bytes]
    return SideCosts(
        load_s=facts.load_seconds,
        build_s=max((r.seconds.build for r in ranks), default=None) if any(swap_bytes) else None,
        capture_s=max(capture, default=None),
        graphs=max(graphs, default=None),
        swap_bytes=max(swap_bytes, default=None),
        device_bytes=max(used, default=None),
    )


def keep_facts(
    setting: AbRun,
    facts: Facts,
    ranks: tuple[RankSwaps, ...],
    costs: Mapping[str, SideCosts],
) -> None:
    """Puts what an engine is into the result."""
    keeper = setting.keeper
    cache = "" if facts.cache_tokens is None else f"; KV cache of {facts.cache_tokens:,} tokens"
    note = f"runs as {facts.execution}{cache}"
    a, b = (
        replace(side, costs=costs[side.side], notes=(*side.notes, note))
        if side.side in costs
        else side
        for side in keeper.result.sides
    )
    machine = replace(
        keeper.result.machine,
        gpu=facts.gpu,
        gpus=facts.gpus if facts.gpu else 0,
        processor=facts.processor,
        driver=facts.versions.get("driver", ""),
    )
    versions = {name: value for name, value in facts.versions.items() if name != "driver"}
    keeper.set(
        model=facts.model,
        sides=(a, b),
        machine=machine,
        versions={**keeper.result.versions, **versions},
        swaps=keeper.result.swaps + ranks,
    )
    if facts.dummy:
        keeper.set(random_weights=True)
        keeper.miss(
            "the weights are random (--load-format dummy): how well the sides agree says nothing "
            "of a real checkpoint"
        )


def keep_machine(setting: AbRun, sampler: Sampler) -> None:
    """Puts how the machine was while steps were timed into the result, beside what was known."""
    states = [sample.state for sample in sampler.samples()]
    before = setting.keeper.result.machine
    other_load = _range(before.others, [sampler.other_load()])
    ranges: dict[str, Any] = {
        name: _range(getattr(before, name), [getattr(state, name) for state in states])
        for name in ("sm_mhz", "memory_mhz", "temperature_c", "power_w")
    }
    reasons = {*before.throttled, *(why for state in states for why in state.throttled)}
    machine = replace(before, **ranges, throttled=tuple(sorted(reasons)), others=other_load)
    setting.keeper.set(machine=machine)


def _range(before: Range | None, values: Sequence[float | None]) -> Range | None:
    present = [float(value) for value in values if value is not None]
    if before is not None:
        present += [before.lowest, before.highest]
    return Range(min(present), max(present)) if present else None
