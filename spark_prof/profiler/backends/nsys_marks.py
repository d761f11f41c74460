"""What spark-prof does inside a worker that nsys watches: it leaves marks that name the time.

nsys takes the kernels. Its clock and the one of the recorded steps drift apart; see
traces/readers/nsys_clock.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_prof.traces.chunks import CLOCK_MARK

_MARKS = 5


class NsysBackend:
    """Marks the clock where a piece begins and ends; nsys writes the kernels."""

    def __init__(self) -> None:
        mark_clock()

    def start(self, piece: int) -> None:  # noqa: ARG002
        """Marks the clock."""
        mark_clock()

    def stop(self) -> None:
        """Marks the clock."""
        mark_clock()

    def discard(self) -> None:
        """Marks the clock, where the last piece may have ended."""
        mark_clock()


def mark_clock(mark: Callable[[str], object] | None = None) -> bool:
    """Leaves a burst of NVTX marks, each with the time in ns since the epoch.

    Returns:
        Whether there was anything that could leave one.
    """
    mark = mark or _find_mark()
    if mark is None:
        return False
    for _ in range(_MARKS):
        mark(f"{CLOCK_MARK}{time.time_ns()}")
    return True


def _find_mark() -> Callable[[str], object] | None:
    """Torch's own NVTX, which every CUDA build has, else the nvtx package's."""
    try:
        import torch

        if torch.version.cuda:
            marked: Callable[[str], object] = torch.cuda.nvtx.mark
            return marked
        import nvtx
    except ImportError:
        return None
    return lambda text: nvtx.mark(message=text)
