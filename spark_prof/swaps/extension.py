"""What `spark-prof ab` calls in every worker of a vLLM engine, through `LLM.collective_rpc`.

The engine is started with ``worker_extension_cls="spark_prof.swaps.extension.Extension"``: vLLM
then appends the class to the bases of its Worker. Arguments and results are JSON values.
"""

from __future__ import annotations

from typing import Any

from spark_prof.swaps.clock import clock_of
from spark_prof.swaps.tap import tap_of

__all__ = ["Extension"]


class Extension:
    """Methods of a vLLM worker; `self` is the worker."""

    def spark_prof_swaps(self) -> dict[str, Any]:
        """What is swapped in this worker, as `install.describe` tells it."""
        from spark_prof.swaps.install import describe

        return describe(self)

    def spark_prof_side(self, side: str) -> None:
        """Runs that side from the next step on; a plan ends."""
        clock_of(self).choose(side)

    def spark_prof_plan(self, blocks: list[list[Any]], requests: int, prefill: bool) -> None:
        """Measures blocks ``[side, steps]``, as `StepClock.plan` does."""
        pairs = [(str(side), int(steps)) for side, steps in blocks]
        clock_of(self).plan(pairs, requests, prefill=prefill)

    def spark_prof_times(self) -> list[list[int | str]]:
        """The measured steps, and forgets them.

        Each is ``[block, side, index in the block, duration in ns, end in ns since the epoch,
        prefill tokens, decoding requests, context tokens]``.
        """
        return [step.row() for step in clock_of(self).times()]

    def spark_prof_tap(self, mode: str, path: str, requests: int) -> int:
        """Taps the logits, as `Tap.switch` does; how many rows the tap before has seen."""
        return tap_of(self).switch(mode, path, requests)

    def spark_prof_compared(self) -> list[dict[str, Any]]:
        """What the tap has compared, and forgets it."""
        return tap_of(self).compared()
