"""One recording in a worker made by hand: what it writes, and that the worker never notices."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_prof.profiler import worker as worker_module
from spark_prof.profiler.backends import handover
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.window import PAUSE_SECONDS, PieceLength, SteadyWindow, Take
from spark_prof.profiler.worker import GAVE_WAY, WorkerRecording
from spark_prof.traces.chunk_files import log_lines
from spark_prof.traces.chunks import pieces_folder
from spark_prof.traces.host_timeline import PHASE_MODULES

from .fakes import Worker, batch, decode, prefill, run

HOOKS = ["begin_step", "end_step", "between", "begin_sample", "flush", "targets", "introspect",
         "facts", "tensors", "mark", "remove", "progress", "ranges"]  # fmt: skip
BATCHES = [prefill(), *map(decode, range(5, 12))]

Record = Callable[..., WorkerRecording]


@pytest.fixture(autouse=True)
def _without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))


@pytest.fixture
def record(tmp_path: Path) -> Record:
    def recorder(worker: Any, **settings: Any) -> WorkerRecording:
        usual = {"backend": "none", "steps": 0, "steps_per_piece": 3}
        wanted = Settings(str(tmp_path / "b"), **(usual | settings))
        recording = WorkerRecording(worker, wanted, Process(wanted, "rank0", 0))
        recording.install()
        return recording

    return recorder


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A driver that tells of one GPU, held down by its power cap; the UUIDs that it was asked."""
    torch = pytest.importorskip("torch")
    asked: list[str] = []

    def handle(uuid: str) -> str:
        asked.append(uuid)
        return uuid

    driver = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=handle, NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetClockInfo=lambda _, clock: 1380 * clock,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4 | 0x1,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))

    def facts(_: object) -> dict[str, object]:
        # From here on there is a GPU: the facts before it are those of this machine.
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        return {"vllm": "0.32.0"}

    monkeypatch.setattr(worker_module, "engine_facts", facts)
    return asked


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    return pieces_folder(tmp_path / "b")


def ran(record: Record, batches: Iterable[Any] = BATCHES, **settings: Any) -> WorkerRecording:
    """Records a worker whose answers to these batches are those of one that is not recorded."""
    worker, plain, batches = Worker(), Worker(), list(batches)
    recording = record(worker, **settings)
    assert [run(worker, b) for b in batches] == [run(plain, b) for b in batches]
    recording.finish()
    return recording


def steps(pieces: Path) -> list[list[int]]:
    """The numbers of the steps in each piece."""
    found = sorted(pieces.glob("rank0.*.steps.npy"))
    return [np.load(path)["step"].tolist() for path in found]


def why(pieces: Path) -> str:
    """What ended the recording, unless it was asked to end."""
    return str(json.loads((pieces / "rank0.progress.json").read_text())["ended"])


def log(pieces: Path) -> list[str]:
    return [row["message"] for row in log_lines(pieces)]


@pytest.mark.parametrize("two_parts", [False, True])
def test_every_step_is_recorded_in_pieces(record: Record, pieces: Path, two_parts: bool) -> None:
    worker = Worker(two_parts=two_parts)
    recording = record(worker)
    plain = Worker(two_parts=two_parts)
    assert [run(worker, b) for b in BATCHES] == [run(plain, b) for b in BATCHES]
    recording.finish()
    assert steps(pieces) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    rows = np.load(pieces / "rank0.00000.steps.npy")
    assert rows["phase"].tolist() == [0, 1, 1]
    assert (rows["end_ns"] >= rows["start_ns"]).all()
    assert log(pieces) == []


