"""Dictionaries by side, and captures for every side."""

from __future__ import annotations

from typing import Any

import pytest

from spark_prof.swaps import sided_graphs
from spark_prof.swaps.sided_graphs import HOLDERS, BySide, capture_every_side, keep_graphs_by_side
from spark_prof.swaps.swap_settings import SIDES

pytestmark = pytest.mark.usefixtures("sides")


def test_each_side_sees_its_own_entries() -> None:
    graphs = BySide()
    graphs[1] = "a's"
    SIDES.switch("b")
    assert 1 not in graphs
    graphs[1] = "b's"
    graphs[2] = "b's second"
    assert (graphs[1], len(graphs), list(graphs)) == ("b's", 2, [1, 2])
    SIDES.switch("a")
    assert (graphs[1], len(graphs), 2 in graphs) == ("a's", 1, False)
    assert graphs.counts() == {"a": 1, "b": 2}
    del graphs[1]
    assert not graphs


def test_clearing_forgets_every_side() -> None:
    graphs = BySide()
    for side in SIDES.names:
        SIDES.switch(side)
        graphs[1] = side
    graphs.clear()
    assert graphs.counts() == {}


def test_every_side_is_captured_and_the_first_is_active_afterwards() -> None:
    graphs = BySide()
    seconds: dict[str, float] = {}

    def capture(size: int) -> int:
        graphs[size] = SIDES.active
        return 100

    assert capture_every_side(seconds, pytest.fail, capture, 4) == 300
    assert graphs.counts() == {"a": 1, "b": 1, "a2": 1}
    assert SIDES.active == "a"
    assert set(seconds) == {"a", "b", "a2"}
    assert all(value >= 0 for value in seconds.values())


def test_each_capture_may_keep_what_it_needs_and_takes_nothing_from_earlier_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Marlin does, whose locks are allocated for the stream of a capture."""
    torch = pytest.importorskip("torch")
    workspace = pytest.importorskip("vllm.v1.worker.workspace")
    kept: list[Any] = []
    monkeypatch.setattr(sided_graphs, "_SCRATCH", kept)
    monkeypatch.setattr(workspace, "_manager", None)
    assert capture_every_side({}, pytest.fail, lambda: 1) == 3, "an engine that has none"
    workspace.init_workspace_manager(torch.device("cpu"))
    manager = workspace.current_workspace_manager()
    written: list[int] = []

    def capture() -> int:
        # As where a later side needs more; vLLM gives the memory back before it allocates.
        manager._current_workspaces[0] = None
        manager._current_workspaces[0] = torch.zeros(1024 * (1 + len(written)))
        written.append(manager._current_workspaces[0].data_ptr())
        manager.get_persistent(("locks", SIDES.active), (4,), torch.int32, zero_init=True)
        workspace.lock_workspace()
        return 1

    assert capture_every_side({}, pytest.fail, capture) == 3
    assert manager.is_locked()
    assert [part.data_ptr() for part in kept] == written[:-1]
    assert len(set(written)) == len(written)
    # Once more, as elastic expert parallelism does: of forgotten graphs nothing is held.
    assert capture_every_side({}, pytest.fail, capture) == 3
    assert [part.data_ptr() for part in kept] == written[2:-1]


def test_what_graphs_write_to_is_held_once_and_while_there_are_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    workspace = pytest.importorskip("vllm.v1.worker.workspace")
    kept: list[Any] = []
    monkeypatch.setattr(sided_graphs, "_SCRATCH", kept)
    monkeypatch.setattr(workspace, "_manager", None)
    workspace.init_workspace_manager(torch.device("cpu"))
    workspace.current_workspace_manager()._current_workspaces[0] = torch.zeros(64)
    graphs = BySide()

    def capture() -> int:
        graphs[8] = "graph"
        workspace.lock_workspace()
        return 1

    for _ in range(2):
        assert capture_every_side({}, pytest.fail, capture) == 3
        assert len(kept) == 1


def test_a_side_that_cannot_be_captured_is_named() -> None:
    said: list[str] = []

    def capture() -> int:
        if SIDES.active == "b":
            raise RuntimeError("operation not permitted when stream is capturing")
        return 0

    with pytest.raises(RuntimeError):
        capture_every_side({}, said.append, capture)
    assert said == [
        "side b: its CUDA graphs cannot be captured: "
        "operation not permitted when stream is capturing"
    ]
    assert SIDES.active == "a"


def test_what_vllm_constructs_from_then_on_keeps_graphs_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utils = pytest.importorskip("vllm.v1.worker.gpu.cudagraph_utils")
    wrapper = pytest.importorskip("vllm.compilation.cuda_graph").CUDAGraphWrapper
    breakable = pytest.importorskip("vllm.compilation.breakable_cudagraph")
    owners = (wrapper, breakable.BreakableCUDAGraphWrapper, utils.CudaGraphManager)
    attributes = [attribute for _, _, attribute in HOLDERS]
    for owner, attribute in zip(owners, attributes, strict=True):

        def construct(self: Any, attribute: str = attribute) -> None:
            setattr(self, attribute, {})

        monkeypatch.setattr(owner, "__init__", construct)
    assert keep_graphs_by_side() == []
    assert keep_graphs_by_side() == []
    for owner, attribute in zip(owners, attributes, strict=True):
        assert isinstance(getattr(owner(), attribute), BySide)


@pytest.mark.parametrize(("module", "owner", "attribute"), HOLDERS)
def test_this_vllm_keeps_its_graphs_where_they_are_looked_for(
    module: str, owner: str, attribute: str
) -> None:
    import importlib
    import inspect

    pytest.importorskip("vllm")
    constructor = getattr(importlib.import_module(module), owner)
    assert f"self.{attribute}:" in inspect.getsource(constructor)
