"""What a decode step of a checkpoint moves and calculates, and how fast a GPU can do that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_prof.analyzers.ceilings.ceiling_rows import (
    Architecture,
    Ceiling,
    CeilingStep,
    CheckpointCeilings,
    FormatChoice,
    FormatWeights,
    GpuCeilings,
    Question,
    SequenceState,
    StreamedComponent,
    WeightsOfModel,
)
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.rules.gpus import GPUS, Gpu
from spark_prof.traces.checkpoint import Checkpoint

_MIXERS = frozenset({"qkv", "o_proj", "ssm", "attention"})
_HEAD = frozenset({"lm_head"})
_DENSE = _MIXERS | _HEAD | {"mlp", "shared_experts"}
_ALL = _DENSE | {"experts"}


@dataclass(frozen=True)
class FormatChange:
    """Matrices of some components in another format.

    The router stays as it is: it decides, it is small, and vLLM does not quantize it.
    """

    id: str
    title: str
    components: frozenset[str]
    format: str
    widens: bool = False  # whether narrower weights are widened too; else only wider ones change


CHANGES: tuple[FormatChange, ...] = (
    FormatChange("attention-head-fp8", "attention and lm_head FP8", _MIXERS | _HEAD, "fp8"),
    FormatChange("attention-head-mxfp4", "attention and lm_head MXFP4", _MIXERS | _HEAD, "mxfp4"),
    FormatChange("attention-head-nvfp4", "attention and lm_head NVFP4", _MIXERS | _HEAD, "nvfp4"),
    FormatChange("dense-mxfp4", "all but the experts MXFP4", _DENSE, "mxfp4"),
    FormatChange("but-head-nvfp4", "all but lm_head NVFP4", _ALL - _HEAD, "nvfp4"),
    FormatChange("all-nvfp4", "all NVFP4", _ALL, "nvfp4"),
    FormatChange("all-fp8", "all FP8", _ALL, "fp8", widens=True),
    FormatChange("all-int4", "all INT4 (AWQ)", _ALL, "int4", widens=True),
    FormatChange("all-bf16", "all BF16", _ALL, "bf16", widens=True),
)
"""What can be chosen, in the order in which it is shown."""


def changed(model: WeightsOfModel, change: FormatChange) -> WeightsOfModel | None:
    """The model with that change, None where it changes nothing."""

    def converted(group: FormatWeights) -> FormatWeights:
        size = group.parameters * BYTES[change.format]
        if (
            group.role != "decoder"
            or not group.matrix
            or group.component not in change.components
            or group.format == change.format
            # A format that is as narrow stays: MXFP4 is not made of NVFP4 to save 6 %.
            or (not change.widens and size > 0.9 * group.bytes)
        ):
            return group
        return replace(group, format=change.format, bytes=size)

    weights = tuple(map(converted, model.weights))
    return replace(model, weights=weights) if weights != model.weights else None


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (0, 1024, 8192, 32768, 131072)
DRAFTS = (0, 1, 2, 3, 5, 7)


def ceilings_of(
    checkpoint: Checkpoint, question: Question | None = None, gpus: Sequence[Gpu] = GPUS
) -> CheckpointCeilings:
    """The ceilings of a checkpoint, by default for one sequence and the weights alone."""
    question = question or Question()
    scheme = checkpoint.quantization.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
    narrow = bits == 8 or checkpoint.quantization.get("kv_cache_quant_algo") == "FP8"
    question = replace(question, kv_bytes=question.kv_bytes or (1.0 if narrow else _PLAIN_CACHE))
    model = weights_of(checkpoint)

    def choice(
        question: Question,
        model: WeightsOfModel = model,
        name: str = "as-shipped",
        title: str = "as it is",
    ) -> FormatChoice:
        step = step_of(model, question)
        return FormatChoice(name, title, step, tuple(ceilings_on(step, gpu) for gpu in gpus))

    variants = ((change, changed(model, change)) for change in CHANGES)
    return CheckpointCeilings(
        folder=checkpoint.folder,
        model=model,
        question=question,
        choices=(
            choice(question),
            *(
                choice(question, other, change.id, change.title)
                for change, other in variants
                if other
            ),
        ),
        batches=tuple(choice(replace(question, batch=batch)) for batch in BATCHES),
        contexts=tuple(choice(replace(question, context=context)) for context in CONTEXTS),
        drafts=tuple(
            choice(replace(question, scheduled=1 + drafts, accepted=1.0 + drafts))
            for drafts in DRAFTS
        ),
        left_out=tuple(weights for weights in model.weights if weights.role != "decoder"),
    )


_RUNS_IN = {
    "nvfp4": ("fp4", "fp8", "bf16"),
    "mxfp4": ("fp4", "fp8", "bf16"),
    "fp8": ("fp8", "bf16"),
    "mxfp8": ("fp8", "bf16"),
    "int8": ("int8", "bf16"),
    "fp32": ("tf32",),
}
"""The fastest arithmetic for weights of each format, best first; else BF16."""


def peak_of(gpu: Gpu, weights: str) -> float:
    """Operations per second at which the GPU can use weights of that format at most.

    Where the table has no figure for the arithmetic, its fastest one stands in: a ceiling that is
    too high is still one.
    """
    for precision in _RUNS_IN.get(weights, ("bf16",)):
        if precision in gpu.peaks:
            return gpu.peaks[precision].value
    return max(figure.value for figure in gpu.peaks.values())


def ceiling_at(step: CeilingStep, bandwidth: float, basis: str, gpu: Gpu) -> Ceiling:
    """The ceiling for one bandwidth, in bytes per second, and for the GPU's arithmetic."""
    memory = step.read / bandwidth
    arithmetic = sum(
        operations / peak_of(gpu, form) for form, operations in step.operations.items()
    )
    seconds = max(memory, arithmetic)
    rate = step.question.accepted / seconds if seconds else 0.0
    return Ceiling(
        bandwidth=bandwidth,
        basis=basis,
        step_us=seconds * 1e6,
        tokens_per_s=rate,
        total_tokens_per_s=rate * step.question.batch,
        limit="memory" if memory >= arithmetic else "arithmetic",
    )


