"""Watches one worker capture its CUDA graphs, so that their kernels can be told apart later.

A replayed graph says nothing about the layer of its kernels. While vLLM captures it, though, the
model runs as Python: what is open when a node is created is what the node works for. So the
model's calls are marked during the capture, whether or not anything is recorded later, and the
nodes come from CUPTI (capture.c) or from nsys. The arguments of the captured kernels say whose
memory each of them reads (arguments.c).

A breakable graph is a list of graphs with operators between them that run eagerly. Its replay calls
no module, so that what was open at each of these breaks is kept, and marked again in a recording.
"""

from __future__ import annotations

import operator
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spark_prof.profiler.backends.handover import before_torch_profiler
from spark_prof.profiler.backends.native import Native, on_device
from spark_prof.profiler.capture_log import (
    DRAFTER,
    MEMORY,
    MODEL,
    CaptureLog,
    EagerBreak,
    open_at,
)
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.process import Process
from spark_prof.profiler.ranges import CallMarker, replace_attribute, wrap_method
from spark_prof.profiler.targets import MarkedModule, all_targets, models_of, phase_modules
from spark_prof.profiler.vllm_names import (
    BREAKABLE_CAPTURE,
    CAPTURING_METHODS,
    DRAFTERS,
    RUN_MODEL,
)
from spark_prof.rules.components import DRAFTER as WHOLE_DRAFTER
from spark_prof.rules.components import DRAFTING
from spark_prof.traces.chunks import (
    ARGUMENT_DTYPE,
    CAPTURE_DTYPE,
    EVENT_DTYPE,
    capture_name,
)
from spark_prof.traces.host_timeline import PHASE_MODULES
from spark_prof.vocabulary import GRAPH_KINDS


