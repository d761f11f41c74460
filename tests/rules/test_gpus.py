"""GPUs are found by what drivers call them, and their figures fit together."""

import pytest

from spark_prof.rules.gpus import GPUS, SM_LIMITS, find_gpu, gpu_called
from spark_prof.vocabulary import PRECISIONS
from tests.rows import each_row

CALLED = {
    "NVIDIA GB10": "gb10",
    "nvidia gb10": "gb10",
    "GB10": "gb10",
    "NVIDIA DGX Spark": "gb10",
    "NVIDIA H100 80GB HBM3": "h100",
    "H100 SXM": "h100",
    "NVIDIA H100 PCIe": "h100pcie",
    "NVIDIA H100 NVL": "h100nvl",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200nvl",
    "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100pcie",
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
    "NVIDIA GeForce RTX 5090": "rtx5090",
    "GeForce  RTX 5080": "rtx5080",
    "NVIDIA GeForce RTX 5070": "rtx5070",
    "NVIDIA GeForce RTX 5070 Ti": "rtx5070ti",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "pro6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "pro6000",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "pro6000maxq",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "RTX_4090": "rtx4090",
}

OTHERS = (
    "",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA GeForce RTX 5070 Ti Laptop GPU",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GH200 480GB",
    "NVIDIA GB200",
    "NVIDIA H20",
    "NVIDIA L40",
    "NVIDIA RTX 6000 Ada Generation",
    "AMD Instinct MI300X",
    "Intel(R) Xeon(R)",
    "x" * 100_000,
)


@each_row(("name", "short"), CALLED.items())
def test_a_gpu_is_found_by_what_a_driver_calls_it(name: str, short: str) -> None:
    found = find_gpu(name)
    assert found is not None
    assert found.short == short
    assert find_gpu(name.upper(), found.compute_capability) == found


def test_a_gpu_that_is_not_known_is_not_taken_for_another() -> None:
    assert [name for name in OTHERS if find_gpu(name)] == []
    assert find_gpu("NVIDIA H100 80GB HBM3", "8.0") is None


def test_a_command_line_name_may_be_spelt_as_people_do() -> None:
    assert gpu_called("RTX-5090") == gpu_called("rtx5090") == gpu_called("rtx 5090")
    assert gpu_called("nothing") is None
    assert len({gpu.short for gpu in GPUS}) == len(GPUS)
    assert all(gpu_called(gpu.short) == gpu for gpu in GPUS)


@each_row("gpu", GPUS)
def test_the_figures_of_a_gpu_fit_together(gpu) -> None:
    assert gpu.compute_capability in SM_LIMITS
    assert set(gpu.peaks) <= set(PRECISIONS)
    assert all(figure.source for figure in (gpu.memory_bandwidth, *gpu.peaks.values()))
    assert gpu.read_bandwidth is None or (
        0.7 < gpu.read_bandwidth.value / gpu.memory_bandwidth.value < 1
    )
    peak = {precision: figure.value for precision, figure in gpu.peaks.items()}
    if "bf16" in peak:
        assert peak["fp16"] == peak["bf16"] == 2 * peak["tf32"]
    if {"fp8", "bf16"} <= set(peak):
        assert 1.98 < peak["fp8"] / peak["bf16"] < 2.05
    if {"fp8", "fp4"} <= set(peak):
        # GeForce cards accumulate FP8 in FP32 at half rate.
        assert round(peak["fp4"] / peak["fp8"], 2) in (2, 4)
    if gpu.clock_hz and gpu.compute_capability in ("8.9", "12.0"):
        # 128 lanes in each multiprocessor, a multiply-add a clock.
        lanes = gpu.multiprocessors * 128 * 2 * gpu.clock_hz
        assert peak["fp32"] == pytest.approx(lanes, rel=0.01)


@each_row("capability", sorted(SM_LIMITS))
def test_limits_are_consistent(capability: str) -> None:
    limits = SM_LIMITS[capability]
    assert limits.warps * 32 == limits.threads
    assert limits.block_shared_bytes + limits.reserved_shared_bytes == limits.shared_bytes
    assert limits.registers % (limits.partitions * limits.register_granularity) == 0
    assert limits.shared_bytes % limits.shared_granularity == 0
