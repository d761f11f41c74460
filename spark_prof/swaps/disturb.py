"""Disturbs a model by a rounding, to see how far its logits go by themselves.

What one rounding to bfloat16 changes at the beginning grows from layer to layer, most of all where
routers choose others of nearly equal experts. How much of it arrives at the logits is a property of
the model, and no kernel's fault: the gate allows for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_EVERY = 17
"""Each so many-th number moves by a unit in the last place. That is 2^-7 / sqrt(2.16 * 17) = 0.0013
of a vector's size (root mean square), about what rounding all of its numbers brings. Widths are
multiples of other primes, so that rows differ in which they are."""


def disturb(model: Any) -> int:
    """Flips the last bit of some numbers of the embeddings in place; a second call undoes it.

    CUDA graphs read the weights where they are, so they see it, too.

    Returns:
        How many numbers of this rank were changed; 0 where embeddings are not in 16 bits.
    """
    changed = 0
    with torch.inference_mode():
        for weight in _embeddings(model):
            if weight.dtype not in (torch.bfloat16, torch.float16):
                continue
            some = weight.data.view(torch.int16).view(-1)[::_EVERY]
            some.bitwise_xor_(1)
            changed += some.numel()
            if weight.is_cuda:
                torch.cuda.synchronize(weight.device)
    return changed


def _embeddings(model: Any) -> Iterator[torch.Tensor]:
    """Tables of the model's tokens; one that is the lm_head, too, is among them."""
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    seen: set[int] = set()
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead):
            weight = getattr(module, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.data_ptr() not in seen:
                seen.add(weight.data_ptr())
                yield weight