def test_the_model_is_described_and_its_calls_are_logged(record: Record, pieces: Path) -> None:
    ran(record, [decode(5)])
    facts = json.loads((pieces / "rank0.facts.json").read_text())
    paths = [module["path"] for module in facts["modules"]]
    assert paths[:3] == [path for path, _ in PHASE_MODULES]
    assert facts["vllm"] == "0.32.0"
    codes = np.load(pieces / "rank0.00000.events.npy")["code"].tolist()
    qkv = paths.index("model.layers.1.self_attn.qkv_proj") + 1
    assert codes.count(qkv) == codes.count(-qkv) == 1
    assert codes[0] == 1
    assert codes[-1] == 0


def test_the_device_is_looked_at_once_when_the_last_step_has_ended(
    record: Record, pieces: Path, nvml: list[str]
) -> None:
    worker = Worker()
    recording = record(worker, steps=2)
    run(worker, decode(5))
    assert nvml == []
    for output in BATCHES[2:5]:
        run(worker, output)
    recording.finish()
    assert nvml == ["GPU-1234"]
    facts = json.loads((pieces / "rank0.facts.json").read_text())
    assert facts["device_after_steps"]["sm_mhz"] == 1380
    assert facts["device_after_steps"]["throttled"] == ["power cap"]
    assert (facts["vllm"], bool(facts["modules"])) == ("0.32.0", True)


def test_the_window_closes_and_takes_everything_away(record: Record, pieces: Path) -> None:
    worker = Worker()
    before, modules = dict(vars(worker)), list(worker.model_runner.model.named_modules())
    recording = record(worker, steps=2)
    for output in BATCHES:
        run(worker, output)
    assert steps(pieces) == [[0, 1]]
    assert recording.window.closed
    assert set(vars(worker)) == set(before)
    assert all("forward" not in vars(module) for _, module in modules)
    assert json.loads((pieces / "rank0.progress.json").read_text())["finished"]


def test_an_engine_that_rests_leaves_nothing_in_memory(
    record: Record, pieces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_REST_SECONDS", 0.0)
    worker = Worker()
    recording = record(worker)
    recording.settle()
    assert (recording.rests, steps(pieces)) == (False, [])
    for number in range(2):
        run(worker, BATCHES[number])
    assert recording.rests
    recording.settle()
    assert (recording.rests, steps(pieces)) == (False, [[0, 1]])
    run(worker, BATCHES[2])
    recording.finish()
    assert steps(pieces) == [[0, 1], [2]]
    recording.settle()
    assert steps(pieces) == [[0, 1], [2]]


class Backend:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, piece: int) -> None:
        self.calls.append(f"start {piece}")

    def stop(self) -> None:
        self.calls.append("stop")

    def discard(self) -> None:
        self.calls.append("discard")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    made = Backend()
    monkeypatch.setattr(worker_module, "choose_backend", lambda *_: ("cupti", made))
    return made


def test_watched_and_timed_steps_take_turns(record: Record, pieces: Path, backend: Backend) -> None:
    """Watching ends with each stretch; a piece holds the timed steps before its watched ones."""
    recording = ran(
        record, map(decode, range(5, 20)), stretch=2, period=5, steps=5, steps_per_piece=100
    )
    assert steps(pieces) == [[0, 1], [2, 3, 4, 5, 6], [7, 8, 9, 10]]
    files = [pieces / f"rank0.0000{piece}.steps.npy" for piece in range(3)]
    watched = [np.load(path)["watched"].tolist() for path in files]
    assert watched == [[True] * 2, [False] * 3 + [True] * 2, [False] * 3 + [True]]
    turns = [f"start {piece}" for piece in range(3)]
    assert backend.calls == [turns[0], "stop", turns[1], "stop", turns[2], "stop", "discard"]
    assert recording.window.closed
    assert log(pieces) == []


