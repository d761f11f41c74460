"""What the scheduler's process records of a scheduler made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_prof.profiler.batch import read_batch
from spark_prof.profiler.engine import EngineRecording
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunk_files import log_lines
from spark_prof.traces.chunks import pieces_folder

from .fakes import batch, decode, prefill


class Scheduler:
    """Hands out the batches in turn; every request of a batch gets the tokens."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)

    def schedule(self) -> Any:
        return self.batches.pop(0)

    def update_from_output(self, scheduler_output: Any, tokens: list[list[int]]) -> Any:
        outputs = [
            SimpleNamespace(request_id=f"r{number}", new_token_ids=ids)
            for number, ids in enumerate(tokens)
        ]
        return {0: SimpleNamespace(outputs=outputs)} if outputs else None

    def get_num_unfinished_requests(self) -> int:
        return len(self.batches)


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., EngineRecording]:
    def recorder(scheduler: Scheduler, *faults: str) -> EngineRecording:
        settings = Settings(str(tmp_path / "b"), faults=faults)
        recording = EngineRecording(scheduler, settings, Process(settings, "engine0", 0))
        recording.install()
        return recording

    return recorder


def rows(tmp_path: Path) -> np.ndarray:
    found = sorted(pieces_folder(tmp_path / "b").glob("engine0.*.engine.npy"))
    return np.concatenate([np.load(path) for path in found]) if found else np.empty(0)


def test_every_iteration_with_its_tokens(record: Any, tmp_path: Path) -> None:
    outputs = [prefill(), decode(5), decode(6)]
    scheduler = Scheduler(*outputs)
    recording = record(scheduler)
    for tokens in ([[7]], [[7, 8], [9], []], []):
        scheduler.update_from_output(scheduler.schedule(), tokens)
    recording.finish()
    found = rows(tmp_path)
    assert found["key"].tolist() == [read_batch(output).key for output in outputs]
    assert found["scheduled_tokens"].tolist() == [5, 1, 1]
    assert found["output_tokens"].tolist() == [1, 3, 0]
    assert found["output_requests"].tolist() == [1, 2, 0]
    assert found["unfinished"].tolist() == [2, 1, 0]
    assert (found["update_ns"] >= found["schedule_ns"]).all()


def test_batches_in_flight_are_told_apart(record: Any, tmp_path: Path) -> None:
    outputs = [decode(5), decode(6)]
    scheduler = Scheduler(*outputs)
    recording = record(scheduler)
    first, second = scheduler.schedule(), scheduler.schedule()
    scheduler.update_from_output(first, [[1]])
    scheduler.update_from_output(second, [[1, 2]])
    recording.finish()
    assert rows(tmp_path)["output_tokens"].tolist() == [1, 2]


def test_empty_batches_and_batches_from_before_are_no_iterations(
    record: Any, tmp_path: Path
) -> None:
    scheduler = Scheduler(batch({}))
    recording = record(scheduler)
    scheduler.update_from_output(scheduler.schedule(), [])
    scheduler.update_from_output(decode(3), [[1]])
    recording.finish()
    assert len(rows(tmp_path)) == 0


def test_an_exception_of_the_scheduler_passes(record: Any) -> None:
    scheduler = Scheduler()
    record(scheduler)
    with pytest.raises(IndexError):
        scheduler.schedule()


@pytest.mark.parametrize("hook", ["facts", "schedule", "update", "flush", "progress"])
def test_a_failing_hook_changes_nothing_and_is_logged_once(
    record: Any, tmp_path: Path, hook: str
) -> None:
    outputs = [prefill(), decode(5)]
    scheduler = Scheduler(*outputs)
    recording = record(scheduler, hook)
    for output in outputs:
        assert scheduler.schedule() is output
        assert scheduler.update_from_output(output, [[1]]) is not None
    recording.finish()
    [line] = log_lines(pieces_folder(tmp_path / "b"))
    assert hook in line["message"]


def test_finishing_takes_the_wraps_off_and_happens_once(record: Any, tmp_path: Path) -> None:
    scheduler = Scheduler(prefill())
    recording = record(scheduler)
    scheduler.update_from_output(scheduler.schedule(), [[1]])
    recording.finish()
    recording.finish()
    assert set(vars(scheduler)) == {"batches"}
    assert len(rows(tmp_path)) == 1
    progress = json.loads((pieces_folder(tmp_path / "b") / "engine0.progress.json").read_text())
    assert progress["finished"]


def test_batches_that_never_come_back_are_forgotten(record: Any, tmp_path: Path) -> None:
    outputs = [decode(position) for position in range(200)]
    scheduler = Scheduler(*outputs)
    recording = record(scheduler)
    for _ in outputs:
        scheduler.schedule()
    scheduler.update_from_output(outputs[0], [[1]])
    scheduler.update_from_output(outputs[-1], [[1]])
    recording.finish()
    assert rows(tmp_path)["key"].tolist() == [read_batch(outputs[-1]).key]
