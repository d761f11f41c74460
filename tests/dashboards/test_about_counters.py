"""The sections and the JSON about hardware counters."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.counters.model import CounterBatch, CounterRow, Counters, WeightRow
from spark_prof.dashboards.sections import counter_section

from .sample import SAMPLES

FULL = SAMPLES["mixture_of_experts"]

LM_HEAD = CounterRow(
    name="nvjet_tst_64x8_64x16_4x1_v_bz_TNN", component="lm_head", calls=1, us=412.0,
    read_bytes=1_158_266_880.0, read_error=5_791_334.0, write_bytes=402_176.0, write_error=9_000.0,
    bandwidth=2.81e12, tensor_active=0.112, warps_active=0.094, sm_active=0.998, resolved=1.0,
)  # fmt: skip

LOCKED = CounterRow(
    name="tiny_kernel", component="norm", calls=49, us=1.2, read_bytes=None, read_error=None,
    write_bytes=None, write_error=None, bandwidth=None, tensor_active=None, warps_active=None,
    sm_active=None, resolved=0.2,
)  # fmt: skip

BATCH = CounterBatch(
    tokens=1, steps=20, by_node=True, lag_us=0.1, conserved=1.001, idle_bytes_per_us=12_000.0,
    rows=(LOCKED, LM_HEAD),
    weights=(WeightRow("lm_head", 1_158_266_880.0, 5_791_334.0, 1_158_266_880.0, ""),
             WeightRow("experts", 1.4e9, None, 1.276e9, "4 of 32 experts")),
)  # fmt: skip

COUNTERS = Counters(2.0, 32768, 65_536.0, (BATCH,), (), ("Batches of 8 tokens: few.",))


def test_the_most_expensive_kernel_comes_first_with_what_it_moves() -> None:
    section = counter_section.kernels(replace(FULL, counters=COUNTERS))
    first, second = section.rows
    assert first == (
        "412.0 us", "1", "1.08 GiB ±0.5 %", "392.75 KiB ±2.2 %", "2,810 GB/s", "11.2 %", "9.4 %",
        "99.8 %", "lm_head", LM_HEAD.name,
    )  # fmt: skip
    assert second[2:8] == ("-",) * 6
    assert section.intro[0].startswith("Sampled every 2 us; 20 decode steps of 1 token folded")
    assert section.intro[-1] == "Batches of 8 tokens: few."


def test_weights_stand_beside_what_was_read() -> None:
    section = counter_section.weights(replace(FULL, counters=COUNTERS))
    assert section.rows == (
        ("lm_head", "1", "1.08 GiB ±0.5 %", "1.08 GiB", "1.00 x", "-"),
        ("experts", "1", "1.30 GiB", "1.19 GiB", "1.10 x", "4 of 32 experts"),
    )


def test_a_lag_that_was_taken_out_is_named() -> None:
    late = replace(COUNTERS, batches=(replace(BATCH, lag_us=7.25),))
    section = counter_section.kernels(replace(FULL, counters=late))
    assert "The samples came 7.2 us after the kernels; that was taken out." in section.intro


def test_without_folding_the_long_kernels_are_shown() -> None:
    found = replace(COUNTERS, batches=(), long=(replace(LM_HEAD, read_error=None),))
    section = counter_section.kernels(replace(FULL, counters=found))
    assert section.rows[0][2] == "1.08 GiB"
    assert "at least ten samples" in section.intro[0]
    assert counter_section.weights(replace(FULL, counters=found)).rows == ()


def test_where_nothing_can_be_said_the_reason_is_shown() -> None:
    found = replace(COUNTERS, batches=(), notes=("No decode step was sampled.",))
    section = counter_section.kernels(replace(FULL, counters=found))
    assert section.rows == (("No decode step was sampled.",),)
