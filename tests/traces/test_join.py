"""A kernel belongs to what was open when it was launched; arguments and counters beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.traces.assemble import assemble
from spark_prof.traces.chunk_tables import join_piece
from spark_prof.traces.chunks import (
    ARGUMENT_DTYPE,
    COUNTER_DTYPE,
    EVENT_DTYPE,
    STEP_DTYPE,
    array_name,
    capture_name,
    write_array,
)
from spark_prof.traces.host_timeline import GraphNodes
from spark_prof.traces.readers.kineto import read_kineto
from tests.analyzers.graphs import Captured, captured_node, graph_launch
from tests.support import (
    ATTENTION,
    FINISH,
    LAYER,
    MODEL,
    MODULES,
    ORIGIN,
    PREPARE,
    QKV,
    THREAD,
    Piece,
    Recorded,
    call,
    eager_decode,
    event,
    kernel,
    kineto,
    operator,
    rows,
    step,
)

EVENTS = [
    *call(PREPARE, 0, 900), *call(MODEL, 100, 800), *call(LAYER, 200, 700),
    *call(QKV, 300, 400), *call(ATTENTION, 500, 600),
]  # fmt: skip


@pytest.fixture
def join(tmp_path: Path) -> Callable[..., SimpleNamespace]:
    def joiner(
        trace: str | None,
        steps: Sequence[dict[str, int]] = (step(3, 0, 1000), step(4, 2000, 3000)),
        events: Sequence[tuple[int, int]] = EVENTS,
        nodes: GraphNodes | None = None,
    ) -> SimpleNamespace:
        path = tmp_path / "trace.json"
        if trace is not None:
            path.write_text(trace)
        log = np.array(sorted(events, key=lambda pair: pair[0]), EVENT_DTYPE)
        read = partial(read_kineto, path) if path.exists() else lambda: None
        frames, lost = join_piece(rows(STEP_DTYPE, *steps), log, MODULES, read, 6, nodes)
        return SimpleNamespace(**frames, lost=lost)

    return joiner


def placed(kernels: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(kernels[["name", "step", "module", "layer"]].itertuples(index=False, name=None))


@pytest.mark.parametrize(
    ("launched", "where"),
    [
        (0, (3, PREPARE, -1)),
        (150, (3, MODEL, -1)),
        (250, (3, LAYER, 0)),
        (350, (3, QKV, 0)),
        (599, (3, ATTENTION, 0)),
        (650, (3, LAYER, 0)),
        (950, (3, -1, -1)),
        (1000, (3, -1, -1)),
        (1500, (-1, -1, -1)),
        (2500, (4, -1, -1)),
        (3001, (-1, -1, -1)),
    ],
)
def test_the_launch_decides_and_not_the_run(
    join: Any, launched: int, where: tuple[int, int, int]
) -> None:
    trace = kineto(kernel("k", 2600, 2700, 1, launched))
    assert placed(join(trace).kernels) == [("k", *where)]


def test_times_are_exact_beside_a_kernel_without_a_launch(join: Any) -> None:
    # One nanosecond earlier another module was open.
    trace = kineto(
        kernel("k", 600, 700, 1, 300),
        kernel("q", 700, 800, 2, 299),
        event("kernel", "orphan", 800, 900, 7, correlation=5),
    )
    assert placed(join(trace).kernels) == [
        ("k", 3, QKV, 0), ("q", 3, LAYER, 0), ("orphan", -1, -1, -1),
    ]  # fmt: skip


def test_a_kernel_and_a_call_without_correlation_are_no_pair(join: Any) -> None:
    trace = kineto(
        event("cuda_runtime", "cudaLaunchKernel", 350, 351),
        event("kernel", "k", 600, 700, 7),
        kernel("q", 700, 800, 2, 350),
    )
    assert placed(join(trace).kernels) == [("k", -1, -1, -1), ("q", 3, QKV, 0)]


@pytest.mark.parametrize("api", ["cudaGraphLaunch", "cuGraphLaunch", "cudaGraphLaunch_v10000"])
def test_a_graph_kernel_has_its_step_and_not_the_module_that_replays_it(
    join: Any, api: str
) -> None:
    trace = kineto(kernel("k", 600, 700, 1, 350, api=api), kernel("q", 700, 800, 2, 350))
    assert placed(join(trace).kernels) == [("k", 3, -1, -1), ("q", 3, QKV, 0)]


def _in_graph(name: str, node: int, start: int) -> dict[str, Any]:
    return event("kernel", name, start, start + 10, 7, correlation=1, device=0, stream=7,
                 **{"graph node id": node})  # fmt: skip


def test_kernels_of_a_graph_have_the_place_of_their_nodes(join: Any) -> None:
    frame = pd.DataFrame({"node": [70, 80, 90], "module": [QKV, LAYER, -1], "layer": [0, 0, -1]})
    trace = kineto(
        event("cuda_runtime", "cudaGraphLaunch", 50, 55, correlation=1),
        _in_graph("qkv", 70, 2600),
        _in_graph("outside", 90, 2610),
        _in_graph("unseen", 75, 2620),
        _in_graph("layer", 80, 2630),
        *kernel("eager", 2640, 2650, 2, 550),
    )
    assert placed(join(trace, nodes=GraphNodes(frame)).kernels) == [
        ("qkv", 3, QKV, 0), ("outside", 3, -1, -1), ("unseen", 3, -1, -1), ("layer", 3, LAYER, 0),
        ("eager", 3, ATTENTION, 0),
    ]  # fmt: skip


def test_steps_that_were_only_timed_lack_no_kernels(join: Any) -> None:
    timed, watched = step(3, 0, 1000, watched=0), step(4, 2000, 3000)
    assert join(None, (timed,)).lost == []
    assert join(None, (timed, watched)).lost == ["1 steps have no kernels, the backend wrote none"]
    assert join(None, (timed, watched)).steps["watched"].tolist() == [False, True]


def test_what_follows_the_graph_of_the_whole_model_finishes_the_step(join: Any) -> None:
    """The model is not called then, so that nothing else says where it ends."""
    trace = kineto(
        kernel("prepare", 600, 650, 1, 100),
        kernel("inside", 700, 750, 2, 200, api="cudaGraphLaunch"),
        kernel("finish", 800, 850, 3, 300),
        kernel("prepare", 2600, 2650, 4, 2100),
        kernel("inside", 2700, 2750, 5, 2200, api="cudaGraphLaunch"),
        kernel("finish", 2800, 2850, 6, 2300),
    )
    found = join(trace, events=[*call(PREPARE, 0, 900), *call(PREPARE, 2000, 2900)]).kernels
    assert placed(found) == [
        (name, number, module, -1)
        for number in (3, 4)
        for name, module in (("prepare", PREPARE), ("inside", -1), ("finish", FINISH))
    ]


def test_pieces_of_the_model_do_not_end_it(join: Any) -> None:
    trace = kineto(
        kernel("piece", 600, 650, 1, 150, api="cudaGraphLaunch"),
        kernel("between", 700, 750, 2, 550),
        kernel("prepare", 2600, 2650, 3, 2100),
    )
    found = join(trace, events=[*EVENTS, *call(PREPARE, 2000, 2900)]).kernels
    assert placed(found) == [
        ("piece", 3, -1, -1), ("between", 3, ATTENTION, 0), ("prepare", 4, PREPARE, -1),
    ]  # fmt: skip


def test_operators_belong_to_where_they_ran(join: Any) -> None:
    kernels = join(kineto(operator("linear", 310, 390), operator("mm", 320, 380))).kernels
    assert placed(kernels) == [(name, 3, QKV, 0) for name in ("linear", "mm", "linear")]
    assert kernels["part"].tolist() == [0, 0, 1]
    assert set(kernels["device"]) == {-1}
    assert set(kernels["stream"]) == {THREAD}


def test_other_threads_are_not_the_steps(join: Any) -> None:
    trace = kineto(
        operator("mine", 310, 320),
        operator("theirs", 330, 340, tid=1),
        kernel("k", 600, 700, 1, 350, tid=1),
        kernel("q", 700, 800, 2, 350),
    )
    assert placed(join(trace).kernels) == [
        ("mine", 3, QKV, 0), ("k", -1, -1, -1), ("q", 3, QKV, 0),
    ]  # fmt: skip


def test_threads_that_kineto_numbers_in_its_own_way_are_the_steps(join: Any) -> None:
    trace = kineto(kernel("k", 600, 700, 1, 350, tid=1), kernel("q", 700, 800, 2, 550, tid=1))
    assert placed(join(trace).kernels) == [("k", 3, QKV, 0), ("q", 3, ATTENTION, 0)]


def test_calls_become_ranges_of_their_step(join: Any) -> None:
    ranges = join(kineto()).ranges
    found = ranges.assign(start_ns=ranges["start_ns"] - ORIGIN, end_ns=ranges["end_ns"] - ORIGIN)
    assert found[["module", "start_ns", "end_ns", "step"]].to_numpy().tolist() == [
        [PREPARE, 0, 800, 3], [MODEL, 100, 800, 3], [LAYER, 200, 700, 3], [QKV, 300, 400, 3],
        [ATTENTION, 500, 600, 3], [1, 800, 900, 3],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trace", "says"), [(None, "2 steps have no kernels"), ('{"traceEvents": [', "Kineto")]
)
def test_without_a_trace_the_steps_stay_and_the_loss_is_told(
    join: Any, trace: str | None, says: str
) -> None:
    joined = join(trace)
    assert joined.kernels.empty
    assert len(joined.steps) == 2
    assert len(joined.lost) == 1
    assert says in joined.lost[0]


MS = 1_000_000
Rows = list[tuple[int, ...]]


def row(node: int, correlation: int, address: int) -> tuple[int, ...]:
    return (node, correlation, address, 0, 0, 8)


def recorded(bundle: Path, captured: Rows, launched: list[Rows]) -> Path:
    """Two pieces with a step each, which replays the first of two captured nodes."""
    pieces = []
    for number in range(2):
        at = 100 * MS * number
        trace = graph_launch(7 + number, at + MS, ("gemm", 0, at + 2 * MS, 1))
        text = json.dumps({"traceEvents": trace})
        pieces.append(Piece([step(number, at, at + 50 * MS)], trace=text))
    made = Recorded({0: pieces})
    folder = Captured([10, 20], []).write(made, bundle)
    write_array(folder, capture_name("rank0", "arguments"), np.array(captured, ARGUMENT_DTYPE))
    for number, mine in enumerate(launched):
        name = array_name("rank0", "arguments", number)
        write_array(folder, name, np.array(mine, ARGUMENT_DTYPE))
    return folder


def test_of_captured_kernels_those_that_ran(tmp_path: Path) -> None:
    first, second = captured_node(0), captured_node(1)
    captured = [row(second, -1, 3 << 40), row(first, -1, 2 << 40), row(first, -1, 1 << 40)]
    recorded(tmp_path / "b", captured, [[], []])
    found = assemble(tmp_path / "b", state="complete").frame("arguments", 0)
    assert found["node"].tolist() == [first, first]
    assert sorted(found["address"]) == [1 << 40, 2 << 40]
    assert (found["correlation"] == -1).all()


def test_of_kernels_outside_graphs_all(tmp_path: Path) -> None:
    launched = [[row(0, 7, 1 << 40)], [row(0, 8, 1 << 40), row(0, 9, 2 << 40)]]
    recorded(tmp_path / "b", [], launched)
    found = assemble(tmp_path / "b", state="complete").frame("arguments", 0)
    assert found["correlation"].tolist() == [7, 8, 9]


def samples(begin: int, count: int) -> np.ndarray:
    """Samples of 2 us each; what one sampling cannot take is NaN."""
    rows = np.zeros(count, COUNTER_DTYPE)
    rows["warps_active"] = np.nan
    rows["start_ns"] = ORIGIN + begin + 2_000 * np.arange(count)
    rows["end_ns"] = rows["start_ns"] + 2_000
    rows["dram_read_bytes"] = np.arange(count)
    rows["tensor_active"] = 0.5
    return rows


def two_pieces(tmp_path: Path) -> tuple[Path, Path]:
    pieces = Recorded({0: [eager_decode(), eager_decode(2, 5000)]}).write(tmp_path / "b")
    return tmp_path / "b", pieces


def test_samples_of_all_pieces_are_a_table(tmp_path: Path) -> None:
    folder, pieces = two_pieces(tmp_path)
    for piece in (0, 1):
        rows = samples(100_000 * piece, 3)
        write_array(pieces, array_name("rank0", "counters", piece), rows)
    found = assemble(folder, state="complete").frame("counters", 0)
    assert found["start_ns"].tolist() == [
        ORIGIN + t for t in (0, 2_000, 4_000, 100_000, 102_000, 104_000)
    ]
    assert found["dram_read_bytes"].tolist() == [0, 1, 2, 0, 1, 2]
    assert found["warps_active"].isna().all()
    assert (found["tensor_active"] == 0.5).all()
