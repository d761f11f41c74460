"""What each captured graph is for, told on stand-ins for what vLLM 0.33 captures."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_prof.profiler import targets
from spark_prof.profiler.capture_log import open_at
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.graphs import GraphWatch, marked_modules
from spark_prof.profiler.process import Process
from spark_prof.profiler.ranges import CallMarker
from spark_prof.rules.components import DRAFTING
from spark_prof.traces.host_timeline import capture_rows, place_nodes, replay

from .fakes import AddOne, Module, Worker
from .test_graphs import FakeNative, Ids, graph_class, load, process

__all__ = ["graph_class", "process"]

Segments = list[Callable[[], Any]]


def breakable_class(graph: type) -> type:
    """BreakableCUDAGraphCapture, as in vLLM 0.24 to 0.33."""

    class Capture:
        active: Any = None

        def __init__(self) -> None:
            self.segments: Segments = []
            self.num_graphs = 0

        @classmethod
        def current(cls) -> Any:
            return cls.active

        def __enter__(self) -> Any:
            Capture.active = self
            self._begin()
            return self

        def __exit__(self, *error: object) -> None:
            self._end()
            Capture.active = None

        def _begin(self) -> None:
            self._graph = graph()
            self._graph.capture_begin()

        def _end(self) -> None:
            self._graph.capture_end()
            self.segments.append(self._graph.replay)
            self.num_graphs += 1

        def add_eager(self, fn: Callable[[], Any]) -> Any:
            self._end()
            result = fn()
            self.segments.append(fn)
            self._begin()
            return result

        def replay(self) -> None:
            for segment in self.segments:
                segment()

    return Capture


class Breaking(Module):
    """An attention that runs eagerly in a breakable graph."""

    def __init__(self, breakable: Any) -> None:
        super().__init__()
        self._breakable, self.ran = breakable, 0

    def forward(self, value: Any) -> Any:
        capture = self._breakable.current()
        if capture is None:
            return self._run(value)
        return capture.add_eager(lambda: self._run(value))

    def _run(self, value: Any) -> Any:
        self.ran += 1
        return value


class Server(Worker):
    """A worker that captures what the test says, once it has measured its memory."""

    def __init__(self, graph: type, capture: Callable[[Server], None]) -> None:
        super().__init__()
        self.graph, self.todo = graph, capture

    def full(self, *calls: Callable[[], Any]) -> None:
        captured = self.graph()
        captured.capture_begin()
        for call in calls:
            call()
        captured.capture_end()

    def determine_available_memory(self) -> int:
        self.todo(self)
        return 7

    def compile_or_warm_up_model(self) -> str:
        self.todo(self)
        return "warm"


def watched(worker: Server, process: Process, native: Any = None) -> tuple[GraphWatch, list[Any]]:
    """The watch, and kind, mode, tokens and group of what was captured."""
    graphs = GraphWatch(worker, native, Fence(process.log))
    graphs.install()
    assert worker.compile_or_warm_up_model() == "warm"
    graphs.write(process)
    frame = capture_rows(load(process.folder, "captures"))
    return graphs, frame[["kind", "mode", "tokens", "group"]].to_numpy().tolist()


def test_a_drafters_graphs_metadata_and_encoders_are_none_of_the_models(
    process: Process, graph_class: type
) -> None:
    """As model runner V2 captures: encoder, model, metadata of attention, drafter."""

    def capture(worker: Server) -> None:
        runner = worker.model_runner
        runner.model_state.encoder_runner.capture()
        for tokens in (8, 4):
            worker.full(lambda tokens=tokens: runner.model.forward(Ids(tokens)))
        runner.model_state.capture_inner_cudagraphs()
        runner.speculator.capture()
        worker.full()  # and something that nobody knows

    worker = Server(graph_class, capture)
    drafter = Module(layer=AddOne())
    worker.model_runner.speculator = SimpleNamespace(
        model=drafter,
        # Its forward, and then one that only samples.
        capture=lambda: (worker.full(lambda: drafter.forward(Ids(4))), worker.full()),
    )
    worker.model_runner.model_state = SimpleNamespace(
        encoder_runner=SimpleNamespace(capture=worker.full),
        capture_inner_cudagraphs=lambda: (worker.full(), worker.full()),
    )
    before = {name: dict(vars(one)) for name, one in vars(worker.model_runner).items() if one}
    _, found = watched(worker, process)
    assert [kind for kind, *_ in found] == [
        *("encoder", "model", "model", "metadata", "metadata", "drafter", "drafter", "other"),
    ]  # fmt: skip
    assert {mode for _, mode, *_ in found} == {"FULL"}
    assert [tokens for kind, _, tokens, _ in found if kind == "model"] == [8, 4]
    assert [group for *_, group in found] == list(range(8))
    after = {name: dict(vars(one)) for name, one in vars(worker.model_runner).items() if one}
    assert before == after


def test_graphs_of_the_same_size_of_model_and_drafter(process: Process, graph_class: type) -> None:
    """Also where no method of a drafter says so: it is its forward that runs (model runner V1)."""
    drafter = Module(layer=AddOne())

    def capture(worker: Server) -> None:
        for model in (worker.model_runner.model, drafter):
            worker.full(lambda model=model: model.forward(Ids(4)))

    worker = Server(graph_class, capture)
    worker.model_runner.drafter = SimpleNamespace(model=drafter)
    assert watched(worker, process)[1] == [["model", "FULL", 4, 0], ["drafter", "FULL", 4, 1]]


def test_what_is_captured_to_measure_memory_is_thrown_away(
    process: Process, graph_class: type
) -> None:
    worker = Server(graph_class, lambda w: w.full(lambda: w.model_runner.model.forward(Ids(2))))
    native = FakeNative()
    graphs = GraphWatch(worker, native, Fence(process.log))
    graphs.install()
    assert worker.determine_available_memory() == 7
    assert native.streams == []  # nothing is read of what will be gone
    graphs.write(process)
    assert not list(process.folder.glob("*captures*"))
    worker.compile_or_warm_up_model()
    assert graphs._log.rows[0][4:] == (6, 0)
    graphs.write(process)
    frame = capture_rows(load(process.folder, "captures"))
    assert frame["kind"].tolist() == ["memory", "model"]
    assert frame["mode"].tolist() == ["FULL", "FULL"]
    assert not {"determine_available_memory", "compile_or_warm_up_model"} & set(vars(worker))


def test_a_forward_in_two_halves(process: Process, graph_class: type) -> None:
    """Dual batch overlap: threads run the model while another one captures."""

    def halves(worker: Server) -> None:
        def both() -> None:
            for _ in range(2):
                half = threading.Thread(target=worker.model_runner.model.forward, args=(Ids(2),))
                half.start()
                half.join()

        worker.full(lambda: worker.model_runner.model.forward(Ids(4)))
        worker.full(both)

    found = watched(Server(graph_class, halves), process)[1]
    assert [kind for kind, *_ in found] == ["model", "ubatches"]
    assert {mode for _, mode, *_ in found} == {"FULL"}


def test_pieces_of_a_breakable_graph_are_one_group_and_its_breaks_have_their_module(
    process: Process, graph_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_class.replay = lambda this: None  # type: ignore[attr-defined]
    breakable = breakable_class(graph_class)
    module = SimpleNamespace(BreakableCUDAGraphCapture=breakable)
    monkeypatch.setitem(sys.modules, "vllm.compilation.breakable_cudagraph", module)
    kept: list[Any] = []

    def capture(worker: Server) -> None:
        model = worker.model_runner.model
        for tokens in (8, 4):
            model.forward(Ids(tokens))
            with breakable() as captured:
                model.forward(Ids(tokens))
            kept.append(captured)
        worker.full(lambda: model.forward(Ids(4)))

    worker = Server(graph_class, capture)
    attentions = [Breaking(breakable) for _ in range(2)]
    layers = {str(n): Module(self_attn=one, mlp=AddOne()) for n, one in enumerate(attentions)}
    worker.model_runner.model = Module(model=Module(layers=Module(**layers)))
    add_eager = breakable.add_eager  # type: ignore[attr-defined]
    graphs, found = watched(worker, process)
    assert breakable.add_eager is add_eager  # type: ignore[attr-defined]
    assert found == [
        *[["model", "BREAKABLE", 8, 0]] * 3, *[["model", "BREAKABLE", 4, 1]] * 3,
        ["model", "FULL", 4, 2],
    ]  # fmt: skip

    # A replay calls no module: in a recording its breaks are marked as what they are of.
    marker, modules = CallMarker(Fence(process.log), nvtx=False), marked_modules(worker)[1]
    plain = [list(one.segments) for one in kept]
    graphs.mark_breaks(marker)
    marker.start()
    before = [one.ran for one in attentions]
    kept[0].replay()
    marker.stop()
    assert [one.ran for one in attentions] == [count + 1 for count in before]
    _, calls = replay(marker.take_rows(), [row.layer for row in modules], None)
    assert [modules[one.module].path for one in calls] == [
        f"model.layers.{n}.self_attn" for n in range(2)
    ]
    marker.remove()
    assert [list(one.segments) for one in kept] == plain
    kept.clear()
    graphs.mark_breaks(marker)  # of captures that are gone nothing is marked


def test_an_older_recording_tells_no_kind() -> None:
    names = ("start_ns", "end_ns", "tokens", "mode", "kind", "group")
    rows = np.array([(1, 2, 4, 2, 0, 0)], [(name, "i8") for name in names])
    frame = capture_rows(rows)
    assert frame[["mode", "kind", "group"]].to_numpy().tolist() == [["FULL", "", -1]]


@pytest.mark.parametrize(
    ("codes", "counts", "found"),
    [
        ([], [0], [-1]),
        ([6, 8, -8, -6], [0, 1, 2, 3, 4], [-1, 5, 7, 5, -1]),
        ([6, 8, -6], [2, 3], [7, -1]),  # what was left open inside ends with it
        ([-8, 6], [2], [5]),
    ],
)
def test_what_is_open(codes: list[int], counts: list[int], found: list[int]) -> None:
    assert open_at(codes, counts) == found


def test_owners_that_are_not_there_and_a_capture_that_never_ends(
    process: Process, graph_class: type
) -> None:
    worker = Server(graph_class, lambda w: (w.graph().capture_begin(), w.full()))
    worker.model_runner.model_state = None
    worker.model_runner.speculator = SimpleNamespace(model=None)
    assert [kind for kind, *_ in watched(worker, process)[1]] == ["other"]


@pytest.mark.parametrize("hook", ["watch_memory", "see_break", "begin_capture", "close_capture"])
def test_a_failing_hook_changes_nothing_for_the_engine(
    process: Process, graph_class: type, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    graph_class.replay = lambda this: None  # type: ignore[attr-defined]
    breakable = breakable_class(graph_class)
    module = SimpleNamespace(BreakableCUDAGraphCapture=breakable)
    monkeypatch.setitem(sys.modules, "vllm.compilation.breakable_cudagraph", module)
    attention = Breaking(breakable)
    kept: list[Any] = []

    def capture(worker: Server) -> None:
        with breakable() as captured:
            worker.model_runner.model.forward(Ids(4))
        kept.append(captured)

    worker = Server(graph_class, capture)
    worker.model_runner.model = Module(model=Module(self_attn=attention))
    begin, add_eager = graph_class.capture_begin, breakable.add_eager  # type: ignore[attr-defined]
    graphs = GraphWatch(worker, None, Fence(process.log, (hook,)))
    graphs.install()
    assert worker.determine_available_memory() == 7
    assert worker.compile_or_warm_up_model() == "warm"
    assert attention.ran == 2
    assert [len(one.segments) for one in kept] == [3, 3]
    assert graph_class.capture_begin is begin  # type: ignore[attr-defined]
    assert breakable.add_eager is add_eager  # type: ignore[attr-defined]
    graphs.mark_breaks(CallMarker(Fence(process.log), nvtx=False))


class Node(Module):
    """A module that launches a kernel."""

    def __init__(self, native: FakeNative) -> None:
        super().__init__()
        self.native = native

    def forward(self, value: Any) -> Any:
        self.native.add(time.time_ns())
        return value


class Speculator:
    """Captures its first draft as runner V2 does: what it does around its model's call as well."""

    def __init__(self, worker: Server, native: FakeNative, pieces: bool) -> None:
        self.worker, self.model, self.last = worker, Module(layer=Node(native)), Node(native)
        self.pieces = pieces

    def capture(self) -> None:
        if self.pieces:
            self._run_model()
        else:
            self.worker.full(self._prefill)

    def propose(self) -> None:
        self._prefill()

    def _prefill(self) -> None:
        self._run_model()
        self.last.forward(None)  # the rows of the last tokens, and their samples

    def _run_model(self) -> None:
        # Compiled as a whole, its forward is not called.
        call = lambda: self.model.layer.forward(Ids(4))  # type: ignore[attr-defined]  # noqa: E731
        if self.pieces:
            self.worker.full(call)
        else:
            call()


