"""The result of `spark-prof ab`, its file, and what it comes to: faster, slower or neither.

Parts are added while a run goes on, so that one that ends early keeps what it has. Times are us of
a step unless a name says otherwise; None is what could not be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from spark_prof.ab.accuracy_gate import GateVerdict, LogitFigures
from spark_prof.ab.statistics import (
    AATest,
    Effect,
    Estimate,
    Interval,
    effect_of_gain,
    floor,
    has_spread,
    minimum_effect,
    spread_of,
    why_unknown,
)
from spark_prof.analyzers.comparing.swap_attribution import Attribution
from spark_prof.errors import CommandError, os_errors
from spark_prof.profiler.commands import option_value
from spark_prof.swaps.swap_settings import Rounded


@dataclass(frozen=True)
class TrialError:
    """How far a replacement was from vLLM's own kernel on trial; attention, from its definition."""

    relative_l2: float | None  # of the row that was furthest off; None where it was no number
    row: int  # which that is
    tokens: str  # the call in words
    beyond: bool  # an element of it is too far off


@dataclass(frozen=True)
class SwappedModule:
    """One module that a side wanted to swap."""

    slot: str  # a word of swaps.swap_settings.SLOTS
    name: str  # the module's path
    kernel: str  # as it was asked for
    side: str  # which asked
    state: Literal["live", "fell back"]  # live, or fell back: vLLM's own kernel runs
    why: str = ""  # it fell back, one line; else empty
    bits: Literal["kept", "changed", ""] = ""
    """Kept where it computes with the weights' own bits, changed where it does not; empty where
    nothing was built."""
    bytes: int = 0  # of memory that it holds beside vLLM's own weights
    # What the kernel says of itself, such as what quantizing lost; a part of a decoder layer begins
    # with which one it is.
    line: str = ""
    calls: dict[str, int] = field(default_factory=dict)
    """How often it was called from Python, by side; replays of CUDA graphs are no calls."""
    rounded: Rounded = ""  # what vLLM's own layer rounds its activations to; empty for nothing
    layer_error: TrialError | None = None  # None where nothing was compared

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


Mode = Literal["one engine", "two engines"]
USUAL_CONTEXT = 128
"""Tokens of each prompt when decoding is measured, where nobody asked for another length."""


@dataclass(frozen=True)
class Range:
    """The smallest and the largest of what was seen."""

    lowest: float
    highest: float


@dataclass(frozen=True)
class RunConditions:
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
    others: Range | None = None  # processors that other programs kept busy, the mean of an engine


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
    swaps: str = ""  # as `swaps.swap_settings` writes them; empty for none
    arguments: tuple[str, ...] = ()  # the engine's, all of them
    environment: dict[str, str] = field(default_factory=dict)  # variables that the side sets
    notes: tuple[str, ...] = ()  # what a word of the side means beyond what it says
    costs: SideCosts = SideCosts()  # beside the time of its steps


@dataclass(frozen=True)
class SideComparison:
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
    device_a_us: float | None = None
    """What the device alone needs for a step of side a, not recorded; None where that was not
    asked for, or the host could not be brought ahead of it."""
    device_b_us: float | None = None
    """The same of side b."""
    device_gain: Interval | None = None
    """The gain on the device alone, with its interval over the starts or, in one engine, over
    blocks of steps; None where a side was measured once."""


@dataclass(frozen=True)
class AARun:
    """Side a compared with itself."""

    requests: int  # the batch size
    test: AATest  # what came out
    captured_again: bool = False
    """With CUDA graphs of its own for the second one, which lie elsewhere in memory; else the same
    ones, in which nothing can differ."""
    prompt_tokens: int = USUAL_CONTEXT  # of each request


@dataclass(frozen=True)
class Gate:
    """Whether both sides say the same at one batch size."""

    requests: int  # the batch size
    verdict: GateVerdict  # what came out
    prompt_tokens: int = USUAL_CONTEXT  # of each request
    behind: int = 0  # positions behind accepted drafts, where an engine drafts


@dataclass(frozen=True)
class Recording:
    """A bundle of one side, whose kernels are compared."""

    side: Literal["a", "b"]
    requests: int  # the batch size
    folder: str  # where it lies, beside the result unless it is a whole path


@dataclass(frozen=True, kw_only=True)
class AbOutcome:
    """Everything that a run found until now."""

    # Others tell the file by its first bytes.
    kind: Literal["spark-prof ab"] = "spark-prof ab"
    schema: Literal[1] = 1  # of the file
    model: str  # name or folder
    mode: Mode  # how the sides were run
    mode_why: str  # one line
    command: tuple[str, ...]  # of spark-prof, word by word; secret values are hidden
    taken: str  # when it began, ISO 8601 in UTC
    sides: tuple[SideFacts, SideFacts]  # a, then b
    machine: RunConditions = RunConditions()  # on which, and how it was
    versions: dict[str, str] = field(default_factory=dict)  # of what took part, by package
    swaps: tuple[RankSwaps, ...] = ()
    """What became of them, a rank each; with two engines those of both, one after another."""
    gates: tuple[Gate, ...] = ()
    """One a batch size and context. Without one, nothing tells whether the sides agree."""
    aa: tuple[AARun, ...] = ()  # side a against itself, before the sides were compared
    runs: tuple[
        SideComparison, ...
    ] = ()  # one a batch size and context, then one a prompt's length
    attributions: tuple[Attribution, ...] = ()
    """Where the gain came from, one a recorded batch size."""
    recordings: tuple[Recording, ...] = ()  # what those rest on
    missing: tuple[str, ...] = ()  # what could not be measured, and why, one line each
    random_weights: bool = False  # whether an engine said that it had no checkpoint
    failure: str = ""  # why the run ended early, one line; empty if it did not
    finished: bool = False
    """Every part was done. A result that is not was written by a run that goes on or was killed."""


