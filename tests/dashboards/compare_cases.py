"""Comparisons at random, and what is true of each by brute force over every tick of its worlds.

Of `spark_prof` only the recordings are made here, and the writing of a time; what a comparison has
to say is worked out again: by medians, by Student's t from a table, by what a reader may believe.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spark_prof.analyzers.comparing.comparison import ComparedRecording
from spark_prof.analyzers.rank_layout import Parallel
from spark_prof.analyzers.recorded_run import NOTHING
from spark_prof.arrays import Int64s
from spark_prof.dashboards.units import microseconds
from spark_prof.datasets.opened import read_side
from tests.support import ORIGIN
from tests.world.truth import GAPS, Truth
from tests.world.world import NAMES, Launch, Step, World

COUNT = 120
SIZES, PROMPTS = (1, 2, 8), (64, 128)
STEPS = 12  # of each size
START = 0.015  # what docs/compare.md says is assumed of one start
CONFIG = (("architectures", "AForCausalLM"), ("num_hidden_layers", 2), ("vocab_size", 1000))
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 10: 2.228,
     15: 2.131, 30: 2.042, 120: 1.980, 10**9: 1.960}  # fmt: skip


class Base(NamedTuple):
    """A world of which recordings are made: a part of its steps, under other circumstances."""

    graphs: bool = True
    kernels: float = 1.0  # times as long as usual
    attention: float = 1.0  # the same of attention's alone
    gap: int = 5  # ticks before the first kernel of a step
    layers: int = 2

    def world(self) -> World:
        """The world: steps of every size, the first kernel of each a little longer or shorter."""
        steps = [
            self._step(1.0 + size / 20, number, requests=size)
            for size in SIZES for number in range(STEPS)
        ]  # fmt: skip
        steps += [
            self._step(2.0 + size / 64, number, phase="prefill", requests=0, prompts=1,
                       prompt_tokens=size)
            for size in PROMPTS for number in range(STEPS)
        ]  # fmt: skip
        return World(tuple(steps), self.layers, graphs=self.graphs, tick=1000)

    def _step(self, size: float, number: int, **counts: object) -> Step:
        def ticks(usual: float, part: str = "") -> int:
            special = self.attention if part == "attention" else 1.0
            return round(usual * size * self.kernels * special)

        launches = [Launch("embed", NAMES["unknown"], ticks(20) + number % 3)]
        parts = (
            ("norm", "norm", 20), ("qkv", "gemm", 60), ("attention", "flash", 40),
            ("o_proj", "gemm", 50), ("router", "gemm", 20), ("experts", "moe", 120),
        )  # fmt: skip
        launches += [
            Launch(part, NAMES[name], ticks(us, part), layer, 1)
            for layer in range(self.layers)
            for part, name, us in parts
        ]
        launches.append(Launch("finish", NAMES["gemm"], ticks(80)))
        return Step(tuple(launches), host=self.gap, **counts)  # type: ignore[arg-type]


USUAL, SLOW, FAST = Base(), Base(kernels=1.25), Base(kernels=0.8)
WAITS, OPPOSED = Base(gap=160), Base(kernels=0.8, gap=500)
EAGER, EAGER_SLOW = Base(graphs=False), Base(graphs=False, kernels=1.25)
EAGER_OPPOSED = Base(graphs=False, kernels=0.8, gap=500)
ATTENDS, THREE = Base(attention=4.0), Base(layers=3)


@dataclass(frozen=True)
class Made:
    """One recording."""

    base: Base = USUAL
    decode: tuple[tuple[int, int], ...] = ((1, STEPS),)  # how many steps of which size
    prefill: tuple[tuple[int, int], ...] = ()
    stretch: float = 1.0  # all of its time is so many times as long
    tokens: int = 1  # that a step gives a sequence
    context: float = 0.0
    config: tuple[tuple[str, object], ...] = CONFIG
    name: str = "a-model"
    untold: bool = False  # whether nothing tells the phase of its steps
    window: bool = False  # whether nothing tells its steps either
    tensor: int = 1


@dataclass(frozen=True)
class Case:
    """A comparison, of one or several recordings a side."""

    kind: str
    a: tuple[Made, ...]
    b: tuple[Made, ...]

    @property
    def swapped(self) -> Case:
        """The same from the other side."""
        return Case(self.kind, self.b, self.a)


# What is true.


class Took(NamedTuple):
    """One step."""

    phase: str
    size: int
    wall: float
    kernels: float
    attention: float


@cache
def _steps(base: Base) -> tuple[Took, ...]:
    world = base.world()
    truth = Truth(world)
    found = []
    for one, (begin, end), owned in zip(world.steps, truth.windows, truth.owners, strict=True):
        kernels = sum(part.owned for name, part in owned.items() if name not in GAPS)
        attention = owned["attention"].owned if "attention" in owned else 0.0
        size = one.requests or one.prompt_tokens
        found.append(Took(one.phase, size, float(end - begin), float(kernels), float(attention)))
    return tuple(found)


def chosen(made: Made) -> list[int]:
    """The places of the steps that a recording has, in order."""
    places = []
    for phase, sizes in (("decode", made.decode), ("prefill", made.prefill)):
        for size, count in sizes:
            same = [n for n, one in enumerate(_steps(made.base)) if one[:2] == (phase, size)]
            places += same[:count]
    return sorted(places)


@dataclass(frozen=True)
class Right:
    """What a comparison has to say; the answer is whole, or how it begins."""

    verdict: str
    answer: str
    whole: bool = True


class Oracle:
    """Works out what is true of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.sides = case.a, case.b
        self.every = (*case.a, *case.b)

    @cached_property
    def right(self) -> Right:
        """The verdict and the sentence."""
        why = self._not_comparable()
        if why is not None:
            begins = f"before and after are not comparable: {why}"
            return Right("not comparable", begins, whole=False)
        return self._told()

    def _not_comparable(self) -> str | None:
        a, b = self.case.a[0], self.case.b[0]
        for word, key in (
            ("architectures", "architectures"), ("hidden layers", "num_hidden_layers"),
            ("vocabulary size", "vocab_size"),
        ):  # fmt: skip
            ours, theirs = dict(a.config).get(key), dict(b.config).get(key)
            if ours and theirs and ours != theirs:
                return f"they are different models ({word}: {ours} and {theirs})"
        if not (a.config and b.config) and a.base.layers != b.base.layers:
            return f"they are different models (layers: {a.base.layers} and {b.base.layers})"
        if self._eager and a.tensor != b.tensor:
            return "both ran eagerly, and a GPU of each does other work"
        if windows := [name for name, m in (("before", a), ("after", b)) if m.window]:
            return f"nothing tells the steps of {' and '.join(windows)}"
        if a.untold or b.untold:
            return self._other_work()
        if self._phase == "decode" and not self._shared(1):
            usual = [max(side[0].decode, key=lambda pair: (pair[1], pair[0]))[0]
                     for side in self.sides]  # fmt: skip
            return f"before decodes at batch {usual[0]} and after at batch {usual[1]}"
        if not self._by_prompt_token and not self._shared(4):
            size = max(self._shared(1), key=lambda n: (min(self._count(n)), self._count(n)[0]))
            counts = self._count(size)
            steps = f"{counts[0]} {self._phase} step{'' if counts[0] == 1 else 's'}"
            at = (
                f"at batch {size} before" if self._phase == "decode" else f"of {size} tokens before"
            )
            return f"{at} has {steps} and after {counts[1]}, and each recording needs 4"
        return self._other_contexts()

    def _other_work(self) -> str | None:
        a, b = self.case.a[0].base, self.case.b[0].base
        if a.layers == b.layers:
            return None
        return "their windows hold other work ("

    def _other_contexts(self) -> str | None:
        ours, theirs = self._contexts
        if not self._contexts_differ or not self._sure(self._figures(self._what)):
            return None
        others = self._figures(lambda one: self._what(one) - one.attention)
        whole = self._figures(self._what)
        if self._sure(others) and (_us(others) > 0) == (_us(whole) > 0):
            return None
        return f"contexts differ ({ours:,.0f} and {theirs:,.0f} tokens), and without attention"

    @property
    def _contexts(self) -> tuple[float, float]:
        ours, theirs = (statistics.fmean(made.context for made in side) for side in self.sides)
        return ours, theirs

    @property
    def _contexts_differ(self) -> bool:
        low, high = sorted(self._contexts)
        return low > 0 and high > 1.25 * low

    @property
    def _eager(self) -> bool:
        return not (self.case.a[0].base.graphs or self.case.b[0].base.graphs)

    @property
    def _phase(self) -> str:
        if self.every[0].untold:
            return "unknown"
        return "decode" if all(made.decode for made in self.every) else "prefill"

    @property
    def _by_prompt_token(self) -> bool:
        return self._phase == "prefill" and not self._shared(1)

    def _sizes(self, made: Made) -> dict[int, int]:
        return dict(made.decode if self._phase == "decode" else made.prefill)

    def _shared(self, least: int) -> list[int]:
        """The sizes of which every recording has so many steps."""
        sizes = [self._sizes(made) for made in self.every]
        return [n for n in (*SIZES, *PROMPTS) if all(own.get(n, 0) >= least for own in sizes)]

    def _count(self, size: int) -> tuple[int, int]:
        a, b = (sum(self._sizes(m).get(size, 0) for m in side) for side in self.sides)
        return a, b

    def _what(self, one: Took) -> float:
        return one.kernels if self._eager else one.wall

    def _of_recording(
        self, made: Made, what: Callable[[Took], float], *, middle: bool | None = None
    ) -> float:
        """The median of each size that is compared, weighted by how often the first side has it.

        Kernels are of the middle half of the steps by length.
        """
        middle = self._eager if middle is None else middle
        steps = [_steps(made.base)[n] for n in chosen(made)]
        if self._phase == "unknown":
            return statistics.median(what(one) for one in steps) * made.stretch
        steps = [one for one in steps if one.phase == self._phase]
        if self._by_prompt_token:
            return statistics.median(what(one) / one.size for one in steps) * made.stretch
        shared = self._shared(4)
        weights = {size: self._count(size)[0] for size in shared}
        total = 0.0
        for size in shared:
            alike = sorted((one for one in steps if one.size == size), key=lambda one: one.wall)
            if middle:
                quarter = len(alike) // 4
                alike = alike[quarter : len(alike) - quarter]
                value = statistics.fmean(map(what, alike))
            else:
                value = statistics.median(map(what, alike))
            total += weights[size] / sum(weights.values()) * value
        return total * made.stretch / (made.tokens if self._by_token else 1)

    @property
    def _by_token(self) -> bool:
        return len({made.tokens for made in self.every}) > 1

    def _figures(self, what: Callable[[Took], float]) -> tuple[list[float], list[float]]:
        a, b = ([self._of_recording(made, what) for made in side] for side in self.sides)
        return a, b

    def _sure(self, figures: tuple[list[float], list[float]]) -> bool:
        """Whether noise cannot explain the difference; a case that is near either way is none."""
        errors = [_error(own, other) for own, other in (figures, figures[::-1])]
        variance = sum(value for value, _ in errors)
        free = variance**2 / sum(value**2 / free for value, free in errors)
        wide = _quantile(free) * math.sqrt(variance)
        assert not 0.9 * wide < abs(_us(figures)) < 1.1 * wide, "too near to tell"
        return abs(_us(figures)) > wide

    def _told(self) -> Right:
        figures = self._figures(self._what)
        a, b = map(statistics.fmean, figures)
        share = f"{abs(100 * (b - a) / a):.1f} %"
        verdict = "no difference shown"
        if self._sure(figures):
            verdict = "slower" if b > a else "faster"
        both = f"{microseconds(a)} on before, {microseconds(b)} on after"
        step, eager = self._step, self._eager
        if self._by_token:
            tokens = [side[0].tokens for side in self.sides]
            one = "a token's kernels take" if eager else "a token takes"
            body = f"{one} {both} ({step} gives a sequence "
            body += f"{tokens[0]:.2f} and {tokens[1]:.2f} tokens)"
        else:
            body = f"those of {step} take {both}" if eager else f"{step} takes {both}"
        if verdict == "no difference shown":
            whose = "the kernels of before and after" if eager else "before and after"
            return Right(verdict, f"no difference between {whose} is shown: {body}", whole=False)
        change = f"{share} {verdict} than"
        first = f"after is {change} before: "
        if eager:
            first = f"the kernels of after are {change} those of before: "
        return Right(verdict, f"{first}{body}{self._besides()}")

    @property
    def _step(self) -> str:
        if self._phase == "unknown":
            return "a step"
        if self._by_prompt_token:
            return "a prompt token"
        sizes = self._shared(4)
        words = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        return f"a decode step at batch {words}" if self._phase == "decode" else (
            f"a prefill step of {words} tokens"
        )  # fmt: skip

    def _besides(self) -> str:
        told = ""
        a, b = map(len, self.sides)
        if max(a, b) > 1:
            told += f", means of {a} and {b} recordings"
        if self._eager:
            wall = [
                statistics.fmean(
                    self._of_recording(made, lambda one: one.wall, middle=False) for made in side
                )
                for side in self.sides
            ]
            told += f"; both ran eagerly, and the step itself, {microseconds(wall[0])} on before, "
            told += f"{microseconds(wall[1])} on after, is as fast as the host launches"
        else:
            kernels = self._kernels()
            means = [statistics.fmean(own) for own in kernels]
            eager = [name for name, side in zip(("before", "after"), self.sides, strict=True)
                     if not side[0].base.graphs]  # fmt: skip
            if eager:
                told += f"; {eager[0]} ran eagerly: the kernels alone take "
                told += f"{microseconds(means[0])} on before, {microseconds(means[1])} on after"
            elif self._sure(kernels) and (_us(kernels) > 0) != (_us(self._figures(self._what)) > 0):
                word = "slower" if _us(kernels) > 0 else "faster"
                share = abs(100 * _us(kernels) / means[0])
                told += f"; the kernels alone are {share:.1f} % {word}"
        if self._contexts_differ:
            told += "; contexts differ, {:,.0f} and {:,.0f} tokens".format(*self._contexts)
        fewest = min(
            sum(self._sizes(made).get(size, 0) for size in self._shared(4)) for made in self.every
        )
        if self._phase != "unknown" and not self._by_prompt_token and fewest < 8:
            told += f"; only {fewest} steps of a side"
        return told

    def _kernels(self) -> tuple[list[float], list[float]]:
        """The kernels of a step, or of a token where an answer is about that."""
        a, b = ([self._typical(made) for made in side] for side in self.sides)
        return a, b

    def _typical(self, made: Made) -> float:
        steps = [_steps(made.base)[n] for n in chosen(made)]
        if self._phase == "unknown":
            groups, weights = [steps], [1]
        else:
            steps = [one for one in steps if one.phase == self._phase]
            shared = self._shared(4)
            groups = [[one for one in steps if one.size == size] for size in shared]
            weights = [self._count(size)[0] for size in shared]
            if self._by_prompt_token:
                groups, weights = [steps], [1]
        total = 0.0
        for group, weight in zip(groups, weights, strict=True):
            per = [one.size if self._by_prompt_token else 1 for one in group]
            order = sorted(range(len(group)), key=lambda n: group[n].wall / per[n])
            quarter = len(order) // 4
            middle = order[quarter : len(order) - quarter]
            value = statistics.fmean(group[n].kernels / per[n] for n in middle)
            total += weight / sum(weights) * value
        return total * made.stretch / (made.tokens if self._by_token else 1)


