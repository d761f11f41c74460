"""The order of the model's code: launches in order of time, graphs in order of capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.order import launch_order, nodes_of
from spark_prof.traces.bundle import Bundle
from tests.support import Piece, Recorded, event, kernel, kineto, step

from .graphs import Captured, captured_node, clone_of, graph_launch

Order = Callable[..., list[str]]


@pytest.fixture
def order(tmp_path: Path) -> Order:
    """The names of the kernels in launch order."""

    def ordered(rows: Sequence[Any], nodes: int = 0, steps: int = 1) -> list[str]:
        piece = Piece([step(n, 1000 * n, 1000 * n + 900) for n in range(steps)], (), kineto(*rows))
        recorded = Recorded({0: [piece]})
        bundle = Captured(range(100, 100 + nodes), ()).assemble(recorded, tmp_path / "b")
        found = bundle.frame("kernels", 0)
        assert found["start_ns"].is_monotonic_increasing
        nodes_seen = nodes_of(bundle, 0, found["graph_node"].to_numpy())
        places = launch_order(found, bundle.frame("host", 0), nodes_seen)
        names = found["name"] if places is None else found["name"].iloc[places]
        return [str(name) for name in names]

    return ordered


def test_two_streams_in_the_order_of_their_launches(order: Order) -> None:
    rows = [
        kernel("first", 500, 600, 1, 100, stream=7),
        kernel("second", 400, 450, 2, 200, stream=8),
        kernel("third", 450, 460, 3, 300, stream=8),
    ]
    assert order(rows) == ["first", "second", "third"]


def test_a_graph_of_two_streams_in_the_order_of_its_capture(order: Order) -> None:
    launch = graph_launch(1, 50, ("b", 1, 100, 7), ("d", 3, 110, 8), ("a", 0, 120, 7),
                          ("c", 2, 130, 8))  # fmt: skip
    assert order(launch, nodes=4) == ["a", "b", "c", "d"]


def test_pieces_of_a_graph_and_kernels_between_them(order: Order) -> None:
    rows = [
        *graph_launch(1, 50, ("b", 1, 300, 7), ("a", 0, 310, 7)),
        *kernel("between", 200, 250, 2, 100),
        *graph_launch(3, 150, ("d", 3, 260, 8), ("c", 2, 290, 8)),
    ]
    assert order(rows, nodes=4) == ["a", "b", "between", "c", "d"]


def test_replays_of_one_graph_do_not_mix(order: Order) -> None:
    rows = [
        *graph_launch(1, 50, ("b1", 1, 100, 7), ("a1", 0, 300, 8)),
        *graph_launch(2, 60, ("b2", 1, 150, 7), ("a2", 0, 350, 8)),
    ]
    assert order(rows, nodes=2) == ["a1", "b1", "a2", "b2"]


def test_a_graph_that_nobody_saw_captured_in_the_order_of_the_device(order: Order) -> None:
    launch = graph_launch(1, 50, ("x", 1, 100, 7), ("y", 0, 120, 8))
    assert order(launch) == ["x", "y"]


def test_steps_stay_apart(order: Order) -> None:
    rows = [
        kernel("late", 1500, 1600, 1, 100),
        kernel("next", 1200, 1300, 2, 1100),
    ]
    assert order(rows, steps=2) == ["late", "next"]


def test_a_kernel_whose_launch_is_unknown_stands_where_it_started(order: Order) -> None:
    rows = [
        kernel("first", 500, 600, 1, 100),
        event("kernel", "alone", 150, 160, 7, correlation=99, device=0, stream=7),
        kernel("second", 700, 750, 2, 200),
    ]
    # It belongs to no step and so comes before them.
    assert order(rows) == ["alone", "first", "second"]


def test_of_two_calls_with_one_number_the_first_counts(order: Order) -> None:
    rows = [
        event("cuda_runtime", "cudaLaunchKernelExC", 100, 101, correlation=1),
        *kernel("first", 500, 600, 1, 300),
        *kernel("second", 400, 450, 2, 200),
    ]
    assert order(rows) == ["first", "second"]


def test_no_kernels(order: Order) -> None:
    assert order([]) == []


def _bundle(folder: Path, nodes: int) -> Bundle:
    recorded = Recorded({0: [Piece([step(0, 0, 900)], (), kineto())]})
    return Captured(range(100, 100 + nodes), ()).assemble(recorded, folder)


def test_clones_lead_to_the_captured_nodes(tmp_path: Path) -> None:
    wanted = np.array([clone_of(1), captured_node(0), 12345, 0, clone_of(0)])
    found = nodes_of(_bundle(tmp_path / "b", 2), 0, wanted)
    assert found.tolist() == [captured_node(1), captured_node(0), 0, 0, captured_node(0)]


def test_without_nodes_none_is_known(tmp_path: Path) -> None:
    assert nodes_of(_bundle(tmp_path / "b", 0), 0, np.array([5, 0])).tolist() == [0, 0]
