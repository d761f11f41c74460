"""Watches one worker capture its CUDA graphs, so that their kernels can be told apart later.

A replayed graph says nothing about the layer of its kernels. While vLLM captures it, though, the
model runs as Python: what is open when a node is created is what the node works for. So the
model's calls are marked during the capture, whether or not anything is recorded later, and the
nodes come from CUPTI (capture.c) or from nsys. The arguments of the captured kernels say whose
memory each of them reads (arguments.c).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spark_prof.profiler.backends.native import Native, on_device
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.process import Process
from spark_prof.profiler.ranges import CallMarker, replace_attribute, wrap_method
from spark_prof.profiler.targets import MarkedModule, all_targets, models_of, phase_modules
from spark_prof.traces.chunks import (
    ARGUMENT_DTYPE,
    CAPTURE_DTYPE,
    EVENT_DTYPE,
    capture_name,
)
from spark_prof.traces.host_timeline import PHASE_MODULES

_PIECEWISE, _FULL = 1, 2
"""vLLM's CUDAGraphMode."""


class GraphWatch:
    """The graph captures of one worker."""

    def __init__(
        self,
        worker: Any,
        native: Native | None,  # what keeps the nodes; None where nsys does, or nothing
        fence: Fence,
        mark: Callable[[], object] | None = None,  # nsys's clock, where the captures begin and end
    ) -> None:
        self._worker, self._native, self._fence = worker, native, fence
        self._mark = mark or (lambda: None)
        self._marker = CallMarker(fence)
        self._undo: list[Callable[[], None]] = []
        self.uninstall: Callable[[], None] = lambda: None
        self._events = np.empty(0, EVENT_DTYPE)
        self._captures: list[tuple[int, int, int, int]] = []
        self._arguments, self._lost = np.empty(0, ARGUMENT_DTYPE), 0
        self._begun = self._mode = self._tokens = self._inside = 0

    def install(self) -> None:
        """Wraps the worker's method that captures; it unwraps itself when that is done."""
        self.uninstall = wrap_method(self._worker, "compile_or_warm_up_model", self._around_capture)

    def _around_capture(self, original: Any, *arguments: Any, **named: Any) -> Any:
        self._fence.call("watch_capture", self._start)
        try:
            return original(*arguments, **named)
        finally:
            self._fence.call("end_capture", self._stop)
            self.uninstall()

    def write(self, process: Process) -> None:
        """Writes nodes, captures and what was open meanwhile, if any graph was captured."""
        if not self._captures:
            return
        found = {
            "capture-events": self._events,
            "captures": np.array(self._captures, CAPTURE_DTYPE),
        }
        if self._native is not None:
            found |= {"nodes": self._native.nodes(), "arguments": self._arguments}
        for kind, rows in found.items():
            process.write(capture_name(process.name, kind), rows)
        if self._lost:
            process.log(f"{self._lost} arguments of kernels in CUDA graphs had no room")

    def _start(self) -> None:
        _, marked = marked_modules(self._worker)
        first = len(PHASE_MODULES)
        self._undo.append(self._marker.remove)
        self._marker.mark(marked[first:], first)
        for _, model in models_of(self._worker.model_runner):
            self._watch_batches(model)
        self._watch_captures()
        self._mark()
        self._marker.start()

    def _stop(self) -> None:
        self._marker.stop()
        self._mark()
        while self._undo:
            self._undo.pop()()
        self._events = self._marker.take_rows()
        self._fence.call("take_arguments", self._take_arguments)

    def _take_arguments(self) -> None:
        if self._native is not None:
            words, self._lost = self._native.take_arguments()
            self._arguments = on_device(words)

    def _watch_batches(self, model: Any) -> None:
        """Learns the size of the batch with which the model is called."""
        original = model.forward

        def forward(*arguments: Any, **named: Any) -> Any:
            self._fence.call("see_batch", self._see_batch, arguments, named)
            self._inside += 1
            try:
                return original(*arguments, **named)
            finally:
                self._inside -= 1

        self._undo.append(replace_attribute(model, "forward", forward))

    def _see_batch(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        for value in (named.get("input_ids"), named.get("inputs_embeds"), *arguments):
            if getattr(value, "ndim", 0) > 0:
                self._tokens = int(value.shape[0])
                return

    def _watch_captures(self) -> None:
        """Learns when a capture begins and ends."""
        import torch

        graph = torch.cuda.CUDAGraph
        begin, end = graph.capture_begin, graph.capture_end

        def capture_begin(this: Any, *arguments: Any, **named: Any) -> Any:
            self._fence.call("begin_capture", self._begin)
            return begin(this, *arguments, **named)

        def capture_end(this: Any, *arguments: Any, **named: Any) -> Any:
            self._fence.call("read_arguments", self._read_arguments)
            result = end(this, *arguments, **named)
            self._fence.call("close_capture", self._close)
            return result

        def undo() -> None:
            graph.capture_begin, graph.capture_end = begin, end

        graph.capture_begin, graph.capture_end = capture_begin, capture_end
        self._undo.append(undo)

    def _begin(self) -> None:
        self._begun = time.time_ns()
        # A piece is captured inside the model, a full graph around it.
        self._mode = _PIECEWISE if self._inside else _FULL

    def _read_arguments(self) -> None:
        """Looks at the graph while the stream still captures: afterwards only its clone is left."""
        if self._native is not None:
            import torch

            self._native.read_capture(torch.cuda.current_stream().cuda_stream)

    def _close(self) -> None:
        self._captures.append((self._begun, time.time_ns(), self._tokens, self._mode))


def marked_modules(worker: Any) -> tuple[Any, list[MarkedModule]]:
    """The worker's model, and the rows of its `modules` table in order."""
    runner = worker.model_runner
    _, model = next(models_of(runner))
    return model, phase_modules() + all_targets(runner)
