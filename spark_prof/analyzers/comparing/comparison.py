"""What a comparison of two sides says, as plain data.

Side a is the reference; a side is one recording or several of the same thing, each of an engine
start of its own. Times are us, of a step or of a prompt token; shares are fractions of 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import pandas as pd

from spark_prof.analyzers.comparing.noise import START, Change, Figure, change
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import GAPS
from spark_prof.analyzers.views.layer_cells import KernelColumns


@dataclass(frozen=True, eq=False)
class ComparedRecording:
    """One recording that is compared."""

    source: str  # as the user named it
    report: Report
    kernels: KernelColumns  # its kernels, of one rank
    steps: pd.DataFrame  # the rows of `step_accounting.step_times`, in order
    facts: Mapping[str, Any]  # what the recorder noted of versions, configuration and GPU

    @property
    def phases(self) -> frozenset[str]:
        """The phases that its steps have."""
        return frozenset(self.steps["phase"].astype(str))

    @property
    def model(self) -> str:
        """What the recording says of its model; empty where that is the name of its file."""
        named = self.report.run.model
        configuration = self.facts.get("model_config") or self.facts.get("quantization")
        return named if configuration or named not in re.split(r"[/\\]", self.source) else ""

    @property
    def start(self) -> float:
        """By how much engine starts of this kind are taken to differ, as a share."""
        return START[self.report.run.units]


@dataclass(frozen=True)
class SetupDifference:
    """One thing in which the set-ups differ."""

    group: str  # versions, GPU, engine, model, environment, command or recording
    name: str
    a: str  # its value on side a, empty where that has none
    b: str  # on side b


@dataclass(frozen=True)
class SizeRow:
    """Steps of one size on both sides."""

    size: int  # requests that decode, or prompt tokens
    steps_a: int
    steps_b: int
    weight: float  # their share in what the sides are compared by, 0 where one side has none
    median: Change | None  # of their times; None where one side has none


@dataclass(frozen=True)
class StepPart:
    """One part of a typical step: a component, or time in which nothing ran."""

    name: str  # of the component, or `launch_gaps` or `host` as in a step's account
    change: Change  # of its time
    calls_a: float  # kernels a step
    calls_b: float
    # What its time ran on, such as ("tensor-core fp4", 0.9), the most first.
    engines_a: tuple[tuple[str, float], ...] = ()
    engines_b: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class LayerPart:
    """One component in one decoder layer, None outside of the layers; "" for all components."""

    layer: int | None
    component: str
    change: Change


@dataclass(frozen=True)
class KernelPart:
    """The kernels of one stable name in one component."""

    name: str  # as side a wrote it, or side b where only that has it
    component: str
    change: Change  # of their time in a step
    calls_a: float  # a step, 0 where side a lacks it
    calls_b: float
    layers_a: tuple[int, ...]  # in which it ran
    layers_b: tuple[int, ...]
    engine_a: str  # such as "tensor-core bf16"; empty where side a lacks it
    engine_b: str

    @property
    def where(self) -> str:
        """Which sides ran it: both, only a or only b."""
        if self.calls_a and self.calls_b:
            return "both"
        return "only a" if self.calls_a else "only b"


@dataclass(frozen=True)
class ContextEffect:
    """What longer contexts explain of a difference."""

    tokens_a: float  # mean of what is in the KV cache in a step, all requests
    tokens_b: float
    us_per_token: float  # by how much a step grows with each such token; the mean of both sides
    us: float  # what follows for the difference
    low: float  # of its 95 % interval
    high: float


Reason = Literal["models", "parallel", "windows", "work", "batch", "contexts", "steps", "kernels"]


@dataclass(frozen=True)
class Obstacle:
    """Why steps of two sides are not comparable, and what each side has of that."""

    reason: Reason
    what: str  # the setting of a model, the kernel of a window, the size of steps
    a: str
    b: str


@dataclass(frozen=True)
class PhaseComparison:
    """Steps of one phase.

    A typical step is the mean over the middle half of the steps by length, so that hiccups count
    for nothing and parts add up. `typical.us` is the sum of what `parts` differ by;
    `like.us` = `typical.us` + `residual_us`; `whole.us` = `like.us` + `mix_us`.
    """

    phase: str  # decode, prefill or unknown
    unit: str  # "step", "prompt token", or "recording" where nothing tells the steps of a side
    whole: Change  # median over all steps of the phase, as each side ran them
    like: Change  # median over steps of the same sizes, weighted as on side a
    mix_us: float  # what of the difference is that the sides ran steps of other sizes
    sizes: tuple[SizeRow, ...]  # the sizes that occur
    alike: bool  # whether any size is in all recordings; else all steps are compared as they are
    fewest: int  # steps that are compared of the recording that has the fewest
    typical: Change  # of the steps that `like` compares
    parts: tuple[StepPart, ...]  # components, then gaps, the slower one first
    residual_us: float  # what medians and typical steps disagree about
    conversions: Change  # what of the typical step goes to kernels that only convert formats
    layers: tuple[LayerPart, ...]  # all components of each together, the slower one first
    layer_parts: tuple[LayerPart, ...]  # each component of each layer, the slower one first
    kernels: tuple[KernelPart, ...]  # the slower one first
    context: ContextEffect | None  # None where contexts do not differ
    context_tokens: tuple[float, float] = (0.0, 0.0)  # mean of each side's steps, 0 if unknown
    step_tokens: tuple[float, float] = (1.0, 1.0)  # that a decode step gives a sequence, each side
    token: Change | None = None  # of a sequence's token; None but of decode steps
    obstacle: Obstacle | None = None  # why no change is told of these steps

    @property
    def one(self) -> str:
        """What one unit of the phase is called: decode step, step, recording."""
        return self.unit if self.phase == "unknown" else f"{self.phase} {self.unit}"


@dataclass(frozen=True)
class Comparison:
    """The comparison of one side with the reference."""

    # Recordings of the reference and the other.
    sides: tuple[tuple[ComparedRecording, ...], tuple[ComparedRecording, ...]]
    phases: tuple[PhaseComparison, ...]  # decode first; none where the sides share no phase
    setup: tuple[SetupDifference, ...]  # in what the set-ups of the first two differ
    notes: tuple[str, ...]  # what to know before believing the figures, one line each
    names: tuple[str, str] = ("a", "b")  # what the sides are called, as of `side_names`
    eager: tuple[bool, bool] = (False, False)  # which sides launched every kernel by itself

    @property
    def a(self) -> ComparedRecording:
        """The first recording of the reference."""
        return self.sides[0][0]

    @property
    def b(self) -> ComparedRecording:
        """The first recording of what is compared with it."""
        return self.sides[1][0]

    @property
    def assumed(self) -> float:
        """By how much starts are taken to differ, as a share; 0 where it was estimated."""
        alone = [side[0] for side in self.sides if len(side) == 1]
        return max((recording.start for recording in alone), default=0.0)

    def phase(self, name: str) -> PhaseComparison | None:
        """The comparison of one phase; None where a side has no such step."""
        return next((phase for phase in self.phases if phase.phase == name), None)


_LONGEST_NAME = 24
_ENDING = re.compile(r"(?:\.(?:gz|json|zst|zip|tar|sqlite|nsys-rep|parquet|pt|trace))+$")
_WORD = re.compile(r"[^-_.]+|[-_.]+")


def side_names(sides: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What sides are called, each otherwise: the part of their sources that tells them apart.

    side_names([["runs/before"], ["runs/after"]]) == ("before", "after")
    side_names([["before/run"], ["after/run"]]) == ("before", "after")
    side_names([["x-1", "x-2"], ["y-1", "y-2"]]) == ("x", "y")
    side_names([["h100-gpt-oss-20b-eager"], ["h100-gpt-oss-20b-graphs"]]) == ("eager", "graphs")
    """
    parts = [_parts(sources) for sources in sides]
    depths = range(1, 1 + max(map(len, parts), default=0))
    named = (
        [path_parts[-depth] if depth <= len(path_parts) else "" for path_parts in parts]
        for depth in depths
    )
    distinct = (names for names in named if all(names) and len({*names}) == len(names))
    names = next(distinct, [path_parts[-1] for path_parts in parts])
    if max(map(len, names), default=0) > _LONGEST_NAME:
        half = (_LONGEST_NAME - 3) // 2
        names = [
            name if len(name) <= _LONGEST_NAME else f"{name[:half]}...{name[-half:]}"
            for name in _without_common_words(names)
        ]
    if len({*names}) < len(names):
        counts: Counter[str] = Counter()
        for place, name in enumerate(names):
            counts[name] += 1
            names[place] = name if counts[name] == 1 else f"{name} ({counts[name]})"
    return tuple(names)


