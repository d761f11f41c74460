"""Which ceilings a recording is held against."""

from __future__ import annotations

import pandas as pd
import pytest

from spark_prof.analyzers.counters.counter_rows import CounterBatch, CounterRow, Counters
from spark_prof.analyzers.roofline.device_ceilings import ceilings_of
from spark_prof.analyzers.roofline.roofline_rows import Place
from spark_prof.analyzers.roofline.rows import by_sampling, by_single_kernels
from spark_prof.traces.measured import DeviceState, Measured, Measurement

GEMM = Place("qkv", "self_attn.qkv_proj", "gemm")


def counters(tokens: int, read: float | None) -> Counters:
    row = CounterRow("gemm", "qkv", 24.0, 10.0, read, None, None, None, None, None, None, None, 1.0)
    batch = CounterBatch(tokens, 30, True, 0.0, 1.0, None, (row,), ())
    return Counters(2.0, 1000, 1e6, (batch,), (), ())


def test_sampled_bytes_belong_to_steps_of_the_same_size() -> None:
    needed = {1: {GEMM: 24 * 1000.0}, 4: {GEMM: 48 * 1000.0}}
    others = [Place("mlp", "", "gemm"), Place("qkv", "", "norm")]
    ((place, found),) = by_sampling(counters(4, 2600.0), needed, [*others, GEMM]).items()
    assert place == GEMM
    assert (found.read, found.streamed, found.by) == (2600.0, 2000.0, "PM sampling")
    assert by_sampling(counters(2, 2600.0), needed, [GEMM]) == {}
    assert by_sampling(counters(1, None), needed, [GEMM]) == {}
    assert by_sampling(None, needed, [GEMM]) == {}
    # Counters do not tell which of a kernel's roles read how much, needed or not.
    assert by_sampling(counters(4, 2600.0), needed, [GEMM, GEMM._replace(role="")]) == {}


def metrics(*rows: tuple[str, str, float, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["name", "metric", "value", "unit"])


def test_nsight_compute_s_units_are_decimal() -> None:
    rows = [
        ("void f<128, 1>(T1)", "dram__bytes_read.sum", value, unit)
        for value, unit in ((2.0, "Mbyte"), (4e6, "byte"), (3e3, "Kbyte"), (0.003, "Gbyte"))
    ]
    needed = {GEMM._replace(name="void ns::f<(int)128, true>(int)"): 1e6}
    (found,) = by_single_kernels(metrics(*rows), needed).values()
    assert found.read == pytest.approx(3e6)
    assert (found.streamed, found.by) == (1e6, "Nsight Compute")


def test_what_does_not_tell_is_left_out() -> None:
    needed = {
        Place(*place): 1.0
        for place in (("qkv", "", "f"), ("o_proj", "", "g"), ("mlp", "", "g"),
                      ("experts", "mlp.experts.w13", "h"), ("experts", "mlp.experts.w2", "h"))
    }  # fmt: skip
    rows = metrics(
        ("f", "dram__bytes_read.sum", float("nan"), "byte"),
        ("f", "dram__bytes_read.sum", 5.0, "furlong"),
        ("f", "dram__bytes_write.sum", 5.0, "byte"),
        ("g", "dram__bytes_read.sum", 5.0, "byte"),
        ("h", "dram__bytes_read.sum", 5.0, "byte"),
    )
    assert by_single_kernels(rows, needed) == {}
    assert by_single_kernels(rows.iloc[:0], needed) == {}


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


def test_an_unknown_device_has_ceilings_only_if_it_was_measured() -> None:
    assert ceilings_of("AMD EPYC", None).bandwidth is None
    measured = Measured("AMD EPYC", "2026", MEASURED.measurements)
    found = ceilings_of("AMD EPYC", None, measured)
    assert found.data_sheet is None
    assert found.bandwidth is not None
    assert found.bandwidth.value == 2.9e12
