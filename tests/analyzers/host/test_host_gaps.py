"""Stacks laid on the gaps: planted ones are found with their shares, and few tell nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.host.host_gaps import FEWEST, Gaps, host_code, interval_of
from spark_prof.analyzers.host.host_rows import HostCode
from spark_prof.analyzers.summary import summary_of
from tests import host_stacks


def code_of(folder: Path, **planted: object) -> HostCode:
    code = summary_of(host_stacks.bundle(folder, **planted)).report.host  # type: ignore[arg-type]
    assert code is not None
    return code


@pytest.mark.parametrize("split", [False, True])
def test_a_slow_function_of_the_scheduler_is_named_with_its_share(
    tmp_path: Path, split: bool
) -> None:
    code = code_of(tmp_path / "b", split=split)
    assert (code.steps, code.rounds, code.gap_samples) == (60, 600, 240)
    assert (code.gap_us, code.between_us, code.inside_us) == (4000.0, 4000.0, 0.0)
    stages = {row.stage: row for row in code.stages}
    assert {n: row.samples for n, row in stages.items()} == {
        "schedule": 180, "output": 60, "launch": 0,
    }  # fmt: skip
    assert stages["schedule"].share == 0.75
    assert stages["schedule"].step_us == 3000.0
    assert stages["launch"].everywhere == 0.6
    assert 0.69 < stages["schedule"].low < 0.75 < stages["schedule"].high < 0.81
    slow = next(row for row in code.functions if row.function == "slow_policy")
    assert (slow.share, slow.innermost, slow.stage, slow.file) == (
        0.75,
        180,
        "schedule",
        "policy.py",
    )
    assert code.unknown == 0.0
    assert code.covered > 0.98
    assert code.error_us == 100.0
    assert code.sure == 1.0  # a look is 0.33 ms or more away from the edge of its gap
    far_off = code_of(tmp_path / "far", split=split, error_ns=500_000)
    assert 0.4 < far_off.sure < 0.8


def test_limits_and_threads_that_spin_are_told(tmp_path: Path) -> None:
    code = code_of(tmp_path / "b")
    limits = code.limits
    assert (limits.cpus, limits.quota, limits.throttled_share) == (16.0, 2.5, 0.25)
    assert (limits.throttled_us, limits.omp_threads) == (300_000.0, "4")
    assert [(t.name, t.share) for t in code.busy] == [("pt_main_thread", 0.98)]


def test_too_few_samples_tell_no_shares(tmp_path: Path) -> None:
    code = code_of(tmp_path / "b", looks=60)
    assert code.gap_samples < FEWEST
    assert not code.enough
    assert code.stages == code.functions == code.flame == ()


def test_the_tree_of_calls_adds_up(tmp_path: Path) -> None:
    flame = code_of(tmp_path / "b").flame
    assert flame[0].parent == -1
    for number, frame in enumerate(flame):
        assert frame.parent < number
        beneath = sum(other.samples for other in flame if other.parent == number)
        assert beneath <= frame.samples
    roots = sum(frame.samples for frame in flame if frame.parent < 0)
    assert roots == 240


def test_idle_time_and_moments_against_brute_force() -> None:
    for seed in range(60):
        random = Random(seed)
        edges = sorted(random.sample(range(400), 2 * random.randrange(1, 5)))
        windows = list(zip(edges[::2], edges[1::2], strict=True))
        kernels = sorted(
            (start, start + random.randrange(0, 40))
            for start in (random.randrange(400) for _ in range(random.randrange(0, 12)))
        )
        gaps = Gaps.of(
            pd.DataFrame(kernels, columns=["start_ns", "end_ns"], dtype=np.int64),
            pd.DataFrame(windows, columns=["begin_ns", "finish_ns"], dtype=np.int64),
        )
        ran = {t for start, end in kernels for t in range(start, end)}
        inside = {t for begin, finish in windows for t in range(begin, finish)}
        idle = inside - ran
        assert int(gaps.idle_ns(gaps.begin, gaps.finish).sum()) == len(idle), seed
        *_, in_gap = gaps.around(np.arange(400))
        assert set(np.flatnonzero(in_gap).tolist()) == idle, seed
        for (begin, finish), first, last in zip(windows, gaps.first, gaps.last, strict=True):
            work = [t for t in range(begin, finish) if t in ran]
            between = [t for t in range(begin, finish) if work and work[0] < t < work[-1]]
            expected = len([t for t in between if t not in ran])
            told = gaps.idle_ns(np.array([first]), np.array([last]))
            assert int(told[0]) == expected, (seed, begin, finish)


def test_steps_without_any_kernel_are_all_gap() -> None:
    steps = pd.DataFrame({"begin_ns": [0, 100], "finish_ns": [100, 200]})
    none = pd.DataFrame({"start_ns": [], "end_ns": []}, dtype=np.int64)
    stacks = pd.DataFrame({"time_ns": np.arange(0, 200, 4), "error_ns": 0, "stack": "a.py:f"})
    code = host_code(stacks, Gaps.of(none, steps))
    assert (code.gap_samples, code.gap_us, code.inside_us) == (50, 0.1, 0.0)
    assert code.unknown == 1.0
    assert code.stages[0].stage == "other"


def test_an_interval_holds_its_share() -> None:
    for part, whole in ((0, 30), (15, 30), (30, 30), (1, 1)):
        low, high = interval_of(part, whole)
        assert 0.0 <= low <= part / whole <= high <= 1.0000001
    assert interval_of(0, 0) == (0.0, 1.0)


def test_a_recording_without_stacks_has_no_section(tmp_path: Path) -> None:
    report = summary_of(host_stacks.recorded().assemble(tmp_path / "b")).report
    assert report.host is None
