"""Records the steps of one vLLM worker.

A `WorkerRecording` wraps three methods on the worker *object*. When its window has closed it takes
every wrap and mark away again, so that a server that goes on runs as if nothing had been there.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from spark_prof.profiler.backends.choose import Backend, choose_backend
from spark_prof.profiler.batch import Batch, read_batch
from spark_prof.profiler.facts import device_now, engine_facts
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.graphs import GraphWatch, marked_modules
from spark_prof.profiler.introspect import describe_layers, describe_tensors
from spark_prof.profiler.process import Process
from spark_prof.profiler.ranges import CallMarker, wrap_method
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.targets import phase_modules
from spark_prof.profiler.window import SteadyWindow, Stretches, Take, Window
from spark_prof.traces.chunks import STEP_DTYPE, array_name
from spark_prof.traces.host_timeline import PHASE_MODULES

_PREPARE, _SAMPLE = 1, 3

_VITAL = frozenset({"begin_step", "end_step", "stop", "flush"})
"""Hooks without which a recording would grow or go on: when one fails, the recording ends."""


_STEPS_WITH_ARGUMENTS = 2
"""Of each kind of step so many have the arguments of their kernels read; the others are alike."""

_MOST_KINDS = 32

_REST_SECONDS = 1.0  # an engine without a step for so long has nothing to do


class WorkerRecording:
    """One recording in one worker, which is constructed but perhaps not yet loaded."""

    def __init__(
        self,
        worker: Any,
        settings: Settings,
        process: Process,
        graphs: GraphWatch | None = None,
    ) -> None:
        self._worker = worker
        self._graphs = graphs  # what was seen while the worker captured its CUDA graphs
        self._settings = settings
        self.process = process
        self.fence = Fence(process.log, settings.faults)
        # Recorded NVTX would hold spark-prof's own ranges, which the bundle has already.
        self._marker = CallMarker(self.fence, nvtx=not settings.nvtx)
        self.window = _window(settings)
        # By what their hooks' names end with.
        self._backends: dict[str, Backend] = {}
        self._prepared = self._watching = self._loading = self._stop = False
        self._entered = self._finishing = self._reading = False
        self.flush_when_idle = False  # leaves the last flush to whoever watches `wants_flush`
        self._open: tuple[Batch, int, bool] | None = None
        self._steps: list[tuple[int, ...]] = []
        self._kinds: Counter[tuple[int, int]] = Counter()
        self._number = self._piece = self._thread = 0
        self._latest = time.monotonic()
        self._undo: list[Callable[[], None]] = []
        self._facts: dict[str, Any] = {}
        self._describe: Callable[[], None] = lambda: None

    @property
    def idle(self) -> bool:
        """Whether none of this recording's code is running and no recorded step is."""
        return self._open is None and not self._entered

    @property
    def wants_flush(self) -> bool:
        """Whether the recording has ended but its last piece is still in memory."""
        return self.window.closed and bool(self._undo)

    @property
    def rests(self) -> bool:
        """Whether steps wait in memory while the engine has nothing to do.

        vLLM kills its processes when it is told to end, so that what waits would be lost.
        """
        quiet = time.monotonic() - self._latest > _REST_SECONDS
        return quiet and self.idle and bool(self._steps) and not self.window.closed

    def install(self) -> None:
        """Wraps the worker's methods; everything else waits until the model is loaded."""
        around = {
            "compile_or_warm_up_model": self._around_loading,
            "execute_model": self._around_execute,
            "sample_tokens": self._around_sample,
            "shutdown": self._around_shutdown,
        }
        self._undo = [wrap_method(self._worker, name, each) for name, each in around.items()]

    def request_stop(self) -> None:
        """Asks to end after the running step; callable from any thread."""
        self._stop = True

    def settle(self) -> None:
        """Ends the recording if it is to end, else writes what waits, between two steps."""
        if self.idle and (self._stop or self.wants_flush):
            self.finish()
        elif self.rests:
            self._entered = True  # a flush may take longer than the next reminder to flush
            self.fence.call("flush", self._flush)
            self._entered = False

    def abandon(self) -> None:
        """Ends the recording when the process ends, even inside a step; that step is lost."""
        self._open = None
        self.finish()

    def finish(self) -> None:
        """Ends the recording: flushes the last piece and takes everything off the worker."""
        self.window.closed = True
        if self._open is not None or not self._undo or self._finishing:
            return
        self._finishing = True  # a flush takes longer than the next reminder to flush
        self.fence.call("flush", self._flush)
        if self.fence.failed & _VITAL:
            self.process.counter.fail()
        for name, backend in self._backends.items():
            # A profiler that ran on would grow, and break the next one.
            self.fence.call(f"discard{name}", backend.discard)
        self.fence.call("remove", self._marker.remove)
        while self._undo:
            self._undo.pop()()
        if self._graphs is not None:
            self._graphs.uninstall()
        self.fence.call("progress", self.process.progress, self.window, finished=True)

    def _around_loading(self, original: Any, *arguments: Any, **named: Any) -> Any:
        # Model runner V2 warms up through execute_model: those are not the user's steps.
        self._loading = True
        try:
            result = original(*arguments, **named)
        finally:
            self._loading = False
        # Everything is loaded and captured, and no request waits yet.
        self.fence.call("ready", self._get_ready)
        return result

    def _get_ready(self) -> None:
        """Prepares before the first request, so that no step waits for it."""
        if self._prepared or self.window.closed:
            return
        self._prepare()
        wanted = self._settings
        if not (wanted.warmup_steps or wanted.decode_only or wanted.steady or self.window.closed):
            self._watch()

    def _around_execute(
        self, original: Any, scheduler_output: Any, *rest: Any, **named: Any
    ) -> Any:
        self._entered = True
        self.fence.call("begin_step", self._begin_step, scheduler_output)
        self._entered = False
        if self.fence.failed & _VITAL and not self.window.closed:
            self._open = None
            self.finish()
        try:
            result = original(scheduler_output, *rest, **named)
        except BaseException:
            self._open = None
            raise
        if result is not None:
            self.fence.call("end_step", self._end_step)
        else:
            self.fence.call("between", self._event, -_PREPARE)
        return result

    def _around_sample(self, original: Any, *arguments: Any, **named: Any) -> Any:
        self.fence.call("begin_sample", self._event, _SAMPLE)
        try:
            return original(*arguments, **named)
        finally:
            self.fence.call("end_step", self._end_step)

    def _around_shutdown(self, original: Any, *arguments: Any, **named: Any) -> Any:
        self.abandon()
        return original(*arguments, **named)

    def _begin_step(self, output: Any) -> None:
        self._open = None
        if self._loading or not output.total_num_scheduled_tokens:
            return
        if self._stop or self.window.closed:
            self.finish()
            return
        batch = read_batch(output)
        if not self._prepared:
            self._prepare()
            if self.window.closed:
                return
        now = time.time_ns()
        take = self.window.wants(batch, now)
        ended = self._watching and take is not Take.WATCH
        if ended or take is Take.SKIP or len(self._steps) >= self._settings.steps_per_piece:
            self.fence.call("flush", self._flush)
        if take is Take.SKIP:
            return
        if take is Take.WATCH and not self._watching:
            self._watch()
        # Only a backend that can: it reads what kernels outside of graphs are launched with.
        read = getattr(self._backends.get(""), "read_launches", None)
        if take is Take.WATCH and read is not None:
            self.fence.call("read_launches", self._read_launches, read, batch)
        self.process.counter.begin(self._number)
        now = time.time_ns()
        self._open = (batch, now, take is Take.WATCH)
        self._event(_PREPARE, now)

    def _read_launches(self, read: Callable[..., None], batch: Batch) -> None:
        """Has the arguments of kernels read in the first steps of each kind."""
        kind = (batch.phase, batch.decode_requests)
        wanted = self._kinds[kind] < _STEPS_WITH_ARGUMENTS and len(self._kinds) <= _MOST_KINDS
        self._kinds[kind] += 1
        if wanted != self._reading:
            read(on=wanted)
            self._reading = wanted

    def _event(self, code: int, now: int | None = None) -> None:
        if self._open is not None:
            self._marker.add(code, time.time_ns() if now is None else now)

    def _end_step(self) -> None:
        self._latest = time.monotonic()  # first: from here on it looks idle
        if self._open is None:
            return
        (batch, start, watched), self._open = self._open, None
        end = time.time_ns()
        self._marker.add(0, end)  # everything open is left
        self._steps.append(
            (
                self._number, batch.key, batch.phase, start, end,
                batch.prefill_requests, batch.prefill_tokens,
                batch.decode_requests, batch.decode_tokens,
                batch.context_tokens, self._thread, watched,
            )
        )  # fmt: skip
        self._number += 1
        self.process.counter.end(self._number)
        if watched:
            self.window.count()
        if self._stop:
            self.window.closed = True
        if self.window.closed:
            # Now the GPU has just worked: when the next request comes it may have rested.
            self.fence.call("device", self._look_at_device)
        # Flushing takes long enough to be felt by a request: if it can, it waits for a pause.
        if self.window.closed and not self.flush_when_idle:
            self.finish()

    def _look_at_device(self) -> None:
        if state := device_now():
            self._facts["device_after_steps"] = state
            self._describe()

    def _prepare(self) -> None:
        """Reads the model and marks it, in the thread of the steps, before the first of them."""
        self._prepared = True
        if self.fence.call("counts", self.process.begin) is False:
            self.finish()
            return
        found = self.fence.call("targets", marked_modules, self._worker)
        model, marked = found or (None, phase_modules())
        layers = None if model is None else self.fence.call("introspect", describe_layers, model)
        facts = self.fence.call("facts", engine_facts, self._worker) or {}
        chosen = self.fence.call("backend", choose_backend, self._settings, self.process)
        facts["backend"], backend = chosen or ("none", None)
        if backend is not None:
            self._backends[""] = backend
        self._describe = lambda: self.process.write_facts(facts, marked, layers or [])
        self._facts = facts
        if self._settings.counters:
            counters = self.fence.call("counters", _sampler, self.process)
            if counters is not None:
                self._backends["_counters"] = counters
        self._describe()
        self.fence.call(
            "tensors", lambda: self.process.write_tensors(describe_tensors(self._worker))
        )
        first = len(PHASE_MODULES)
        self.fence.call("mark", self._marker.mark, marked[first:], first)
        if self._graphs is not None:
            self.fence.call("graphs", self._graphs.write, self.process)
        self._thread = threading.get_native_id()

    def _watch(self) -> None:
        self._watching = True
        for name, backend in self._backends.items():
            self.fence.call(f"start{name}", backend.start, self._piece)
        self._marker.start()

    def _flush(self) -> None:
        """Writes the steps since the last flush, with their ranges and kernels, as one piece."""
        self.process.check()
        self._marker.stop()
        watching, self._watching = self._watching, False
        if watching:
            self._reading = False
            for name, backend in reversed(self._backends.items()):
                self.fence.call(f"stop{name}", backend.stop)
        if not self._steps:
            return
        events = self._marker.take_rows()
        self.process.write(array_name(self.process.name, "events", self._piece), events)
        steps = np.array(self._steps, dtype=STEP_DTYPE)
        self.process.write(array_name(self.process.name, "steps", self._piece), steps)
        self._steps.clear()
        self._piece += 1


def _window(settings: Settings) -> Window:
    stretches = Stretches(settings.stretch, settings.period)
    if settings.steady:
        return SteadyWindow(settings.steps, stretches, settings.batch_sizes)
    return Window(settings.steps, settings.warmup_steps, settings.decode_only, stretches)


def _sampler(process: Process) -> Backend | None:
    """What samples the counters of this worker's GPU, None where there is none."""
    import torch

    if not torch.cuda.is_available():
        process.log("counters: there is no NVIDIA GPU; the recording goes on without")
        return None
    from spark_prof.profiler.counters import CounterSampler

    device = torch.cuda.current_device()
    sampler = CounterSampler(process.folder, process.name, process.log, device)
    return sampler if sampler.works else None
