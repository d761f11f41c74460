"""What one checkpoint or recording reads and takes in a decode step, component by component."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_prof.analyzers.ceilings.ceiling_rows import Question, StreamedComponent, WeightsOfModel
from spark_prof.analyzers.ceilings.checkpoint_ceilings import peak_of, step_of
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.fallbacks.causes import FIRST_WITH
from spark_prof.analyzers.findings.rule import runs_eagerly
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import GAPS
from spark_prof.rules.gpus import Gpu, find_gpu
from spark_prof.traces.checkpoint import Checkpoint

_NARROW = {"nvfp4": "fp4", "mxfp4": "fp4", "fp8": "fp8", "mxfp8": "fp8", "int8": "int8"}
_WEIGHT_ONLY = {"int4", "nf4"}
_CACHE = {"kv": "KV cache", "state": "state"}  # what is no weight
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_TENSOR_PARALLEL = (1, 2, 4, 8, 16)
_IN_MEMORY = ("decoder", "encoder")  # a drafter is loaded where it is asked for


@dataclass(frozen=True)
class ComponentCost:
    """What one component costs a decode step, on each GPU."""

    component: str
    format: str  # of its weights, several with a plus between them
    bytes: float  # that a decode step reads of its weights
    bound_us: float  # reading them at the GPU's bandwidth, or their arithmetic at its peak
    us: float | None  # what was measured; None of a checkpoint
    kernel: str  # with the most time, or of a checkpoint empty
    computes_in: str  # as it ran, or of a checkpoint what is expected
    limit: str = "memory"  # what the bound is of: memory or arithmetic
    # What of that is the price of its nodes of a CUDA graph beside the bound; 0 where not known.
    nodes_us: float = 0.0

    @property
    def of_bound(self) -> float | None:
        """The bound's share of what was measured, nodes included."""
        return (self.bound_us + self.nodes_us) / self.us if self.us else None


@dataclass(frozen=True)
class Memory:
    """What a checkpoint takes of each GPU's memory, before anything else does."""

    bytes: float  # weights, and the KV cache of the batch where a context is given
    gpu_bytes: int  # what the GPU has
    fitting: int | None  # fewest GPUs of tensor parallelism that hold it; None beyond 16

    @property
    def fits(self) -> bool:
        """Whether it is in the GPU's memory at all."""
        return self.bytes <= self.gpu_bytes


@dataclass(frozen=True)
class Rate:
    """What somebody measured of a side."""

    tokens_per_s: float  # of all sequences together
    step_us: float  # between two tokens of a sequence
    basis: str  # who says so


@dataclass(frozen=True)
class WhySide:
    """A checkpoint, or a recording of one."""

    name: str
    measured: bool  # whether it is a recording
    parts: tuple[ComponentCost, ...]
    us: float | None  # a typical decode step; None of a checkpoint
    eager: bool = False  # whether the host launched each kernel of it
    model: tuple[str, int, int] = ("", 0, 0)  # architecture, layers and hidden size; 0 is unknown
    batch: int | None = 1  # sequences that decode at a time; None of a recording of any number
    ranks: int = 1  # GPUs of tensor parallelism
    memory: Memory | None = None  # None of a recording, which did fit
    rate: Rate | None = None
    ran_elsewhere: bool = False  # whether its times are of another GPU than the bounds

    @property
    def waits_us(self) -> float:
        """What its kernels wait for launches and for the host."""
        return sum(part.us or 0.0 for part in self.parts if part.component in GAPS)

    @property
    def kernels_us(self) -> float:
        """Its kernels and copies alone."""
        return (self.us or 0.0) - self.waits_us

    @property
    def bytes(self) -> float:
        """Weights that a decode step reads."""
        return sum(part.bytes for part in self.parts)

    @property
    def bound_us(self) -> float:
        """The lower bound of a decode step by its weights."""
        return sum(part.bound_us for part in self.parts)

    @property
    def nodes_us(self) -> float:
        """The price of its nodes beside that; 0 of a checkpoint, and where it is not known."""
        return sum(part.nodes_us for part in self.parts)

    @property
    def nodes_of_distance(self) -> float | None:
        """Their share of what was measured beyond the bound of the weights."""
        distance = (self.us or 0.0) - self.bound_us
        return self.nodes_us / distance if self.nodes_us and distance > 0 else None

    @property
    def fits(self) -> bool:
        """Whether it is in the memory of its GPUs, as far as that is known."""
        return self.memory is None or self.memory.fits

    def part(self, component: str) -> ComponentCost | None:
        """What that component costs; None where it has no weights and took no time."""
        return next((part for part in self.parts if part.component == component), None)


def side_of_checkpoint(checkpoint: Checkpoint, name: str, gpu: Gpu, question: Question) -> WhySide:
    """What a checkpoint will read in a decode step, and how its products are expected to run."""
    model = weights_of(checkpoint)
    return WhySide(
        name,
        False,
        parts_of_weights(model, gpu, question),
        None,
        model=_model(checkpoint.config),
        batch=question.batch,
        ranks=question.ranks,
        memory=_memory(model, gpu, question),
    )


def parts_of_weights(
    model: WeightsOfModel, gpu: Gpu, question: Question
) -> tuple[ComponentCost, ...]:
    """What each component of a model will read, the one that reads most first."""
    of_component: dict[str, list[StreamedComponent]] = defaultdict(list)
    for row in step_of(model, question).rows:
        if row.read:
            of_component[row.component].append(row)
    parts = (_expected_part(component, rows, gpu) for component, rows in of_component.items())
    return tuple(sorted(parts, key=lambda part: -part.bytes))


