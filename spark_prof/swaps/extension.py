"""What `spark-prof ab` calls in every worker of a vLLM engine, through `LLM.collective_rpc`.

The engine is started with ``worker_extension_cls="spark_prof.swaps.extension.Extension"``: vLLM
then appends the class to the bases of its Worker. Arguments and results are JSON values.

No method raises: what it refuses it returns as ``{"refused": line}``. With tensor parallelism vLLM
reads the answers up to the first error only, and takes those left over for the next call's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from spark_prof.errors import SparkProfError
from spark_prof.swaps.clock import clock_of
from spark_prof.swaps.tap import tap_of

logger = logging.getLogger("vllm.spark_prof")

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _refusing(
    method: Callable[Concatenate[Any, _Arguments], _Result],
) -> Callable[Concatenate[Any, _Arguments], _Result | dict[str, str]]:
    """Returns what the method raises."""

    @functools.wraps(method)
    def refusing(
        worker: Any, /, *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Result | dict[str, str]:
        try:
            return method(worker, *arguments, **named)
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
    def spark_prof_plan(self, blocks: list[list[Any]], requests: int, prefill: bool) -> None:
        """Measures blocks ``[side, steps]``, as `StepClock.plan` does."""
        pairs = [(str(side), int(steps)) for side, steps in blocks]
        clock_of(self).plan(pairs, requests, prefill=prefill)

    @_refusing
    def spark_prof_times(self) -> list[list[int | str | bool | None]]:
        """The measured steps, and forgets them.

        Each is ``[block, side, index in the block, duration in ns, end in ns since the epoch,
        prefill tokens, decoding requests, context tokens, whether the host was ahead]``.
        """
        return [step.row() for step in clock_of(self).times()]

    @_refusing
    def spark_prof_tap(self, mode: str, path: str, requests: int) -> int:
        """Taps the logits, as `Tap.switch` does; how many rows the tap before has seen."""
        return tap_of(self).switch(mode, path, requests)

    @_refusing
    def spark_prof_disturb(self) -> int:
        """Disturbs the embeddings, or undoes it, as `disturb` does; how many numbers that were."""
        from spark_prof.swaps.disturb import disturb

        return disturb(self.model_runner.get_model())  # type: ignore[attr-defined]

    @_refusing
    def spark_prof_compared(self) -> list[dict[str, Any]]:
        """What the tap has compared, and forgets it."""
        return tap_of(self).compared()