def ceilings_on(step: CeilingStep, gpu: Gpu) -> GpuCeilings:
    """The ceilings by the GPU's data sheet and, where it is known, as a kernel reads."""
    sheet, read = gpu.memory_bandwidth, gpu.read_bandwidth
    return GpuCeilings(
        gpu.name,
        math.ceil(sum(row.stored for row in step.rows) / gpu.memory_bytes),
        ceiling_at(step, sheet.value, sheet.source, gpu),
        None if read is None else ceiling_at(step, read.value, read.source, gpu),
    )


_WHOLE_ON_EACH_RANK = frozenset({"router", "norm", "other"})
"""Components that tensor parallelism does not share out."""

_PLAIN_CACHE = 2.0  # bytes of an element of a KV cache in BF16


def expected_experts(experts: int, per_token: int, tokens: float) -> float:
    """How many of a layer's experts a step reads, if every token takes any of them alike.

    E * (1 - ((E - k) / E) ** M). Real routing is uneven and reads fewer.
    """
    if not 0 < per_token < experts:
        return float(experts)
    return float(experts * (1 - ((experts - per_token) / experts) ** tokens))


def step_of(model: WeightsOfModel, question: Question) -> CeilingStep:
    """The step that the question describes."""
    architecture = model.architecture
    experts, per_token = architecture.experts, architecture.experts_per_token
    decoder = [weights for weights in model.weights if weights.role == "decoder"]
    hit = None
    if 0 < per_token <= experts and any(w.component == "experts" for w in decoder):
        hit = expected_experts(experts, per_token, question.tokens)
    rows = [_row(weights, architecture, question, hit) for weights in decoder]
    if question.context:
        rows += _state_rows(architecture.states, question)
    ordered = tuple(sorted(rows, key=lambda row: -row.read))
    return CeilingStep(question, hit, sum(row.read for row in rows), ordered)


def _row(
    weights: FormatWeights, model: Architecture, question: Question, hit: float | None
) -> StreamedComponent:
    shared_out = question.ranks if weights.component not in _WHOLE_ON_EACH_RANK else 1
    read = weights.bytes / shared_out
    active = float(weights.parameters if weights.matrix else 0) / shared_out
    if weights.component == "experts" and hit is not None:
        read *= hit / model.experts
        active *= model.experts_per_token / model.experts
    elif weights.component == "embedding":
        # One row a token.
        read *= min(question.tokens / model.vocabulary, 1.0) if model.vocabulary else 0.0
        active = 0.0
    operations = 2 * active * question.tokens
    return StreamedComponent(weights.component, weights.format, weights.bytes, read, operations)


def _state_rows(
    states: tuple[SequenceState, ...], question: Question
) -> Iterator[StreamedComponent]:
    """What the step reads of the KV cache, and moves of recurrent states."""
    stored = cache = operations = recurrent = 0.0
    for state in states:
        width = state.bytes_per_element or question.kv_bytes or _PLAIN_CACHE
        size = state.layers * state.elements * width * question.batch
        if state.kind == "recurrent":
            recurrent += size
            continue
        # A head is not cut in two: with more GPUs than heads each keeps one of them whole.
        ranks = min(question.ranks, state.heads) if state.heads else 1
        tokens = min(question.context, state.window) if state.window else question.context
        stored += size * tokens
        cache += size * tokens / ranks
        operations += state.layers * state.operations * tokens * question.tokens / question.ranks
    if cache:
        yield StreamedComponent("attention", "kv", stored, cache, operations)
    if recurrent:
        # Read and written.
        yield StreamedComponent("ssm", "state", recurrent, 2 * recurrent / question.ranks, 0.0)