def _parts(sources: Sequence[str]) -> list[str]:
    """The parts of a side's path; the last one is what the names of its recordings begin with."""
    split = [re.findall(r"[^/\\]+", source) or [source] for source in sources]
    names = [_ENDING.sub("", path_parts[-1]) or path_parts[-1] for path_parts in split]
    name = names[0]
    if len(names) > 1:
        name = "".join(_shared(names)).rstrip("-_. ") or f"{names[0]} +{len(names) - 1}"
    return [*split[0][:-1], name]


def _shared(texts: Sequence[Sequence[str]]) -> list[str]:
    pairs = takewhile(lambda elements: len({*elements}) == 1, zip(*texts, strict=False))
    return [elements[0] for elements in pairs]


def _without_common_words(names: Sequence[str]) -> list[str]:
    """The names without the words that all begin and end with, where each keeps one."""
    words = [_WORD.findall(name) for name in names]
    first = len(_shared(words))
    last = len(_shared([name_words[first:][::-1] for name_words in words]))
    middles = [
        "".join(name_words[first : len(name_words) - last]).strip("-_.") for name_words in words
    ]
    return middles if all(middles) else list(names)


def point(a: float, b: float) -> Change:
    """The change of what has no noise."""
    return Change(a, b, b - a, b - a, b - a)


