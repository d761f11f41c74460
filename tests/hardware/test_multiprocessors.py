"""Every GPU of the table has limits, and they are consistent."""

from spark_prof.hardware import GPUS, SM_LIMITS
from tests.rows import each_row


@each_row("capability", sorted(SM_LIMITS))
def test_limits_are_consistent(capability: str) -> None:
    limits = SM_LIMITS[capability]
    assert limits.warps * 32 == limits.threads
    assert limits.block_shared_bytes + limits.reserved_shared_bytes == limits.shared_bytes
    assert limits.registers % (limits.partitions * limits.register_granularity) == 0
    assert limits.shared_bytes % limits.shared_granularity == 0


def test_every_gpu_has_limits() -> None:
    assert {gpu.compute_capability for gpu in GPUS} <= set(SM_LIMITS)


def test_gb10_has_what_was_reported_of_it() -> None:
    limits = SM_LIMITS["12.1"]
    assert (limits.shared_bytes, limits.block_shared_bytes) == (102_400, 101_376)
    assert (limits.registers, limits.threads) == (65_536, 1_536)
