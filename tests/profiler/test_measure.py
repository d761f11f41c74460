"""Measuring, as far as a processor can: the same code times a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.profiler.facts import THROTTLES, throttle_reasons
from spark_prof.traces.measured import read_measured
from spark_prof.vocabulary import PRECISIONS

torch = pytest.importorskip("torch")

from spark_prof.kernels.bench.ceilings import (  # noqa: E402
    Device,
    Room,
    TimedAmount,
    bandwidths,
    room_of,
)
from spark_prof.profiler.measure import measure, products, rate  # noqa: E402
from tests.rows import each_row  # noqa: E402

MIB = 1 << 20
SMALL = Room(1 << 30, MIB, 16 * MIB, 16 * MIB)


def test_a_rate_is_the_amount_over_the_median() -> None:
    found = rate(TimedAmount("read", 8.0, [4.0, 1.0, 2.0], "by hand"), "B/s")
    assert (found.value, found.lowest, found.highest, found.repeats) == (4.0, 2.0, 8.0, 3)


def test_what_makes_the_cache_cold_runs_before_every_repeat_and_is_not_timed() -> None:
    events: list[str] = []
    device = Device("cpu")
    seconds = device.seconds(lambda: events.append("work"), lambda: events.append("cold"))
    assert events == ["cold", "work"] * (len(events) // 2)
    assert 5 <= len(seconds) <= 25
    assert min(seconds) > 0


def test_the_bandwidth_of_a_buffer() -> None:
    found = {entry.quantity: entry for entry in bandwidths(Device("cpu"), SMALL)}
    assert found.keys() == {"read", "write", "copy"}
    for entry in found.values():
        assert min(entry.rates) > 0
        assert "0.02 GiB" in entry.how


@pytest.mark.slow
def test_every_precision_is_measured_or_said_to_be_missing() -> None:
    found = list(products(Device("cpu"), Room(1 << 30, MIB, 8 * MIB, 0)))
    assert len(found) == len(PRECISIONS)
    before = torch.get_float32_matmul_precision()
    for precision, entry in zip(PRECISIONS, found, strict=True):
        if isinstance(entry, str):
            assert entry.startswith(f"{precision} products were not measured: ")
        else:
            assert entry.quantity == precision
            assert 0 < entry.lowest <= entry.value <= entry.highest
    assert any(not isinstance(entry, str) for entry in found)
    assert torch.get_float32_matmul_precision() == before


def test_no_product_is_larger_than_the_room() -> None:
    found = list(products(Device("cpu"), Room(1 << 20, MIB, MIB, 0)))
    assert all(isinstance(entry, str) and "too little memory" in entry for entry in found)


def test_the_room_is_bounded_and_a_whole_number_of_mebibytes() -> None:
    room = room_of(Device("cpu"))
    assert room.limit_bytes <= min(1 << 30, room.free_bytes // 8)
    assert room.buffer_bytes % MIB == 0
    assert room.buffer_bytes <= room.limit_bytes
    assert room.buffer_bytes == 0 or room.buffer_bytes >= 4 * room.cache_bytes


@each_row(("bit", "words"), THROTTLES)
def test_each_reason_for_low_clocks_has_its_words(bit: int, words: str) -> None:
    assert throttle_reasons(bit) == (words,)
    # Bit 0 says that the GPU is idle, which holds nothing down.
    assert throttle_reasons(bit | 1) == (words,)
    assert throttle_reasons(0) == ()


@pytest.mark.slow
def test_the_triton_kernel_adds_up_every_value_once() -> None:
    pytest.importorskip("triton")
    # Triton chooses its interpreter when it is imported.
    program = (
        "import torch\n"
        "from spark_prof.kernels.bench.triton_reader import reader\n"
        "for blocks, programs in ((5, 3), (1, 4), (8, 8)):\n"
        "    buffer = torch.arange(4096 * blocks, dtype=torch.float32) % 7\n"
        "    sums = torch.full((programs,), -1.0)\n"
        "    reader(buffer, sums)()\n"
        "    assert sums.sum() == buffer.sum(), (blocks, programs)\n"
    )
    root = Path(__file__).parents[2]
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    if "torch" in done.stderr and "No module" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_machine_s_ceilings(tmp_path: Path) -> None:
    from spark_prof.traces.measured import keep_measured

    lines: list[str] = []
    found = measure(lines.append)
    assert found.device
    assert found.torch == torch.__version__
    assert lines
    quantities = [entry.quantity for entry in found.measurements]
    assert len(set(quantities)) == len(quantities)
    assert {"bf16", "fp32"} <= set(quantities)
    assert all(entry.value > 0 for entry in found.measurements)
    assert read_measured(keep_measured(found, tmp_path)) == found
