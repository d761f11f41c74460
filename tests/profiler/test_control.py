"""How a process says that it can be recorded, and what it makes of requests and stop files."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_prof.profiler import control as module
from spark_prof.profiler import worker as worker_module
from spark_prof.profiler.control import STOP_FILE, Control, request_name, start_of, stop_name
from spark_prof.profiler.launcher import prepare_bundle
from spark_prof.profiler.settings import ENVIRONMENT, WATCH_GRAPHS, Settings, registry_folder
from spark_prof.profiler.worker import WorkerRecording
from spark_prof.traces.chunks import REFUSED_FILE, pieces_folder, read_counts

from .fakes import Worker, config, decode, prefill, run

Started = tuple[Worker, WorkerRecording, list[str]]


class Scheduler:
    def __init__(self) -> None:
        self.vllm_config = config()

    def schedule(self) -> Any:
        return prefill()

    def update_from_output(self, scheduler_output: Any) -> None: ...


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """A control with its own registry that looks often; nothing of it is left behind."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(module, "_PERIOD_SECONDS", 0.01)
    for package in ("torch", "vllm"):  # importing them takes seconds, and only facts need them
        monkeypatch.setitem(sys.modules, package, None)
    handler = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    made = Control()
    yield made
    recordings, engines = list(made.recordings), list(made.engines)
    made._signals = False  # its thread goes on, and must not signal anybody any more
    for items in (made.workers, made.schedulers, made.recordings, made.engines):
        items.clear()
    for recording in recordings:
        recording.abandon()
    for engine in engines:
        engine.finish()
    time.sleep(0.05)
    signal.signal(signal.SIGUSR2, handler)


def settings(tmp_path: Path, name: str = "b", **more: Any) -> Settings:
    return Settings(str(tmp_path / name), **({"backend": "none", "steps": 0} | more))


def ask(wanted: Settings) -> Path:
    """Asks this process to record, as `spark-prof record --attach` does."""
    path = registry_folder() / request_name(os.getpid())
    temporary = path.with_suffix(".new")
    temporary.write_text(wanted.to_json())
    os.replace(temporary, path)
    return path


