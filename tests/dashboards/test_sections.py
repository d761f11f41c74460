"""What the sections about counters, layers and measured ceilings say."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.breakdown import LayerRow
from spark_prof.analyzers.counters.counter_batches import (
    CounterBatch,
    CounterRow,
    Counters,
    WeightRow,
)
from spark_prof.dashboards.doctor_report import measured
from spark_prof.dashboards.sections import counter_section, layer_section
from spark_prof.traces.measured import DeviceState, MeasuredMachine, Measurement

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
        "412.0 us", "1", "1.158 GB ±0.5 %", "402.2 kB ±2.2 %", "2,810 GB/s", "11.2 %", "9.4 %",
        "99.8 %", "lm_head", LM_HEAD.name,
    )  # fmt: skip
    assert second[2:8] == ("-",) * 6
    assert section.intro[0].startswith("Sampled every 2 us; 20 decode steps of 1 token folded")
    assert section.intro[-1] == "Batches of 8 tokens: few."


def test_weights_stand_beside_what_was_read() -> None:
    section = counter_section.weights(replace(FULL, counters=COUNTERS))
    assert section.rows == (
        ("lm_head", "1", "1.158 GB ±0.5 %", "1.158 GB", "1.00 x", "-"),
        ("experts", "1", "1.400 GB", "1.276 GB", "1.10 x", "4 of 32 experts"),
    )


def test_without_folding_the_long_kernels_are_shown() -> None:
    found = replace(COUNTERS, batches=(), long=(replace(LM_HEAD, read_error=None),))
    section = counter_section.kernels(replace(FULL, counters=found))
    assert section.rows[0][2] == "1.158 GB"
    assert "at least ten samples" in section.intro[0]
    assert counter_section.weights(replace(FULL, counters=found)).rows == ()


def marks(*layers: dict[str, float]) -> list[str]:
    """The last column of layers with those components and times."""
    rows = [
        LayerRow(n, name, us, 1) for n, parts in enumerate(layers) for name, us in parts.items()
    ]
    return [row[-1] for row in layer_section.layers(replace(FULL, layers=tuple(rows))).rows]


def test_layers_of_another_kind_are_no_outliers() -> None:
    """A hybrid's mixers and experts by turns, and one layer of a third kind."""
    mixer, experts = {"norm": 1.0, "ssm": 20.0}, {"norm": 1.0, "experts": 300.0}
    slow = {"norm": 1.0, "experts": 360.0}
    # The compiler fused the first layer's norm with the embedding.
    found = marks({"ssm": 20.0}, experts, mixer, experts, mixer, slow, {"attention": 5.0})
    assert found[1] == "median"
    assert found[5] == "+19.9 % (outlier)"
    assert found[6] == "-"
    assert [found[0], found[2], found[4]] == ["-4.8 %", "median", "+0.0 %"]


def test_measured_ceilings_in_their_units() -> None:
    found = MeasuredMachine(
        "NVIDIA GB10", "2026-11-21T10:00:00+00:00",
        (
            Measurement("read", 2.31e11, "B/s", 2.2e11, 2.4e11, 20, "a reader"),
            Measurement("bf16", 9.1e13, "op/s", 9e13, 9.2e13, 20, "torch.mm"),
            Measurement("int8", 2.8e9, "op/s", 2.7e9, 2.9e9, 20, "torch._int_mm"),
            Measurement("launch_graph", 1.25e-6, "s", 1e-6, 2e-6, 20, "empty kernels"),
        ),
        before=DeviceState(sm_mhz=208, temperature_c=40, power_w=4.4),
        after=DeviceState(sm_mhz=2418, throttled=("power cap",)),
        torch="2.11.0", notes=("fp4 products were not measured: no.",),
    )  # fmt: skip
    section = measured(found)
    assert [row[:2] for row in section.rows] == [
        ("memory, read", "231 GB/s"),
        ("bf16 matrix product", "91.00 Top/s"),
        ("int8 matrix product", "2.80 Gop/s"),
        ("empty kernel in a CUDA graph", "1.25 us"),
    ]
    assert section.intro[1] == "Before: SM clock 208 MHz, 40 degrees Celsius, 4 W."
    assert section.intro[2] == "After: SM clock 2418 MHz, clocks held down by power cap."
    assert section.intro[3] == "fp4 products were not measured: no."
