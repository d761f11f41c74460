"""Collective calls among kernels and operators."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from spark_prof.analyzers.ranks.collective_calls import calls_among, collective_calls
from tests.support import ORIGIN, Piece, Recorded, kineto, operator, step

ROWS = ("name", "start_ns", "end_ns", "part", "stream", "step")


def among(*rows: tuple[str, int, int, int, int, int]) -> list[tuple[object, ...]]:
    frame = pd.DataFrame(rows, columns=list(ROWS)).astype({"name": "category"})
    return list(calls_among(frame).itertuples(index=False, name=None))


def test_kernels_keep_their_times() -> None:
    found = among(
        ("gemm", 0, 5, 0, 7, 1),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 5, 9, 0, 7, 1),
        ("ncclDevKernel_AllGather_RING_LL", 2, 4, 0, 20, 1),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, 29, 0, 7, -1),
    )
    assert found == [(1, "all_gather", 2, 4), (1, "all_reduce", 5, 9)]


def test_an_operator_that_returns_early_lasts_until_the_next_one() -> None:
    found = among(
        ("c10d::allreduce_", 0, 5, 0, 7, 1),
        ("aten::view", 3, 4, 0, 8, 1),
        ("aten::view", 40, 41, 0, 7, 1),
        ("c10d::allreduce_", 50, 55, 0, 7, 1),
        ("aten::view", 90, 91, 0, 7, 2),
    )
    # The last one ends its step: what the thread did then is no wait of this call.
    assert found == [(1, "all_reduce", 0, 40), (1, "all_reduce", 50, 55)]


def test_an_operator_that_calls_others_is_one_call(tmp_path: Path) -> None:
    trace = kineto(
        operator("c10d::_allgather_base_", 100, 200), operator("aten::copy_", 110, 120),
        operator("aten::copy_", 130, 140), operator("aten::view", 300, 310),
    )  # fmt: skip
    made = Recorded({0: [Piece([step(0, 0, 1000)], trace=trace)]}).assemble(tmp_path / "b")
    [call] = collective_calls(made, 0).itertuples(index=False, name=None)
    assert call == (0, "all_gather", ORIGIN + 100, ORIGIN + 300)


def test_calls_of_no_step_are_left_out_unless_asked_for() -> None:
    rows = [("c10d::allreduce_", 0, 5, 0, 7, -1), ("c10d::allreduce_", 9, 12, 0, 7, 3)]
    frame = pd.DataFrame(rows, columns=list(ROWS)).astype({"name": "category"})
    assert calls_among(frame)["step"].tolist() == [3]
    assert calls_among(frame, every=True)["step"].tolist() == [-1, 3]


def test_nothing_to_find() -> None:
    assert among() == []
    assert among(("gemm", 0, 5, 0, 7, 1)) == []
