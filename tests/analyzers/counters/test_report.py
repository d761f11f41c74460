"""Counters from their pieces to the report: assembly, placement and folding together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.traces.assemble import assemble
from spark_prof.traces.pieces import COUNTER_DTYPE, array_name, write_array
from tests.analyzers.counters.simulated import simulate
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

    counters = summarize(assemble(folder, state="complete")).counters
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
    assert summarize(Recorded({0: [piece]}).assemble(tmp_path / "b")).counters is None