def _expected_part(component: str, rows: list[StreamedComponent], gpu: Gpu) -> ComponentCost:
    """The rows of one component, which run one after another: each takes its own bound."""
    formats = dict.fromkeys(row.format for row in rows)
    computed = [expected(form, gpu) for form in formats if form not in _CACHE]
    memory = sum(row.read for row in rows) / gpu.bandwidth.value * 1e6
    arithmetic = sum(row.operations / peak_of(gpu, row.format) for row in rows) * 1e6
    return ComponentCost(
        component,
        " + ".join(_CACHE.get(form, form) for form in formats),
        sum(row.read for row in rows),
        max(memory, arithmetic),
        None,
        "",
        " + ".join(dict.fromkeys(computed)),
        "memory" if memory >= arithmetic else "arithmetic",
    )


def _memory(model: WeightsOfModel, gpu: Gpu, question: Question) -> Memory:
    """What each GPU holds, and how many would be enough."""

    def of_ranks(ranks: int) -> float:
        return resident_bytes(model, Question(question.batch, question.context, ranks=ranks))

    enough = (ranks for ranks in _TENSOR_PARALLEL if of_ranks(ranks) <= gpu.memory_bytes)
    return Memory(of_ranks(question.ranks), gpu.memory_bytes, next(enough, None))


def resident_bytes(model: WeightsOfModel, question: Question) -> float:
    """Weights that lie in each GPU's memory, and the KV cache that the question has.

    An encoder is taken to be shared out as the decoder is.
    """
    step = step_of(model, question)
    cache = sum(row.read if row.format == "kv" else row.stored for row in step.rows
                if row.format in _CACHE)  # fmt: skip
    whole = ("router", "norm", "other")
    weights = sum(
        weights.bytes / (1 if weights.component in whole else question.ranks)
        for weights in model.weights
        if weights.role in _IN_MEMORY
    )
    return weights + cache


def _by_component(
    weights: Iterable[tuple[str, str, float]],
) -> tuple[Mapping[str, float], Mapping[str, Mapping[str, None]]]:
    """Bytes and formats of each component, of weights by component, format and bytes."""
    sizes: dict[str, float] = defaultdict(float)
    formats: dict[str, dict[str, None]] = defaultdict(dict)
    for component, form, size in weights:
        sizes[component] += size
        formats[component][form] = None
    return sizes, formats


def _model(config: Mapping[str, Any], architecture: str = "") -> tuple[str, int, int]:
    """Architecture, layers and hidden size of a configuration."""
    read, listed = Config(config), config.get("architectures")
    words = listed if isinstance(listed, list) else [architecture]
    return str(words[0]) if words else "", read.layers, read.hidden


def expected(form: str, gpu: Gpu) -> str:
    """The precision in which products of weights of a format can run on a GPU.

        expected("nvfp4", H100) == "bf16 (weights only)"

    vLLM may choose otherwise: what ran is in a recording.
    """
    too_old = float(gpu.compute_capability) < FIRST_WITH.get(form, 0.0)
    return "bf16 (weights only)" if form in _WEIGHT_ONLY or too_old else _NARROW.get(form, form)


def side_of_recording(
    report: Report, name: str, gpu: Gpu, config: Mapping[str, Any] | None = None
) -> WhySide:
    """What a recorded decode step read and took, component by component.

    Args:
        config: the model's, as Hugging Face writes it, where the recording has it.
    """
    bandwidth = gpu.bandwidth.value
    step = report.decode_step
    sizes, formats = _by_component(
        (row.component, _SHORT.get(row.dtype, row.dtype), row.bytes) for row in report.streamed
    )
    names = dict.fromkeys([*sizes, *(part.name for part in (step.parts if step else ()))])
    prices = _node_prices(report, gpu)
    parts = []
    for component in names:
        kernels = [k for k in report.kernels if k.component == component and k.decode_us]
        most = max(kernels, key=lambda kernel: kernel.decode_us, default=None)
        size = sizes.get(component, 0.0)
        us = step.us(component) if step else None
        if not size and not us:
            continue
        bound_us = size / bandwidth * 1e6
        parts.append(
            ComponentCost(
                component,
                " + ".join(formats.get(component, {})),
                size,
                bound_us,
                us,
                short_name(most.name) if most else "",
                (most.precision or "") if most else "",
                nodes_us=min(prices.get(component, 0.0), max((us or 0.0) - bound_us, 0.0)),
            )
        )
    return WhySide(
        name,
        True,
        tuple(sorted(parts, key=lambda part: -(part.us or part.bound_us))),
        step.step_us if step else None,
        runs_eagerly(report),
        _model(config or {}, report.run.architecture),
        recorded_batch(report),
        recorded_ranks(report),
        ran_elsewhere=_recorded_on(report) not in (None, gpu.short),
    )


def _recorded_on(report: Report) -> str | None:
    gpu = find_gpu(report.gpu.name, report.gpu.compute_capability)
    return gpu.short if gpu else None


def _node_prices(report: Report, gpu: Gpu) -> Mapping[str, float]:
    """By component, what the nodes of a decode step cost; none where it ran on another GPU."""
    prices: dict[str, float] = defaultdict(float)
    phase = report.decode_roofline
    if phase and _recorded_on(report) == gpu.short:
        for row in phase.rows:
            prices[row.component] += row.node_us or 0.0
    return prices


def recorded_batch(report: Report) -> int | None:
    """How many sequences decode in a recording's typical step; None for steps of any number."""
    step = report.decode_step
    return (step.batch_size or report.steps.screen_batch) if step else None


def recorded_ranks(report: Report) -> int:
    """GPUs of a recording's tensor parallelism, 1 where it does not tell."""
    return (report.parallel.tensor if report.parallel else None) or 1
