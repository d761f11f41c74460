"""AMD's accelerators are told by their figures, and others are not."""

from __future__ import annotations

from itertools import combinations

from spark_prof.rules.gpus import AMD_GPUS, AmdGpu, amd_gpu
from tests.rows import each_row


@each_row("gpu", AMD_GPUS)
def test_a_device_that_reports_its_memory_or_a_little_less(gpu: AmdGpu) -> None:
    for memory in (gpu.memory_gb << 30, gpu.memory_gb * 10**9, int(gpu.memory_gb * 0.95e9)):
        assert amd_gpu(*gpu.architecture, gpu.compute_units, memory) == gpu.name
    assert amd_gpu(*gpu.architecture, gpu.compute_units, gpu.memory_gb << 29) == ""
    assert amd_gpu(*gpu.architecture, gpu.compute_units + 1, gpu.memory_gb << 30) == ""


def test_no_two_rows_fit_one_device() -> None:
    for one, other in combinations(AMD_GPUS, 2):
        same = one.architecture == other.architecture
        assert not (same and one.compute_units == other.compute_units) or (
            one.memory_gb * 1.08 < other.memory_gb * 0.9
        )
