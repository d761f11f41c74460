"""What a run of the benchmark is asked to time; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_prof.kernels.bench.shapes import (
    FP4,
    LAYERS,
    TOKENS,
    DenseShape,
    ExpertsShape,
    Kind,
    Piece,
    Recorded,
    WeightFormat,
    chosen_experts,
    dense_work,
)
from spark_prof.kernels.registry import ARCHITECTURES, ReplacementKernel, by_check
from spark_prof.kernels.tuning import TuningRun

if TYPE_CHECKING:
    from spark_prof.kernels.candidate import KernelCandidate

KINDS: tuple[Kind, ...] = ("dense", "moe")
_OWN_FORMATS: tuple[WeightFormat, ...] = ("nvfp4", "mxfp4", "bf16")


@dataclass(frozen=True)
class BenchRequest:
    """What a run of the benchmark has to time."""

    only: Sequence[Kind] = KINDS
    models: Sequence[str] = ()  # parts of model names, all models if empty
    tokens: Sequence[int] = TOKENS
    formats: Sequence[WeightFormat] = FP4
    competitors: Sequence[str] = ()  # parts of competitors' names, all of them if empty
    seconds: float = 240.0
    seconds_each: float = 0.2
    # Whether then to search better configurations, where most is expected first, in that time.
    tune: bool = False
    # The measurements that configurations are taken from, by default all that are known.
    runs: Sequence[TuningRun] | None = None
    # Somebody's own kernel, for a matrix or experts, which the others are held against; the kinds
    # and formats are then those of its slot.
    custom: KernelCandidate | None = None
    # Which of the package's kernels, by the names of their cases, all if empty.
    kernels: Sequence[str] = ()
    # What to time in place of the models' layers, and what was recorded of it, by it and tokens.
    work: Sequence[Piece] | None = None
    recorded: Mapping[tuple[Piece, int], Recorded] = field(default_factory=dict)

    def pieces(self) -> list[Piece]:
        """Every shape with its format, in the order in which they are timed."""
        custom, kinds, formats, layers = self.custom, self.only, self.formats, None
        if custom is not None:
            kinds = ("moe",) if custom.slot == "moe" else ("dense",)
            formats, layers = _OWN_FORMATS, [layer for layer in LAYERS if layer.slot == custom.slot]
        if self.work is None:
            dense = dense_work(self.models, formats, layers) if "dense" in kinds else []
            experts = chosen_experts(self.models) if "moe" in kinds else []
            blocks = [(shape, shape.format) for shape in experts]
            # Where time may run out, what a model spends most in comes first.
            return [*blocks, *dense] if self.tune else [*dense, *blocks]
        return [
            (shape, form)
            for shape, form in self.work
            if ("moe" if isinstance(shape, ExpertsShape) else "dense") in kinds and form in formats
            if custom is None or not isinstance(shape, DenseShape) or custom.slot in shape.slots
        ]

    def listed(self, kind: Kind, form: WeightFormat) -> list[ReplacementKernel | None]:
        """The package's kernels for weights of a format; None alone where it has none."""
        kernels: list[ReplacementKernel | None] = [
            kernel
            for name, kernel in by_check().items()
            if kernel.race == kind and form in kernel.formats
            # What few GPUs can run is timed where it is asked for.
            if name in self.kernels or not (self.kernels or kernel.targets != ARCHITECTURES)
        ]
        return kernels or [None]
