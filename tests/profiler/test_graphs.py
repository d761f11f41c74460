"""What is seen while a worker captures its CUDA graphs, and that the worker never notices."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_prof.profiler import control as control_module
from spark_prof.profiler.control import Control
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.graphs import GraphWatch, marked_modules
from spark_prof.profiler.process import Process
from spark_prof.profiler.ranges import CallMarker, Target
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunks import ARGUMENT_DTYPE, NODE_DTYPE, capture_name, pieces_folder
from spark_prof.traces.host_timeline import place_nodes

from .fakes import AddOne, Module, Worker

PIECEWISE, FULL = 1, 2
MEMORY = 1 << 40
HOOKS = ("watch_graphs", "watch_capture", "end_capture", "see_batch", "begin_capture",
         "read_arguments", "close_capture", "take_arguments", "graphs", "breaks")  # fmt: skip


class Ids:
    """A batch's input_ids; adding to it keeps them."""

    ndim = 1

    def __init__(self, tokens: int) -> None:
        self.shape = (tokens,)

    def __add__(self, one: int) -> Ids:
        return self


class FakeGraph:
    """A torch.cuda.CUDAGraph that knows how often it was captured."""

    captured = 0

    def capture_begin(self, pool: Any = None, *, capture_error_mode: str = "global") -> str:
        FakeGraph.captured += 1
        return f"begun in {pool}, {capture_error_mode}"

    def capture_end(self) -> str:
        return "ended"


@pytest.fixture(autouse=True)
def graph_class(monkeypatch: pytest.MonkeyPatch) -> type[FakeGraph]:
    graph = type("CUDAGraph", (FakeGraph,), dict(vars(FakeGraph)))
    cuda = SimpleNamespace(
        CUDAGraph=graph,
        is_available=lambda: False,
        current_stream=lambda: SimpleNamespace(cuda_stream=7),
        memory_snapshot=lambda: [{"address": MEMORY, "total_size": 1024}],
    )
    compiler = SimpleNamespace(is_compiling=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, compiler=compiler))
    monkeypatch.setitem(sys.modules, "torch.compiler", compiler)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    return graph


class FakeNative:
    """Keeps a node for every module that ran while a graph was captured."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.streams: list[int] = []
        self.lost = self.released = 0

    def read_capture(self, stream: int) -> None:
        self.streams.append(stream)

    def unsubscribe(self) -> None:
        self.released += 1

    def take_arguments(self) -> tuple[np.ndarray[Any, Any], int]:
        found = [
            (n, -1, MEMORY * far, 0, 0, 8) for n, _ in enumerate(self.streams) for far in (1, 2)
        ]
        self.streams.clear()
        return np.array(found, ARGUMENT_DTYPE), self.lost

    def add(self, now_ns: int) -> None:
        self.rows.append((now_ns, len(self.rows) + 1, 0, 1, 7))

    def nodes(self) -> np.ndarray[Any, Any]:
        return np.array(self.rows, NODE_DTYPE)


class Piece(Module):
    """A module that is captured by itself, inside the model, once it runs a second time."""

    def __init__(self, graph: type[FakeGraph], **children: Module) -> None:
        super().__init__(**children)
        self._graph, self._warm = graph, False

    def forward(self, value: Any) -> Any:
        if not self._warm:
            self._warm = True
            return super().forward(value)
        graph = self._graph()
        graph.capture_begin()
        value = super().forward(value)
        graph.capture_end()
        return value


class CapturingWorker(Worker):
    """A worker that warms up and then captures a graph for each batch size, as vLLM does."""

    def __init__(self, graph: type[FakeGraph], mode: int, sizes: tuple[int, ...] = (8, 1)) -> None:
        super().__init__()
        self._graph, self._mode, self._sizes = graph, mode, sizes
        self.error: BaseException | None = None
        self.said: list[Any] = []
        if mode == PIECEWISE:
            layers = {str(n): Module(self_attn=Module(qkv_proj=AddOne())) for n in range(2)}
            pieces = {name: Piece(graph, layer=layer) for name, layer in layers.items()}
            self.model_runner.model = Module(model=Module(layers=Module(**pieces)))

    def compile_or_warm_up_model(self) -> str:
        model = self.model_runner.model
        for size in self._sizes:
            model.forward(Ids(size))
            if self._mode == PIECEWISE:
                model.forward(Ids(size))
                continue
            graph = self._graph()
            self.said.append(graph.capture_begin("a pool", capture_error_mode="relaxed"))
            model.forward(Ids(size))
            if self.error is not None:
                raise self.error
            self.said.append(graph.capture_end())
        return "warm"


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(Settings(str(tmp_path / "b")), "rank0", 0)


Watch = Callable[..., GraphWatch]


@pytest.fixture
def watch(process: Process) -> Watch:
    def watcher(worker: Any, native: Any = None) -> GraphWatch:
        graphs = GraphWatch(worker, native, Fence(process.log))
        graphs.install()
        return graphs

    return watcher


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> tuple[Control, FakeNative]:
    """What records a process's workers, and what CUPTI finds in it."""
    native = FakeNative()
    monkeypatch.setattr(control_module, "early_native", lambda _: native)
    monkeypatch.setattr(Control, "_watch", lambda _: None)
    return Control(), native


