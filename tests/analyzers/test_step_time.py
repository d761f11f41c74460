"""Ledgers of steps by hand, and of recordings and real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.clients.client_comparison import (
    ClientComparison,
    ClientRow,
    beside_clients,
)
from spark_prof.analyzers.step_time import (
    HOST,
    LAUNCH_GAPS,
    Ledger,
    LedgerRow,
    StepSpread,
    attributed_time,
    token_ledgers,
    typical_weights,
)
from spark_prof.traces.benchmarks.load_test import Latency
from spark_prof.vocabulary import COMPONENTS
from tests.analyzers.reported import reported
from tests.rows import each_row
from tests.support import Piece, Recorded, kineto, operator, step

NO_LATENCY = Latency()


def ledger(batch_size: int | None, step_us: float, phase: str = "decode") -> Ledger:
    """A ledger whose steps give a sequence two tokens each."""
    spread = StepSpread(step_us, step_us, step_us, step_us, step_us)
    return Ledger(phase, batch_size, 10, spread, step_us / 2e3, 0.0, ())


def client(concurrency: int | None, *comparisons: ClientComparison) -> ClientRow:
    return ClientRow(
        tool="vllm bench serve", model="m", label="run", concurrency=concurrency,
        mean_concurrency=None, request_rate=None, duration_s=None, completed=None, failed=None,
        output_throughput=None, ttft=NO_LATENCY, tpot=NO_LATENCY, itl=NO_LATENCY, e2e=NO_LATENCY,
        tokens_per_chunk=None, acceptance_length=None, comparisons=comparisons,
    )  # fmt: skip


TPOT = ClientComparison("output_token", "mean", 2600.0, 2500.0)
ITL = ClientComparison("chunk", "median", 5300.0, 5000.0)
LEDGERS = (ledger(None, 5000.0), ledger(1, 4000.0), ledger(8, 6000.0))


@each_row(("concurrency", "step"), [(1, 4000.0), (8, 6000.0), (3, 5000.0),
                                                   (None, 5000.0)])  # fmt: skip
def test_beside_the_ledger_of_its_batch_size(concurrency: int | None, step: float) -> None:
    token, chunk = beside_clients(LEDGERS, [client(concurrency, TPOT, ITL)])
    assert (token.ledger_us, token.beyond_us) == (step / 2, 2600.0 - step / 2)
    assert (chunk.ledger_us, chunk.beyond_us) == (step, 5300.0 - step)
    assert (chunk.quantity, chunk.statistic) == ("chunk", "median")


def test_nothing_to_compare() -> None:
    for ledgers, comparison in (
        (LEDGERS, ClientComparison("first_token", "mean", 9.0, 8.0)),
        ((), TPOT),
        ((ledger(None, 5000.0, "prefill"),), TPOT),
        ((replace(LEDGERS[0], ms_per_token=None),), TPOT),
    ):
        assert not beside_clients(ledgers, [client(1, comparison)])


Kernel = tuple[str, int, int, int, int]


def ledgers(
    kernels: list[Kernel], steps: list[tuple[int, int]], **columns: list[object]
) -> tuple[Ledger, ...]:
    """Of kernels of component, step, layer, start and end in us, in steps from begin to end."""
    names = ["component", "step", "layer", "start_ns", "end_ns"]
    placed = pd.DataFrame(sorted(kernels, key=lambda row: row[3]), columns=names)
    placed = placed.astype(dict.fromkeys(names[1:], "int64"))
    placed[["start_ns", "end_ns"]] *= 1000
    kind = np.where(placed["component"] == "memcpy", "memcpy", "kernel")
    placed = placed.assign(
        name=pd.Categorical(placed["component"]),
        kind=pd.Categorical(kind),
        component=pd.Categorical(placed["component"], categories=COMPONENTS),
        placed=True,
        basis=pd.Categorical(["range"] * len(placed)),
        role=pd.Categorical([""] * len(placed)),
        part=0,
    )
    count = len(steps)
    usual: dict[str, list[object]] = {
        "phase": ["decode"] * count,
        "decode_requests": [1] * count,
        "output_tokens": [np.nan] * count,
        "output_requests": [np.nan] * count,
    }
    windows = pd.DataFrame(steps, columns=["begin_ns", "finish_ns"]) * 1000
    windows = windows.assign(**(usual | columns))
    attributed, _ = attributed_time(placed, windows)
    return token_ledgers(attributed, windows, sums_of(placed, windows["phase"]))


def rows(ledger: Ledger) -> dict[str, LedgerRow]:
    return {row.name: row for row in ledger.rows}


def test_the_typical_step_is_the_median_one_whatever_the_longest_took() -> None:
    """Of 100, 110, 130, 170 and 9,000 us: the mean would be 1,902 us."""
    length = [100, 110, 130, 170, 9000]
    steps = [(10_000 * n, 10_000 * n + us) for n, us in enumerate(length)]
    kernels = [("qkv", n, 0, 10_000 * n, 10_000 * n + 10 * (n + 1)) for n in range(5)]
    (found,) = ledgers(kernels, steps)
    assert found.step_us == found.step.median == 130.0
    # 110 and 130 us weigh 2/3, 130 and 170 us 1/3: their mean is the median.
    assert rows(found)["qkv"].charged_us == pytest.approx((25 * 2 + 35) / 3)
    assert sum(row.charged_us for row in found.rows) == pytest.approx(130.0)
    assert found.idle_us == pytest.approx(130.0 - (25 * 2 + 35) / 3)


@each_row("seed", range(40))
def test_weights_of_the_typical_step(seed: int) -> None:
    chosen = np.random.default_rng(seed)
    length = chosen.lognormal(3, 1, int(chosen.integers(1, 40))).round(seed % 3)
    weights = typical_weights(length)
    assert weights @ length == pytest.approx(np.median(length))
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    order = np.argsort(length, kind="stable")
    cut = len(length) // 4
    assert not weights[order[:cut]].any()
    assert not weights[order[len(order) - cut :]].any()


def test_nothing_ran_and_no_tokens() -> None:
    (found,) = ledgers([], [(0, 100)], phase=["unknown"], decode_requests=[0])
    assert {name: row.charged_us for name, row in rows(found).items()} == {
        LAUNCH_GAPS: 0.0, HOST: 100.0,
    }  # fmt: skip
    assert {found.ms_per_token, *(row.ms_per_token for row in found.rows)} == {None}


def test_each_rank_of_a_cpu_engine_has_its_own(tmp_path: Path) -> None:
    """An operator that calls another has its time before and after it."""
    pieces = {
        rank: [Piece([step(0, 0, 1000)], trace=kineto(operator("aten::embedding", 100, end),
                                                      operator("aten::mm", 200, 400)))]
        for rank, end in ((0, 500), (1, 700))
    }  # fmt: skip
    bundle = Recorded(pieces).assemble(tmp_path / "b")
    for rank, us, host in ((0, 0.2, 0.6), (1, 0.4, 0.4)):
        assert {row.name: row.charged_us for row in reported(bundle, rank).tokens[0].rows} == {
            "embedding": pytest.approx(us), "other": pytest.approx(0.2), LAUNCH_GAPS: 0.0,
            HOST: pytest.approx(host),
        }  # fmt: skip
