"""The result of `spark-prof ab`, and its JSON.

Parts are added while a run goes on, so that one that ends early keeps what it has. Times are us of
a step unless a name says otherwise; None is what could not be measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    """One module that a side wanted to swap."""

    slot: str  # a word of swaps.spec.SLOTS
    name: str  # the module's path
    kernel: str  # as it was asked for
    side: str  # which asked
    state: Literal["live", "fell back"]  # live, or fell back: vLLM's own kernel runs
    why: str = ""  # it fell back, one line; else empty
    bits: Literal["kept", "changed", ""] = ""
    """Kept where it computes with the weights' own bits, changed where it does not; empty where
    nothing was built."""
    bytes: int = 0  # of memory that it holds beside vLLM's own weights
    line: str = ""  # what the kernel says of itself, such as what quantizing lost
    calls: dict[str, int] = field(default_factory=dict)
    """How often it was called from Python, by side; replays of CUDA graphs are no calls."""

    @property
    def live(self) -> bool:
        """Whether the replacement runs."""
        return self.state == "live"


@dataclass(frozen=True)
class Seconds:
    """What the swaps took when the engine started."""

    build: float = 0.0  # packing or quantizing the weights
    trial: float = 0.0  # trying each replacement before the first request
    capture: dict[str, float] = field(default_factory=dict)  # CUDA graphs, by side


@dataclass(frozen=True)
class RankSwaps:
    """The answer of one rank to `spark_prof_swaps`."""

    rank: int  # of tensor parallelism
    swaps: tuple[SwappedModule, ...] = ()  # one a module and side
    sides: tuple[str, ...] = ()  # that are live
    captured: dict[str, int] = field(default_factory=dict)  # CUDA graphs of each side
    seconds: Seconds = Seconds()  # what it took
    memory_bytes: dict[str, int] = field(default_factory=dict)  # by what holds it


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
    """What the figures must be read with."""

    gpu: str = ""  # name as the driver tells it; empty without a GPU
    gpus: int = 0  # how many the engine used
    processor: str = ""  # name of the CPU
    driver: str = ""  # its version, empty where nothing tells it
    sm_mhz: Range | None = None  # clock of the multiprocessors while steps were timed
    memory_mhz: Range | None = None  # clock of the memory
    temperature_c: Range | None = None  # degrees Celsius
    power_w: Range | None = None  # watts
    throttled: tuple[str, ...] = ()  # reasons that were seen for which clocks were held down


@dataclass(frozen=True)
class SideCosts:
    """What a side costs beside the time of its steps."""

    load_s: float | None = None
    """From the start of the engine until it answered; with one engine that of both sides."""
    build_s: float | None = None  # packing or quantizing weights, part of `load_s`
    capture_s: float | None = None  # CUDA graphs, part of `load_s`
    graphs: int | None = None  # that were captured
    swap_bytes: int | None = None  # what the swaps hold beside vLLM's own weights
    device_bytes: int | None = None
    """Memory of the GPU in use after the start; with one engine by both sides."""


@dataclass(frozen=True)
class SideFacts:
    """One side as it was run; values of secret variables and options are hidden."""

    side: Literal["a", "b"]
    name: str  # what it is in one line, such as ``moe=spark_prof``
    swaps: str = ""  # as `swaps.spec` writes them; empty for none
    arguments: tuple[str, ...] = ()  # the engine's, all of them
    environment: dict[str, str] = field(default_factory=dict)  # variables that the side sets
    notes: tuple[str, ...] = ()  # what a word of the side means beyond what it says
    costs: SideCosts = SideCosts()  # beside the time of its steps


@dataclass(frozen=True)
class Run:
    """One comparison of the sides."""

    phase: Literal["decode", "prefill"]  # of the steps that are timed
    requests: int  # in each step: the batch size
    prompt_tokens: int  # of each request. A prefill step computes all of them
    estimate: Estimate  # the times, the gain and how sure it is
    ahead_a: float | None = None
    """Share of side a's steps in which the device did not wait for the host; None where nothing
    tells."""
    ahead_b: float | None = None
    """The same of side b. Near 0 the host makes the time of a step, not the kernels."""


@dataclass(frozen=True)
class AARun:
    """Side a compared with itself."""

    requests: int  # the batch size
    test: AATest  # what came out
    captured_again: bool = False
    """With CUDA graphs of its own for the second one, which lie elsewhere in memory; else the same
    ones, in which nothing can differ."""


@dataclass(frozen=True)
class Gate:
    """Whether both sides say the same at one batch size."""

    requests: int  # the batch size
    verdict: Verdict  # what came out


@dataclass(frozen=True)
class Recording:
    """A bundle of one side, whose kernels are compared."""

    side: Literal["a", "b"]
    requests: int  # the batch size
    folder: str  # where it lies, beside the result unless it is a whole path


@dataclass(frozen=True)
class Result:
    """Everything that a run found until now."""

    model: str  # name or folder
    mode: Mode  # how the sides were run
    mode_why: str  # one line
    command: tuple[str, ...]  # of spark-prof, word by word; secret values are hidden
    taken: str  # when it began, ISO 8601 in UTC
    sides: tuple[SideFacts, SideFacts]  # a, then b
    machine: Machine = Machine()  # on which, and how it was
    versions: dict[str, str] = field(default_factory=dict)  # of what took part, by package
    swaps: tuple[RankSwaps, ...] = ()
    """What became of them, a rank each; with two engines those of both, one after another."""
    gates: tuple[Gate, ...] = ()
    """One a batch size. Without one, nothing tells whether the sides agree."""
    aa: tuple[AARun, ...] = ()  # side a against itself, before the sides were compared
    runs: tuple[Run, ...] = ()  # one a batch size, then one a prompt's length
    attributions: tuple[Attribution, ...] = ()
    """Where the gain came from, one a recorded batch size."""
    recordings: tuple[Recording, ...] = ()  # what those rest on
    missing: tuple[str, ...] = ()  # what could not be measured, and why, one line each
    failure: str = ""  # why the run ended early, one line; empty if it did not
    finished: bool = False
    """Every part was done. A result that is not was written by a run that goes on or was killed."""
    kind: str = KIND
    schema: int = _SCHEMA  # of the file


def to_json(result: Result) -> bytes:
    """Writes a result as JSON, the kind first; a figure that is not finite is null."""
    record = _plain(result)
    # Others tell the file by its first bytes.
    ordered = {"kind": record.pop("kind"), "schema": record.pop("schema"), **record}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n"


def from_json(text: bytes, source: str = "the result") -> Result:
    """Reads what `to_json` wrote.

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

_LARGEST_FILE = 64 << 20


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
