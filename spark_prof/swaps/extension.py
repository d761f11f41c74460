"""What `spark-prof ab` calls in every worker of a vLLM engine, through `LLM.collective_rpc`.

The engine is started with ``worker_extension_cls="spark_prof.swaps.extension.Extension"``: vLLM
then appends the class to the bases of its Worker. Arguments and results are JSON values.

No method raises: what it refuses it returns as ``{"refused": line}``. With tensor parallelism vLLM
reads the answers up to the first error only, and takes those left over for the next call's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from spark_prof.errors import SparkProfError
from spark_prof.swaps.clock import clock_of
from spark_prof.swaps.tap import tap_of

_EVERY = 17
"""Each so many-th number moves by a unit in the last place. That is 2^-7 / sqrt(2.16 * 17) = 0.0013
of a vector's size (root mean square), about what rounding all of its numbers brings. Widths are
multiples of other primes, so that rows differ in which they are."""


def disturb(model: Any) -> int:
    """Flips the last bit of some numbers of the embeddings in place; a second call undoes it.

    What one rounding to bfloat16 changes at the beginning grows from layer to layer, most of all
    where routers choose others of nearly equal experts. How much of it arrives at the logits is a
    property of the model, and no kernel's fault: the gate allows for it.

    CUDA graphs read the weights where they are, so they see it, too. Returns how many numbers of
    this rank were changed: none where embeddings are not in 16 bits.
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

    addresses: set[int] = set()
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead):
            weight = getattr(module, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.data_ptr() not in addresses:
                addresses.add(weight.data_ptr())
                yield weight


logger = logging.getLogger("vllm.spark_prof")


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what the method raises."""

    @functools.wraps(method)
    def refusing(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except SparkProfError as error:
            return {"refused": str(error)}
        except Exception as error:
            logger.exception("%s failed", method.__name__)
            return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"}

    return refusing


class Extension:
    """Methods of a vLLM worker; `self` is the worker."""

    @_refusing
    def spark_prof_swaps(self) -> dict[str, Any]:
        """What is swapped in this worker, as `install.describe` tells it."""
        from spark_prof.swaps.install import describe

        return describe(self)

    @_refusing
    def spark_prof_side(self, side: str) -> None:
        """Runs that side from the next step on; a plan ends."""
        clock_of(self).choose(side)

    @_refusing
    def spark_prof_acceptance(self, rates: list[float] | None) -> None:
        """Fixes the share of steps that accept each draft and all before it; None ends that.

        The engine was started with `rejection_sample_method: synthetic`.
        """
        sampler: Any = getattr(self.model_runner, "rejection_sampler", None)  # type: ignore[attr-defined]
        if not hasattr(sampler, "synthetic_conditional_rates"):
            raise SparkProfError("this vLLM keeps the acceptance elsewhere: it cannot be changed")
        fixed = None
        if rates is not None:
            pairs = zip(rates, [1.0, *rates[:-1]], strict=True)
            chances = [rate / before if before else 0.0 for rate, before in pairs]
            fixed = torch.tensor(chances, dtype=torch.float32, device=self.device)  # type: ignore[attr-defined]
        sampler.synthetic_conditional_rates = fixed
        if hasattr(sampler, "synthetic_mode"):
            sampler.synthetic_mode = rates is not None

    @_refusing
    def spark_prof_plan(
        self, blocks: list[list[Any]], requests: int, prefill: bool, held_us: int = 0
    ) -> None:
        """Measures blocks ``[side, steps]``, as `StepClock.plan` does."""
        pairs = [(str(side), int(steps)) for side, steps in blocks]
        clock_of(self).plan(pairs, requests, prefill=prefill, held_us=held_us)

    @_refusing
    def spark_prof_times(self) -> list[list[int | str | bool | None]]:
        """The measured steps, as `StepClock.times` does, and forgets them."""
        return clock_of(self).times()

    @_refusing
    def spark_prof_tap(
        self, mode: str, path: str, requests: int, text: Sequence[tuple[int, Sequence[int]]] = ()
    ) -> None:
        """Taps the logits, as `Tap.switch` does."""
        tap_of(self).switch(mode, path, requests, text)

    @_refusing
    def spark_prof_disturb(self) -> int:
        """Disturbs the embeddings, or undoes it, as `disturb` does; how many numbers that were."""
        return disturb(self.model_runner.get_model())  # type: ignore[attr-defined]

    @_refusing
    def spark_prof_compared(self) -> list[dict[str, Any]]:
        """Returns what the tap has compared since the last call."""
        return tap_of(self).compared()
