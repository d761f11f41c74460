"""Which ceilings a recording is held against."""

from __future__ import annotations

import pytest

from spark_prof.analyzers.roofline.ceilings import ceilings_of, device_of
from spark_prof.rules.gpus import gpu_called
from spark_prof.traces.measured import DeviceState, Measured, Measurement

H100 = "NVIDIA H100 80GB HBM3"
MEASURED = Measured(
    device=H100,
    taken="2026-11-21T10:00:00+00:00",
    measurements=(
        Measurement("read", 2.9e12, "B/s", 2.8e12, 3.0e12, 20, "a reader"),
        Measurement("bf16", 7e14, "op/s", 7e14, 7e14, 20, "torch.mm"),
        Measurement("launch_graph", 1.2e-6, "s", 1e-6, 2e-6, 20, "empty kernels"),
    ),
    after=DeviceState(sm_mhz=1755, throttled=("power cap",)),
)


def test_a_known_gpu_has_its_data_sheet_and_what_readers_reached() -> None:
    found = ceilings_of(H100, "9.0")
    known = gpu_called("h100")
    assert known is not None
    assert known.read_bandwidth is not None
    assert found.data_sheet is not None
    assert found.data_sheet.value == known.memory_bandwidth.value
    assert found.bandwidth is not None
    assert found.bandwidth.value == known.read_bandwidth.value
    assert found.peak("bf16") == known.peaks["bf16"].value
    assert found.peak("fp4") is None
    assert found.peak(None) is None


def test_what_was_measured_here_goes_first_and_says_when() -> None:
    found = ceilings_of(H100, "9.0", MEASURED)
    assert found.bandwidth is not None
    assert found.bandwidth.value == 2.9e12
    assert "2026-11-21" in found.bandwidth.source
    assert found.data_sheet is not None
    assert found.data_sheet.value == 3.35e12
    assert found.peak("bf16") == 7e14
    # A precision that was not measured keeps the printed peak.
    assert found.peak("fp8") == pytest.approx(1978.9e12)
    assert found.smallest_kernel_us == pytest.approx(1.2)
    assert "1755 MHz" in found.clocks
    assert "power cap" in found.clocks


def test_another_device_s_measurement_is_not_used() -> None:
    assert ceilings_of("NVIDIA GB10", "12.1", MEASURED) == ceilings_of("NVIDIA GB10", "12.1")


def test_an_unknown_device_has_ceilings_only_if_it_was_measured() -> None:
    assert ceilings_of("AMD EPYC", None).bandwidth is None
    measured = Measured("AMD EPYC", "2026", MEASURED.measurements)
    found = ceilings_of("AMD EPYC", None, measured)
    assert found.data_sheet is None
    assert found.bandwidth is not None
    assert found.bandwidth.value == 2.9e12


@pytest.mark.parametrize("facts", [{}, {"gpu": None}, {"gpu": "H100"}, {"gpu": {}}])
def test_a_recording_that_names_no_device(facts: dict[str, object]) -> None:
    assert device_of(facts) == ("unknown", None)
