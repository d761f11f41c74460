"""Figures of tables that say the same in two ways agree: a wrong digit contradicts another."""

from __future__ import annotations

import pytest

from spark_prof.rules.environment import UNKNOWN, VARIABLES, RetiredVariable
from spark_prof.rules.gpus import GPUS, SM_LIMITS, Gpu
from tests.rows import each_row

A_CLOCK = {"8.0": 2048, "9.0": 4096}
"""BF16 operations of a multiprocessor's tensor cores in a clock, by the white papers; of the
GeForce cards 512 with sums in FP32, of the same chips for work 1024."""


@each_row("gpu", GPUS)
def test_peaks_are_those_of_so_many_multiprocessors_at_that_clock(gpu: Gpu) -> None:
    peak = {precision: figure.value for precision, figure in gpu.peaks.items()}
    if gpu.clock_hz and "bf16" in peak and gpu.short != "l40s":  # told by 1 % below its clock
        a_clock = A_CLOCK.get(gpu.compute_capability, 512 if "RTX " in gpu.name else 1024)
        a_clock = 1024 if "PRO" in gpu.name else a_clock
        whole = gpu.multiprocessors * gpu.clock_hz * a_clock
        assert peak["bf16"] == pytest.approx(whole, rel=2e-3)
    if {"int8", "bf16"} <= peak.keys():
        times = 4 if gpu.name.startswith("RTX ") and "PRO" not in gpu.name else 2
        assert peak["int8"] / peak["bf16"] == pytest.approx(times, rel=0.015)
    assert gpu.l2_bytes is None or gpu.l2_bytes % (2 << 20) == 0
    assert gpu.memory_bytes % 10**9 == 0
    assert gpu.memory_bandwidth.value % 1e9 == 0


@each_row("capability", sorted(SM_LIMITS))
def test_limits_of_a_multiprocessor_are_round(capability: str) -> None:
    limits = SM_LIMITS[capability]
    assert limits.registers == 2**16
    assert limits.shared_bytes % 4096 == limits.threads % 512 == limits.blocks % 8 == 0
    # Before 8.0 nothing is reserved, and pieces are coarser.
    newer = float(capability) >= 8
    assert limits.reserved_shared_bytes == (1024 if newer else 0)
    assert limits.shared_granularity == (128 if newer else 256)
    assert (limits.partitions, limits.register_granularity) == (4, 256)


@each_row("row", VARIABLES)
def test_a_variable_is_gone_after_the_last_version_that_reads_it(row: RetiredVariable) -> None:
    if not any(row.removed_in):
        assert row.last == row.removed_in
        return
    assert row.last == UNKNOWN or row.last < row.removed_in
    assert row.removed_in[0] == 0
    version = f"0.{row.removed_in[1]}"
    if "will be removed in" in row.source:
        assert version in row.source
        assert row.source.startswith(f"vLLM 0.{row.last[1]} ")
    if row.source.startswith("not in"):
        assert row.source.endswith(f" {version}")
