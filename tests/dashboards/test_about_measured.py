"""The section about measured ceilings."""

from __future__ import annotations

from spark_prof.dashboards.doctor_report import measured
from spark_prof.traces.measured import DeviceState, Measured, Measurement


def test_measured_ceilings_in_their_units() -> None:
    found = Measured(
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