def load(folder: Path, kind: str) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.load(folder / capture_name("rank0", kind))
    return found


def state(worker: Any, graph: type[FakeGraph]) -> tuple[Any, ...]:
    """Everything that a watch puts something on."""
    modules = [dict(vars(module)) for _, module in worker.model_runner.model.named_modules()]
    for attributes in modules:
        attributes.pop("_warm", None)
    return set(vars(worker)), modules, graph.capture_begin, graph.capture_end


@pytest.mark.parametrize("lost", [0, 3])
def test_arguments_are_read_while_the_stream_still_captures(
    watch: Watch, process: Process, graph_class: type[FakeGraph], lost: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    worker, native = CapturingWorker(graph_class, FULL), FakeNative()
    native.lost = lost
    seen: list[int] = []
    ended = graph_class.capture_end

    def capture_end(this: FakeGraph) -> str:
        seen.append(len(native.streams))
        return ended(this)

    monkeypatch.setattr(graph_class, "capture_end", capture_end)
    graphs = watch(worker, native)
    worker.compile_or_warm_up_model()
    assert seen == [1, 2]
    for _ in range(2):  # a recording that is attached later gets them again
        graphs.write(process)
        # What lies in no memory of the allocator is left out.
        found = load(process.folder, "arguments")
        assert found[["node", "address"]].tolist() == [(0, MEMORY), (1, MEMORY)]
    log = process.folder / "rank0.log.jsonl"
    assert log.exists() == bool(lost)


def test_what_is_open_during_a_capture_places_its_nodes(
    watch: Watch, process: Process, graph_class: type[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, native = CapturingWorker(graph_class, FULL), FakeNative()
    graphs = watch(worker, native)

    def forward(this: AddOne, value: Any) -> Any:
        native.add(time.time_ns())
        return value

    monkeypatch.setattr(AddOne, "forward", forward)
    _, marked = marked_modules(worker)
    worker.compile_or_warm_up_model()
    graphs.write(process)
    found = place_nodes(
        load(process.folder, "nodes"),
        load(process.folder, "capture-events"),
        load(process.folder, "captures"),
        [row.layer for row in marked],
    ).frame
    # Four modules, each run once to warm up and once for the graph, for two batch sizes.
    warm = found["capture"] < 0
    assert warm.tolist() == ([True] * 4 + [False] * 4) * 2
    assert (found["module"][warm] == -1).all()
    paths = [marked[number].path for number in found["module"][~warm]]
    layer = ["self_attn.qkv_proj", "mlp"]
    assert paths == [f"model.layers.{n}.{name}" for n in range(2) for name in layer] * 2
    assert found["layer"][~warm].tolist() == [0, 0, 1, 1] * 2


def test_pieces_are_captured_inside_the_model(
    watch: Watch, process: Process, graph_class: type[FakeGraph]
) -> None:
    worker = CapturingWorker(graph_class, PIECEWISE)
    graphs = watch(worker)
    worker.compile_or_warm_up_model()
    graphs.write(process)
    captures = load(process.folder, "captures")
    assert captures[["tokens", "mode"]].tolist() == [(8, PIECEWISE)] * 2 + [(1, PIECEWISE)] * 4
    events = load(process.folder, "capture-events")
    assert (np.diff(events["time_ns"]) >= 0).all()
    assert events["code"].sum() == 0  # everything entered was left


def test_the_size_of_the_batch(
    watch: Watch, process: Process, graph_class: type[FakeGraph]
) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any], int]] = [
        ((Ids(3), Ids(5)), {}, 3),
        ((), {"input_ids": Ids(4), "positions": Ids(4)}, 4),
        ((), {"input_ids": None, "inputs_embeds": Ids(6)}, 6),
        ((None, Ids(7)), {}, 7),
        (("text",), {}, 0),
        ((), {}, 0),
    ]
    worker = Worker()
    seen: list[Any] = []
    model = Module()
    model.forward = lambda *a, **n: seen.append((a, n))  # type: ignore[method-assign]
    worker.model_runner.model = model

    def capture() -> None:
        for arguments, named, tokens in calls:
            graph = graph_class()
            graph.capture_begin()
            model.forward(*(() if tokens else (Ids(0),)))  # what was seen last is not seen again
            model.forward(*arguments, **named)
            graph.capture_end()

    worker.compile_or_warm_up_model = capture  # type: ignore[assignment,method-assign]
    graphs = watch(worker)
    worker.compile_or_warm_up_model()
    graphs.write(process)
    assert seen[1::2] == [(arguments, named) for arguments, named, _ in calls]
    assert load(process.folder, "captures")["tokens"].tolist() == [tokens for *_, tokens in calls]


