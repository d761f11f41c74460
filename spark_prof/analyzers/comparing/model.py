"""What a comparison of two sides says, as plain data.

Side a is the reference; a side is one recording or several of the same thing, each of an engine
start of its own. Times are us, of a step or of a prompt token; shares are fractions of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from spark_prof.analyzers.comparing.noise import START, Change
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.kernel_columns import KernelColumns


@dataclass(frozen=True, eq=False)
class Side:
    """One recording that is compared.

    Attributes:
        source: as the user named it.
        report: its report.
        kernels: its kernels, of one rank.
        steps: the rows of `ledger.step_books`, in order.
        facts: what the recorder noted of versions, configuration, environment and GPU.
    """

    source: str
    report: Report
    kernels: KernelColumns
    steps: pd.DataFrame
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """One thing in which the set-ups differ.

    Attributes:
        group: versions, GPU, engine, model, environment, command or recording.
        name: of the setting.
        a: its value on side a, empty where that has none.
        b: on side b.
    """

    group: str
    name: str
    a: str
    b: str


@dataclass(frozen=True)
class SizeRow:
    """Steps of one size on both sides.

    Attributes:
        size: requests that decode, or prompt tokens.
        steps_a: steps of that size.
        steps_b: the same on side b.
        weight: their share in what the sides are compared by, 0 where one side has none.
        median: of their times; None where one side has none.
    """

    size: int
    steps_a: int
    steps_b: int
    weight: float
    median: Change | None


@dataclass(frozen=True)
class Part:
    """One part of a typical step: a component, or time in which nothing ran.

    Attributes:
        name: of the component, or `launch_gaps` or `host` as in the token ledger.
        change: of its time.
        calls_a: kernels a step.
        calls_b: the same on side b.
        engines_a: what its time ran on, such as ("tensor-core fp4", 0.9), the most first.
        engines_b: the same on side b.
    """

    name: str
    change: Change
    calls_a: float
    calls_b: float
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
    """The kernels of one stable name in one component.

    Attributes:
        name: as side a wrote it, or side b where only that has it.
        component: that they work for.
        change: of their time in a step.
        calls_a: a step, 0 where side a lacks it.
        calls_b: a step.
        layers_a: in which it ran.
        layers_b: the same on side b.
        engine_a: such as "tensor-core bf16"; empty where side a lacks it.
        engine_b: the same on side b.
    """

    name: str
    component: str
    change: Change
    calls_a: float
    calls_b: float
    layers_a: tuple[int, ...]
    layers_b: tuple[int, ...]
    engine_a: str
    engine_b: str

    @property
    def where(self) -> str:
        """Which sides ran it: both, only a or only b."""
        if self.calls_a and self.calls_b:
            return "both"
        return "only a" if self.calls_a else "only b"


@dataclass(frozen=True)
class ContextEffect:
    """What longer contexts explain of a difference.

    Attributes:
        tokens_a: mean of what is in the KV cache in a step, all requests.
        tokens_b: the same on side b.
        us_per_token: by how much a step grows with each such token; the mean of both sides.
        us: what follows for the difference.
        low: of its 95 % interval.
        high: of it.
    """

    tokens_a: float
    tokens_b: float
    us_per_token: float
    us: float
    low: float
    high: float


@dataclass(frozen=True)
class PhaseComparison:
    """Steps of one phase.

    A typical step is the mean over the middle half of the steps by length, so that hiccups count
    for nothing and parts add up. `typical.us` is the sum of what `parts` differ by;
    `like.us` = `typical.us` + `residual_us`; `whole.us` = `like.us` + `mix_us`.

    Attributes:
        phase: decode, prefill or unknown.
        unit: "step" or "prompt token".
        whole: median over all steps of the phase, as each side ran them.
        like: median over steps of the same sizes, weighted as on side a.
        mix_us: what of the difference is that the sides ran steps of other sizes.
        sizes: the sizes that occur.
        alike: whether any size is in all recordings; else all steps are compared as they are.
        fewest: steps that are compared of the recording that has the fewest.
        typical: of the steps that `like` compares.
        parts: components, then gaps, the slower one first.
        residual_us: what medians and typical steps disagree about.
        conversions: what of the typical step goes to kernels that only convert formats.
        layers: the layers, all components of each together, the slower one first.
        layer_parts: each component of each layer, the slower one first.
        kernels: the kernels, the slower one first.
        context: what contexts of other lengths explain; None where they do not differ.
    """

    phase: str
    unit: str
    whole: Change
    like: Change
    mix_us: float
    sizes: tuple[SizeRow, ...]
    alike: bool
    fewest: int
    typical: Change
    parts: tuple[Part, ...]
    residual_us: float
    conversions: Change
    layers: tuple[LayerPart, ...]
    layer_parts: tuple[LayerPart, ...]
    kernels: tuple[KernelPart, ...]
    context: ContextEffect | None


@dataclass(frozen=True)
class Comparison:
    """One side against the reference.

    Attributes:
        a: the first recording of the reference.
        b: the first recording of what is compared with it.
        phases: decode first; none where the sides share no phase.
        setup: in what the set-ups of these two differ.
        notes: what to know before believing the figures, one line each.
        further: the other recordings of both sides.
    """

    a: Side
    b: Side
    phases: tuple[PhaseComparison, ...]
    setup: tuple[Setting, ...]
    notes: tuple[str, ...]
    further: tuple[tuple[Side, ...], tuple[Side, ...]] = ((), ())

    @property
    def sides(self) -> tuple[tuple[Side, ...], tuple[Side, ...]]:
        """The recordings of both sides."""
        return (self.a, *self.further[0]), (self.b, *self.further[1])

    @property
    def assumed(self) -> float:
        """By how much starts are taken to differ, as a share; 0 where it was estimated."""
        alone = [side[0] for side in self.sides if len(side) == 1]
        return max((START[each.report.run.units] for each in alone), default=0.0)

    def phase(self, name: str) -> PhaseComparison | None:
        """The comparison of one phase; None where a side has no such step."""
        return next((each for each in self.phases if each.phase == name), None)
