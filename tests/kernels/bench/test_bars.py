"""The bars that the kernels have to reach: what each counts, and how it is reached."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kernel_targets import BARS, MARLIN, Bar, judge_bars
from spark_prof.kernels.bench.results import OURS, Cell

from .made import CEILINGS, cell, ours

ROOT = Path(__file__).parents[3]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "kernels.py"
    command = [sys.executable, str(script), str(tmp_path / "result.json")]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("and torch finds none\n")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def reached(bar: Bar, *cells: Cell) -> tuple[float | None, bool]:
    (found,) = judge_bars(cells, CEILINGS, [bar])
    return found.value, found.passed


def test_a_share_is_of_the_measured_read_bandwidth_and_the_smallest_counts() -> None:
    bar = Bar("", "dense", (1,), "smallest share", 0.6, smallest_bytes=16e6)
    # 30 MB at 3 TB/s are 10 us.
    assert reached(bar, cell(ours(12.5)), cell(ours(20.0))) == (pytest.approx(0.5), False)
    assert reached(bar, cell(ours(12.5))) == (pytest.approx(0.8), True)


def test_the_largest_time_counts() -> None:
    bar = Bar("", "dense", (1, 2), "largest us", 6.0, largest_bytes=8e6)
    small = [cell(ours(5.0), megabytes=2), cell(ours(5.9), megabytes=7, tokens=2)]
    assert reached(bar, *small, cell(ours(50.0))) == (5.9, True)
    assert reached(bar, *small, cell(ours(6.1), megabytes=5)) == (6.1, False)


def test_a_mean_of_ratios_is_geometric() -> None:
    bar = Bar("", "dense", (1,), "mean ratio", 1.5, MARLIN)
    pair = cell(ours(10.0, marlin=40.0)), cell(ours(10.0, marlin=10.0))
    assert reached(bar, *pair) == (pytest.approx(2.0), True)


def test_only_the_named_peers_count_and_of_those_the_fastest() -> None:
    work = cell(ours(10.0, marlin=20.0, cublas=5.0))
    assert reached(Bar("", "dense", (1,), "smallest ratio", 1, MARLIN), work) == (2.0, True)
    assert reached(Bar("", "dense", (1,), "smallest ratio", 1), work) == (0.5, False)


def test_who_has_no_time_does_not_count() -> None:
    bar = Bar("", "dense", (1,), "smallest ratio", 1, MARLIN)
    assert reached(bar, cell({OURS: None, MARLIN[0]: 3.0}), cell(ours(1.0))) == (None, False)


def test_a_bar_is_about_its_kind_tokens_and_last_layers() -> None:
    bar = Bar("", "dense", (1,), "largest us", 100, lm_head=True)
    others = (
        cell(ours(1.0)),
        cell(ours(2.0), kind="moe", is_lm_head=True),
        cell(ours(3.0), tokens=2, is_lm_head=True),
    )
    assert reached(bar, *others) == (None, False)
    assert reached(bar, *others, cell(ours(4.0), is_lm_head=True)) == (4.0, True)


@pytest.mark.parametrize("form", ["fp8", "bf16"])
def test_only_layers_in_fp4_have_bars(form: str) -> None:
    work = cell(ours(1.0))
    other = replace(work, work=replace(work.work, format=form))
    assert reached(Bar("", "dense", (1,), "largest us", 100), other) == (None, False)


def test_the_worst_piece_of_work_is_named() -> None:
    slow = cell(ours(30.0), megabytes=60)
    bar = Bar("", "dense", (1,), "smallest share", 0.6)
    (found,) = judge_bars([cell(ours(11.0)), slow], CEILINGS, [bar])
    assert found.cells[0][1] is slow
    assert len(found.cells) == 2


def test_every_bar_can_be_reached_and_missed() -> None:
    for bar in BARS:
        megabytes = (bar.smallest_bytes + min(bar.largest_bytes, 1e9)) / 2e6
        floor = megabytes / 3
        options = {"kind": bar.kind, "tokens": bar.tokens[-1], "megabytes": megabytes}
        fast = cell(ours(min(floor * 1.1, 5.0), marlin=floor * 100), is_lm_head=True, **options)
        slow = cell(ours(floor * 100, marlin=floor), is_lm_head=True, **options)
        assert reached(bar, fast)[1], bar.claim
        assert not reached(bar, slow)[1], bar.claim