def wait(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def in_child(check: Callable[[], bool]) -> int:
    """What the check says after a fork: 0 for true."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def registered() -> bool:
    """Whether this process says so, with its number and start, in a folder of this user alone."""
    path = registry_folder() / f"{os.getpid()}.json"
    wait(lambda: path.exists() and path.read_text())
    assert path.parent == Path(tempfile.gettempdir()) / f"spark-prof-{os.getuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    return bool(json.loads(path.read_text())["start"] == start_of(os.getpid()))


def test_a_process_registers_itself_and_its_child_does_after_a_fork(control: Control) -> None:
    control.add_worker(Worker(), None)
    assert registered()

    def check() -> bool:
        control.add_worker(Worker(), None)
        return registered()

    assert in_child(check) == 0


def test_without_settings_nothing_is_recorded(control: Control) -> None:
    worker, scheduler = Worker(), Scheduler()
    control.add_worker(worker, None)
    control.add_scheduler(scheduler, None)
    assert (control.workers, control.schedulers) == ([worker], [scheduler])
    assert (control.recordings, control.engines) == ([], [])
    assert "execute_model" not in vars(worker)
    assert "schedule" not in vars(scheduler)


def test_a_server_may_watch_its_graphs_for_a_recording_that_comes_later(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, WATCH_GRAPHS)
    monkeypatch.setattr(module, "early_native", lambda _: None)
    worker = Worker()
    control.add_worker(worker, None)
    assert list(control.graphs) == [id(worker)]
    assert control.recordings == []


@pytest.mark.parametrize(
    ("replica", "world", "rank", "name"),
    [(0, 1, 0, "rank0"), (0, 4, 3, "rank3"), (1, 2, 1, "rank3"), (None, 2, 1, "rank1")],
)
def test_ranks_count_through_the_replicas(
    control: Control, tmp_path: Path, replica: int | None, world: int, rank: int, name: str
) -> None:
    worker = Worker()
    worker.rank = rank
    worker.vllm_config.parallel_config.world_size = world
    worker.vllm_config.parallel_config.data_parallel_rank = replica
    control.add_worker(worker, settings(tmp_path))
    assert [r.process.name for r in control.recordings] == [name]


@pytest.mark.parametrize("index", [0, 1])
def test_replicas_of_a_dense_model_are_told_apart_by_their_index(
    control: Control, tmp_path: Path, index: int
) -> None:
    """vLLM makes each an engine of its own, of rank 0 among one."""
    worker, scheduler = Worker(), Scheduler()
    worker.rank = 1
    for each in (worker, scheduler):
        parallel = each.vllm_config.parallel_config
        parallel.world_size, parallel.data_parallel_rank = 2, 0
        parallel.data_parallel_index = index
    control.add_worker(worker, settings(tmp_path))
    control.add_scheduler(scheduler, settings(tmp_path))
    assert control.recordings[0].process.name == f"rank{2 * index + 1}"
    assert control.engines[0].process.name == f"engine{index}"


def test_a_process_says_in_the_registry_what_it_records(control: Control, tmp_path: Path) -> None:
    path = registry_folder() / f"{os.getpid()}.json"

    def told() -> object:
        return path.exists() and json.loads(path.read_text()).get("recording")

    control.add_scheduler(Scheduler(), settings(tmp_path))
    wait(lambda: told() == str(tmp_path / "b"))
    (pieces_folder(tmp_path / "b") / STOP_FILE).touch()
    wait(lambda: told() == "")


def test_a_stop_in_the_registry_ends_whatever_is_recorded(control: Control, tmp_path: Path) -> None:
    worker = Worker()
    control.add_worker(worker, settings(tmp_path))
    control.add_scheduler(Scheduler(), settings(tmp_path))
    run(worker, prefill())
    (registry_folder() / stop_name(os.getpid())).touch()
    wait(lambda: not control.recordings and not control.engines)
    ask(settings(tmp_path, "next"))
    wait(lambda: control.recordings and control.engines)


def test_a_recording_whose_recorder_is_gone_ends_and_lets_the_next_in(
    control: Control, tmp_path: Path
) -> None:
    worker = Worker()
    control.add_worker(worker, None)
    control.add_scheduler(Scheduler(), None)
    wanted = settings(tmp_path)
    with prepare_bundle(wanted.folder, ["vllm"], wanted):
        ask(wanted)
        wait(lambda: control.recordings and control.engines)
        run(worker, prefill())
        time.sleep(0.2)
        assert control.recordings
        assert control.engines
    ask(settings(tmp_path, "next"))
    wait(lambda: [r.process.folder.parent.name for r in control.recordings] == ["next"])
    progress = json.loads((wanted.pieces / "rank0.progress.json").read_text())
    assert progress["finished"]
    assert progress["ended"] == "its recorder ended without a word"
    assert not (pieces_folder(tmp_path / "next") / REFUSED_FILE).exists()


@pytest.mark.parametrize("request_text", [b"{", b"\xff\xfe", b"[]", b'{"bundle": "/proc/none/b"}'])
def test_a_request_that_fails_does_not_close_the_door(
    control: Control, tmp_path: Path, request_text: bytes
) -> None:
    control.add_worker(Worker(), None)
    path = registry_folder() / request_name(os.getpid())
    path.write_bytes(request_text)
    wait(lambda: not path.exists())
    ask(settings(tmp_path))
    wait(lambda: control.recordings)


def test_a_refusal_that_cannot_be_written_does_not_close_the_door(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    worker = Worker()
    control.add_worker(worker, settings(tmp_path, "first"))
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_refusal", full)
        path = ask(settings(tmp_path, "second"))
        wait(lambda: not path.exists())
    control.recordings[0].request_stop()
    run(worker, prefill())
    wait(lambda: not control.recordings)
    ask(settings(tmp_path, "third"))
    wait(lambda: control.recordings)


def test_iterations_that_cannot_be_written_end_the_recording_alone(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler()
    control.add_scheduler(scheduler, settings(tmp_path))
    (engine,) = control.engines

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine, "flush", full)
    monkeypatch.setattr(engine.process, "tell", full)
    wait(lambda: not control.engines)
    assert "schedule" not in vars(scheduler)
    counts = read_counts(pieces_folder(tmp_path / "b"))["engine0"]
    assert counts.failed
    assert counts.ended
    ask(settings(tmp_path, "next"))
    wait(lambda: control.engines)


def test_an_idle_worker_whose_flush_failed_ends_and_says_so_without_the_disk(
    control: Control, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_REST_SECONDS", 0.05)
    worker, recording, _ = started

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write", "tell", "log"):
        monkeypatch.setattr(recording.process, name, full)
    run(worker, prefill())
    wait(lambda: not control.recordings)
    assert "execute_model" not in vars(worker)
    counts = read_counts(recording.process.folder)["rank0"]
    assert (counts.failed, counts.ended, counts.recorded) == (True, True, 1)


def test_a_request_starts_recordings_of_everything(control: Control, tmp_path: Path) -> None:
    worker, scheduler = Worker(), Scheduler()
    control.add_worker(worker, None)
    control.add_scheduler(scheduler, None)
    path = ask(settings(tmp_path))
    wait(lambda: control.recordings and control.engines)
    assert not path.exists()
    assert run(worker, prefill()) == run(Worker(), prefill())
    assert control.recordings[0].window.recorded == 1
    assert control.recordings[0].process.folder == pieces_folder(tmp_path / "b")


def test_a_request_while_one_is_recorded_is_refused(control: Control, tmp_path: Path) -> None:
    control.add_worker(Worker(), settings(tmp_path, "first"))
    (first,) = control.recordings
    ask(settings(tmp_path, "second"))
    refused = pieces_folder(tmp_path / "second") / REFUSED_FILE
    wait(refused.exists)
    assert "recorded already" in json.loads(refused.read_text())["reason"]
    assert control.recordings == [first]
    assert not first.window.closed
    assert not (pieces_folder(tmp_path / "first") / REFUSED_FILE).exists()


def test_a_request_after_the_first_window_is_taken(control: Control, tmp_path: Path) -> None:
    worker = Worker()
    control.add_worker(worker, settings(tmp_path, "first", steps=1))
    run(worker, prefill())
    wait(lambda: not control.recordings)
    ask(settings(tmp_path, "second"))
    wait(lambda: control.recordings)
    assert control.recordings[0].process.folder == pieces_folder(tmp_path / "second")


@pytest.fixture
def started(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """A worker, its recording, and what that writes, which it does in the main thread alone."""
    worker = Worker()
    control.add_worker(worker, settings(tmp_path))
    (recording,) = control.recordings
    names: list[str] = []
    write = recording.process.write

    def noted(name: str, rows: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        names.append(name)
        recording.settle()  # a signal comes wherever the thread is, such as inside a flush
        write(name, rows)

    monkeypatch.setattr(recording.process, "write", noted)
    return worker, recording, names


def test_an_engine_that_rests_is_flushed_in_the_main_thread_and_goes_on(
    control: Control, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_REST_SECONDS", 0.05)
    worker, recording, names = started
    for piece in range(2):
        run(worker, prefill())
        wait((recording.process.folder / f"rank0.{piece:05}.steps.npy").exists)
    assert len(names) == len(set(names)) > 0  # a reminder during a flush does not flush again
    assert "flush" not in recording.fence.failed
    assert control.recordings == [recording]
    recording.finish()


def test_a_stop_file_ends_an_idle_recording_in_the_main_thread(
    control: Control, started: Started
) -> None:
    worker, recording, names = started
    run(worker, prefill())
    (recording.process.folder / STOP_FILE).touch()
    wait(lambda: not control.recordings)
    progress = recording.process.folder / "rank0.progress.json"
    assert json.loads(progress.read_text())["finished"]
    assert names
    assert "flush" not in recording.fence.failed
    assert "execute_model" not in vars(worker)


def test_a_stop_file_waits_for_the_running_step(control: Control, started: Started) -> None:
    worker, recording, _ = started
    worker.execute_model(prefill())
    (recording.process.folder / STOP_FILE).touch()
    time.sleep(0.1)
    assert not recording.window.closed
    worker.sample_tokens(None)
    wait(lambda: not control.recordings)
    assert recording.window.recorded == 1


@pytest.mark.parametrize("end", ["stop file", "bundle gone"])
def test_the_end_of_a_scheduler_s_recording(control: Control, tmp_path: Path, end: str) -> None:
    control.add_scheduler(Scheduler(), settings(tmp_path))
    (engine,) = control.engines
    pieces = pieces_folder(tmp_path / "b")
    if end == "stop file":
        (pieces / STOP_FILE).touch()
    else:
        pieces.rename(tmp_path / "elsewhere")
    wait(lambda: not control.engines)
    if end == "bundle gone":
        (tmp_path / "elsewhere").rename(pieces)
        engine.finish()
    else:
        assert json.loads((pieces / "engine0.progress.json").read_text())["finished"]


def test_progress_is_written_while_steps_run(control: Control, tmp_path: Path) -> None:
    worker = Worker()
    control.add_worker(worker, settings(tmp_path))
    run(worker, prefill())
    run(worker, decode(5))
    path = pieces_folder(tmp_path / "b") / "rank0.progress.json"
    wait(lambda: path.exists() and json.loads(path.read_text())["recorded"] == 2)
    assert json.loads(path.read_text())["finished"] is False


def test_somebody_else_s_signal_handler_stays(control: Control) -> None:
    def theirs(*_: object) -> None: ...

    signal.signal(signal.SIGUSR2, theirs)
    control.add_worker(Worker(), None)
    assert signal.getsignal(signal.SIGUSR2) is theirs


def test_after_a_fork_the_child_has_none_of_its_parent_s(control: Control, tmp_path: Path) -> None:
    control.add_worker(Worker(), settings(tmp_path))
    control.add_scheduler(Scheduler(), settings(tmp_path))

    def check() -> bool:
        mine = Scheduler()
        control.add_scheduler(mine, None)
        return (control.workers, control.schedulers, control.recordings, control.engines) == (
            [], [mine], [], [],
        )  # fmt: skip

    assert in_child(check) == 0
    assert len(control.workers) == len(control.recordings) == len(control.engines) == 1
