"""Records the steps of one vLLM worker.

A `WorkerRecording` wraps three methods on the worker *object*. When its window has closed it takes
every wrap and mark away again, so that a server that goes on runs as if nothing had been there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from spark_prof.profiler.backends.choose import CaptureBackend, choose_backend
from spark_prof.profiler.backends.handover import before_torch_profiler, our_profiler
from spark_prof.profiler.batch import Batch, LaunchArguments, preempted_requests, shared_batch
from spark_prof.profiler.facts import device_now, engine_facts
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.graphs import GraphWatch, marked_modules
from spark_prof.profiler.introspect import describe_layers, describe_tensors
from spark_prof.profiler.memory_state import MemoryGauge, held_by_runner
from spark_prof.profiler.process import Process
from spark_prof.profiler.ranges import CallMarker, wrap_method
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.start_marks import MARKS
from spark_prof.profiler.targets import phase_modules
from spark_prof.profiler.window import (
    PieceLength,
    Sampling,
    SteadyWindow,
    StepWindow,
    Stretches,
    Take,
)
from spark_prof.traces.chunks import STEP_DTYPE, array_name
from spark_prof.traces.host_timeline import PHASE_MODULES

_PREPARE, _SAMPLE = 1, 3

_VITAL = frozenset({"begin_step", "end_step", "stop", "flush"})
"""Hooks without which a recording would grow or go on: when one fails, the recording ends."""

GAVE_WAY = "the recording ended because another profiler was started in the engine"

_REST_SECONDS = 1.0  # an engine without a step for so long has nothing to do


class Stage(Enum):
    """How far a recording is."""

    NEW = "nothing of the model has been read"
    LOADING = "vLLM loads the model or warms it up: its steps are nobody's"
    PREPARED = "the model is marked; steps are timed, if at all"
    WATCHING = "the backends record"
    PAUSED = "the backends pause within a piece: steps are timed"
    ENDING = "the last piece is written, and everything taken off the worker"


_IN_A_PIECE = (Stage.WATCHING, Stage.PAUSED)


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
        self._backends: dict[str, CaptureBackend] = {}
        self._stage = Stage.NEW
        self._entered = False  # whether this recording's code runs
        self._stop_reason: str | None = None  # why it was asked to end; None as long as nobody has
        self.flush_when_idle = False  # leaves the last flush to whoever watches `wants_flush`
        self._open: tuple[Batch, int, bool, int] | None = None
        self._steps: list[tuple[int, ...]] = []
        self._arguments = LaunchArguments()
        self._number = self._piece = self._thread = self._preempted = 0
        self._profiled = 0  # of the steps that wait to be written
        self._length = PieceLength(settings.steps_per_piece)
        self._latest = time.monotonic()
        self._undo: list[Callable[[], None]] = []
        self._facts: dict[str, Any] = {}
        self._gauge: MemoryGauge | None = None
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
            "profile": self._around_profile,
        }
        self._undo = [wrap_method(self._worker, name, wrapper) for name, wrapper in around.items()]
        self._undo.append(before_torch_profiler(self._give_way))

    @property
    def failed(self) -> bool:
        """Whether it cannot go on, and waits for a moment to end."""
        return bool(self.fence.failed & _VITAL) and bool(self._undo)

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to end, or ends by itself."""
        return self._stop_reason is not None or self.window.closed or self.failed

    def request_stop(self, why: str = "") -> None:
        """Asks to end after the running step; callable from any thread.

        Args:
            why: what ends it, unless it was asked to end.
        """
        self._stop_reason = self._stop_reason or why

    def settle(self) -> None:
        """Ends the recording if it is to end, else writes what waits, between two steps."""
        if self.idle and (self._stop_reason is not None or self.wants_flush or self.failed):
            self.finish()
        elif self.rests:
            self._entered = True  # a flush may take longer than the next reminder to flush
            self.fence.call("flush", self._flush)
            self._entered = False
            self.process.pauses.forget()

    def abandon(self) -> None:
        """Ends the recording when the process ends, even inside a step; that step is lost."""
        self._open = None
        self.finish()

    def finish(self) -> None:
        """Ends the recording: flushes the last piece and takes everything off the worker."""
        self.window.closed = True
        # A flush takes longer than the next reminder to flush.
        if self._open is not None or not self._undo or self._stage is Stage.ENDING:
            return
        stage, self._stage = self._stage, Stage.ENDING
        self.fence.call("flush", self._flush, stage)
        self.process.pauses.end()
        if self.fence.failed & _VITAL:
            self.process.counter.fail()
        for name, backend in self._backends.items():
            # A profiler that ran on would grow, and break the next one.
            self.fence.call(f"discard{name}", backend.discard)
        self.fence.call("remove", self._marker.remove)
        while self._undo:
            self._undo.pop()()
        if self._graphs is not None:
            self._graphs.release()
        self.fence.call(
            "progress",
            self.process.progress,
            self.window,
            finished=True,
            ended=self._stop_reason or "",
            memory=self.fence.call("memory", self._gauge.read) if self._gauge else None,
        )
        self.process.counter.finish()

    def _around_loading(self, original: Any, *arguments: Any, **named: Any) -> Any:
        # Model runner V2 warms up through execute_model: those are not the user's steps.
        if self._stage in _IN_A_PIECE:  # it is loaded anew
            self.fence.call("flush", self._flush)
        stage = self._stage
        if stage is not Stage.ENDING:
            self._stage = Stage.LOADING
        try:
            result = original(*arguments, **named)
        finally:
            if self._stage is Stage.LOADING:
                self._stage = stage
        # Everything is loaded and captured, and no request waits yet.
        with MARKS.stage("recording"):
            self.fence.call("ready", self._get_ready)
        return result

    def _get_ready(self) -> None:
        """Prepares before the first request, so that no step waits for it."""
        if self._stage is not Stage.NEW or self.window.closed:
            return
        self._prepare()
        settings = self._settings
        if not (
            settings.warmup_steps or settings.decode_only or settings.steady or self.window.closed
        ):
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

    def _around_profile(self, original: Any, *arguments: Any, **named: Any) -> Any:
        starts = arguments[0] if arguments else named.get("is_start", True)
        kind = getattr(getattr(self._worker, "profiler_config", None), "profiler", None)
        if starts and kind != "cuda":  # that one only tells an nsys around the process
            self._give_way()
        return original(*arguments, **named)

    def _give_way(self) -> None:
        """Ends the recording before another profiler starts in this process."""
        if self.window.closed and not self._undo:
            return
        self.request_stop(GAVE_WAY)
        self.abandon()

    def _begin_step(self, output: Any) -> None:
        self._open = None
        if self._stage is Stage.LOADING:
            return
        if not output.total_num_scheduled_tokens:
            self._preempted += preempted_requests(output)
            return
        if self._stop_reason is not None or self.window.closed:
            self.finish()
            return
        batch = shared_batch(output)
        if self._preempted:
            batch = batch._replace(preempted=batch.preempted + self._preempted)
            self._preempted = 0
        if self._stage is Stage.NEW:
            with self.process.pauses.measured():
                self._prepare()
            if self.window.closed:
                return
        now = time.time_ns()
        take = self.window.wants(batch, now)
        ended = self._stage is Stage.WATCHING and take is not Take.WATCH
        full = (
            len(self._steps) >= self._settings.steps_per_piece
            or self._profiled >= self._length.steps
        )
        may_pause = take is Take.TIME and not full and self.window.sampling is not None
        turned = ended and may_pause and self.fence.call("pause", self._pause)
        if not turned and (ended or take is Take.SKIP or full):
            self.fence.call("flush", self._flush)
        if take is Take.SKIP:
            self.process.pauses.end()
            return
        if take is Take.WATCH and self._stage is not Stage.WATCHING:
            with self.process.pauses.measured():
                self._watch()
        # Only a backend that can: it reads what kernels outside of graphs are launched with.
        read = getattr(self._backends.get(""), "read_launches", None)
        if take is Take.WATCH and read is not None:
            self.fence.call("read_launches", self._arguments.begin_step, read, batch)
        self.process.counter.begin(self._number)
        paused = self.process.pauses.end()
        now = time.time_ns()
        self._open = (batch, now, take is Take.WATCH, paused)
        self._event(_PREPARE, now)

    def _event(self, code: int, now: int | None = None) -> None:
        if self._open is not None:
            self._marker.add(code, time.time_ns() if now is None else now)

    def _end_step(self) -> None:
        self._latest = time.monotonic()  # first: from here on it looks idle
        if self._open is None:
            return
        (batch, start, watched, paused), self._open = self._open, None
        end = time.time_ns()
        self._marker.add(0, end)  # everything open is left
        self._steps.append(
            (
                self._number, batch.key, batch.phase, start, end,
                batch.prefill_requests, batch.prefill_tokens,
                batch.decode_requests, batch.decode_tokens,
                batch.context_tokens, self._thread, watched,
                batch.recomputed_tokens, batch.preempted, paused,
            )
        )  # fmt: skip
        self._number += 1
        self.process.counter.end(self._number)
        self._profiled += watched
        if self.window.counts(watched=watched):
            self.window.count()
        if self._stop_reason is not None:
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
        self._stage = Stage.PREPARED
        if self.fence.call("counts", self.process.begin) is False:
            self.finish()
            return
        targets = self.fence.call("targets", marked_modules, self._worker)
        model, marked = targets or (None, phase_modules())
        layers = None if model is None else self.fence.call("introspect", describe_layers, model)
        facts = self.fence.call("facts", engine_facts, self._worker) or {}
        with our_profiler():
            chosen = self.fence.call("backend", choose_backend, self._settings, self.process)
        facts["backend"], backend = chosen or ("none", None)
        if backend is not None:
            self._backends[""] = backend
            self._sample(backend)
            fixed = getattr(backend, "fixed_seconds", None)
            self._length = PieceLength(self._settings.steps_per_piece, fixed)
        self._gauge = MARKS.gauge or MemoryGauge()
        memory = self.fence.call("memory", self._gauge.read_all) or {}
        facts["memory"] = memory | held_by_runner(getattr(self._worker, "model_runner", None))
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
            self.fence.call("breaks", self._graphs.mark_breaks, self._marker)
        self._thread = threading.get_native_id()

    def _sample(self, backend: CaptureBackend) -> None:
        """Watches only some steps where that was asked for and the backend can pause."""
        settings = self._settings
        chosen = settings.stretch or settings.steady or settings.counters
        if settings.sampled and not chosen and hasattr(backend, "pause"):
            self.window.sampling = Sampling()

    def _watch(self) -> None:
        paused, self._stage = self._stage is Stage.PAUSED, Stage.WATCHING
        with our_profiler():
            for name, backend in self._backends.items():
                if paused:
                    self.fence.call(f"resume{name}", backend.resume)  # type: ignore[attr-defined]
                else:
                    self.fence.call(f"start{name}", backend.start, self._piece)
        self._marker.start()

    def _pause(self) -> bool:
        """Only times the steps that come, in the same piece."""
        with self.process.pauses.measured():
            self._marker.stop()
            self._stage = Stage.PAUSED
            self._arguments.stopped()
            for name, backend in self._backends.items():
                self.fence.call(f"pause{name}", backend.pause)  # type: ignore[attr-defined]
        return True

    def _flush(self, stage: Stage | None = None) -> None:
        """Writes the steps since the last flush, with their ranges and kernels, as one piece.

        Args:
            stage: that of the piece, where the recording is ending.
        """
        stage = stage or self._stage
        if stage is Stage.WATCHING and self._backends:
            self.fence.call("wait", _wait_for_gpu)  # for the last step's work, which is no pause
        (profiled, self._profiled), began = (self._profiled, 0), time.perf_counter()
        with self.process.pauses.measured():
            self._write_piece(stage)
        self._length.wrote(profiled, time.perf_counter() - began)

    def _write_piece(self, stage: Stage) -> None:
        self.process.check()
        self._marker.stop()
        if stage in _IN_A_PIECE:
            if self._stage is stage:
                self._stage = Stage.PREPARED
            self._arguments.stopped()
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


def _window(settings: Settings) -> StepWindow:
    stretches = Stretches(settings.stretch, settings.period)
    if settings.steady:
        return SteadyWindow(settings.steps, stretches, settings.batch_sizes)
    return StepWindow(settings.steps, settings.warmup_steps, settings.decode_only, stretches)


def _wait_for_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _sampler(process: Process) -> CaptureBackend | None:
    """What samples the counters of this worker's GPU, None where there is none."""
    import torch

    if not torch.cuda.is_available():
        process.log("counters: there is no NVIDIA GPU; the recording goes on without")
        return None
    from spark_prof.profiler.counters import CounterSampler

    device = torch.cuda.current_device()
    sampler = CounterSampler(process.folder, process.name, process.log, device)
    return sampler if sampler.works else None