@pytest.mark.parametrize("pieces", [True, False])
def test_what_a_drafter_captures_around_its_model_is_its_drafting(
    process: Process, graph_class: type, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    """`propose` is not called while its graphs are captured."""
    native = FakeNative()
    worker = Server(graph_class, lambda one: one.model_runner.speculator.capture())
    speculator = worker.model_runner.speculator = Speculator(worker, native, pieces)
    chosen = targets.choose_targets
    monkeypatch.setattr(
        targets, "choose_targets",
        lambda model, *more: [] if model is speculator.model else chosen(model, *more),
    )  # fmt: skip
    mode = "PIECEWISE" if pieces else "FULL"
    assert [found[:2] for found in watched(worker, process, native)[1]] == [["drafter", mode]]
    _, marked = marked_modules(worker)
    events = load(process.folder, "capture-events")
    nodes, captures = (load(process.folder, kind) for kind in ("nodes", "captures"))
    found = place_nodes(nodes, events, captures, [row.layer for row in marked]).frame
    paths = [marked[number].path for number in found["module"]]
    assert paths == ["drafter", "drafter.propose"][: len(nodes)]
    assert len(nodes) == 2 - pieces
    assert events["code"].sum() == 0
    assert "_run_model" not in vars(speculator)


def test_drafting_is_not_open_where_its_model_is_not_marked(
    process: Process, graph_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its model's kernels would count to what is around it."""
    native = FakeNative()
    worker = Server(graph_class, lambda one: one.model_runner.speculator.capture())
    worker.model_runner.speculator = Speculator(worker, native, pieces=False)
    monkeypatch.setattr(
        "spark_prof.profiler.graphs.all_targets",
        lambda _: [targets.MarkedModule(worker.model_runner.speculator, "propose", DRAFTING)],
    )
    watched(worker, process, native)
    assert not len(load(process.folder, "capture-events"))