def combined(
    changes: Sequence[Change], of: Callable[..., Figure], otherwise: Change | None = None
) -> Change:
    """A figure of each recording's figures; a change without any is `otherwise`."""
    a, b = (
        [of(*figures) for figures in zip(*(part.figures[side] for part in changes), strict=True)]
        for side in (0, 1)
    )
    return change(a, b) if a and b else otherwise or point(0.0, 0.0)


def summed(changes: Sequence[Change]) -> Change:
    """Several changes as one; within a recording their errors are taken to go together."""

    def of(*figures: Figure) -> Figure:
        return Figure(
            sum(figure.value for figure in figures),
            sum(figure.error for figure in figures),
            min(figure.free for figure in figures),
            math.sqrt(sum(figure.floor**2 for figure in figures)),
            sum(figure.start for figure in figures),
        )

    exact = point(sum(part.a for part in changes), sum(part.b for part in changes))
    return combined(changes, of, exact)


def kernels_of(phase: PhaseComparison) -> Change:
    """The change of a typical step's kernels and copies, without what waits for the host."""
    return summed([part.change for part in phase.parts if part.name not in GAPS])


def scaled(whole: Change, a: float, b: float) -> Change:
    """A change with the figures of each side times a factor, such as that of a step by token."""
    ours, theirs = (
        [figure.times(factor) for figure in side]
        for side, factor in zip(whole.figures, (a, b), strict=True)
    )
    return change(ours, theirs) if ours and theirs else point(whole.a * a, whole.b * b)
