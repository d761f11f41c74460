"""The result of `spark-prof ab`, and its JSON.

Parts are added while a run goes on, so that one that ends early keeps what it has. Times are us of
a step unless a name says otherwise; None is what could not be measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from spark_prof.ab.accuracy_gate import Verdict
from spark_prof.ab.statistics import AATest, Estimate
from spark_prof.analyzers.comparing.swap_attribution import Attribution
from spark_prof.errors import CommandError


@dataclass(frozen=True)
class SwappedModule:
    """One module that a side wanted to swap.

    Attributes:
        slot: a word of swaps.spec.SLOTS.
        name: the module's path.
        kernel: as it was asked for.
        side: which asked.
        state: live, or fell back: vLLM's own kernel runs.
        why: it fell back, one line; else empty.
        bits: kept where it computes with the weights' own bits, changed where it does not; empty
            where nothing was built.
        bytes: of memory that it holds beside vLLM's own weights.
        line: what the kernel says of itself, such as what quantizing lost.
        calls: how often it was called from Python, by side; replays of CUDA graphs are no calls.
    """

    slot: str
    name: str
    kernel: str
    side: str
    state: Literal["live", "fell back"]
    why: str = ""
    bits: Literal["kept", "changed", ""] = ""
    bytes: int = 0
    line: str = ""
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether the replacement runs."""
        return self.state == "live"


@dataclass(frozen=True)
class Seconds:
    """What the swaps took when the engine started.

    Attributes:
        build: packing or quantizing the weights.
        trial: trying each replacement before the first request.
        capture: CUDA graphs, by side.
    """

    build: float = 0.0
    trial: float = 0.0
    capture: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RankSwaps:
    """The answer of one rank to `spark_prof_swaps`.

    Attributes:
        rank: of tensor parallelism.
        swaps: one a module and side.
        sides: that are live.
        captured: CUDA graphs of each side.
        seconds: what it took.
        memory_bytes: by what holds it.
    """

    rank: int
    swaps: tuple[SwappedModule, ...] = ()
    sides: tuple[str, ...] = ()
    captured: dict[str, int] = field(default_factory=dict)
    seconds: Seconds = Seconds()
    memory_bytes: dict[str, int] = field(default_factory=dict)


def read_swaps(answer: object) -> RankSwaps:
    """Checks what a worker answered.

    Raises:
        CommandError: it is no such answer.
    """
    try:
        return msgspec.convert(answer, RankSwaps)
    except msgspec.ValidationError as error:
        raise CommandError(
            f"the engine's answer about its swaps is not of this version of spark-prof ({error})"
        ) from error


KIND = "spark-prof ab"
"""Stands in each file, by which it is told from other JSON."""

_SCHEMA = 1
_LARGEST_FIGURE = 1 << 62

Mode = Literal["one engine", "two engines"]


@dataclass(frozen=True)
class Range:
    """The smallest and the largest of what was seen."""

    lowest: float
    highest: float


@dataclass(frozen=True)
class Machine:
    """What the figures must be read with.

    Attributes:
        gpu: name as the driver tells it; empty without a GPU.
        gpus: how many the engine used.
        processor: name of the CPU.
        driver: its version, empty where nothing tells it.
        sm_mhz: clock of the multiprocessors while steps were timed.
        memory_mhz: clock of the memory.
        temperature_c: degrees Celsius.
        power_w: watts.
        throttled: reasons that were seen for which clocks were held down.
    """

    gpu: str = ""
    gpus: int = 0
    processor: str = ""
    driver: str = ""
    sm_mhz: Range | None = None
    memory_mhz: Range | None = None
    temperature_c: Range | None = None
    power_w: Range | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True)
class SideCosts:
    """What a side costs beside the time of its steps.

    Attributes:
        load_s: from the start of the engine until it answered; with one engine that of both sides.
        build_s: packing or quantizing weights, part of `load_s`.
        capture_s: CUDA graphs, part of `load_s`.
        graphs: that were captured.
        swap_bytes: what the swaps hold beside vLLM's own weights.
        device_bytes: memory of the GPU in use after the start; with one engine by both sides.
    """

    load_s: float | None = None
    build_s: float | None = None
    capture_s: float | None = None
    graphs: int | None = None
    swap_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True)
class SideFacts:
    """One side as it was run; values of secret variables and options are hidden.

    Attributes:
        side: a or b.
        name: what it is in one line, such as ``moe=spark_prof``.
        swaps: as `swaps.spec` writes them; empty for none.
        arguments: the engine's, all of them.
        environment: variables that the side sets.
        notes: what a word of the side means beyond what it says.
        costs: beside the time of its steps.
    """

    side: Literal["a", "b"]
    name: str
    swaps: str = ""
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    costs: SideCosts = SideCosts()


@dataclass(frozen=True)
class Run:
    """One comparison of the sides.

    Attributes:
        phase: of the steps that are timed.
        requests: in each step: the batch size.
        prompt_tokens: of each request. A prefill step computes all of them.
        estimate: the times, the gain and how sure it is.
        ahead_a: share of side a's steps in which the device did not wait for the host; None where
            nothing tells.
        ahead_b: the same of side b. Near 0 the host makes the time of a step, not the kernels.
    """

    phase: Literal["decode", "prefill"]
    requests: int
    prompt_tokens: int
    estimate: Estimate
    ahead_a: float | None = None
    ahead_b: float | None = None


