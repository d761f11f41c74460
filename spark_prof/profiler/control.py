"""How a process that runs vLLM is told to record, to stop, and how it says how far it is.

A daemon thread looks twice a second for two files: a request in this user's registry folder
(`spark-prof record --attach`) and a stop file in the bundle that is being recorded. Files work
across containers and need no port.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.files import write_whole
from spark_prof.profiler.backends.choose import early_native, mark_clock
from spark_prof.profiler.engine import EngineRecording
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.graphs import GraphWatch
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import ENVIRONMENT, WATCH_GRAPHS, Settings, registry_folder
from spark_prof.profiler.start_marks import MARKS
from spark_prof.profiler.worker import WorkerRecording
from spark_prof.traces.chunks import pieces_folder, sync_new, write_refusal

STOP_FILE = "stop"  # name of the file in the pieces folder that ends a recording

_PERIOD_SECONDS = 0.5
_SIGNAL = signal.SIGUSR2

logger = logging.getLogger("spark_prof")


def request_name(pid: int) -> str:
    """The file by which the process with that number is asked to record."""
    return f"{pid}.request.json"


def stop_name(pid: int) -> str:
    """The file by which the process with that number is asked to end whatever it records."""
    return f"{pid}.stop"


def start_of(pid: int) -> str:
    """When the process started, in clock ticks since boot; tells a reused number apart."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return text.rpartition(")")[2].split()[19]  # starttime in proc(5)


