"""The sampler of hardware counters, on counters that a test plays."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spark_prof.profiler import counters
from spark_prof.profiler.counters import CounterError, CounterSampler, Samples
from spark_prof.traces.chunk_files import load_array
from spark_prof.traces.chunks import COUNTER_DTYPE, array_name
from tests.rows import each_row

AHEAD_NS = 77_000_000


class Gpu:
    """Counters that give a sample for every interval between start and stop."""

    def __init__(
        self,
        refuse: Callable[[str], bool] = lambda _: False,
        loses: float = 0.0,
        room: int = 1_000_000,
    ) -> None:
        self.calls: list[str] = []
        self.metrics: list[str] = []
        self.interval_ns = self.began = self.ended = 0
        self._refuse, self._loses, self._room = refuse, loses, room

    def __call__(self, device: int) -> Gpu:
        self._may(f"open {device}")
        return self

    def _may(self, call: str) -> None:
        self.calls.append(call)
        if self._refuse(call):
            raise CounterError(f"cannot {call}")

    def configure(self, metrics: list[str], interval_ns: int, buffer_bytes: int) -> None:
        self._may(f"configure {' '.join(metrics)} {interval_ns}")
        self.metrics, self.interval_ns = metrics, interval_ns

    def start(self) -> None:
        self._may("start")
        self.began, self.ended = self.timestamp_ns(), 0

    def stop(self) -> None:
        self._may("stop")
        self.ended = self.timestamp_ns()

    def read(self, most: int) -> Samples:
        self._may("read")
        wanted = (self.ended - self.began) // self.interval_ns
        if wanted > self._room:
            return Samples(*np.zeros((2, 0), np.int64), np.zeros((0, len(self.metrics))), True)
        kept = int(min(wanted, most) * (1 - self._loses))
        start = self.began + self.interval_ns * np.arange(kept)
        values = np.full((kept, len(self.metrics)), 50.0)
        return Samples(start, start + self.interval_ns, values, False)

    def timestamp_ns(self) -> int:
        return time.time_ns() - AHEAD_NS

    def close(self) -> None:
        self._may("close")


def sampler(tmp_path: Path, gpu: Gpu) -> tuple[CounterSampler, list[str]]:
    log: list[str] = []
    return CounterSampler(tmp_path, "rank0", log.append, 3, gpu), log


def piece(found: CounterSampler, number: int, seconds: float = 0.005) -> None:
    found.start(number)
    time.sleep(seconds)
    found.stop()


def rows(tmp_path: Path, number: int) -> np.ndarray:
    return load_array(tmp_path / array_name("rank0", "counters", number), COUNTER_DTYPE)


class Clock:
    """A module `time` whose clock only goes on when it is read or slept by.

    The machine may be busy in between, and threads of other tests sleep by the true one.
    """

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000_000

    def time_ns(self) -> int:
        self.now += 1000
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


def test_a_piece_has_its_samples_on_the_systems_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in (counters, sys.modules[__name__]):
        monkeypatch.setattr(module, "time", clock)
    gpu = Gpu()
    found, log = sampler(tmp_path, gpu)
    before = time.time_ns()
    piece(found, 4)
    found.discard()
    written = rows(tmp_path, 4)
    assert log == []
    assert len(written) > 1000
    assert before <= written["start_ns"][0]
    assert written["end_ns"][-1] <= time.time_ns()
    assert (written["dram_read_bytes"] == 50).all()
    assert (written["tensor_active"] == 0.5).all()
    assert np.isnan(written["sm_active"]).all()
    assert gpu.calls[0] == "open 3"
    assert gpu.calls[-1] == "close"


def test_sampling_ends_by_itself_when_enough_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_MOST_SAMPLES", 500)
    gpu = Gpu()
    found, _ = sampler(tmp_path, gpu)
    found.start(0)
    deadline = time.monotonic() + 20
    while "stop" not in gpu.calls and time.monotonic() < deadline:
        time.sleep(0.001)
    assert gpu.calls[-1] == "stop"
    found.stop()
    assert gpu.calls.count("stop") == 1
    assert 400 < len(rows(tmp_path, 0)) <= 1000


def test_losses_are_told_and_the_next_piece_is_sampled_less_often(tmp_path: Path) -> None:
    gpu = Gpu(loses=0.5)
    found, log = sampler(tmp_path, gpu)
    piece(found, 0, 0.02)
    (line,) = log
    assert re.fullmatch(
        r"counters: \d\d % of piece 0's samples are missing; "
        r"later pieces are sampled every 5 us",
        line,
    )
    for number in range(1, 6):
        piece(found, number, 0.02)
    assert np.diff(rows(tmp_path, 1)["start_ns"])[0] == 5_000
    assert np.diff(rows(tmp_path, 5)["start_ns"])[0] == 50_000
    assert log[-1].endswith("% of piece 5's samples are missing")


def test_after_an_overflow_fewer_samples_are_asked_for(tmp_path: Path) -> None:
    gpu = Gpu(room=2_000)
    found, log = sampler(tmp_path, gpu)
    piece(found, 0, 0.05)
    assert log == [
        "counters: 100 % of piece 0's samples are missing (libcupti's buffer was full); "
        "later pieces have 576 at most"
    ]
    assert len(rows(tmp_path, 0)) == 0
    assert gpu.calls[-3:-1] == ["close", "open 3"]


def test_what_the_gpu_cannot_sample_together_is_left_out(tmp_path: Path) -> None:
    gpu = Gpu(refuse=lambda call: "configure" in call and "dram" in call)
    found, log = sampler(tmp_path, gpu)
    piece(found, 0)
    assert log == ["counters: this GPU does not sample dram_read_bytes, dram_write_bytes"]
    written = rows(tmp_path, 0)
    assert np.isnan(written["dram_read_bytes"]).all()
    assert (written["sm_active"] == 0.5).all()


@each_row("refused", ["open 3", "configure", "start", "stop", "read"])
def test_a_failure_is_one_line_and_the_recording_goes_on(tmp_path: Path, refused: str) -> None:
    gpu = Gpu(refuse=lambda call: call.startswith(refused))
    found, log = sampler(tmp_path, gpu)
    for number in range(3):
        piece(found, number, 0.001)
    found.discard()
    assert not found.works
    assert len(log) == 1
    assert log[0].startswith(f"counters: none, cannot {refused}")
    assert gpu.calls.count("close") == (refused != "open 3")
    assert not list(tmp_path.iterdir())


def test_a_failure_in_the_timer_is_told_at_the_end_of_the_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_MOST_SAMPLES", 10)
    found, log = sampler(tmp_path, Gpu(refuse=lambda call: call == "stop"))
    piece(found, 0, 0.05)
    assert log == ["counters: none, cannot stop"]