def test_an_exception_of_the_engine_passes_and_everything_is_undone(
    watch: Watch, process: Process, graph_class: type[FakeGraph]
) -> None:
    worker = CapturingWorker(graph_class, FULL)
    before = state(worker, graph_class)
    worker.error = MemoryError("out of memory")
    graphs = watch(worker)
    with pytest.raises(MemoryError, match="out of memory"):
        worker.compile_or_warm_up_model()
    assert state(worker, graph_class) == before
    graphs.write(process)
    assert not (process.folder / capture_name("rank0", "captures")).exists()


class TooLarge(Module):
    """A module for which there is no memory at first."""

    calls = 0

    def forward(self, value: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise MemoryError
        return value


class ProbingWorker(CapturingWorker):
    """A worker that first tries what does not fit."""

    def compile_or_warm_up_model(self) -> str:
        with pytest.raises(MemoryError):
            super().compile_or_warm_up_model()
        return super().compile_or_warm_up_model()


def test_an_exception_of_the_model_leaves_no_call_open(
    watch: Watch, process: Process, graph_class: type[FakeGraph]
) -> None:
    """Else later full graphs would look like pieces, captured inside the model."""
    worker = ProbingWorker(graph_class, FULL)
    worker.model_runner.model = Module(large=TooLarge())
    graphs = watch(worker)
    assert worker.compile_or_warm_up_model() == "warm"
    graphs.write(process)
    assert load(process.folder, "captures")["mode"].tolist() == [FULL, FULL]
    assert load(process.folder, "capture-events")["code"].sum() == 0


def test_a_model_that_cannot_be_marked_is_left_as_it_was(
    watch: Watch, process: Process, graph_class: type[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some modules are marked already when the next one refuses."""
    worker = CapturingWorker(graph_class, FULL)
    before = state(worker, graph_class)
    marks: list[int] = []
    original = CallMarker._mark

    def refuse(this: CallMarker, number: int, target: Target) -> None:
        marks.append(number)
        if len(marks) == 3:
            raise TypeError("no attributes can be set")
        original(this, number, target)

    monkeypatch.setattr(CallMarker, "_mark", refuse)
    graphs = watch(worker)
    assert worker.compile_or_warm_up_model() == "warm"
    assert len(marks) == 3
    assert state(worker, graph_class) == before
    graphs.write(process)
    assert not (process.folder / capture_name("rank0", "captures")).exists()


@pytest.mark.parametrize("mode", [FULL, PIECEWISE])
@pytest.mark.parametrize("error", [None, ValueError("a bad model")])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_changes_nothing_for_the_engine_and_is_logged_once(
    graph_class: type[FakeGraph], tmp_path: Path, control: tuple[Control, FakeNative],
    caplog: pytest.LogCaptureFixture, hook: str, error: Exception | None, mode: int,
) -> None:  # fmt: skip
    caplog.set_level(logging.WARNING, "spark_prof")
    worker, plain = (CapturingWorker(graph_class, mode) for _ in range(2))
    settings = Settings(str(tmp_path / "b"), backend="none", faults=(hook,))
    control[0].add_worker(worker, settings)
    for each in (worker, plain):
        each.error = error if mode == FULL else None
        if each.error is not None:
            with pytest.raises(ValueError, match="a bad model"):
                each.compile_or_warm_up_model()
        else:
            assert each.compile_or_warm_up_model() == "warm"
    assert worker.said == plain.said
    assert graph_class().capture_begin("p") == "begun in p, global"
    assert graph_class().capture_end() == "ended"
    failed = [record.getMessage() for record in caplog.records if f"hook {hook} " in record.message]
    called = plain.error is None or hook not in ("read_arguments", "close_capture", "graphs",
                                                      "breaks")  # fmt: skip
    assert len(failed) == int(called)
    assert all(recording.idle for recording in control[0].recordings)


def test_the_pieces_of_a_recorded_worker(
    graph_class: type[FakeGraph], tmp_path: Path, control: tuple[Control, FakeNative]
) -> None:
    """Through Control, as in an engine: what was captured is there before the first step."""
    worker = CapturingWorker(graph_class, FULL)
    before = state(worker, graph_class)
    control[0].add_worker(worker, Settings(str(tmp_path / "b"), backend="none"))
    control[1].add(1)
    assert worker.compile_or_warm_up_model() == "warm"
    folder = pieces_folder(tmp_path / "b")
    assert worker.said == ["begun in a pool, relaxed", "ended"] * 2
    captures = load(folder, "captures")
    assert captures[["tokens", "mode"]].tolist() == [(8, FULL), (1, FULL)]
    times = [time for row in captures for time in (row["start_ns"], row["end_ns"])]
    assert times == sorted(times)
    assert load(folder, "nodes")["node"].tolist() == [1]
    assert len(load(folder, "capture-events")) > 0
    control[0].recordings[0].finish()
    assert state(worker, graph_class) == before
