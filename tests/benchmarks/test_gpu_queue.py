"""Jobs on GPUs, with Python programs for jobs: order, shares, ends, and what stays of them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import ab, gpu_queue
from benchmarks.ab import CASES, ROOT, figure_lines, side_options, timed
from benchmarks.gpu_queue import JOBS, Job, cores_of, run
from spark_prof.ab.result import SideComparison, from_json
from spark_prof.ab.statistics import compare_starts
from spark_prof.swaps.swap_settings import SLOTS, parse_swaps

WRITES = (
    "import os, pathlib, sys, time\n"
    "out = pathlib.Path(sys.argv[1])\n"
    "(out / 'begin').write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    "print('printed', flush=True)\n"
    "until = pathlib.Path(sys.argv[2])\n"
    "while sys.argv[2] != '-' and not until.exists(): time.sleep(0.02)\n"
    "(out / 'end').write_text('x')\n"
)


def program(name: str, until: Path | str = "-", gpus: int = 1, seconds: float = 60.0) -> Job:
    """A job that ends as soon as the file `until` is there."""
    return Job(name, (sys.executable, "-c", WRITES, "{out}", str(until)), seconds, gpus)


def test_two_run_beside_each_other_and_one_that_needs_both_waits(tmp_path: Path) -> None:
    jobs = [
        program("first", tmp_path / "second/begin"),
        program("second", tmp_path / "first/begin"),
        program("both", gpus=2),
    ]
    states = run(jobs, tmp_path, 2, 120.0)
    assert [(s.state, s.exit_code) for s in states] == [("ended", 0)] * 3
    assert {(tmp_path / name / "begin").read_text() for name in ("first", "second")} == {"0", "1"}
    assert (tmp_path / "both/begin").read_text() == "0,1"
    times = [(tmp_path / name).stat().st_mtime_ns for name in ("first/end", "second/end")]
    assert (tmp_path / "both/begin").stat().st_mtime_ns >= max(times)
    assert (tmp_path / "first.log").read_text() == "printed\n"
    written = json.loads((tmp_path / "jobs.json").read_text())
    assert [row["state"] for row in written] == ["ended"] * 3


def test_of_a_trial_some_share_a_gpu(tmp_path: Path) -> None:
    last = tmp_path / "c/begin"
    jobs = [program("a", last), program("b", last), program("c")]
    states = run(jobs, tmp_path, 1, 120.0, slots=3)
    assert [(s.state, s.gpus, s.exit_code) for s in states] == [("ended", (0,), 0)] * 3


def test_a_job_takes_the_gpu_that_the_fewest_share(tmp_path: Path) -> None:
    last = tmp_path / "d/begin"
    jobs = [program("both", last, gpus=2), program("a", last), program("b", last), program("d")]
    both_gpus, a, b, d = run(jobs, tmp_path, 2, 120.0, slots=3)
    assert both_gpus.gpus == (0, 1)
    assert [a.gpus, b.gpus, d.gpus] == [(0,), (1,), (0,)]


def test_a_trial_has_one_engine_and_counts_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def keep(jobs: list[Job], *_: object) -> list[gpu_queue.JobState]:
        asked.extend(job.with_engines().command for job in jobs)
        return []

    monkeypatch.setattr(gpu_queue, "run", keep)
    monkeypatch.setattr(gpu_queue, "count_gpus", lambda: 1)
    names = ["chained-gpt-oss-20b", "ab-llama-3.1-8b-fp8-layer"]
    for more in ([], ["--trial"]):
        monkeypatch.setattr(sys, "argv", ["gpu_queue", str(tmp_path), *more, "--jobs", *names])
        assert gpu_queue.main() == 1
    timed, search, trial, searched_in_trial = asked
    assert "--keep" in search
    assert "--no-bars" in trial
    assert not {"--keep", "--no-bars"} & {*searched_in_trial}, (
        "what was measured beside another job"
    )
    assert "--options=--at-once --no-record --starts 4" in timed
    assert "--options=--no-record --mode one --time-anyway --seconds 1 --starts 4" in trial


@pytest.mark.slow
def test_one_that_hangs_is_ended_and_the_next_runs(tmp_path: Path) -> None:
    jobs = [program("hangs", tmp_path / "never", seconds=2.0), program("next")]
    hangs, after = run(jobs, tmp_path, 1, 120.0)
    assert hangs.state == "out of time"
    assert hangs.exit_code
    assert (tmp_path / "hangs/begin").exists()
    assert (after.state, after.exit_code) == ("ended", 0)


def test_what_does_not_fit_does_not_begin(tmp_path: Path) -> None:
    jobs = [program("long", seconds=1000.0), program("wide", gpus=4), program("short")]
    states = run(jobs, tmp_path, 2, 120.0)
    assert [s.state for s in states] == ["did not fit", "did not fit", "ended"]
    assert not (tmp_path / "long").exists()


def test_gpus_share_the_cores() -> None:
    cores = os.sched_getaffinity(0)
    shares = [cores_of((gpu,), 2) for gpu in range(2)]
    assert set.union(*shares) == cores == cores_of((0, 1), 2)
    assert len(cores) < 2 or not set.intersection(*shares)
    assert cores_of((0,), 10 * len(cores)), "fewer cores than GPUs"


def test_without_a_gpu_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_queue, "count_gpus", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["gpu_queue", str(tmp_path / "out")])
    assert gpu_queue.main() == 2
    assert capsys.readouterr().err == "nvidia-smi lists no GPU\n"
    assert not (tmp_path / "out").exists()


def test_cases_of_the_table_exist_and_say_what_they_swap() -> None:
    of_ab = [job for job in JOBS if job.name.startswith("ab-")]
    assert all(job.command[job.command.index("--cases") + 1] in CASES for job in of_ab)
    for case in CASES.values():
        assert {swap.slot for swap in parse_swaps(case.b)} <= {*SLOTS}
    assert side_options("X=1", "deepseek-v2-lite-layer")[-1].startswith("X=1,layer=spark_prof!")


def test_what_is_searched_counts_in_the_comparisons_behind() -> None:
    names = [job.name for job in JOBS]
    searched = [name.removeprefix("chained-") for name in names if name.startswith("chained-")]
    assert len(searched) >= 5
    for model in searched:
        assert names.index(f"chained-{model}") < names.index(f"ab-{model}-layer")
    search = JOBS[names.index("chained-llama-3.1-8b-fp8")]
    words = "--model llama-3.1-8b-fp8 --tokens 8 1 --seconds 40 --keep"
    assert " ".join(search.command).endswith(words)
    assert search.seconds == 200
    assert "ab-gpt-oss-20b-layer-quantized" in names
    for job in JOBS:
        if job.name.startswith("chained-"):
            assert job.command[job.command.index("--model") + 1] in decoder_models()


def decoder_models() -> set[str]:
    pytest.importorskip("torch")
    from benchmarks.decoder_step import MODELS

    return {*MODELS}


def test_an_engine_has_the_options_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def keep(command: list[str]) -> int:
        asked.append(command)
        return 0

    monkeypatch.setattr(ab, "model_folder", lambda case, folder: folder)
    monkeypatch.setattr(ab, "exit_code_of", keep)
    for name in ("nemotron-3-nano-fp8", "gpt-oss-20b-layer-quantized"):
        assert ab.run(name, tmp_path / "result.json", "3", side_options("", name), []) == 0
    of_engines = [command[command.index("--") + 1 :] for command in asked]
    assert of_engines[0][-2:] == ["--moe-backend", "triton"]
    assert "--moe-backend" not in of_engines[1]
    assert "layer=mxfp4,o=mxfp4,lm_head=mxfp4" in asked[1]


def test_one_start_a_side_is_held_to_its_bar_without_an_interval() -> None:
    """As the jobs with two starts measure: of several starts the interval is told, too."""
    for starts, beside in ((1, "engine was started once"), (2, "(1.25")):
        estimate = compare_starts([500.0] * starts, [400.0] * starts, 100)
        found = SideComparison("decode", 8, 128, estimate)
        assert [timed(found, bar)[1] for bar in (1.2, 1.3)] == [True, False]
        assert timed(found, None)[1]
        text, _ = timed(found, 1.2)
        assert "500.0 to 400.0 us, gain 1.2500" in text
        assert beside in text.replace("(1.24", "(1.25")
    assert not timed(replace(found, estimate=compare_starts([], [], 0)), 1.2)[1]


def test_without_bars_times_decide_nothing() -> None:
    path = ROOT / "benchmarks/results/ab/llama-3.1-8b-fp8-layer-vllm033-h200.json"
    result = from_json(path.read_bytes(), str(path))
    case = replace(CASES["llama-3.1-8b-fp8-layer"], bars=((1, 9.0), (8, 9.0)))
    held, free = ([*figure_lines(case, result, None, bars=bars)] for bars in (True, False))
    missed = [line for line, reached in held if "bar 9.0" in line and not reached]
    assert len(missed) == 2
    assert not [
        line for line, reached in free if "batch" in line and "gain" in line and not reached
    ]
