"""Engines that exist in numbers only: what combinations really bring, noise, and a clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.ab_power import NOISES, quads_of
from spark_prof.ab.statistics import compare
from spark_prof.tune.search import Search, SearchResult
from spark_prof.tune.tune_engines import expected_start
from spark_prof.tune.tune_trial import (
    BASE,
    Answers,
    Candidate,
    Combination,
    EngineEndedError,
    Outcome,
    Pair,
    Stage,
    Timed,
    TimeUpError,
    TuneTrial,
    side_of,
)

STEP_S = 0.003


def candidate(words: str) -> Candidate:
    return Candidate(words, "kernels", "it is there", "", None)


@dataclass
class Simulated:
    """A `Measure`. Gains multiply, but for combinations that are named themselves."""

    gains: dict[str, float]
    joined: dict[frozenset[str], float] = field(default_factory=dict)
    ends: dict[str, Outcome] = field(default_factory=dict)
    crashes: frozenset[str] = frozenset()
    tells_who: bool = True  # the log says whose kernel ran when the engine ended
    hangs: frozenset[str] = frozenset()
    noise: str = "H100, gpt-oss, batch 1"
    spread: float = 0.003  # of engine starts
    seconds: float = 480.0
    boots_s: float = 72.0
    first_s: float = 0.0  # more for the first start, which fills caches
    builds_s: float = 0.0  # more for swaps, whose kernels are built and tried
    captures_s: float = 0.0  # more for each side
    seed: int = 1
    floor: float = 0.0
    batches: int = 2
    starts: int = 0
    silence_s: float = 60.0
    lucky: float = 1.0  # what the search sees, and no fresh engine
    sides: frozenset[Combination] = frozenset()
    stage: Stage = "search"
    asked: list[tuple[Stage, Combination, Combination | None]] = field(default_factory=list)
    known: dict[object, TuneTrial] = field(default_factory=dict)  # of an earlier run

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.left = self.seconds
        self.started: list[float] = []

    @property
    def start_s(self) -> float:
        return expected_start(self.started) or self.boots_s + 4 * self.batches

    def truth(self, combination: Combination) -> float:
        alone = [word for words in combination for word in words.split(",")]
        gain = self.joined.get(frozenset(alone))
        return gain or math.prod(self.gains.get(word, 1.0) for word in alone)

    def spend(self, seconds: float) -> None:
        self.left -= seconds
        if self.left <= 0:
            raise TimeUpError

    def begin(self, combinations: Sequence[Combination], within: float) -> None:
        self.starts += 1
        self.sides = frozenset()
        words = {word for each in combinations for word in each}
        if stuck := words & self.hangs:
            self.spend(min(self.silence_s + self.boots_s, within))
            raise EngineEndedError("the engine has been silent", [(w,) for w in stuck])
        swapped = any(side_of(each).swaps for each in combinations)
        took = self.boots_s + self.captures_s * len(combinations)
        took += self.first_s * (self.starts == 1) + self.builds_s * swapped
        if took > within:
            self.spend(within)
            raise EngineEndedError("the engine has used its time")
        self.spend(took)
        self.started.append(took)
        if dead := words & self.crashes:
            blamed = [(w,) for w in dead] if self.tells_who else []
            raise EngineEndedError("the engine ended with exit code 9", blamed)
        self.sides = frozenset(combinations)

    def holds(self, combination: Combination) -> bool:
        return combination in self.sides

    def together(
        self,
        stage: Stage,
        number: int,
        pairs: Sequence[Pair],
        also: Sequence[Combination],
        seconds: float,
        within: float,
    ) -> Iterator[TuneTrial]:
        waiting = []
        for pair in pairs:
            known = self.known.get((stage, number, pair.combination, pair.than))
            if known:
                yield known
            else:
                waiting.append(pair)
        needed = {c for pair in waiting for c in (pair.than, pair.combination)} | {BASE}
        if waiting and (stage != self.stage or not needed <= self.sides):
            self.stage = stage
            self.begin([*needed, *also], within)
        for pair in waiting:
            self.asked.append((stage, pair.combination, pair.than))
            yield self.paired(stage, number, pair, seconds)

    def paired(self, stage: Stage, number: int, pair: Pair, seconds: float) -> TuneTrial:
        trial = TuneTrial(stage, number, pair.combination, pair.than, "measured")
        if ended := self.ended(pair.combination):
            self.spend(1)
            return replace(trial, outcome=ended, why=f"made to: {ended}")
        took = seconds * self.batches + 1
        self.spend(took)
        effect = self.truth(pair.combination) / self.truth(pair.than)
        if stage == "search" and pair.combination:
            effect *= self.lucky
        count = min(max(int(seconds / (48 * STEP_S)), 6), 40)
        noise = NOISES[self.noise]
        times = tuple(
            Timed.of(size, compare(quads_of(self.random, noise, count, effect - 1)))
            for size in range(1, self.batches + 1)
        )
        answers = Answers(256, 1.0, "kept", decided=True)
        return replace(trial, times=times, answers=answers, seconds=took)

    def ended(self, combination: Combination) -> Outcome | None:
        return next((self.ends[words] for words in combination if words in self.ends), None)

    def start(
        self, stage: Stage, number: int, combinations: Sequence[Combination], within: float
    ) -> Iterator[TuneTrial]:
        found = [self.known.get((stage, number, each, None)) for each in combinations]
        if all(found):
            yield from filter(None, found)
            return
        before = self.left
        self.begin(combinations, within)
        own = math.exp(self.random.normal(0, self.spread))
        for each in combinations:
            self.asked.append((stage, each, None))
            trial = TuneTrial(stage, number, each, None, "measured")
            if ended := self.ended(each):
                yield replace(trial, outcome=ended, why=f"made to: {ended}")
                continue
            self.spend(6 * self.batches)
            us = 3000 * own / self.truth(each)
            times = tuple(Timed(size, us, counted=1) for size in range(1, self.batches + 1))
            yield replace(trial, times=times, answers=Answers(256, 1.0, "changed", decided=True))
        self.started[-1] = before - self.left


def search(
    measure: Simulated,
    *words: str,
    first: Sequence[TuneTrial] = (),
    beside_layer: frozenset[str] = frozenset(),
) -> SearchResult:
    """A whole search; its progress is in `lines`."""
    lines: list[str] = []
    candidates = [candidate(w) for w in words]
    found = Search(candidates, measure, lines.append, first, beside_layer=beside_layer).run()
    assert measure.left > -1
    return found