def _us(figures: tuple[list[float], list[float]]) -> float:
    return statistics.fmean(figures[1]) - statistics.fmean(figures[0])


def _error(own: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Variance of a side's mean and its degrees of freedom, as docs/compare.md has it."""
    mean, count = statistics.fmean(own), len(own)
    assumed = (START * mean) ** 2
    if count == 1:
        if len(other) > 2:
            seen = statistics.variance(other) * (mean / statistics.fmean(other)) ** 2
            if seen > assumed:
                return seen, len(other) - 1
        return assumed, 1e9
    if count == 2:
        return (statistics.variance(own) + 2 * assumed) / 3 / 2, 3
    return statistics.variance(own) / count, count - 1


def _quantile(free: float) -> float:
    below = max(n for n in T if n <= max(free, 1))
    above = min((n for n in T if n > free), default=below)
    if above == below:
        return T[below]
    share = (1 / below - 1 / max(free, 1)) / (1 / below - 1 / above)
    return T[below] + share * (T[above] - T[below])


# The cases.


def _mix(chance: random.Random, least: int = 8) -> tuple[tuple[int, int], ...]:
    return tuple((size, chance.randint(least, STEPS)) for size in SIZES)


def _one(a: Made, b: Made) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
    return (a,), (b,)


def _starts(chance: random.Random, made: Made, count: int, spread: float) -> tuple[Made, ...]:
    """So many starts, apart by a known share."""
    offsets = [spread * (n - (count - 1) / 2) for n in range(count)]
    chance.shuffle(offsets)
    return tuple(replace(made, stretch=made.stretch * (1 + offset)) for offset in offsets)


def _of_kind(kind: str, chance: random.Random) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
    size = chance.choice(SIZES)
    made = Made(decode=((size, chance.randint(8, STEPS)),))
    noise = 1 + chance.uniform(-0.008, 0.008)
    if kind == "kernels":
        return _one(made, replace(made, base=chance.choice((SLOW, FAST)), stretch=noise))
    if kind == "noise":
        return _one(made, replace(made, stretch=noise, name="another name"))
    if kind == "launches":
        return _one(made, replace(made, base=chance.choice((WAITS, OPPOSED))))
    if kind == "too few":
        few = chance.randint(1, 3)
        many = replace(made, base=chance.choice((USUAL, SLOW)), decode=((1, 12),))
        return _one(Made(decode=((1, few), (2, 11))), many)
    if kind == "few of one size":
        a = Made(decode=((1, chance.randint(1, 3)), (8, chance.randint(5, 12))))
        return _one(a, Made(base=chance.choice((USUAL, SLOW)), decode=((1, 12), (8, 9))))
    if kind == "other sizes":
        size_b = chance.choice([n for n in SIZES if n != size])
        return _one(made, Made(base=chance.choice((USUAL, FAST)), decode=((size_b, 12),)))
    if kind == "models":
        setting = chance.choice((("vocab_size", 2000), ("num_hidden_layers", 3),
                                 ("architectures", "BForCausalLM")))  # fmt: skip
        if chance.random() < 0.3:
            return _one(replace(made, config=()), replace(made, config=(), base=THREE))
        return _one(made, replace(made, config=tuple(dict([*CONFIG, setting]).items())))
    if kind == "eager":
        base = chance.choice((EAGER, EAGER_SLOW, EAGER_OPPOSED))
        other = replace(made, base=base, stretch=noise)
        if chance.random() < 0.25:
            other = replace(other, tensor=2)
        return _one(replace(made, base=EAGER), other)
    if kind == "one eager":
        return _one(replace(made, base=chance.choice((EAGER_SLOW, EAGER_OPPOSED))), made)
    if kind == "mix":
        base = chance.choice((USUAL, SLOW, FAST))
        return _one(Made(decode=_mix(chance)), Made(base=base, decode=_mix(chance, 4)))
    if kind == "contexts":
        base = chance.choice((USUAL, ATTENDS, FAST))
        factor = chance.choice((1.1, 4.0, 20.0))
        return _one(replace(made, context=150.0), replace(made, base=base, context=150.0 * factor))
    if kind == "speculation":
        base = chance.choice((SLOW, USUAL))
        return _one(made, replace(made, base=base, tokens=chance.choice((2, 3))))
    if kind == "several":
        count, others = chance.choice(((2, 2), (3, 3), (2, 3), (1, 3), (5, 5)))
        later = replace(made, base=chance.choice((USUAL, SLOW, FAST)))
        spread = chance.uniform(0.002, 0.006)
        return _starts(chance, made, count, spread), _starts(chance, later, others, spread)
    if kind == "untold":
        a = Made(decode=((1, 12),), untold=True)
        b = replace(a, base=chance.choice((USUAL, SLOW, THREE)))
        return _one(a, replace(b, window=chance.random() < 0.3))
    a = Made(decode=(), prefill=((64, chance.randint(8, 12)),))
    length = chance.choice((64, 128, 128))
    return _one(a, replace(a, base=chance.choice((USUAL, SLOW)), prefill=((length, 10),)))


KINDS = ("kernels", "noise", "launches", "too few", "few of one size", "other sizes", "models",
         "eager", "one eager", "mix", "contexts", "speculation", "several", "untold",
         "prompts")  # fmt: skip


def cases() -> list[Case]:
    """As many of each kind, each also from the other side; always the same."""
    found = []
    for number in range(COUNT // 2):
        kind = KINDS[number % len(KINDS)]
        case = Case(kind, *_of_kind(kind, random.Random(number)))
        found += [case, case.swapped]
    return found


# Recordings as `compare` reads them.


def _stretched(ns: Int64s, factor: float) -> Int64s:
    """Times that are so many times as far from the origin, which no float holds."""
    return ORIGIN + np.round((ns - ORIGIN) * factor).astype(np.int64)


class Pool:
    """The recordings of all cases: the worlds are recorded once, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Base, ComparedRecording] = {}

    def _side(self, base: Base) -> ComparedRecording:
        if base not in self._read:
            path = self.folder / f"world-{len(self._read)}"
            base.world().bundle(path)
            self._read[base] = read_side(str(path))
        return self._read[base]

    def side(self, made: Made, source: str) -> ComparedRecording:
        """One recording: its steps, stretched, with the circumstances that it was made under."""
        whole = self._side(made.base)
        steps = whole.steps.iloc[chosen(made)].reset_index(drop=True)
        stretched = {name: _stretched(steps[name].to_numpy(), made.stretch)
                     for name in ("begin_ns", "finish_ns")}  # fmt: skip
        requests = steps["decode_requests"].to_numpy(np.float64)
        decodes = steps["phase"].astype(str).to_numpy() == "decode"
        given = np.where(decodes, requests * made.tokens, steps["output_tokens"])
        steps = steps.assign(
            **stretched,
            step_us=steps["step_us"] * made.stretch,
            output_tokens=given,
            context_tokens=np.int64(made.context),
        )
        if made.untold:
            steps = steps.assign(phase="unknown", decode_requests=0)
        kernels = replace(
            whole.kernels,
            start_ns=_stretched(whole.kernels.start_ns, made.stretch),
            end_ns=_stretched(whole.kernels.end_ns, made.stretch),
        )
        run = replace(whole.report.run, model=made.name,
                      steps_by=NOTHING if made.window else "engine")  # fmt: skip
        parallel = Parallel(0, (0,), (), made.tensor, made.tensor, 1, 1)
        report = replace(whole.report, run=run, parallel=parallel)
        facts: Mapping[str, object] = {**whole.facts, "model_config": dict(made.config),
                                       "model": made.name}  # fmt: skip
        return ComparedRecording(source, report, kernels, steps, facts)

    def sides(self, case: Case) -> tuple[list[ComparedRecording], list[ComparedRecording]]:
        """Both sides, every recording of an engine start of its own."""
        return (
            [self.side(made, f"before-{n}") for n, made in enumerate(case.a)],
            [self.side(made, f"after-{n}") for n, made in enumerate(case.b)],
        )
