"""Keeps a replacement's faults away from the engine.

A kernel that raises is off from then on in that layer, with one line in the log, and vLLM's own
kernel computes what it did not. One that never comes back ends the process with a clear line:
nothing can stop it, and it is tried before the engine takes requests.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.swap_settings import Rounded

NOT_TAKEN = object()
"""What a guarded kernel answers when vLLM's own has to run."""

TRIAL = "trial"
"""The side of calls that are made before the engine takes requests."""

HUNG = 86
"""Exit code of a process whose kernel never came back."""

_REPORTED: set[tuple[str, str]] = set()

logger = logging.getLogger("vllm.spark_prof")
"""A child of vLLM's logger, so that its lines look like vLLM's own."""


@dataclass(frozen=True)
class ReplacementError:
    """How far a replacement's result is from that of vLLM's own kernel, for the same tokens."""

    relative_l2: float  # the L2 norm of a row's difference over that of vLLM's row
    row: int  # the one that is furthest off, which `relative_l2` is of
    tokens: str  # the call in words: `2 rows (large tokens)`
    beyond: bool  # that row, or one element of it, is further off than is allowed


class GuardedReplacement:
    """A replacement in one layer, or the reason why there is none."""

    def __init__(self, label: str, kernel: str, replacement: Replacement | None) -> None:
        self.label = label
        self.kernel = kernel  # its name, which it has in common with those of other layers
        self.replacement = replacement
        # That failed while the engine ran: CUDA graphs captured before read its weights still.
        self.retired: Replacement | None = None
        self.why = ""  # why it does not run, empty as long as it does
        self.calls: Counter[str] = Counter()
        self.rounded: Rounded = ""  # what vLLM's own layer rounds activations to, told on trial
        self.error: ReplacementError | None = None  # on trial; None where that was not compared

    @property
    def live(self) -> bool:
        """Whether it runs."""
        return self.replacement is not None and not self.why

    def takes(self, tokens: int) -> bool:
        """Whether it is to run for that many tokens."""
        return self.live and tokens > 0 and self._replacement.takes(tokens)

    def run(self, side: str, *arguments: Any) -> Any:
        """What the kernel returns, or `NOT_TAKEN` after it has failed."""
        try:
            result = self._replacement.run(*arguments)
        except Exception as error:
            self.retired = None if side == TRIAL else self.replacement
            self.fail(f"{type(error).__name__}: {error}", quiet=side == TRIAL)
            return NOT_TAKEN
        self.calls[side] += 1
        return result

    def fail(self, why: str, *, quiet: bool = False) -> None:
        """Turns the kernel off; says so once a kernel and reason, unless somebody else does."""
        self.why = " ".join(why.split())[:400]
        self.replacement = None
        key = (self.kernel, self.why)
        if quiet or key in _REPORTED:
            return
        _REPORTED.add(key)
        logger.warning(
            "%s: vLLM's own kernel runs from now on, here and where this happens again: %s",
            self.label, self.why,
        )  # fmt: skip

    @property
    def _replacement(self) -> Replacement:
        assert self.replacement is not None
        return self.replacement


@contextmanager
def deadline(seconds: float, line: str) -> Iterator[None]:
    """Ends the process with that line if the body does not end in time."""

    def end() -> None:
        print(f"spark-prof: {line} for {seconds:.0f} s: the process ends", file=sys.stderr)
        sys.stderr.flush()
        os._exit(HUNG)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
