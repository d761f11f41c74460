"""kill -9 at random moments of a recording: no flushed record is lost, no bundle is invalid.

Most kills hit the real recording code and the torch backend around a worker made by hand
(tests/recorder.py), because a real engine takes a minute to start; a third of those recordings is
also killed while `salvage` makes the bundle, which is then made again. The last few kills hit a
real vLLM under `spark-prof record`: its worker, or the whole tree.

What was flushed is read from a copy of the pieces, by code of its own (tests/flushed.py). The steps
that a recorder by hand has run are counted apart from spark-prof: those that are kept and those
that `lost` tells must be all of them. Of a real vLLM they must be all that its worker had counted.

usage: python benchmarks/kill_survival.py [--kills 50] [--engines 4] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import write_model  # noqa: E402
from spark_prof.errors import CommandError  # noqa: E402
from spark_prof.profiler.settings import Settings  # noqa: E402
from spark_prof.traces.assemble import salvage  # noqa: E402
from spark_prof.traces.bundle import META_FILE, Bundle  # noqa: E402
from spark_prof.traces.chunks import pieces_folder, read_counts  # noqa: E402
from tests.flushed import flushed_in, lacking  # noqa: E402

LOST_STEPS = re.compile(
    r"rank0: (at least )?([0-9]+) recorded steps (?:were not flushed|are missing)"
)
ENGINE = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_DO_NOT_TRACK": "1"}
RECORD = """
import sys
from spark_prof.profiler.launcher import record
from spark_prof.profiler.settings import Settings
folder, *command = sys.argv[1:]
record(command, Settings(folder, steps=0, backend="torch", steps_per_piece=4), print)
"""


@dataclass
class Survived:
    """One kill: what was hit, what had been flushed, and what went wrong.

    Attributes:
        cut_pieces: pieces of which some files had been flushed and others not.
        cut_salvage: whether a second kill hit a salvage before its bundle was whole.
        steps_lost: that the bundle says are lost.
    """

    target: str
    after_s: float
    flushed: tuple[int, int, int]
    faults: list[str]
    cut_pieces: int = 0
    cut_salvage: bool = False
    steps_lost: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--engines", type=int, default=4, help="kills that hit a real vLLM")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=0.8, help="seconds until a kill")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    kills = []
    with tempfile.TemporaryDirectory(prefix="kill-survival-") as scratch:
        folder = Path(scratch)
        for number in range(options.kills - options.engines):
            twice = number % 3 == 2
            kills.append(kill_recorder(folder / "b", chance, options.longest, twice=twice))
            shutil.rmtree(folder / "b", ignore_errors=True)
            show(kills[-1])
        model = write_model("tiny-moe", folder / "model")
        for number in range(options.engines):
            kills.append(kill_engine(folder / "b", model, chance, tree=bool(number % 2)))
            shutil.rmtree(folder / "b", ignore_errors=True)
            show(kills[-1])
    summary(kills)
    bare = not all(map(any, zip(*(survived.flushed for survived in kills), strict=True)))
    sys.exit(bare or any(survived.faults for survived in kills))


def show(survived: Survived) -> None:
    steps, kernels, engine = survived.flushed
    print(
        f"{survived.target:26} after {survived.after_s:5.2f} s: {steps:5} steps, {kernels:6} "
        f"operators, {engine:4} iterations flushed; {'; '.join(survived.faults) or 'all kept'}",
        flush=True,
    )


def summary(kills: list[Survived]) -> None:
    kinds = Counter(survived.target for survived in kills)
    sums = [sum(column) for column in zip(*(s.flushed for s in kills), strict=True)]
    faults = sum(bool(survived.faults) for survived in kills)
    print(f"\n{len(kills)} kills: " + ", ".join(f"{n} x {name}" for name, n in kinds.items()))
    print(f"flushed: {sums[0]} steps, {sums[1]} operators, {sums[2]} scheduler iterations")
    print(f"pieces of which the kill let only a part through: {sum(s.cut_pieces for s in kills)}")
    print(f"salvages that were killed before they were done: {sum(s.cut_salvage for s in kills)}")
    print(f"steps that were recorded, not flushed, and told: {sum(s.steps_lost for s in kills)}")
    print(
        f"kills with a flushed record lost, steps lost in silence, or an invalid bundle: {faults}"
    )


def kill_recorder(folder: Path, chance: random.Random, longest: float, *, twice: bool) -> Survived:
    """Records without vLLM in a forked process and kills it."""
    import torch._dynamo.convert_frame  # noqa: F401 - torch's profiler does; once, not in each

    counter = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        record_for_ever(folder, memoryview(counter).cast("q"))
    wait_for(lambda: any(pieces_folder(folder).glob("rank0.facts.json")), 60)
    after = chance.uniform(0, longest)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    steps = memoryview(counter).cast("q")[0]
    if twice:
        return checked(
            "recorder, then salvage", folder, after, chance.uniform(0, 3), steps_run=steps
        )
    return checked("recorder", folder, after, steps_run=steps)


def record_for_ever(folder: Path, counter: Any) -> None:
    """The forked process: records until it is killed, and counts the steps that it has run."""
    from tests.profiler import fakes
    from tests.recorder import run

    one_step = fakes.run

    def counted(worker: Any, output: Any) -> int:
        answer = one_step(worker, output)
        counter[0] += 1
        return answer

    fakes.run = counted

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        run(Settings(str(folder), steps=0, backend="torch", steps_per_piece=4), 0)
    finally:
        os._exit(1)


def kill_engine(folder: Path, model: Path, chance: random.Random, *, tree: bool) -> Survived:
    """Records a real vLLM and kills its worker or everything."""
    workload = [sys.executable, "-m", "demo.workload", str(model), "--rounds", "100000"]
    environment = os.environ | ENGINE | {"PYTHONPATH": str(ROOT)}
    with open(folder.parent / "engine.log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", RECORD, str(folder), *workload],
            cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    pieces = pieces_folder(folder)
    facts = pieces / "rank0.facts.json"
    family: list[psutil.Process] = []
    try:
        wait_for(lambda: facts.exists() or child.poll() is not None, 300)
        if not facts.exists():
            raise SystemExit((folder.parent / "engine.log").read_text()[-4000:])
        after = chance.uniform(0, 12)
        time.sleep(after)
        family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
        worker = psutil.Process(json.loads(facts.read_text())["pid"])
        for process in family if tree else [worker]:
            process.kill()
        worker.wait(30)
        if tree:
            child.wait()
            return checked("vLLM, the whole tree", folder, after)
        # The recorder lives and makes the bundle when vLLM has noticed: copy before it does.
        copy = shutil.copytree(pieces, folder.parent / "copy", dirs_exist_ok=True)
        child.wait(180)
        return compare("vLLM, its worker", folder, Path(copy), after)
    finally:
        for process in family:
            if process.is_running():
                process.kill()
        child.wait()
        shutil.rmtree(folder.parent / "copy", ignore_errors=True)


def checked(
    target: str,
    folder: Path,
    after: float,
    interrupt_s: float | None = None,
    steps_run: int | None = None,
) -> Survived:
    """Salvages and compares; first lets a salvage be killed, if that is wanted."""
    copy = shutil.copytree(pieces_folder(folder), folder.parent / "copy", dirs_exist_ok=True)
    cut = False
    if interrupt_s is not None:
        child = os.fork()
        if child == 0:
            try:
                salvage(folder)
            finally:
                os._exit(0)
        time.sleep(interrupt_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        cut = not (folder / META_FILE).exists()
    result = compare(target, folder, Path(copy), after, steps_run)
    shutil.rmtree(copy)
    return replace(result, cut_salvage=cut)


def compare(
    target: str, folder: Path, copy: Path, after: float, steps_run: int | None = None
) -> Survived:
    """Makes the bundle if nobody has, and compares it with what had been flushed and had run."""
    flushed = flushed_in(copy)
    faults: list[str] = []
    cut = 0
    lost: tuple[str, ...] = ()
    try:
        lost = salvage(folder).bundle.meta.lost
        cut = sum("its steps are missing" in line for line in lost)
        faults += lacking(flushed, Bundle(folder))
        faults += (
            [] if salvage(folder).newly_assembled is False else ["a second salvage made it again"]
        )
        if flushed.steps:
            run_report(folder)
    except CommandError as error:
        faults += [] if flushed.empty else [str(error)]
        lost = tuple(str(error).split(": ", 1)[1:])
    except subprocess.CalledProcessError as error:
        faults.append(f"report ended with {error.returncode}: {error.stderr[-300:]}")
    steps_lost = sum(int(match[2]) for line in lost for match in LOST_STEPS.finditer(line))
    steps_in_bundle = flushed.count()[0]
    # Between the end of a step and the count of this benchmark lies an instant.
    if steps_run is not None and steps_in_bundle + steps_lost not in (steps_run, steps_run + 1):
        faults.append(
            f"{steps_run} steps ran, {steps_in_bundle} are kept and {steps_lost} told as lost"
        )
    counted = read_counts(copy).get("rank0")
    if steps_run is None and counted and steps_in_bundle + steps_lost != counted.recorded:
        faults.append(
            f"{counted.recorded} steps were recorded, {steps_in_bundle} kept, "
            f"{steps_lost} told as lost"
        )
    return Survived(target, after, flushed.count(), faults, cut, steps_lost=steps_lost)


def run_report(folder: Path) -> None:
    argv = [sys.executable, "-m", "spark_prof.cli.main", "report", str(folder), "--format", "json"]
    process = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    json.loads(process.stdout)


def wait_for(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
