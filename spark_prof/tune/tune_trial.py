"""What a tune may try, one trial of it, and what measures trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias

from spark_prof.ab.engine_options import set_options
from spark_prof.ab.sides import OPTION_OF_SLOT, Side, parse_side
from spark_prof.ab.statistics import Estimate, Interval
from spark_prof.swaps.swap_settings import INSIDE_LAYER

Slots: TypeAlias = frozenset[str]

NO_SLOTS: Slots = frozenset()


@dataclass(frozen=True)
class Candidate:
    """One thing to try."""

    words: str  # a side as `spark-prof ab --b` takes it; its id
    # kernels, backends, compilation, fusion passes, KV cache, scheduler, speculation, environment
    source: str
    condition: str  # one line: when it applies
    finding: str  # id of the finding that it answers; empty for none
    expected_ms: float | None  # per token at most, by the finding; None where unknown
    # Quantizing at load, KV dtype: needs --allow-requantize or --allow-kv-dtype.
    changes_model: bool = False
    known: bool = False  # an earlier result of this GPU and model found it to be faster


@dataclass(frozen=True)
class UntriedCandidate:
    """One thing that is not tried."""

    words: str
    source: str
    why: str  # one line


@dataclass(frozen=True)
class CandidateTable:
    """What would be tried and what would not."""

    candidates: tuple[Candidate, ...]  # cheapest and most promising first
    left_out: tuple[UntriedCandidate, ...]
    recorded: bool = True  # whether a recording told what applies; else all that may is here
    beside_layer: tuple[str, ...] = ()  # slots that slot `layer` leaves something to swap


Combination = tuple[str, ...]
"""Words of the candidates that are on together; none is the engine as its command starts it."""

BASE: Combination = ()

Stage = Literal["search", "confirmation"]

Outcome = Literal["measured", "changes answers", "not live", "failed"]
"""Not live: vLLM's own kernel runs in all of it. Failed: it crashed, hung, was refused."""


@lru_cache(maxsize=1024)
def side_of(combination: Combination) -> Side:
    """The side of an A/B that a combination is; CommandError where a word is none."""
    return parse_side(" ".join(combination))


def name_of(combination: Combination) -> str:
    """What a combination is called; values of secret variables are hidden."""
    return side_of(combination).name


def swaps_only(combination: Combination) -> bool:
    """Whether it can live in one engine with the base, switched between steps."""
    side = side_of(combination)
    inside = all(swap.slot != "layer" for swap in side.swaps)
    return inside and not side.options and not side.environment


@lru_cache(maxsize=1024)
def sets_of(words: str, beside_layer: Slots = NO_SLOTS) -> frozenset[str]:
    """What a candidate sets: slots, options of vLLM's and variables, each once in an engine.

    Slot `layer` takes the layers of others, but for the slots that it leaves some.

    sets_of("layer=spark_prof", frozenset({"qkv"})) == {"layer", "moe", "router", "norm", "mlp"}
    """
    side = side_of((words,))
    slots = {swap.slot for swap in side.swaps}
    if "layer" in slots:
        slots |= {*INSIDE_LAYER, "mlp"} - beside_layer
    options = {_root_of(name.replace("--no-", "--")) for name in set_options(side.options)}
    # A backend of the experts is no use where they are swapped.
    if OPTION_OF_SLOT["moe"] in options:
        slots.add("moe")
    return frozenset({*slots, *options, *(name for name, _ in side.environment)})


def _root_of(option: str) -> str:
    """A drafter is one thing, whichever of its fields are set."""
    root = option.partition(".")[0]
    return root if root == "--speculative-config" else option


def rivals(one: str, other: str, beside_layer: Slots = NO_SLOTS) -> bool:
    """Whether two candidates cannot be on together, or one has nothing to swap beside the other."""
    return bool(sets_of(one, beside_layer) & sets_of(other, beside_layer))


def fits(combination: Combination, words: str, beside_layer: Slots = NO_SLOTS) -> bool:
    """Whether a candidate can be added."""
    return not any(rivals(words, other, beside_layer) for other in combination)


@dataclass(frozen=True)
class Timed:
    """A step at one batch size."""

    requests: int
    own_us: float | None  # of the combination
    than_us: float | None = None  # of what it is compared with; None in an engine of its own
    gain: Interval | None = None  # of the combination over that
    counted: int = 0  # quads in one engine, or starts

    @classmethod
    def of(cls, requests: int, estimate: Estimate) -> Timed:
        """The times and the gain of an A/B's estimate."""
        return cls(requests, estimate.b_us, estimate.a_us, estimate.gain, estimate.quads)


@dataclass(frozen=True)
class Answers:
    """Whether a combination says what the base says."""

    positions: int
    agreement: float | None  # share of them with the same most likely token
    bits: Literal["kept", "changed"]
    decided: bool  # more than rounding decides most of the positions, and weights are real
    line: str = ""  # what the gate states beside it


@dataclass(frozen=True)
class TuneTrial:
    """What came of one trial."""

    stage: Stage
    number: int  # how often the same was measured in that stage before
    combination: Combination
    than: Combination | None  # compared with that in one engine; None: one start of an own engine
    outcome: Outcome
    why: str = ""  # one line where it was not measured
    times: tuple[Timed, ...] = ()
    answers: Answers | None = None
    seconds: float = 0.0  # that it took

    @property
    def key(self) -> tuple[str, int, Combination, Combination | None]:
        """The key of the trial in a tune."""
        return self.stage, self.number, self.combination, self.than


def over_batches(times: Sequence[Timed]) -> Interval | None:
    """The gain over all batch sizes: geometric means of values and of ends, so never too narrow."""
    gains = [timed.gain for timed in times if timed.gain is not None]
    if not gains or len(gains) < len(times):
        return None
    return Interval(
        *(
            math.exp(math.fsum(math.log(max(end, 1e-9)) for end in ends) / len(gains))
            for ends in zip(*((gain.value, gain.low, gain.high) for gain in gains), strict=True)
        )
    )


class TimeUpError(Exception):
    """No time is left; what was found until now is the result."""


class EngineEndedError(Exception):
    """The engine is gone, with the line why, and the combinations that the log blames for it."""

    def __init__(self, why: str, blamed: Sequence[Combination] = ()) -> None:
        super().__init__(why)
        self.blamed = tuple(blamed)


@dataclass(frozen=True)
class Pair:
    """What is measured in one engine: a combination over another."""

    combination: Combination
    than: Combination = BASE


class Measure(Protocol):
    """What the search asks engines for. Trials that were kept from an earlier run come at once."""

    floor: float  # gains up to it are not told apart from another capture of the same kernels
    batches: int  # batch sizes that each trial is measured at

    @property
    def left(self) -> float:
        """Seconds until the result has to be there."""

    @property
    def start_s(self) -> float:
        """What an engine takes from its start to its end, as far as that is known."""

    def holds(self, combination: Combination) -> bool:
        """Whether the engine that runs has it as a side."""

    def together(
        self,
        stage: Stage,
        number: int,
        pairs: Sequence[Pair],
        also: Sequence[Combination],  # further sides of the engine, should it have to be started
        seconds: float,  # for each pair at each batch size
        within: float,  # seconds after which the engine is given up
    ) -> Iterator[TuneTrial]:
        """Measures pairs in one engine: that of the same stage that runs, or a new one."""

    def start(
        self, stage: Stage, number: int, combinations: Sequence[Combination], within: float
    ) -> Iterator[TuneTrial]:
        """Starts an engine of its own for combinations that differ in swaps only."""
