"""Runs what needs a GPU one job after the other on every GPU of a host, within a number of minutes.

Jobs begin in the order of the table, each on as many GPUs as it needs, with its share of the
cores. What a job prints is FOLDER/NAME.log, and what it writes lies in FOLDER/NAME;
FOLDER/jobs.json says how each job stands, so that a run that is cut off still says what it did.
A job that takes longer than its share is ended. One for which less than a third of it is left does
not begin.

With --trial every comparison has one engine, and jobs share a GPU: that tells what fails and what
is wrong, in a quarter of the time. Its times mean nothing.

usage: python -m benchmarks.gpu_queue FOLDER [--minutes M] [--jobs NAME ...] [--gpus N] [--trial]
           [--list]
exit code: 1 if a job that ran did not end with 0 or none ran, 2 without a GPU
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
_SMALL_CACHE = "--kv-cache-memory-bytes 2147483648 --gpu-memory-utilization 0.08"
_APART = "--at-once --no-record"
_TOGETHER = "--no-record --mode one --time-anyway --seconds 1"
"""Engines of each side, or one that has both."""
_TRIALS = 2  # that share a GPU
_LEAST_SHARE = 0.3  # of its seconds must be left for a job to begin
_POLL_SECONDS = 0.2
_END_SECONDS = 45.0  # to end engines and write what is there, once it was asked to
_KILLED_SECONDS = 10.0


@dataclass(frozen=True)
class Job:
    """A command that needs GPUs.

    Attributes:
        command: in which {out} stands for its folder, {engines} for how ab has its engines.
        seconds: that it may take.
        gpus: that it needs.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    gpus: int = 1

    def with_engines(self, options: str = _APART) -> Job:
        """The job with its engines apart, or together."""
        return replace(self, command=tuple(w.replace("{engines}", options) for w in self.command))

    def as_trial(self) -> Job:
        """The job with one engine, whose times decide nothing: no bar, no configuration kept."""
        job = self.with_engines(_TOGETHER)
        words = [word for word in job.command if word != "--keep"]
        no_bars = ["--no-bars"] if job.command != self.command else []
        return replace(job, command=(*words, *no_bars))


@dataclass
class JobState:
    """How a job stands: `waiting`, `running`, `ended`, `out of time` or `did not fit`."""

    name: str
    state: str = "waiting"
    gpus: tuple[int, ...] = ()
    seconds: float = 0.0
    exit_code: int | None = None


def ab(case: str, seconds: float, gpus: int = 1, starts: int = 4) -> Job:
    """One case of benchmarks/ab.py; where its sides need engines of their own, so many at once."""
    command = (
        *(PYTHON, "-m", "benchmarks.ab", "{out}", "--cases", case, "--seconds", "3"),
        *(f"--options={{engines}} --starts {starts}", f"--engine={_SMALL_CACHE}"),
    )
    return Job(f"ab-{case}", command, seconds, gpus)


def chained(model: str, *tokens: int, seconds: int = 30) -> Job:
    """A search of configurations, by which the dispatcher of this machine then goes.

    Args:
        tokens: for each of which is searched so many seconds, beside 120 for all else.
    """
    command = (
        *(PYTHON, "benchmarks/chained_configs.py", "{out}/result.json", "--model", model),
        *("--tokens", *map(str, tokens), "--seconds", str(seconds), "--keep"),
    )
    return Job(f"chained-{model}", command, 120 + seconds * len(tokens))


def check(kernel: str) -> Job:
    """`spark-prof kernels check` of one kernel."""
    return Job(
        f"check-{kernel}", (PYTHON, "-m", "spark_prof.cli.main", "kernels", "check", kernel), 120
    )