@pytest.mark.parametrize(("kind", "ends"), [("torch", True), ("proton", True), ("cuda", False)])
def test_another_profiler_of_the_engine_ends_the_recording_first(
    record: Record, pieces: Path, backend: Backend, kind: str, ends: bool
) -> None:
    """vLLM's cuda profiler only tells an nsys that the process runs under."""
    worker = Worker()
    worker.profiler_config = SimpleNamespace(profiler=kind)
    worker.profile = lambda is_start=True: backend.calls.append(f"profile {is_start}")
    recording = record(worker)
    run(worker, BATCHES[0])
    run(worker, BATCHES[1])
    worker.profile(False)
    assert backend.calls == ["start 0", "profile False"]
    worker.profile()
    end = ["stop", "discard"] if ends else []
    assert backend.calls[2:] == [*end, "profile True"]
    assert recording.window.closed == ends
    recording.finish()
    assert steps(pieces) == [[0, 1]]
    assert why(pieces) == (GAVE_WAY if ends else "")
    worker.profile()
    assert backend.calls[-1] == "profile True"


def test_torch_s_own_profiler_ends_the_recording_first(
    record: Record, pieces: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = pytest.importorskip("torch.autograd.profiler")
    # Recordings of other tests, which nobody has ended, are not told.
    before = inspect.unwrap(profiler.profile._prepare_trace)
    monkeypatch.setattr(profiler.profile, "_prepare_trace", before)
    monkeypatch.setattr(handover, "_listeners", [])
    worker = Worker()
    record(worker)
    run(worker, BATCHES[0])
    with profiler.profile(use_kineto=True):
        assert backend.calls == ["start 0", "stop", "discard"]
        run(worker, BATCHES[1])
    assert steps(pieces) == [[0]]
    assert why(pieces) == GAVE_WAY
    assert profiler.profile._prepare_trace is before


class Pausing(Backend):
    """One that can leave steps out of a piece."""

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize("faults", [(), ("pause",), ("resume",)])
def test_a_sample_pauses_within_a_piece(
    record: Record, pieces: Path, monkeypatch: pytest.MonkeyPatch, faults: tuple[str, ...]
) -> None:
    made = Pausing()
    monkeypatch.setattr(worker_module, "choose_backend", lambda *_: ("cupti", made))
    batches = [*map(decode, range(5, 305)), prefill(), *map(decode, range(305, 320))]
    recording = ran(record, batches, steps=0, sampled=True, steps_per_piece=290, faults=faults)
    if not faults:
        assert steps(pieces) == [list(range(290)), list(range(290, 316))]
    files = sorted(pieces.glob("rank0.*.steps.npy"))
    watched = np.concatenate([np.load(path)["watched"] for path in files]).tolist()
    assert [n for n, found in enumerate(watched) if found] == [
        *range(23), *range(256, 264), *range(300, 308)
    ]  # fmt: skip
    said = ["start 0", "pause", "resume", "pause", "stop", "start 1", "pause", "stop", "discard"]
    if faults == ("pause",):  # each turn is then a piece
        said = ["start 0", "stop", "start 1", "stop", "start 2", "stop", "discard"]
    assert made.calls == [call for call in said if call not in faults]
    assert recording.window.recorded == 316
    assert len(log(pieces)) == len(faults)


def test_turns_that_were_asked_for_are_no_sample(record: Record, backend: Backend) -> None:
    recording = ran(record, BATCHES, steps=0, sampled=True)  # it cannot pause
    assert recording.window.sampling is None
    recording = ran(record, BATCHES, steps=0, sampled=True, stretch=2, period=5)
    assert recording.window.sampling is None


class Reader(Backend):
    """One that reads arguments too."""

    def read_launches(self, *, on: bool) -> None:
        self.calls.append("read" if on else "read no more")


def test_arguments_are_read_in_the_first_steps_of_each_kind(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Reader()
    monkeypatch.setattr(worker_module, "choose_backend", lambda *_: ("cupti", made))
    batches = [*map(decode, range(5, 10)), prefill(), *map(decode, range(5, 8))]
    ran(record, batches, steps=0, steps_per_piece=7)
    wanted = ["start 0", "read", "read no more", "read", "read no more", "stop"]
    assert made.calls[: len(wanted)] == wanted
    # The second piece has no step of a new kind.
    assert made.calls[len(wanted) :] == ["start 1", "stop", "discard"]


def test_ranges_are_only_logged_of_watched_steps(
    record: Record, pieces: Path, backend: Backend
) -> None:
    """Marking calls is part of what watching costs."""
    ran(record, map(decode, range(5, 11)), stretch=1, period=3, steps=0, steps_per_piece=100)
    rows = [np.load(path) for path in sorted(pieces.glob("rank0.*.steps.npy"))]
    found = np.concatenate(rows)
    events = np.concatenate([np.load(path) for path in sorted(pieces.glob("rank0.*.events.npy"))])
    for row in found:
        inside = (events["time_ns"] >= row["start_ns"]) & (events["time_ns"] <= row["end_ns"])
        assert inside.any() == row["watched"]


def test_many_timed_steps_are_written_in_pieces_too(
    record: Record, pieces: Path, backend: Backend
) -> None:
    ran(record, map(decode, range(5, 16)), stretch=1, period=10, steps=0, steps_per_piece=4)
    assert steps(pieces) == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert backend.calls == ["start 0", "stop", "start 3", "stop", "discard"]


def test_a_steady_window_is_not_watched_before_it_wants_to(
    record: Record, pieces: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = iter([Take.SKIP, Take.SKIP, Take.WATCH, Take.WATCH, Take.SKIP])
    monkeypatch.setattr(SteadyWindow, "wants", lambda *_: next(takes))
    worker = Worker()
    record(worker, steady=True, steps=0)
    worker.compile_or_warm_up_model()
    assert backend.calls == []
    for output in map(decode, range(5, 10)):
        run(worker, output)
    assert backend.calls == ["start 0", "stop"]
    assert steps(pieces) == [[0, 1]]


def test_loading_and_empty_batches_are_no_steps(record: Record, pieces: Path) -> None:
    worker = Worker()
    recording = record(worker)
    assert worker.compile_or_warm_up_model() == "warm"
    run(worker, batch({}))
    recording.finish()
    assert steps(pieces) == []
    assert recording.window.passed == 0


def test_shutdown_writes_what_there_is(record: Record, pieces: Path) -> None:
    worker = Worker()
    record(worker)
    run(worker, prefill())
    worker.shutdown()
    assert worker.ended
    assert steps(pieces) == [[0]]


@pytest.mark.parametrize("part", ["execute_model", "sample_tokens"])
def test_an_exception_of_the_worker_passes(record: Record, pieces: Path, part: str) -> None:
    worker = Worker()

    def fail(*_: object) -> None:
        raise MemoryError("out of memory")

    setattr(worker, part, fail)
    recording = record(worker)
    with pytest.raises(MemoryError, match="out of memory"):
        run(worker, prefill())
    assert recording.idle
    recording.finish()
    assert log(pieces) == []


@pytest.mark.parametrize("two_parts", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_changes_no_answer_and_is_logged_once(
    record: Record, pieces: Path, caplog: pytest.LogCaptureFixture, hook: str, two_parts: bool
) -> None:
    caplog.set_level(logging.WARNING, "spark_prof")
    worker, plain = Worker(two_parts=two_parts), Worker(two_parts=two_parts)
    recording = record(worker, faults=(hook,))
    assert [run(worker, b) for b in BATCHES] == [run(plain, b) for b in BATCHES]
    worker.shutdown()
    assert worker.ended
    assert recording.idle
    called = two_parts or hook not in ("between", "begin_sample")
    assert len(log(pieces)) == len(caplog.records) == int(called)
    if called:
        assert f"hook {hook} failed" in log(pieces)[0]


@pytest.mark.parametrize(
    "hook",
    ["counters", "start_counters", "stop_counters", "discard_counters", "read_launches", "device"],
)
def test_failing_backends_change_no_answer_and_are_logged_once(
    record: Record, pieces: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(worker_module, "_sampler", lambda _: Backend())
    monkeypatch.setattr(worker_module, "choose_backend", lambda *_: ("cupti", Reader()))
    ran(record, counters=True, steps=len(BATCHES), faults=(hook,))
    assert sum(map(len, steps(pieces))) == len(BATCHES)
    [line] = log(pieces)
    assert line.startswith(f"hook {hook} failed and is off")


@pytest.mark.parametrize("hook", ["begin_step", "end_step", "flush"])
def test_without_a_vital_hook_the_recording_ends(record: Record, hook: str) -> None:
    worker = Worker()
    recording = record(worker, faults=(hook,))
    for output in BATCHES:
        run(worker, output)
    assert recording.window.closed
    assert "execute_model" not in vars(worker)


def test_without_torch_and_vllm_only_descriptions_are_missing(
    record: Record, pieces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    ran(record, [prefill()])
    assert steps(pieces) == [[0]]
    described = {"introspect", "tensors"}
    assert sorted({line.split()[1] for line in log(pieces)} - described) == ["facts"]


def test_a_second_recording_outlives_the_first(record: Record, tmp_path: Path) -> None:
    worker = Worker()
    record(worker, steps=1)
    settings = Settings(str(tmp_path / "second"), steps=3, backend="none")
    second = WorkerRecording(worker, settings, Process(settings, "rank0", 0))
    second.install()
    for output in BATCHES:
        run(worker, output)
    assert second.window.recorded == 3


def test_preemptions_are_counted_with_the_next_step_that_runs(record: Record, pieces: Path) -> None:
    worker = Worker()
    recording = record(worker)
    for output in (
        prefill(),
        batch({}, preempted=("a", "b")),  # nothing is left that could run
        batch({"r0": 6}, cached={"r0": 0}, preempted=("c",)),
        decode(7),
    ):
        run(worker, output)
    recording.finish()
    [path] = pieces.glob("rank0.*.steps.npy")
    assert np.load(path)["preempted"].tolist() == [0, 3, 0]
    assert np.load(path)["recomputed_tokens"].tolist() == [0, 6, 0]
    assert np.load(path)["prefill_tokens"].tolist() == [5, 6, 0]


class Growing(Backend):
    """One whose pieces cost more with every step."""

    fixed_seconds = 0.0


class TakesSeconds(PieceLength):
    """As if every step had cost a tenth of what a pause may last."""

    def wrote(self, steps: int, seconds: float) -> None:
        super().wrote(steps, steps * PAUSE_SECONDS / 10)


def test_pieces_are_short_where_their_cost_grows(
    record: Record, pieces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "choose_backend", lambda *_: ("torch", Growing()))
    monkeypatch.setattr(worker_module, "PieceLength", TakesSeconds)
    ran(record, map(decode, range(5, 45)), steps_per_piece=256)
    assert [len(piece) for piece in steps(pieces)] == [1, 4, 10, 10, 10, 5]
    assert [number for piece in steps(pieces) for number in piece] == list(range(40))


def test_a_pause_stands_at_the_step_that_waited_and_in_the_sum(
    record: Record, pieces: Path
) -> None:
    worker = Worker()
    recording = record(worker, steps_per_piece=3)
    worker.compile_or_warm_up_model()  # it gets ready before any request: nobody waits
    for batch_ in BATCHES:
        run(worker, batch_)
    recording.finish()
    found = np.concatenate([np.load(path) for path in sorted(pieces.glob("rank0.*.steps.npy"))])
    waited = found["paused_ns"] > 0
    assert waited.tolist() == [False, False, False, True, False, False, True, False]
    told = json.loads((pieces / "rank0.progress.json").read_text())["pauses"]
    assert told["count"] == 3  # the last piece too, after which no step is recorded
    assert told["total_ns"] > found["paused_ns"].sum() > 0
    assert told["longest_ns"] >= found["paused_ns"].max()
