"""Occupancy against NVIDIA's calculator, against Nsight Compute, and by its own laws.

occupancy.csv holds what cudaOccMaxActiveBlocksPerMultiprocessor of CUDA 13.0's cuda_occupancy.h
returns with the largest shared memory: two launches for each number of blocks that it gives for a
compute capability, out of 127,776.
"""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path

import pytest

from spark_prof.analyzers.shapes.grid_occupancy import busy_share, occupancy_of
from spark_prof.rules.gpus import SM_LIMITS
from tests.rows import each_row

with open(Path(__file__).with_name("occupancy.csv"), encoding="utf-8") as _file:
    CALCULATED = [tuple(row.values()) for row in csv.DictReader(_file)]

NCU = Path(__file__).parents[4] / "shared" / "traces" / "ncu_rtx5090"


def test_the_blocks_are_those_of_the_calculator() -> None:
    wrong = []
    for capability, *numbers in CALCULATED:
        threads, registers, shared, blocks = map(int, numbers)
        found = occupancy_of(SM_LIMITS[capability], threads, registers, shared)
        if (found.blocks if found else 0) != blocks:
            wrong.append((capability, *numbers, found))
    assert wrong == []
    assert {row[0] for row in CALCULATED} >= {"7.5", "8.0", "9.0", "10.0", "12.0", "12.1"}


@each_row(
    ("threads", "registers", "shared", "warps", "limiters"),
    [
        (384, 168, 0, 12, ("registers",)),
        (128, 16, 0, 48, ("threads",)),
        (32, 16, 0, 24, ("blocks",)),
        (128, 16, 99 * 1024, 4, ("shared memory",)),
        (128, 168, 33 * 1024, 8, ("shared memory",)),
    ],
)
def test_on_a_gb10_what_limits(
    threads: int, registers: int, shared: int, warps: int, limiters: tuple[str, ...]
) -> None:
    found = occupancy_of(SM_LIMITS["12.1"], threads, registers, shared)
    assert found is not None
    assert (found.warps, found.limiters) == (warps, limiters)
    assert found.share == warps / 48


@each_row(
    ("threads", "registers", "shared"),
    [(0, 32, 0), (1025, 32, 0), (-1, 32, 0), (128, 0, 0), (128, 256, 0), (128, 32, -1),
     (128, 32, 1 << 40), (1024, 255, 0)],
)  # fmt: skip
def test_what_no_gpu_launches_has_none(threads: int, registers: int, shared: int) -> None:
    assert occupancy_of(SM_LIMITS["9.0"], threads, registers, shared) is None


@each_row("capability", SM_LIMITS)
def test_more_of_anything_never_makes_room_for_more_blocks(capability: str) -> None:
    rng = random.Random(capability)
    for _ in range(300):
        threads, registers = rng.randint(1, 1024), rng.randint(1, 255)
        shared = rng.randint(0, SM_LIMITS[capability].block_shared_bytes)
        smaller = occupancy_of(SM_LIMITS[capability], threads, registers, shared)
        larger = occupancy_of(
            SM_LIMITS[capability],
            min(1024, threads + rng.randint(0, 64)),
            min(255, registers + rng.randint(0, 16)),
            min(SM_LIMITS[capability].block_shared_bytes, shared + rng.randint(0, 4096)),
        )
        assert (larger.blocks if larger else 0) <= (smaller.blocks if smaller else 0)
        if smaller:
            assert 0 < smaller.share <= 1
            assert smaller.limiters


def test_theoretical_occupancy_as_nsight_compute_printed_it() -> None:
    """Its files give the occupancy; the blocks that make it are the only number that fits."""
    if not NCU.exists():
        pytest.skip(f"{NCU} is not there")
    checked = 0
    for path in sorted(NCU.glob("*.csv")):
        text = path.read_text(encoding="utf-8", errors="replace")
        printed = re.search(
            r"theoretical occupancy \((\d+\.\d)%\) is limited by (.{10,80}?)\.", text
        )
        shape = re.search(r'"\((\d+), (\d+), (\d+)\)","\((?:\d+), (?:\d+), (?:\d+)\)"', text)
        if not printed or not shape:
            continue
        threads = int(shape[1]) * int(shape[2]) * int(shape[3])
        reachable = {
            f"{100 * found.share:.1f}"
            for registers in range(16, 256)
            if (found := occupancy_of(SM_LIMITS["12.0"], threads, registers, 0))
        }
        by_memory = {
            f"{100 * found.share:.1f}"
            for shared in range(0, 99 * 1024, 512)
            if (found := occupancy_of(SM_LIMITS["12.0"], threads, 32, shared))
        }
        assert printed[1] in (by_memory if "registers" not in printed[2] else reachable)
        checked += 1
    assert checked >= 5


@each_row(
    ("blocks", "places", "multiprocessors", "busy"),
    [(16, 48, 48, 1 / 3), (48, 48, 48, 1.0), (96, 96, 48, 1.0), (60, 96, 48, 1.0),
     (97, 96, 48, 97 / 192), (49, 48, 48, 49 / 96), (480, 48, 48, 1.0), (1, 132, 132, 1 / 132)],
)  # fmt: skip
def test_busy(blocks: int, places: int, multiprocessors: int, busy: float) -> None:
    assert busy_share(blocks, places, multiprocessors) == pytest.approx(busy)


def test_busy_is_a_share_and_whole_waves_are_full() -> None:
    rng = random.Random(3)
    for _ in range(500):
        multiprocessors, held = rng.randint(1, 200), rng.randint(1, 32)
        places = multiprocessors * held
        assert 0 < busy_share(rng.randint(1, 10**6), places, multiprocessors) <= 1
        assert busy_share(places * rng.randint(1, 9), places, multiprocessors) == 1