@dataclass
class Control:
    """The workers and schedulers of this process, and what they record at the moment."""

    workers: list[Any] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    recordings: list[WorkerRecording] = field(default_factory=list)
    engines: list[EngineRecording] = field(default_factory=list)
    graphs: dict[int, GraphWatch] = field(default_factory=dict)
    _pid: int = 0
    _signals: bool = False
    _stop_all: bool = False
    _registered_folder: str | None = None
    _fence: Fence = field(default_factory=Fence)
    _synced: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add_worker(self, worker: Any, settings: Settings | None) -> None:
        """Takes in a worker that was just constructed, and records it if that is wanted."""
        self._watch()
        self.workers.append(worker)
        if settings is not None:
            process = _process_of(worker, settings)
            fence = Fence(process.log, settings.faults)
            fence.call("watch_graphs", self._watch_graphs, worker, settings, fence)
            self._record_worker(worker, settings, process)
            fence.call("start", MARKS.watch_worker, worker, process.name)
        elif os.environ.get(ENVIRONMENT) == WATCH_GRAPHS:
            self._fence.call("watch_graphs", self._watch_graphs, worker, None, self._fence)

    def add_scheduler(self, scheduler: Any, settings: Settings | None) -> None:
        """Takes in a scheduler that was just constructed, and records it if that is wanted."""
        self._watch()
        self.schedulers.append(scheduler)
        if settings is not None:
            self._record_scheduler(scheduler, settings)
            self._fence.call("start", MARKS.engine_up, self.engines[-1].process.name)

    def _watch_graphs(self, worker: Any, settings: Settings | None, fence: Fence) -> None:
        """Watches the worker capture its graphs, which happens once and before any step."""
        mark = mark_clock if settings and settings.backend == "nsys" else None
        native = early_native(settings)
        graphs = GraphWatch(worker, native, fence, mark, recorded=settings is not None)
        graphs.install()
        self.graphs[id(worker)] = graphs

    def _record_worker(self, worker: Any, settings: Settings, process: Process) -> None:
        recording = WorkerRecording(worker, settings, process, self.graphs.get(id(worker)))
        recording.flush_when_idle = self._signals
        recording.install()
        self.recordings.append(recording)

    def _record_scheduler(self, scheduler: Any, settings: Settings) -> None:
        index = _replica(scheduler.vllm_config.parallel_config)
        recording = EngineRecording(scheduler, settings, Process(settings, f"engine{index}", index))
        recording.install()
        self.engines.append(recording)

    def _watch(self) -> None:
        """Starts the thread that looks for requests; once a process, again after a fork."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        for items in (self.workers, self.schedulers, self.recordings, self.engines):
            items.clear()
        self.graphs.clear()
        self._signals = False
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(_SIGNAL) in (signal.SIG_DFL, self._on_signal):
            # Lets an idle worker flush in the thread that started its profiler.
            signal.signal(_SIGNAL, self._on_signal)
            self._signals = True
        _at_exit(self._end_all)
        threading.Thread(target=self._loop, name="spark-prof", daemon=True).start()

    def _end_all(self) -> None:
        """Keeps what there is when the process ends, even inside a step."""
        for recording in list(self.recordings):
            recording.abandon()
        for engine in list(self.engines):
            engine.finish()

    def _loop(self) -> None:
        registry = self._fence.call("registry", self._register)
        while True:
            time.sleep(_PERIOD_SECONDS)
            for recording in list(self.recordings):
                self._fence.attempt("looking after a worker", self._tend_worker, recording)
            for engine in list(self.engines):
                self._fence.attempt("looking after a scheduler", self._tend_engine, engine)
            if registry is not None:
                self._fence.attempt("a request", self._take_request, registry)
                self._fence.attempt("the registry", self._tell, registry)

    def _register(self) -> Path:
        folder = registry_folder()
        self._registered_folder = None
        self._tell(folder)
        _at_exit(lambda: (folder / f"{os.getpid()}.json").unlink(missing_ok=True))
        return folder

    def _tell(self, registry: Path) -> None:
        """Says in the registry that this process can be recorded, and where it is."""
        processes = [recording.process for recording in self.recordings]
        processes += [engine.process for engine in self.engines]
        folder = str(processes[0].folder.parent) if processes else ""
        if folder != self._registered_folder:
            value = {"start": start_of(os.getpid()), "recording": folder}
            write_whole(registry / f"{os.getpid()}.json", json.dumps(value))
            self._registered_folder = folder

    def _sync(self, recording: WorkerRecording | EngineRecording) -> None:
        """Tells the disk about new pieces; here, because no step may wait for a disk."""
        process = recording.process
        recording.fence.call("sync", sync_new, process.folder, process.name, self._synced)

    def _tend_worker(self, recording: WorkerRecording) -> None:
        if recording.window.closed and not recording.wants_flush:
            self.recordings.remove(recording)
            return
        recording.fence.call("progress", recording.process.progress, recording.window)
        stop_requested, end_reason = self._look_at_recorder(recording.process)
        if stop_requested or end_reason:
            recording.request_stop(end_reason)
        due = (
            stop_requested
            or end_reason
            or recording.wants_flush
            or recording.rests
            or recording.failed
        )
        if due and recording.idle and self._signals:
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        self._sync(recording)

    def _tend_engine(self, engine: EngineRecording) -> None:
        stop_requested, end_reason = self._look_at_recorder(engine.process)
        try:
            if not engine.process.folder.exists():
                engine.abandon()
            elif stop_requested or end_reason or engine.failed:
                engine.finish(end_reason)
            else:
                engine.flush_when_quiet()
        finally:
            # Whatever failed: one that has ended must not close the door to the next.
            if engine.ended:
                self.engines.remove(engine)
        self._sync(engine)

    def _look_at_recorder(self, process: Process) -> tuple[bool, str]:
        """Whether the recording shall end, and what ends it if nobody asked for that."""
        if (
            self._stop_all
            or (process.folder / STOP_FILE).exists()
            or process.recorder.asks_for_end()
        ):
            return True, ""
        return False, process.recorder.end_reason()

    @property
    def _ending(self) -> bool:
        """Whether all that is recorded is about to end: a new request waits for that."""
        workers = all(e.stopping or e.process.recorder.doubtful for e in self.recordings)
        engines = all(engine.process.recorder.doubtful for engine in self.engines)
        return bool(self.recordings or self.engines) and workers and engines

    def _on_signal(self, *_: object) -> None:
        """Ends or flushes the recordings that wait for a step, in the thread of the steps."""
        for recording in list(self.recordings):
            self._fence.call("signal", recording.settle)

    def _take_request(self, registry: Path) -> None:
        stop = registry / stop_name(os.getpid())
        if stop.exists():
            stop.unlink()
            self._stop_all = True
        if not (self.recordings or self.engines):
            self._stop_all = False
        path = registry / request_name(os.getpid())
        if not path.exists() or self._ending:
            return
        content = path.read_bytes()
        path.unlink()
        try:
            settings = Settings.from_json(content.decode())
            pieces = pieces_folder(settings.folder)
            pieces.mkdir(parents=True, exist_ok=True)
        except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
            # A request that asks for the impossible must not close the door to the next one.
            logger.warning("spark-prof cannot take a request to record: %s", error)
            return
        if self.recordings or self.engines:
            # Two profilers in one thread end in a crash of the engine.
            write_refusal(
                pieces,
                "this engine is being recorded already; wait for that to end, or end it with "
                "spark-prof record --attach URL --stop",
            )
            return
        for worker in self.workers:
            self._record_worker(worker, settings, _process_of(worker, settings))
        for scheduler in self.schedulers:
            self._record_scheduler(scheduler, settings)


def _process_of(worker: Any, settings: Settings) -> Process:
    """Where that worker's pieces go, under its rank among all workers of the engine."""
    parallel = worker.vllm_config.parallel_config
    rank = _replica(parallel) * int(parallel.world_size) + int(worker.rank)
    return Process(settings, f"rank{rank}", rank)


def _replica(parallel: Any) -> int:
    """Which data-parallel replica that is.

    vLLM makes each replica of a dense model an engine of its own, of rank 0 among one; only
    the index still tells them apart.
    """
    names = ("data_parallel_index", "data_parallel_rank")
    return max(int(getattr(parallel, name, 0) or 0) for name in names)


def _at_exit(function: Callable[[], None]) -> None:
    """Calls the function when the process ends, in a multiprocessing child too."""
    import atexit
    from multiprocessing import util

    pid = os.getpid()

    def in_this_process() -> None:
        if os.getpid() == pid:  # not in a child that was forked since
            function()

    atexit.register(in_this_process)
    util.Finalize(None, in_this_process, exitpriority=100)
