"""Accounts of steps by hand, and of recordings and real traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.clients.client_comparison import (
    ClientComparison,
    ClientRow,
    beside_clients,
)
from spark_prof.analyzers.step_accounting import step_times
from spark_prof.analyzers.step_time import (
    HOST,
    LAUNCH_GAPS,
    AccountPart,
    StepAccount,
    StepSpread,
    attributed_time,
    step_accounts,
    typical_weights,
)
from spark_prof.analyzers.token_time import TokenTime
from spark_prof.traces.benchmarks.load_test import Latency
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

NO_LATENCY = Latency()


def account(batch_size: int | None, step_us: float, phase: str = "decode") -> StepAccount:
    """An account whose steps give a sequence two tokens each."""
    spread = StepSpread(step_us, step_us, step_us, step_us, step_us)
    us = step_us / 2
    token = TokenTime(batch_size, 10, 0, 1.0, us, us, 1e6 / us, 1e6 / us, us, 0.0, 0.0, 0.5)
    return StepAccount(phase, batch_size, None, 10, spread, (), token)


def client(concurrency: int | None, *comparisons: ClientComparison) -> ClientRow:
    return ClientRow(
        tool="vllm bench serve", model="m", label="run", concurrency=concurrency,
        mean_concurrency=None, request_rate=None, duration_s=None, completed=None, failed=None,
        output_throughput=None, ttft=NO_LATENCY, tpot=NO_LATENCY, itl=NO_LATENCY, e2e=NO_LATENCY,
        tokens_per_chunk=None, acceptance_length=None, comparisons=comparisons,
    )  # fmt: skip


TPOT = ClientComparison("output_token", "mean", 2600.0, 2500.0)
ITL = ClientComparison("chunk", "median", 5300.0, 5000.0)
ACCOUNTS = (account(None, 5000.0), account(1, 4000.0), account(8, 6000.0))


@each_row(("concurrency", "step"), [(1, 4000.0), (8, 6000.0), (3, 5000.0),
                                                   (None, 5000.0)])  # fmt: skip
def test_beside_the_step_of_its_batch_size(concurrency: int | None, step: float) -> None:
    token, chunk = beside_clients(ACCOUNTS, [client(concurrency, TPOT, ITL)])
    assert (token.ledger_us, token.beyond_us) == (step / 2, 2600.0 - step / 2)
    assert (chunk.ledger_us, chunk.beyond_us) == (step, 5300.0 - step)
    assert (chunk.quantity, chunk.statistic) == ("chunk", "median")


def test_nothing_to_compare() -> None:
    for accounts, comparison in (
        (ACCOUNTS, ClientComparison("first_token", "mean", 9.0, 8.0)),
        ((), TPOT),
        ((account(None, 5000.0, "prefill"),), TPOT),
        ((replace(ACCOUNTS[0], token=None),), TPOT),
    ):
        assert not beside_clients(accounts, [client(1, comparison)])


Kernel = tuple[str, int, int, int, int]


def accounts(
    kernels: list[Kernel], steps: list[tuple[int, int]], **columns: list[object]
) -> tuple[StepAccount, ...]:
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
        "engine_ns": [1000.0 * (finish - begin) for begin, finish in steps],
    }
    windows = pd.DataFrame(steps, columns=["begin_ns", "finish_ns"]) * 1000
    windows = windows.assign(**(usual | columns))
    windows = step_times(windows, placed)
    attributed, _ = attributed_time(placed, windows)
    return step_accounts(attributed, windows, sums_of(placed, windows["phase"]))


def typical_steps(
    kernels: list[Kernel], steps: list[tuple[int, int]], **columns: list[object]
) -> tuple[StepAccount, ...]:
    return tuple(row for row in accounts(kernels, steps, **columns) if row.step)


def parts(account: StepAccount) -> dict[str, AccountPart]:
    return {part.name: part for part in account.parts}


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
    (found,) = typical_steps([], [(0, 100)], phase=["unknown"], decode_requests=[0])
    assert {name: part.us for name, part in parts(found).items()} == {
        LAUNCH_GAPS: 0.0, HOST: 100.0,
    }  # fmt: skip
    assert (found.token_us, found.steps_per_token) == (None, None)


def test_an_iteration_that_the_engine_did_not_record_makes_its_time_unknown() -> None:
    steps = [(0, 1000), (1000, 1500)]
    kernels = [("qkv", 0, 0, 0, 900)]
    (whole, *_) = accounts(kernels, steps)
    assert whole.sums
    assert whole.sums.engine_us == 1500.0
    (whole, *_) = accounts(kernels, steps, engine_ns=[1.0, np.nan])
    assert whole.sums
    assert whole.sums.engine_us is None
