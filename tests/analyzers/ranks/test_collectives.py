"""Collective calls among kernels and operators.

Names of collectives.

Wait, transfer and the slowest rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from spark_prof.analyzers.ranks.align_ranks import (
    JOINT,
    KINDS,
    calls_among,
    collective_calls,
    collective_kind,
    match_collectives,
)
from spark_prof.analyzers.ranks.rank_clocks import Offset
from spark_prof.analyzers.ranks.rank_summary import aligned, slowest_of_steps, waits_of
from tests.analyzers.ranks.play import Play
from tests.docs.pages import ROOT, tables
from tests.rows import each_row
from tests.support import ORIGIN, Piece, Recorded, kineto, operator, step

ROWS = ("name", "start_ns", "end_ns", "part", "stream", "step")


@each_row(
    ("rows", "wanted"),
    [
        pytest.param([("gemm", 0, 5, 0, 7, 1),
                      ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 5, 9, 0, 7, 1),
                      ("ncclDevKernel_AllGather_RING_LL", 2, 4, 0, 20, 1),
                      ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, 29, 0, 7, -1)],
                     [(1, "all_gather", 2, 4), (1, "all_reduce", 5, 9)],
                     id="kernels keep their times"),
        # The last one ends its step: what the thread did then is no wait of this call.
        pytest.param([("c10d::allreduce_", 0, 5, 0, 7, 1), ("aten::view", 3, 4, 0, 8, 1),
                      ("aten::view", 40, 41, 0, 7, 1), ("c10d::allreduce_", 50, 55, 0, 7, 1),
                      ("aten::view", 90, 91, 0, 7, 2)],
                     [(1, "all_reduce", 0, 40), (1, "all_reduce", 50, 55)],
                     id="an operator that returns early lasts until the next one"),
        ([], []),
        ([("gemm", 0, 5, 0, 7, 1)], []),
    ],
)  # fmt: skip
def test_calls(rows: list[tuple[str, int, int, int, int, int]], wanted: list[Any]) -> None:
    frame = pd.DataFrame(rows, columns=list(ROWS)).astype({"name": "category"})
    assert list(calls_among(frame).itertuples(index=False, name=None)) == wanted


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


EXAMPLES = [(kind, name) for kind, _, names in KINDS for name in names]


@each_row(
    ("kind", "name"),
    [
        *EXAMPLES,
        ("unknown", "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"),
        ("broadcast", "ncclDevKernel_Broadcast_RING_LL(AllReduceArguments)"),
        *((None, name) for name in ("gemm_bf16", "reduce_kernel", "all_reduce_bias",
                                    "at::native::reduce_kernel<512, 1>")),
    ],
)  # fmt: skip
def test_every_name_has_its_kind(kind: str | None, name: str) -> None:
    assert collective_kind(name) == kind
    assert {"unknown", "broadcast"}.isdisjoint(JOINT)


def one_call(*times: tuple[int, int]) -> pd.DataFrame:
    rows = [(0, 0, "all_reduce", rank, *pair) for rank, pair in enumerate(times)]
    return pd.DataFrame(rows, columns=["call", "turn", "kind", "rank", "start_ns", "end_ns"])


def test_the_worked_example_of_the_page_is_right() -> None:
    page: Path = ROOT / "docs" / "ranks.md"
    _, documented = tables(page, "Wait and transfer")
    rows = [[int(cell) for cell in row] for row in documented]
    calls = one_call(*((1000 * row[1], 1000 * row[2]) for row in rows))
    found = waits_of(calls, 0)[0]
    assert (found["wait_ns"] // 1000).tolist() == [row[3] for row in rows]
    assert (found["transfer_ns"] // 1000).tolist() == [row[4] for row in rows]
    [step] = slowest_of_steps(found, 0).itertuples()
    assert (step.slowest, step.held_up_ns) == (1, 25_000)


@each_row("seed", range(5))
def test_the_slow_rank_is_named_across_clocks(seed: int) -> None:
    """With the offset taken off, and not with the raw times, which always blame one rank."""
    slow = {step: step % 4 for step in range(40)}
    play = Play(seed=seed, slow=slow, offset_ns={2: 900_000})
    calls = match_collectives(play.numbered(), play.calls()).calls
    offset = Offset(900_000.0, 0.0, 0, 0.0, 1, "collectives")
    found, contradictory = waits_of(aligned(calls, {2: offset}), 0)
    assert contradictory == 0
    assert slowest_of_steps(found, 1000)["slowest"].to_dict() == slow
    assert waits_of(calls, 0)[1] == len(calls)


def test_nobody_is_named_below_the_clocks_uncertainty() -> None:
    calls = waits_of(one_call((0, 100), (30, 100)), 0)[0]
    assert slowest_of_steps(calls, 20)["slowest"].tolist() == [1]
    assert slowest_of_steps(calls, 40)["slowest"].tolist() == [-1]
    assert slowest_of_steps(calls, 40)["held_up_ns"].tolist() == [0.0]


def test_a_rank_that_was_done_before_another_began_is_a_contradiction() -> None:
    found, contradictory = waits_of(one_call((0, 10_000), (15_000, 30_000)), 0)
    assert contradictory == 2
    assert found.empty
    assert slowest_of_steps(found, 0).empty
    assert waits_of(one_call((0, 10_000), (15_000, 30_000)), 4_000)[1] == 0
