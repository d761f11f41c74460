"""A number of calls as one unit that can be repeated: a CUDA graph, or a loop on a processor."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

Output = tuple[torch.Tensor, ...]
Call = Callable[[int], torch.Tensor | Output]
"""Runs the call of that number and gives its results."""

_WARM_UPS = 2
_QUEUE_CYCLES = 600_000
"""About a third of a millisecond: as long as the host needs to launch a graph of many nodes."""

_UNKNOWN_CACHE = 64 << 20


class Repeated(ABC):
    """Calls 0 to N - 1 in order, as often as wanted."""

    outputs: Sequence[Output]

    @abstractmethod
    def seconds(self) -> float:
        """Runs all calls once and tells how long they took."""

    def poison(self) -> None:
        """Writes NaN, or bytes of 0xFF, over all results: what is not written again shows."""
        for output in self.outputs:
            for tensor in output:
                if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
                    tensor.fill_(torch.nan)
                else:
                    tensor.view(torch.uint8).fill_(0xFF)


class _Graph(Repeated):
    """One CUDA graph: no launch from the host lies between the calls."""

    def __init__(self, call: Call, calls: int) -> None:
        # What is compiled or allocated at first use must be before a graph is captured.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for number in range(min(_WARM_UPS, calls)):
                call(number)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        failure: Exception | None = None
        try:
            with torch.cuda.graph(self._graph):
                try:
                    self.outputs = [_as_tuple(call(number)) for number in range(calls)]
                except Exception as found:
                    failure = found
                    raise
        except Exception as ended:
            # Ending a capture that was broken off fails too, and says less.
            raise failure or ended from None

    def seconds(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The host launches everything while the GPU still waits: no launch is timed with it.
        torch.cuda._sleep(_QUEUE_CYCLES)
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        # Milliseconds, to about half a microsecond.
        return float(begin.elapsed_time(end)) / 1e3


class _Loop(Repeated):
    """Calls from the host, timed with its clock."""

    def __init__(self, call: Call, calls: int) -> None:
        self._call = call
        self._calls = calls
        self.outputs = [_as_tuple(call(number)) for number in range(calls)]

    def seconds(self) -> float:
        begun = time.perf_counter()
        self.outputs = [_as_tuple(self._call(number)) for number in range(self._calls)]
        return time.perf_counter() - begun


def repeated(call: Call, calls: int, device: torch.device) -> Repeated:
    """Prepares the calls 0 to `calls` - 1 for being repeated.

    Raises:
        Exception: whatever a call raises.
    """
    return _Graph(call, calls) if device.type == "cuda" else _Loop(call, calls)


def cache_bytes(device: torch.device) -> int:
    """Size of the last cache before the memory; 0 of a processor, whose times say nothing here."""
    if device.type != "cuda":
        return 0
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return int(size) or _UNKNOWN_CACHE


def _as_tuple(output: torch.Tensor | Output) -> Output:
    return output if isinstance(output, tuple) else (output,)
