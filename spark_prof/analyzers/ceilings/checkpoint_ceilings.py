"""All that a checkpoint says about how fast it can decode, for every GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_prof.analyzers.ceilings.ceiling_rows import (
    Ceilings,
    Choice,
    Question,
    Weights,
    WeightsOfModel,
)
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.analyzers.ceilings.step import ceilings_on, step_of
from spark_prof.rules.gpus import GPUS, Gpu
from spark_prof.traces.checkpoint import Checkpoint

_MIXERS = frozenset({"qkv", "o_proj", "ssm", "attention"})
_HEAD = frozenset({"lm_head"})
_DENSE = _MIXERS | _HEAD | {"mlp", "shared_experts"}
_ALL = _DENSE | {"experts"}


@dataclass(frozen=True)
class Change:
    """Matrices of some components in another format.

    The router stays as it is: it decides, it is small, and vLLM does not quantize it.
    """

    id: str
    title: str
    components: frozenset[str]
    format: str
    widens: bool = False  # whether narrower weights are widened too; else only wider ones change


CHANGES: tuple[Change, ...] = (
    Change("attention-head-fp8", "attention and lm_head FP8", _MIXERS | _HEAD, "fp8"),
    Change("attention-head-mxfp4", "attention and lm_head MXFP4", _MIXERS | _HEAD, "mxfp4"),
    Change("attention-head-nvfp4", "attention and lm_head NVFP4", _MIXERS | _HEAD, "nvfp4"),
    Change("dense-mxfp4", "all but the experts MXFP4", _DENSE, "mxfp4"),
    Change("but-head-nvfp4", "all but lm_head NVFP4", _ALL - _HEAD, "nvfp4"),
    Change("all-nvfp4", "all NVFP4", _ALL, "nvfp4"),
    Change("all-bf16", "all BF16", _ALL, "bf16", widens=True),
)
"""What can be chosen, in the order in which it is shown."""


def changed(model: WeightsOfModel, change: Change) -> WeightsOfModel | None:
    """The model with that change, None where it changes nothing."""
    weights = tuple(_converted(weights, change) for weights in model.weights)
    return replace(model, weights=weights) if weights != model.weights else None


def _converted(weights: Weights, change: Change) -> Weights:
    """The weights in the change's format, where it is for them."""
    if weights.role != "decoder" or not weights.matrix:
        return weights
    if weights.component not in change.components or weights.format == change.format:
        return weights
    size = weights.parameters * BYTES[change.format]
    # A format that is as narrow stays: MXFP4 is not made of NVFP4 to save 6 %.
    if not change.widens and size > 0.9 * weights.bytes:
        return weights
    return replace(weights, format=change.format, bytes=size)


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (0, 1024, 8192, 32768, 131072)
DRAFTS = (0, 1, 2, 3, 5, 7)


def ceilings_of(
    checkpoint: Checkpoint, question: Question | None = None, gpus: Sequence[Gpu] = GPUS
) -> Ceilings:
    """Calculates the ceilings of a checkpoint.

    Args:
        checkpoint: its folder, as `traces.checkpoint.read_checkpoint` reads it.
        question: the use that the ceilings are for; by default one sequence, the weights alone.
    """
    asked = question or Question()
    asked = replace(asked, kv_bytes=asked.kv_bytes or _kv_bytes(checkpoint))
    model = weights_of(checkpoint)

    def choice(
        asked: Question,
        model: WeightsOfModel = model,
        name: str = "as-shipped",
        title: str = "as it is",
    ) -> Choice:
        step = step_of(model, asked)
        return Choice(name, title, step, tuple(ceilings_on(step, gpu) for gpu in gpus))

    others = ((change, changed(model, change)) for change in CHANGES)
    return Ceilings(
        folder=checkpoint.folder,
        model=model,
        question=asked,
        choices=(
            choice(asked),
            *(choice(asked, other, change.id, change.title) for change, other in others if other),
        ),
        batches=tuple(choice(replace(asked, batch=batch)) for batch in BATCHES),
        contexts=tuple(choice(replace(asked, context=context)) for context in CONTEXTS),
        drafts=tuple(
            choice(replace(asked, scheduled=1 + drafts, accepted=1.0 + drafts)) for drafts in DRAFTS
        ),
        left_out=tuple(weights for weights in model.weights if weights.role != "decoder"),
    )


def _kv_bytes(checkpoint: Checkpoint) -> float:
    """Bytes of one element of the KV cache, as the quantization has it."""
    quantization = checkpoint.quantization
    scheme = quantization.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
    return 1.0 if bits == 8 or quantization.get("kv_cache_quant_algo") == "FP8" else 2.0
