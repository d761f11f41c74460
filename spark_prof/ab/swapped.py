"""What an engine says of its swaps: which are live, which fell back to vLLM's kernel, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

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
