"""Counters joined with kernels, steps and weights, against a simulated truth.

Counters from their pieces to the report: assembly, placement and folding together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.counters.counter_batches import CounterRow, Counters, counters_of
from spark_prof.traces.assemble import assemble
from spark_prof.traces.chunks import COUNTER_DTYPE, array_name, write_array
from tests.analyzers.counters.simulated import SLOW_ENDS, Simulated, simulate
from tests.analyzers.reported import reported
from tests.rows import each_row
from tests.support import (
    ATTENTION,
    EXPERTS,
    ORIGIN,
    QKV,
    Piece,
    Recorded,
    call,
    kernel,
    kineto,
    layer_row,
    step,
)

NO_LAYERS = pd.DataFrame({"component": pd.Series(dtype=str), "bytes": pd.Series(dtype=np.int64)})


def kernels_of(run: Simulated, graph: bool = True) -> pd.DataFrame:
    """The simulated calls as kernels; every fifth is an expert's, the last the lm_head's."""
    last = len(run.bytes) - 1
    components = [
        "lm_head" if s == last else "experts" if s % 5 == 0 else "norm" for s in run.calls.slot
    ]
    return pd.DataFrame(
        {
            "name": pd.Categorical([f"kernel_{slot}" for slot in run.calls.slot]),
            "component": pd.Categorical(components),
            "start_ns": run.calls.start_ns,
            "end_ns": run.calls.end_ns,
            "step": run.calls.step,
            "layer": -1,
            "graph_node": run.calls.slot + 100 if graph else 0,
        }
    )


def steps_of(kernels: pd.DataFrame, tokens: int = 1, phase: str = "decode") -> pd.DataFrame:
    steps = kernels["step"].unique()
    return pd.DataFrame(
        {"phase": phase, "decode_tokens": tokens}, index=pd.Index(steps, name="step")
    )


def summarized(run: Simulated, **changes: Any) -> Counters:
    kernels = changes.get("kernels", kernels_of(run))
    usual = {"samples": run.samples(), "kernels": kernels, "steps": steps_of(kernels),
             "layers": NO_LAYERS, "config": {}}  # fmt: skip
    found = counters_of(**(usual | changes))
    assert found is not None
    return found


def by_slot(rows: tuple[CounterRow, ...]) -> dict[int, CounterRow]:
    return {int(row.name.removeprefix("kernel_")): row for row in rows}


@each_row("graph", [True, False])
def test_every_kernel_gets_its_bytes(graph: bool) -> None:
    run = simulate(1)
    (batch,) = summarized(run, kernels=kernels_of(run, graph)).batches
    assert (batch.tokens, batch.steps, batch.by_node, len(batch.rows)) == (1, 40, True, 60)
    assert batch.conserved == pytest.approx(1.0, abs=0.001)
    for slot, row in by_slot(batch.rows).items():
        assert row.read_bytes == pytest.approx(run.bytes[slot], abs=0.01 * run.bytes.mean())
        assert row.write_bytes == pytest.approx(run.bytes[slot] / 4, abs=0.003 * run.bytes.mean())
        assert row.tensor_active == pytest.approx(0.25, abs=0.01)
        assert row.warps_active is None
        assert row.bandwidth == pytest.approx(1.25 * run.bytes[slot] / row.us * 1e6, rel=0.2)


@each_row("seed", range(2))
def test_an_uneven_course_within_kernels_is_in_the_error(seed: int) -> None:
    run = simulate(seed, course=SLOW_ENDS)
    (batch,) = summarized(run).batches
    streaming = [s for s in range(len(run.bytes)) if run.bytes[s] > 100 * run.duration_ns[s]]
    rows = by_slot(batch.rows)
    off = np.array([rows[s].read_bytes - run.bytes[s] for s in streaming])
    stated = np.array([rows[s].read_error for s in streaming])
    assert np.median(np.abs(off) / run.bytes[streaming]) < 0.02
    assert (np.abs(off) < 3 * stated).mean() > 0.8


def test_read_bytes_are_held_against_weights() -> None:
    run = simulate(2)
    experts = np.arange(60) % 5 == 0
    experts[-1] = False
    layers = pd.DataFrame(
        {
            "component": ["experts", "lm_head", "embedding"],
            "bytes": [int(run.bytes[experts].sum() * 8), int(run.bytes[-1] * 2), 10**9],
        }
    )
    config = {"num_local_experts": 32, "num_experts_per_tok": 4}
    (batch,) = summarized(run, layers=layers, config=config).batches
    found = {row.component: row for row in batch.weights}
    assert found.keys() == {"experts", "lm_head"}
    assert found["experts"].part == "4 of 32 experts"
    assert found["experts"].ratio == pytest.approx(1.0, abs=0.01)
    assert found["lm_head"].ratio == pytest.approx(0.5, abs=0.01)
    # Which experts a larger batch hits was not recorded.
    steps = steps_of(kernels_of(run), 8)
    (batch,) = summarized(run, steps=steps, layers=layers, config=config).batches
    assert {row.component for row in batch.weights} == {"lm_head"}


def test_the_lag_of_the_clocks_is_taken_out_and_named() -> None:
    run = simulate(3, late_ns=2_500)
    (batch,) = summarized(run).batches
    assert batch.lag_us == pytest.approx(2.5, abs=0.1)
    rows = by_slot(batch.rows)
    assert rows[7].read_bytes == pytest.approx(run.bytes[7], rel=0.02)


def test_long_kernels_of_a_prefill_need_no_replays() -> None:
    run = simulate(5, replays=1, lowest_us=15, longest_us=90)
    kernels = kernels_of(run)
    found = summarized(run, kernels=kernels, steps=steps_of(kernels, phase="prefill"))
    assert found.notes == ("No decode step was sampled.",)
    assert 20 < len(found.long) < 60
    for slot, row in by_slot(found.long).items():
        assert row.us >= 20
        assert row.read_bytes == pytest.approx(run.bytes[slot], rel=0.15, abs=run.bytes.mean() / 10)
        assert row.read_error is None


def test_kernels_in_step_with_the_sampling_get_no_figure() -> None:
    run = simulate(6, kernels=12, longest_us=3.0, interval_ns=10_000, jitter=0.0, period_ns=100_000)
    (batch,) = summarized(run).batches
    unknown = [row for row in batch.rows if row.read_bytes is None]
    assert unknown
    assert all(row.resolved < 0.9 and row.bandwidth is None for row in unknown)


def test_a_sample_that_spans_a_pause_is_left_out() -> None:
    run = simulate(8)
    samples = run.samples()
    first, last = int(run.begin[0]), int(run.begin[-1])
    long = [
        samples.iloc[:1].assign(start_ns=start, end_ns=end, dram_read_bytes=1e12)
        for start, end in ((first - 10**9, first), (first, last))
    ]
    assert summarized(run, samples=pd.concat([*long, samples])) == summarized(run)


def test_with_few_steps_the_calls_of_all_layers_share_an_amount() -> None:
    run = simulate(12, kernels=6, replays=32)
    kernels = kernels_of(run).assign(
        step=run.calls.step // 8,
        layer=run.calls.step % 8,
        graph_node=np.arange(len(run.calls.step)) % 48 + 1,
    )
    (batch,) = summarized(run, kernels=kernels).batches
    assert (batch.steps, batch.by_node, len(batch.rows)) == (4, False, 6)
    for slot, row in by_slot(batch.rows).items():
        assert row.calls == 8
        assert row.read_bytes == pytest.approx(run.bytes[slot], abs=0.01 * run.bytes.mean())


MODULES = (QKV, ATTENTION, EXPERTS)
NAMES = ("gemm_qkv", "flash_fwd", "moe_gemm")


def test_a_bundle_with_counters_says_what_its_kernels_move(tmp_path: Path) -> None:
    run = simulate(11, kernels=3, replays=30, lowest_us=4.0, longest_us=12.0)
    steps, events, kernels = [], [], []
    for replay in range(30):
        mine = np.flatnonzero(run.calls.step == replay)
        first, last = int(run.calls.start_ns[mine[0]]), int(run.calls.end_ns[mine[-1]])
        steps.append(step(replay, first - 2_000, last + 10_000))
        for number, index in enumerate(mine):
            launched = first - 1_900 + 100 * number
            events += call(MODULES[number], launched, launched + 50)
            times = int(run.calls.start_ns[index]), int(run.calls.end_ns[index])
            kernels += kernel(NAMES[number], *times, 10 * replay + number + 1, launched + 10)
    weights = [layer_row("model.layers.0.qkv_proj", 0, "qkv", bytes=int(run.bytes[0]))]
    folder = tmp_path / "b"
    pieces = Recorded({0: [Piece(steps, events, kineto(*kernels))]}, layers=weights).write(folder)
    rows = np.zeros(len(run.begin), COUNTER_DTYPE)
    rows["start_ns"], rows["end_ns"] = run.begin + ORIGIN, run.finish + ORIGIN
    rows["dram_read_bytes"] = run.sampled
    rows["warps_active"] = np.nan
    write_array(pieces, array_name("rank0", "counters", 0), rows)

    counters = reported(assemble(folder, state="complete")).counters
    assert counters is not None
    assert counters.notes == ()
    assert counters.interval_us == 2.0
    (batch,) = counters.batches
    assert batch.steps == 30
    found = {row.name: row for row in batch.rows}
    for number, name in enumerate(NAMES):
        assert found[name].calls == 1
        assert found[name].read_bytes == pytest.approx(
            run.bytes[number], abs=0.02 * run.bytes.mean()
        )
        assert found[name].write_bytes == pytest.approx(0.0, abs=1.0)
        assert found[name].warps_active is None
    assert found["gemm_qkv"].component == "qkv"
    (weight,) = batch.weights
    assert weight.component == "qkv"
    assert weight.ratio == pytest.approx(1.0, abs=0.05)


def test_a_bundle_without_counters_says_nothing_about_them(tmp_path: Path) -> None:
    piece = Piece([step(0, 0, 900)], (), kineto(*kernel("gemm_qkv", 100, 300, 1, 50)))
    assert reported(Recorded({0: [piece]}).assemble(tmp_path / "b")).counters is None