class GraphWatch:
    """The graph captures of one worker."""

    def __init__(
        self,
        worker: Any,
        native: Native | None,  # what keeps the nodes; None where nsys does, or nothing
        fence: Fence,
        mark: Callable[[], object] | None = None,  # nsys's clock, where the captures begin and end
        *,
        recorded: bool = True,  # whether a recording begins with the worker
    ) -> None:
        self._worker, self._native, self._fence = worker, native, fence
        self._recorded = recorded
        self._mark = mark or (lambda: None)
        self._marker = CallMarker(fence)
        self._undo: list[Callable[[], None]] = []
        self.uninstall: Callable[[], None] = lambda: None
        self._events = np.empty(0, EVENT_DTYPE)
        self._log = CaptureLog()
        self._drafting = 0  # the code of the event that enters the call that drafts, 0 for none
        self._drafts = False  # whether it was entered, and not left
        self._breaks: list[EagerBreak] = []
        self._broken_in: list[int] = []  # the module that was open at each of them
        self._arguments, self._lost = np.empty(0, ARGUMENT_DTYPE), 0

    def install(self) -> None:
        """Wraps the worker's methods that capture; they are unwrapped when that is done."""
        around = {
            "compile_or_warm_up_model": self._around_capture,
            "determine_available_memory": self._around_memory,
        }
        undo = [wrap_method(self._worker, name, wrapper) for name, wrapper in around.items()]
        undo.append(before_torch_profiler(self._give_way))

        def uninstall() -> None:
            for restore in undo:  # and again later: a recording's wrap may be around one
                restore()

        self.uninstall = uninstall

    def release(self) -> None:
        """Ends the watch; CUPTI is left to other profilers, and what was seen stays."""
        self.uninstall()
        self._give_way()

    def _give_way(self) -> None:
        """Graphs that are captured while torch's profiler runs stay unknown."""
        if self._native is not None:
            self._fence.call("release", self._native.unsubscribe)

    def _around_capture(self, original: Any, *arguments: Any, **named: Any) -> Any:
        self._fence.call("watch_capture", self._start)
        try:
            return original(*arguments, **named)
        finally:
            self._fence.call("end_capture", self._stop)
            if self._recorded:
                self.uninstall()
            else:
                self.release()

    def _around_memory(self, original: Any, *arguments: Any, **named: Any) -> Any:
        """Only tells that what is captured here is thrown away."""
        self._fence.call("watch_memory", self._watch_captures)
        try:
            with self._log.within(MEMORY):
                return original(*arguments, **named)
        finally:
            while self._undo:
                self._undo.pop()()

    def mark_breaks(self, marker: CallMarker) -> None:
        """Marks what breakable graphs run between their pieces, as calls of the module it is of."""
        marked = marked_modules(self._worker)[1] if self._breaks else []
        for one, module in zip(self._breaks, self._broken_in, strict=True):
            capture = one.capture()
            if capture is not None and 0 <= module < len(marked):
                marker.mark_item(module, marked[module].path, capture.segments, one.index)

    def write(self, process: Process) -> None:
        """Writes nodes, captures and what was open meanwhile, if any graph was captured."""
        if not any(kind != MEMORY for *_, kind, _ in self._log.rows):
            return
        arrays = {
            "capture-events": self._events,
            "captures": np.array(self._log.rows, CAPTURE_DTYPE),
        }
        if self._native is not None:
            arrays |= {"nodes": self._native.nodes(), "arguments": self._arguments}
        for kind, rows in arrays.items():
            process.write(capture_name(process.name, kind), rows)
        if self._lost:
            process.log(f"{self._lost} arguments of kernels in CUDA graphs had no room")

    def _start(self) -> None:
        _, marked = marked_modules(self._worker)
        first = len(PHASE_MODULES)
        self._undo.append(self._marker.remove)
        self._marker.mark(marked[first:], first)
        self._drafting = drafting_code([row.path for row in marked])
        for prefix, model in models_of(self._worker.model_runner):
            self._watch_batches(model, DRAFTER if prefix else MODEL)
        self._watch_drafter()
        self._watch_owners()
        self._watch_captures()
        self._watch_breaks()
        self._mark()
        self._marker.start()

    def _stop(self) -> None:
        self._marker.stop()
        self._mark()
        while self._undo:
            self._undo.pop()()
        self._events = self._marker.take_rows()
        counts = [one.events for one in self._breaks]
        self._broken_in = open_at(self._events["code"].tolist(), counts)
        self._fence.call("take_arguments", self._take_arguments)

    def _take_arguments(self) -> None:
        if self._native is not None:
            words, self._lost = self._native.take_arguments()
            self._arguments = on_device(words)

    def _watch_batches(self, model: Any, kind: int) -> None:
        """Learns the size of the batch with which the model is called."""
        original = model.forward

        def forward(*arguments: Any, **named: Any) -> Any:
            self._fence.call("see_batch", self._see_batch, arguments, named)
            with self._log.forward(kind):
                return original(*arguments, **named)

        self._undo.append(replace_attribute(model, "forward", forward))

    def _watch_drafter(self) -> None:
        """Learns when the draft model is called: its forward is none where it is compiled."""

        def around(original: Any, *arguments: Any, **named: Any) -> Any:
            with self._log.forward(DRAFTER):
                return original(*arguments, **named)

        for name in DRAFTERS:
            holder = getattr(self._worker.model_runner, name, None)
            self._undo.append(wrap_method(holder, RUN_MODEL, around))

    def _watch_owners(self) -> None:
        """Learns which captures are for something else than the model's forward."""
        for path, method, kind in CAPTURING_METHODS:
            try:
                owner = operator.attrgetter(path)(self._worker.model_runner)
            except AttributeError:
                continue

            def around(
                original: Any, *arguments: Any, _kind: int = GRAPH_KINDS.index(kind), **named: Any
            ) -> Any:
                with self._log.within(_kind):
                    return original(*arguments, **named)

            self._undo.append(wrap_method(owner, method, around))

    def _see_batch(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        for value in (named.get("input_ids"), named.get("inputs_embeds"), *arguments):
            if getattr(value, "ndim", 0) > 0:
                self._log.tokens = int(value.shape[0])
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

    def _watch_breaks(self) -> None:
        """Learns what is open where a breakable graph runs an operator eagerly."""
        capture = _breakable_capture()
        if capture is None:
            return
        original = capture.add_eager

        def add_eager(this: Any, *arguments: Any, **named: Any) -> Any:
            events = self._marker.events
            result = original(this, *arguments, **named)
            self._fence.call("see_break", self._see_break, this, events)
            return result

        def undo() -> None:
            capture.add_eager = original

        capture.add_eager = add_eager
        self._undo.append(undo)

    def _see_break(self, capture: Any, events: int) -> None:
        index = len(capture.segments) - 1  # the next piece is none of them before it has ended
        if callable(capture.segments[index]):
            self._breaks.append(EagerBreak(weakref.ref(capture), index, events))

    def _begin(self) -> None:
        kind = _breakable_capture()
        capture = None if kind is None else kind.current()
        self._log.begin(None if capture is None else int(capture.num_graphs))
        if self._log.drafts:
            self._enter_drafting()

    def _close(self) -> None:
        self._leave_drafting()
        self._log.close()

    def _enter_drafting(self) -> None:
        """Opens the call that drafts: only what it calls is called while a graph is captured."""
        self._leave_drafting()
        if self._drafting:
            self._marker.add(self._drafting, time.time_ns())
            self._drafts = True

    def _leave_drafting(self) -> None:
        if self._drafts:
            self._marker.add(-self._drafting, time.time_ns())
            self._drafts = False

    def _read_arguments(self) -> None:
        """Looks at the graph while the stream still captures: afterwards only its clone is left."""
        if self._native is not None and not self._log.measures_memory:
            import torch

            self._native.read_capture(torch.cuda.current_stream().cuda_stream)


def drafting_code(paths: Sequence[str]) -> int:
    """The code of entering the call that drafts, 0 where that is not marked.

    Nor is it where no call of the draft model is, whose kernels would count to the call around it.

    >>> drafting_code(["model", "drafter", "drafter.propose"])
    3
    """
    drafts = DRAFTING in paths and WHOLE_DRAFTER in paths
    return paths.index(DRAFTING) + 1 if drafts else 0


def _breakable_capture() -> Any:
    """The class that captures breakable graphs, None where vLLM has not imported it."""
    module, name = BREAKABLE_CAPTURE
    return getattr(sys.modules.get(module), name, None)


def marked_modules(worker: Any) -> tuple[Any, list[MarkedModule]]:
    """The worker's model, and the rows of its `modules` table in order."""
    runner = worker.model_runner
    _, model = next(models_of(runner))
    return model, phase_modules() + all_targets(runner)