@dataclass(frozen=True)
class AARun:
    """Side a compared with itself.

    Attributes:
        requests: the batch size.
        test: what came out.
        captured_again: with CUDA graphs of its own for the second one, which lie elsewhere in
            memory; else the same ones, in which nothing can differ.
    """

    requests: int
    test: AATest
    captured_again: bool = False


@dataclass(frozen=True)
class Gate:
    """Whether both sides say the same at one batch size.

    Attributes:
        requests: the batch size.
        verdict: what came out.
    """

    requests: int
    verdict: Verdict


@dataclass(frozen=True)
class Recording:
    """A bundle of one side, whose kernels are compared.

    Attributes:
        side: a or b.
        requests: the batch size.
        folder: where it lies, beside the result unless it is a whole path.
    """

    side: Literal["a", "b"]
    requests: int
    folder: str


@dataclass(frozen=True)
class Result:
    """Everything that a run found until now.

    Attributes:
        model: name or folder.
        mode: how the sides were run.
        mode_why: one line.
        command: of spark-prof, word by word; secret values are hidden.
        taken: when it began, ISO 8601 in UTC.
        sides: a, then b.
        machine: on which, and how it was.
        versions: of what took part, by package.
        swaps: what became of them, a rank each; with two engines those of both, one after another.
        gates: one a batch size. Without one, nothing tells whether the sides agree.
        aa: side a against itself, before the sides were compared.
        runs: one a batch size, then one a prompt's length.
        attributions: where the gain came from, one a recorded batch size.
        recordings: what those rest on.
        missing: what could not be measured, and why, one line each.
        failure: why the run ended early, one line; empty if it did not.
        finished: every part was done. A result that is not was written by a run that goes on or
            was killed.
        kind: `KIND`.
        schema: of the file.
    """

    model: str
    mode: Mode
    mode_why: str
    command: tuple[str, ...]
    taken: str
    sides: tuple[SideFacts, SideFacts]
    machine: Machine = Machine()
    versions: dict[str, str] = field(default_factory=dict)
    swaps: tuple[RankSwaps, ...] = ()
    gates: tuple[Gate, ...] = ()
    aa: tuple[AARun, ...] = ()
    runs: tuple[Run, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    recordings: tuple[Recording, ...] = ()
    missing: tuple[str, ...] = ()
    failure: str = ""
    finished: bool = False
    kind: str = KIND
    schema: int = _SCHEMA


def to_json(result: Result) -> bytes:
    """Writes a result as JSON, the kind first; a figure that is not finite is null."""
    record = _plain(result)
    # Others tell the file by its first bytes.
    ordered = {"kind": record.pop("kind"), "schema": record.pop("schema"), **record}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n"


def from_json(text: bytes, source: str = "the result") -> Result:
    """Reads what `to_json` wrote.

    Args:
        text: the JSON.
        source: what it is called in an error.

    Raises:
        CommandError: it is none, or of another version.
    """
    try:
        marks = msgspec.json.decode(text, type=_Marks)
        if marks.kind != KIND:
            raise CommandError(f"{source} is no result of spark-prof ab; give the file it wrote")
        if marks.schema != _SCHEMA:
            raise CommandError(f"{source} is of another version of spark-prof; run ab again")
        result = msgspec.json.decode(text, type=Result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{source} is no result of spark-prof ab ({error})") from error
    if (largest := max(map(abs, _numbers(result)), default=0)) >= _LARGEST_FIGURE:
        raise CommandError(f"{source} says {largest:g}, which nothing measures; run ab again")
    return result


class _Marks(msgspec.Struct):
    kind: str = ""
    schema: int = 0


def _numbers(value: Any) -> Iterator[float]:
    if hasattr(value, "__dataclass_fields__"):
        value = [getattr(value, each.name) for each in fields(value)]
    elif isinstance(value, dict):
        value = value.values()
    if isinstance(value, float | int):
        yield value
    elif not isinstance(value, str | None):
        for entry in value:
            yield from _numbers(entry)


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, and what JSON cannot say as null."""
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, str):
        # A variable of the environment may hold bytes that are no UTF-8.
        return value.encode("utf-8", "backslashreplace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


RESULT_FILE = "result.json"
"""Its name in the folder of a run."""

_MARK = f'"kind": "{KIND}"'.encode()
_HEAD = 256
_LARGEST_FILE = 64 << 20


def find_result(source: str | Path) -> Path | None:
    """The file of a result that a path names, or whose folder it names; None where it is neither.

    Only the first bytes are looked at: the file may be damaged further on.
    """
    path = Path(source)
    with suppress(OSError, ValueError):
        if path.is_dir():
            path /= RESULT_FILE
        if path.is_file():
            with open(path, "rb") as file:
                if _MARK in file.read(_HEAD):
                    return path
    return None


def read_result(path: Path) -> Result:
    """Reads a result.

    Raises:
        CommandError: it cannot be read, or is none.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > _LARGEST_FILE:
        raise CommandError(f"{path} is too long for a result of spark-prof ab; run it again")
    return from_json(text, str(path))
