"""What is marked of a start, in a worker and a front end made by hand, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spark_prof.profiler.settings import Settings
from spark_prof.profiler.start_marks import StageMarks, process_start_ns
from spark_prof.profiler.vllm_names import COMPILE_MONITOR, FRONT_ENDS
from spark_prof.traces.chunk_files import starts_of

LOADER = "vllm.model_executor.model_loader.base_loader"
PHASES = ["processes", "load", "profile", "kv-cache", "warm-up"]


class Worker:
    """A worker with every phase; what it does is marked by the functions that it calls."""

    def init_device(self) -> None:
        self.model_runner = SimpleNamespace(
            capture_model=lambda: 7, profile_cudagraph_memory=lambda: 0
        )

    def load_model(self) -> None:
        loader: Any = sys.modules[LOADER]
        loader.initialize_model()
        loader.process_weights_after_loading()

    def determine_available_memory(self) -> int:
        decorators: Any = sys.modules[COMPILE_MONITOR[0]]
        with decorators.monitor_torch_compile("config"):
            return 5

    def initialize_from_config(self, config: str) -> str:
        return config

    def compile_or_warm_up_model(self) -> int:
        return int(self.model_runner.capture_model())


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules with the functions that are marked; others of vLLM's are not there."""

    @contextmanager
    def monitor(_: str) -> Iterator[None]:
        yield

    loader, decorators = ModuleType(LOADER), ModuleType(COMPILE_MONITOR[0])
    vars(loader).update(initialize_model=dict, process_weights_after_loading=dict)
    vars(decorators).update(monitor_torch_compile=monitor)
    modules = {LOADER: loader, COMPILE_MONITOR[0]: decorators}
    for name in ("vllm.model_executor.warmup.kernel_warmup", "vllm.compilation.backends"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(str(tmp_path / "b"), run="r")
    made.pieces.mkdir(parents=True)
    return made


def start(worker: Any) -> list[Any]:
    worker.init_device()
    worker.load_model()
    return [
        worker.determine_available_memory(),
        worker.initialize_from_config("kv"),
        worker.compile_or_warm_up_model(),
    ]


def test_phases_and_what_is_within_them_are_marked(
    vllm: dict[str, ModuleType], settings: Settings
) -> None:
    before = {name: dict(vars(module)) for name, module in vllm.items()}
    marks, worker = StageMarks(), Worker()
    marks.installed(settings)
    marks.watch_worker(worker, "rank0")
    assert start(worker) == [5, "kv", 7]
    (told,) = starts_of(settings.pieces, "r")
    stages = [mark["stage"] for mark in told["marks"]]
    assert [stage for stage in stages if stage in PHASES] == PHASES
    assert [stage for stage in stages if stage not in PHASES] == [
        "imports", "build", "repack", "compile-and-profile", "capture",
    ]  # fmt: skip
    times = {mark["stage"]: (mark["begin_ns"], mark["end_ns"]) for mark in told["marks"]}
    assert times["processes"][0] == times["imports"][1], "nothing lies between"
    assert all(times[one][1] <= times[other][0] for one, other in pairwise(PHASES))
    assert times["load"][0] <= times["build"][0] <= times["repack"][1] <= times["load"][1]
    assert times["imports"][0] == pytest.approx(told["started_ns"], abs=20_000_000)
    load = next(mark for mark in told["marks"] if mark["stage"] == "load")
    assert load["before"]["rss"] > 0 < load["after"]["rss"]
    assert told["process"] == "rank0"
    assert told["pid"] == os.getpid()
    # Nothing is left behind.
    assert {name: dict(vars(module)) for name, module in vllm.items()} == before
    assert list(vars(worker)) == ["model_runner"]
    assert vars(worker.model_runner)["capture_model"]() == 7


def test_a_worker_without_the_names_starts_all_the_same(settings: Settings) -> None:
    class Other:
        def load_model(self) -> str:
            return "loaded"

        def compile_or_warm_up_model(self) -> str:
            return "warm"

    marks, worker = StageMarks(), Other()
    marks.installed(settings)
    marks.watch_worker(worker, "rank1")
    assert (worker.load_model(), worker.compile_or_warm_up_model()) == ("loaded", "warm")
    (told,) = starts_of(settings.pieces, "r")
    assert [mark["stage"] for mark in told["marks"]] == ["imports", "load", "warm-up"]


def test_what_fails_in_a_phase_is_raised_as_it_is(settings: Settings) -> None:
    class Broken:
        def load_model(self) -> None:
            raise MemoryError("no memory")

    marks, worker = StageMarks(), Broken()
    marks.watch_worker(worker, "rank0")
    with pytest.raises(MemoryError, match="no memory"):
        worker.load_model()
    assert vars(worker) == {}


def test_a_front_end_is_up_when_it_is_constructed_and_its_server_listens(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    made: list[Any] = []

    class AsyncLLM:
        def __init__(self, config: str) -> None:
            made.append(config)

    class Server:
        async def startup(self, sockets: list[int]) -> None:
            made.append(sockets)

    (name, _), (other, _) = FRONT_ENDS
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(AsyncLLM=AsyncLLM))
    monkeypatch.setitem(sys.modules, other, None)
    monkeypatch.setitem(sys.modules, "uvicorn", SimpleNamespace(Server=Server))
    monkeypatch.setattr("multiprocessing.parent_process", lambda: None)
    plain = (AsyncLLM.__init__, Server.startup)
    marks = StageMarks()
    marks.installed(settings)
    marks.watch_front()
    AsyncLLM("config")
    asyncio.run(Server().startup([3]))
    assert made == ["config", [3]]
    assert (AsyncLLM.__init__, Server.startup) == plain
    (told,) = starts_of(settings.pieces, "r")
    stages = [mark["stage"] for mark in told["marks"]]
    assert stages == ["imports", "configuration", "rest", "server"]
    ends = [mark["end_ns"] for mark in told["marks"]]
    assert [mark["begin_ns"] for mark in told["marks"]][1:] == ends[:1] + ends[1:3]


def test_a_forked_process_tells_of_itself_alone(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    marks = StageMarks()
    marks.installed(settings)
    monkeypatch.setattr("os.getpid", lambda: 4711)
    marks.engine_up("engine0")
    (told,) = starts_of(settings.pieces, "r")
    assert (told["process"], told["pid"]) == ("engine0", 4711)
    assert [mark["stage"] for mark in told["marks"]] == ["rest"]


def test_nothing_is_written_beside_a_bundle_or_for_another_run(settings: Settings) -> None:
    marks = StageMarks()
    marks.installed(settings)
    marks.engine_up("engine0")
    assert starts_of(settings.pieces, "another") == []
    (settings.folder / "meta.json").write_text("{}")
    late = StageMarks()
    late.installed(settings)
    late.engine_up("engine0")
    assert len(list(settings.pieces.iterdir())) == 1
    path = next(settings.pieces.iterdir())
    path.write_text(json.dumps({"run": "r"}))
    assert starts_of(settings.pieces, "r") == []


def test_a_process_started_before_it_asks() -> None:
    assert process_start_ns() < time.monotonic_ns()
