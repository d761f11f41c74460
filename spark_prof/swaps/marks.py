"""Points in time on the clock of the device that computes: a GPU's, or this host's for a CPU."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Marks(Protocol):
    """Sets marks cheaply and tells the times between them later. Marks are numbered from 0."""

    def reset(self, count: int) -> None:
        """Forgets all marks and makes room for so many."""

    def mark(self) -> int:
        """Sets a mark and returns its number; waits for nothing."""

    def between(self, first: int, second: int) -> int:
        """The nanoseconds from one mark to a later one; may wait for the device."""

    def reached(self, mark: int) -> bool | None:
        """Whether the device has come to a mark; None where host and device are one."""


class HostMarks:
    """Marks on the host's clock, for engines that compute on the CPU."""

    def __init__(self) -> None:
        self._times: list[int] = []

    def reset(self, count: int) -> None:  # noqa: ARG002
        """Forgets all marks."""
        self._times = []

    def mark(self) -> int:
        """Sets a mark and returns its number."""
        self._times.append(time.perf_counter_ns())
        return len(self._times) - 1

    def between(self, first: int, second: int) -> int:
        """The nanoseconds from one mark to a later one."""
        return self._times[second] - self._times[first]

    def reached(self, mark: int) -> None:
        """Nothing: the host itself computes."""


class EventMarks:
    """Marks as CUDA events on the current stream: the GPU reaches one when all before it is done.

    Events are kept and used again. An event's resolution is about half a microsecond
    (CUDA Runtime API, cudaEventElapsedTime).
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._events: list[Any] = []
        self._used = 0

    def reset(self, count: int) -> None:
        """Forgets all marks and creates the events that are missing, outside of any step."""
        import torch

        self._used = 0
        with torch.cuda.device(self._device):
            for _ in range(count - len(self._events)):
                event = torch.cuda.Event(enable_timing=True)
                event.record()  # the CUDA event behind it is created by its first use
                self._events.append(event)

    def mark(self) -> int:
        """Records the next event; raises IndexError when there is none left."""
        number = self._used
        self._events[number].record()
        self._used = number + 1
        return number

    def between(self, first: int, second: int) -> int:
        """The nanoseconds from one mark to a later one; waits until the GPU has reached it."""
        begin, end = self._events[first], self._events[second]
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return round(milliseconds * 1e6)

    def reached(self, mark: int) -> bool:
        """Whether the GPU has come to a mark; waits for nothing."""
        found: bool = self._events[mark].query()
        return found


def marks_for(worker: Any) -> Marks:
    """The marks of the device that this vLLM worker computes on."""
    device = getattr(worker, "device", None)
    return EventMarks(device) if getattr(device, "type", "cpu") == "cuda" else HostMarks()