JOBS = (
    chained("nemotron-3-nano-fp8", 8, 1),
    chained("deepseek-v2-lite", 8, 1),
    # With the slot `layer`, which needs engines of their own; four of these do not fit.
    ab("nemotron-3-nano-fp8-layer", 300, starts=2),
    ab("deepseek-v2-lite-layer", 300, starts=2),
    Job("sanitize", (PYTHON, "benchmarks/sanitize.py", "{out}", "--jobs", "6"), 540),
    chained("llama-3.1-8b-fp8", 8, 1, seconds=40),
    ab("llama-3.1-8b-fp8-layer", 420),
    chained("qwen3-30b-a3b-nvfp4", 8, 1),
    ab("qwen3-30b-a3b-nvfp4-layer", 420),
    chained("gpt-oss-20b", 8, 1),
    ab("gpt-oss-20b-layer-quantized", 420),
    ab("gpt-oss-20b-layer", 420),
    *map(check, ("layer-experts", "layer-linear", "layer-mlp", "moe-w4a16", "o-w4a16", "o-w16a16")),
    ab("qwen3-30b-a3b-nvfp4-layer-tp2", 420, gpus=2, starts=2),
    ab("qwen3-next-80b-a3b-nvfp4-layer", 300, starts=2),
    # Both sides in one engine.
    ab("qwen3-next-80b-a3b-nvfp4", 300),
    ab("nemotron-3-nano-fp8", 300),
    ab("gpt-oss-20b-quantized", 240),
    ab("small-moe-mxfp4-layer", 240, starts=2),
    ab("small-moe-nvfp4-layer", 240, starts=2),
    check("layer-attention"),
    Job("drafts-agree", (PYTHON, "benchmarks/drafts_agree.py", "{out}"), 300),
)  # fmt: skip
"""What matters most first. What needs two GPUs waits until both are free."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--jobs", nargs="+", choices=[job.name for job in JOBS])
    parser.add_argument("--gpus", type=int, help="those of this host, where nothing is said")
    parser.add_argument("--trial", action="store_true", help="what fails, without times")
    parser.add_argument("--list", action="store_true", help="print the jobs, run none")
    options = parser.parse_args()
    jobs = [job for job in JOBS if not options.jobs or job.name in options.jobs]
    if options.list:
        for job in jobs:
            print(f"{job.name}  {job.gpus} GPU  at most {job.seconds:.0f} s")
        return 0
    gpus = options.gpus or count_gpus()
    if not gpus:
        print("nvidia-smi lists no GPU", file=sys.stderr)
        return 2
    slots = _TRIALS if options.trial else 1
    if options.trial:
        jobs = [job.as_trial() for job in jobs]
    states = run(jobs, options.folder, gpus, 60 * options.minutes, slots)
    return int(not any(s.state == "ended" for s in states) or any(s.exit_code for s in states))


def count_gpus() -> int:
    """The GPUs that nvidia-smi lists; 0 where there is none."""
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
        return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return 0


def run(
    jobs: Sequence[Job], folder: Path, gpus: int, seconds: float, slots: int = 1
) -> list[JobState]:
    """Runs jobs on `gpus` GPUs for at most so many seconds; how each stands at the end.

    Args:
        slots: jobs that may share a GPU.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    states = [JobState(job.name) for job in jobs]
    waiting = list(zip(jobs, states, strict=True))
    running: list[RunningJob] = []
    try:
        while waiting or running:
            running = [job for job in running if not job.over(until)]
            jobs_on = Counter(gpu for job in running for gpu in job.state.gpus)
            free = [
                gpu for gpu in sorted(range(gpus), key=jobs_on.__getitem__) if jobs_on[gpu] < slots
            ]
            while waiting and (
                waiting[0][0].gpus > gpus
                or time.monotonic() + waiting[0][0].seconds * _LEAST_SHARE > until
            ):
                waiting.pop(0)[1].state = "did not fit"
            if waiting and waiting[0][0].gpus <= len(free):
                job, state = waiting.pop(0)
                state.gpus = tuple(free[: job.gpus])
                running.append(
                    RunningJob(job.with_engines(), state, folder, cores_of(state.gpus, gpus))
                )
            else:
                time.sleep(_POLL_SECONDS)
            write_states(folder, states)
    finally:
        for job_ in running:
            job_.end()
        write_states(folder, states)
    return states


class RunningJob:
    """A job's process, in a group of its own."""

    def __init__(self, job: Job, state: JobState, folder: Path, cores: set[int]) -> None:
        self.state, self._began = state, time.monotonic()
        self._until = self._began + job.seconds
        out = folder / job.name
        out.mkdir(exist_ok=True)
        state.state = "running"
        devices = ",".join(map(str, state.gpus))
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # which the child inherits
        try:
            with open(folder / f"{job.name}.log", "wb") as log:
                self._child = subprocess.Popen(
                    [word.replace("{out}", str(out)) for word in job.command], cwd=ROOT,
                    env=os.environ | {"CUDA_VISIBLE_DEVICES": devices}, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
        finally:
            os.sched_setaffinity(0, before)

    def over(self, until: float) -> bool:
        """Whether it has ended; one whose time is over is ended."""
        self.state.seconds = time.monotonic() - self._began
        if self._child.poll() is None and time.monotonic() > min(self._until, until):
            self.end()
            self.state.state = "out of time"
        elif self._child.returncode is not None:
            self.state.state = "ended"
        self.state.exit_code = self._child.returncode
        return self._child.returncode is not None

    def end(self) -> None:
        """Asks the group to end and waits; what is left of it is killed."""
        for sign, seconds in ((signal.SIGINT, _END_SECONDS), (signal.SIGKILL, _KILLED_SECONDS)):
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)
        self.state.exit_code = self._child.returncode


def cores_of(gpus: Sequence[int], count: int) -> set[int]:
    """The share of this process's cores that goes with some of `count` GPUs."""
    cores = sorted(os.sched_getaffinity(0))
    return {core for gpu in gpus for core in _share(cores, gpu, count)} or set(cores)


def _share(cores: Sequence[int], gpu: int, count: int) -> Iterator[int]:
    yield from cores[gpu * len(cores) // count : (gpu + 1) * len(cores) // count]


def write_states(folder: Path, states: Sequence[JobState]) -> None:
    """Replaces FOLDER/jobs.json as a whole."""
    new_file = folder / "jobs.json.new"
    new_file.write_text(json.dumps([asdict(state) for state in states], indent=1), encoding="utf-8")
    new_file.replace(folder / "jobs.json")


if __name__ == "__main__":
    sys.exit(main())
