"""The one place for a profiler of the GPU in a process is given back, and in time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spark_prof.profiler.backends import choose, handover
from spark_prof.profiler.backends.choose import choose_backend
from spark_prof.profiler.backends.cupti import CuptiBackend
from spark_prof.profiler.backends.handover import before_torch_profiler, our_profiler
from spark_prof.profiler.backends.native import Native, NativeError
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunk_files import json_object, log_lines
from spark_prof.traces.chunks import REFUSED_FILE

from .conftest import On
from .fake import FakeCupti

torch_profiler = pytest.importorskip("torch.autograd.profiler")


def test_another_subscriber_gets_its_turn(native: Native, capture: Path, cupti: FakeCupti) -> None:
    native.subscribe()
    native.subscribe()  # once more is the same
    assert cupti.taken
    native.unsubscribe()
    native.unsubscribe()
    assert not cupti.taken
    assert not cupti.node(1, 2)
    native.subscribe()
    assert cupti.node(1, 2)


def test_nodes_outlive_the_subscription(native: Native, cupti: FakeCupti) -> None:
    native.subscribe()
    cupti.node(1, 2)
    native.unsubscribe()
    native.subscribe()
    cupti.node(1, 3)
    assert native.nodes()["node"].tolist() == [2, 3]


def test_launches_are_not_watched_without_it(native: Native) -> None:
    native.subscribe()
    native.unsubscribe()
    with pytest.raises(NativeError, match="it is not subscribed to"):
        native.launches(on=True)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_recording_that_ends_leaves_everything_off(
    works: Native, cupti: FakeCupti, folder: Path, stopped: bool
) -> None:
    backend = CuptiBackend(works, folder, "rank0")
    backend.start(0)
    if stopped:
        backend.stop()
    backend.discard()
    assert not cupti.taken
    assert not any(cupti.kind(number) for number in range(1, 60))


def test_a_library_that_refuses_to_stop_is_left_all_the_same(
    works: Native, cupti: FakeCupti, folder: Path
) -> None:
    backend = CuptiBackend(works, folder, "rank0")
    backend.start(0)
    cupti.refuse("Disable", 999)
    with pytest.raises(NativeError):
        backend.discard()
    assert not cupti.taken


def test_who_holds_it_is_told_and_torch_records(
    tmp_path: Path, on_nvidia: On, native: Native, cupti: FakeCupti,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(choose, "load_native", lambda _: native)
    cupti.refuse("Subscribe", 39)
    settings = Settings(str(tmp_path / "b"))
    process = Process(settings, "rank0", 0)
    name, _ = choose_backend(settings, process)
    assert name == "torch"
    [row] = log_lines(process.folder)
    assert "another profiler holds it" in row["message"]


def test_a_running_torch_profiler_is_not_disturbed(tmp_path: Path, on_nvidia: On) -> None:
    settings = Settings(str(tmp_path / "b"))
    process = Process(settings, "rank0", 0)
    with torch_profiler.profile(use_kineto=True):
        assert choose_backend(settings, process) == ("none", None)
    reason = str(json_object(process.folder / REFUSED_FILE)["reason"])
    assert reason == "torch's profiler is running in this engine; stop it first"


def test_way_is_given_before_torch_s_profiler_starts() -> None:
    original = torch_profiler.profile._prepare_trace
    told: list[str] = []
    undo = before_torch_profiler(lambda: told.append("first"))
    other = before_torch_profiler(lambda: told.append("second"))
    with our_profiler(), torch_profiler.profile(use_kineto=True):
        assert told == []
    with torch_profiler.profile(use_kineto=True) as found:
        assert told == ["first", "second"]
    assert found.kineto_results is not None
    undo()
    undo()
    with torch_profiler.profile(use_kineto=True):
        assert told == ["first", "second", "second"]
    other()
    assert torch_profiler.profile._prepare_trace is original


def test_everybody_gives_way_who_ends_with_it() -> None:
    told: list[int] = []
    undo: list[Callable[[], None]] = []

    def give_way(number: int) -> None:
        told.append(number)
        undo[number]()

    undo += [before_torch_profiler(partial(give_way, number)) for number in range(3)]
    with torch_profiler.profile(use_kineto=True):
        assert told == [0, 1, 2]
    with torch_profiler.profile(use_kineto=True):
        assert told == [0, 1, 2]


def test_without_torch_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.autograd.profiler", None)
    monkeypatch.setitem(__import__("sys").modules, "torch._C", None)
    before_torch_profiler(lambda: None)()
    assert not handover.torch_profiler_runs()
