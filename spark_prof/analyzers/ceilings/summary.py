"""All that a checkpoint says about how fast it can decode, for every GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_prof.analyzers.ceilings.ceiling import ceilings_on
from spark_prof.analyzers.ceilings.model import Ceilings, Choice, Question, WeightsOfModel
from spark_prof.analyzers.ceilings.step import step_of
from spark_prof.analyzers.ceilings.weights import weights_of
from spark_prof.analyzers.ceilings.what_if import CHANGES, changed
from spark_prof.rules.gpus import GPUS, Gpu
from spark_prof.traces.checkpoint import Checkpoint

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
        gpus: for which GPUs.
    """
    asked = question or Question()
    asked = replace(asked, kv_bytes=asked.kv_bytes or _kv_bytes(checkpoint))
    model = weights_of(checkpoint)
    choices = [_choice("as-shipped", "as it is", model, asked, gpus)]
    for change in CHANGES:
        other = changed(model, change)
        if other is not None:
            choices.append(_choice(change.id, change.title, other, asked, gpus))
    return Ceilings(
        folder=checkpoint.folder,
        model=model,
        question=asked,
        choices=tuple(choices),
        batches=_varied(model, (replace(asked, batch=batch) for batch in BATCHES), gpus),
        contexts=_varied(model, (replace(asked, context=context) for context in CONTEXTS), gpus),
        drafts=_varied(model, (_drafted(asked, drafts) for drafts in DRAFTS), gpus),
        left_out=tuple(weights for weights in model.weights if weights.role != "decoder"),
    )


def _varied(
    model: WeightsOfModel, questions: Iterable[Question], gpus: Sequence[Gpu]
) -> tuple[Choice, ...]:
    """The model as it is, for one question after another."""
    return tuple(_choice("as-shipped", "as it is", model, asked, gpus) for asked in questions)


def _choice(
    name: str, title: str, model: WeightsOfModel, question: Question, gpus: Sequence[Gpu]
) -> Choice:
    step = step_of(model, question)
    return Choice(name, title, step, tuple(ceilings_on(step, gpu) for gpu in gpus))


def _drafted(asked: Question, drafts: int) -> Question:
    return replace(asked, scheduled=1 + drafts, accepted=1.0 + drafts)


def _kv_bytes(checkpoint: Checkpoint) -> float:
    """Bytes of one element of the KV cache, as the quantization has it."""
    quantization = checkpoint.quantization
    scheme = quantization.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
    return 1.0 if bits == 8 or quantization.get("kv_cache_quant_algo") == "FP8" else 2.0