def to_json(result: AbOutcome) -> bytes:
    """Writes a result as JSON, the kind first; a figure that is not finite is null."""
    return msgspec.json.format(msgspec.json.encode(_plain(asdict(result))), indent=2) + b"\n"


Kind = TypeVar("Kind")
_LARGEST_FILE = 64 << 20


def from_json(text: bytes, source: str = "the result") -> AbOutcome:
    """Reads what `to_json` wrote."""
    return decoded(text, AbOutcome, "ab", source)


def decoded(text: bytes, kind: type[Kind], command: str, source: str) -> Kind:
    """The result that a command wrote as JSON; CommandError where it is none."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"of this version; run {command} again ({error})"
        raise CommandError(f"{source} is no result of spark-prof {command} {why}") from error


def text_of(path: Path) -> bytes:
    """The content of a file of results, up to the largest size that is read."""
    with os_errors(f"cannot read {path}"), path.open("rb") as file:
        return file.read(_LARGEST_FILE)


def _plain(value: Any) -> Any:
    """A variable of the environment may hold bytes that are no UTF-8: they are written out."""
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def read_result(path: Path) -> AbOutcome:
    """Reads a result."""
    return from_json(text_of(path), str(path))


AHEAD = 0.95
"""From this share of the steps on kernels alone make the time of a step."""
_BEHIND = 0.5

_FEWEST_DECIDED = 8

Outcome = Effect | Literal["gate failed", "not live"]
"""What a whole result says of it; "not live" where none of its swaps took the place of a kernel."""


def effect_of(run: SideComparison, aa: Sequence[AARun]) -> Effect:
    """What a run says, by the rule of `spark_prof.ab.statistics`: its whole interval decides."""
    return effect_of_gain(run.estimate.gain, floor_of(run, aa) or 0.0)


def floor_of(run: SideComparison, aa: Sequence[AARun]) -> float | None:
    """The share below which no effect is claimed; None where a was never compared with itself."""
    floors = [
        float(floor(test_run.test.passed, test_run.test.floor, test_run.captured_again))
        for test_run in _itself(run, aa)
    ]
    return max(floors, default=None)


def host_ahead(run: SideComparison) -> bool:
    """Whether the device did not wait for the host, on neither side: all is kernels."""
    return all(share is not None and share >= AHEAD for share in (run.ahead_a, run.ahead_b))


def host_behind(run: SideComparison) -> tuple[str, ...]:
    """The sides whose device waited for the host in most of the steps."""
    sides = (("a", run.ahead_a), ("b", run.ahead_b))
    return tuple(side for side, share in sides if share is not None and share < _BEHIND)


def detectable_in(run: SideComparison, aa: Sequence[AARun]) -> float | None:
    """The minimum detectable effect as a share, by the whole rule; None where it is not known."""
    if why_unknown(run.estimate):
        return None
    tests = [
        spread_of(test_run.test.estimate, itself=True, captured_again=test_run.captured_again)
        for test_run in _itself(run, aa)
        if has_spread(test_run.test.estimate)
    ]
    return minimum_effect(spread_of(run.estimate), tests)


def with_detectable(run: SideComparison, aa: Sequence[AARun]) -> SideComparison:
    """The run as it stands in a result: its minimum detectable effect is that of the whole rule."""
    return replace(run, estimate=replace(run.estimate, detectable=detectable_in(run, aa)))


def _itself(run: SideComparison, aa: Sequence[AARun]) -> list[AARun]:
    """The tests of side a against itself at the run's batch size, or else all of them."""
    tests = [test_run for test_run in aa if test_run.test.floor is not None]
    return [test_run for test_run in tests if test_run.requests == run.requests] or tests


def chosen_run(result: AbOutcome) -> SideComparison | None:
    """The run that answers for the result: the smallest batch that decodes and has a gain.

    Without one with a gain the smallest batch, without decoding the first prompt's length.
    """
    return min(
        result.runs,
        key=lambda run: (
            run.estimate.gain is None,
            run.phase != "decode",
            run.requests,
            run.prompt_tokens,
        ),
        default=None,
    )


def decided(figures: LogitFigures) -> bool:
    """Whether more than rounding decides what both sides say at most of the positions.

    At fewer positions than the gate needs in all, nothing is decided either.
    """
    clear = figures.positions - figures.not_finite - figures.near_ties
    return clear >= _FEWEST_DECIDED and 2 * clear > figures.positions


def has_random_weights(result: AbOutcome) -> bool:
    """Whether an engine had random weights, by its arguments or by what it said itself."""
    return result.random_weights or any(
        (option_value(side.arguments, "--load-format") or "").lower() == "dummy"
        for side in result.sides
    )


def outcome_of(result: AbOutcome) -> Outcome:
    """The outcome of an A/B for side b."""
    if any(not gate.verdict.passed for gate in result.gates):
        return "gate failed"
    if _none_live(result):
        return "not live"
    run = chosen_run(result)
    return effect_of(run, result.aa) if run else "not told"


def exit_code(result: AbOutcome) -> int:
    """1 where the gate failed, 2 where the run ended early, else 0."""
    if outcome_of(result) == "gate failed":
        return 1
    return 2 if result.failure else 0


def _none_live(result: AbOutcome) -> bool:
    """Whether side b differs in swaps only, and all of them fell back."""
    if result.mode != "one engine" or not result.sides[1].swaps or not result.swaps:
        return False
    return not any(swap.live for rank in result.swaps for swap in rank.swaps if swap.side == "b")
