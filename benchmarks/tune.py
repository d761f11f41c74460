"""What `spark-prof tune` finds on a model with dummy weights, in how long, and what is the best.

Without --model a tiny model on this machine's CPU, whose norms a plugin makes slow, with planted
candidates: a right norm, and kernels that are slow, wrong, crash and hang. --exhaustive then
measures the whole table, also what tune had no time for, and holds tune's answer against the best:
`swaps` every combination of them, in pairs in one engine, those with slot `layer` by two starts of
their own over two of the base; `options` each option and variable by two starts, alone and with
tune's answer. --result does so for the answer of an earlier tune, within --minutes if given.

usage: python benchmarks/tune.py FOLDER [--model NAME] [--minutes M] [--batch-sizes N,N]
           [--exhaustive swaps|options|all] [--seconds S] [--result FILE]
           [--options="--try SIDE ..."] [--engine="--flag ..."]
exit code: 1 if the minutes were not kept, a planted candidate was chosen, or the answer is more
    than 3 % from the best
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import MODELS, write_model  # noqa: E402
from spark_prof.ab.command import engine_command  # noqa: E402
from spark_prof.tune.journal import Journal, Subject  # noqa: E402
from spark_prof.tune.tune_engines import Engines, TuneSettings  # noqa: E402
from spark_prof.tune.tune_result import read_tune  # noqa: E402
from spark_prof.tune.tune_trial import (  # noqa: E402
    BASE,
    Combination,
    EngineEndedError,
    Pair,
    TimeUpError,
    fits,
    name_of,
    over_batches,
    side_of,
    swaps_only,
)
from tests.tune.slow_norm import installed  # noqa: E402

KERNELS = ROOT / "tests/tune/kernels/planted.py"
PLANTED = {"fast": "norm", "slow": "o", "wrong": "mlp", "crashes": "qkv", "hangs": "lm_head"}
TINY = (
    *("--load-format", "dummy", "--max-model-len", "256", "--max-num-seqs", "4"),
    *("--gpu-memory-utilization", "0.3", "--enforce-eager"),
)
DUMMY = ("--load-format", "dummy", "--max-model-len", "2048", "--max-num-seqs", "16")
GRAPHS = '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}'
CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
WITHIN = 0.03  # bar: tune's answer is that near the best combination
SPARE_S = 5.0  # after the minutes, for the answer to be drawn
OUT = ("failed", "not live", "changes answers")  # of a candidate: no combination has it
MOST_SIDES = 31  # of one engine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", help="of demo.models, or a folder; by default the planted one")
    parser.add_argument("--minutes", type=float, default=0.0, help="8, of the planted one 6")
    parser.add_argument("--batch-sizes", default="", help="1,8, of the planted one 1")
    parser.add_argument("--seconds", type=float, default=5.0, help="a combination, exhaustively")
    parser.add_argument("--exhaustive", choices=("swaps", "options", "all"), help="measure these")
    parser.add_argument("--result", type=Path, help="of an earlier tune, which is not run again")
    parser.add_argument("--options", default="", help="more options of spark-prof tune")
    parser.add_argument("--engine", default="", help="more options of vLLM")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    minutes = options.minutes or (8.0 if options.model else 6.0)
    sizes = options.batch_sizes or ("1,8" if options.model else "1")
    with tempfile.TemporaryDirectory() as temporary:
        name = options.model or "tiny-dense"
        model = str(write_model(name, Path(temporary) / name)) if name in MODELS else name
        paths = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
        os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        tune_options = shlex.split(options.options)
        command: tuple[str, ...]
        if options.model:
            command = (model, *DUMMY, "--compilation-config", GRAPHS)
        else:
            plugin = installed(Path(temporary) / "plugin")
            os.environ |= CPU | {"PYTHONPATH": f"{paths}:{plugin}"}
            command = (model, *TINY)
            tune_options += [f"--try={slot}={KERNELS}:{kernel}" for kernel, slot in PLANTED.items()]
            tune_options += ["--context", "16", "--gate-tokens", "8", "--skip=--no-enforce-eager"]
            tune_options += ["--skip=VLLM_CPU_ATTN_SPLIT_KV=0"]
        command = (*command, *shlex.split(options.engine))
        run = options.folder / "tune"
        if options.result:
            return int(not exhaustive(options, command, options.result, options.minutes))
        argv = [
            *(sys.executable, "-m", "spark_prof.cli.main", "tune", "--minutes", str(minutes)),
            *("--batch-sizes", sizes, "-o", str(run), *tune_options, "--", *command),
        ]
        begun = time.monotonic()
        code = subprocess.run(argv, cwd=ROOT, check=False).returncode
        took = time.monotonic() - begun
        good = list(
            bars_reached(took, minutes, code, run / "result.json", planted=not options.model)
        )
        if options.exhaustive and (run / "result.json").exists():
            good.append(exhaustive(options, command, run / "result.json"))
    return int(not all(good))


def bars_reached(
    took: float, minutes: float, code: int, path: Path, *, planted: bool
) -> Iterator[bool]:
    """Prints each bar with its figure; whether it is reached."""
    in_time = took <= 60 * minutes + SPARE_S
    print(f"took {took:.0f} s of {60 * minutes:.0f}, exit code {code}{'' if in_time else ' LATE'}")
    yield in_time and code == 0
    if planted and path.exists():
        result = read_tune(path)
        verdicts = {
            candidate.name.rpartition(":")[2]: candidate.verdict for candidate in result.tried
        }
        print("planted:", {kernel: verdicts.get(kernel) for kernel in PLANTED})
        yield [kernel for kernel in PLANTED if verdicts.get(kernel) == "chosen"] == ["fast"]


def exhaustive(
    options: argparse.Namespace, command: Sequence[str], path: Path, minutes: float = 0.0
) -> bool:
    """Measures what --exhaustive names; whether the answer of that tune is near the best of it.

    The combinations of most swaps come first, should the minutes be over before the last.
    """
    result, kinds = read_tune(path), options.exhaustive or "all"
    folder = options.folder / "exhaustive"
    folder.mkdir(parents=True, exist_ok=True)
    words = [w.name for w in result.tried if w.source and w.verdict not in OUT]
    swaps = [w for w in words if is_swap(w)]
    settings = TuneSettings(folder, minutes or 24 * 60.0, result.batch_sizes, result.context)
    journal = Journal(folder)
    if journal.path.exists():
        journal.read()
    subject = Subject(result.engine, result.batch_sizes, result.context, result.vllm, result.gpu)
    journal.begin(subject)
    gains: dict[Combination, float] = {}
    with Engines(engine_command(command), settings, journal, print) as engines:
        measured = Measured(engines, journal)
        if kinds != "options":
            every = [c for n in range(1, len(swaps) + 1) for c in combinations(swaps, n) if fit(c)]
            layered = [c for c in every if not swaps_only(c)]
            every = [c for c in every if swaps_only(c)]
            print(f"exhaustive: {len(every)} and {len(layered)} of {', '.join(swaps)}", flush=True)
            if layered:
                gains |= measured.by_starts([layered])
            gains |= measured.in_pairs(every[::-1], options.seconds)
        if kinds != "swaps":
            options_alone = [w for w in words if not side_of((w,)).swaps]
            print(f"exhaustive: {len(options_alone)} alone and with tune's answer", flush=True)
            answer = tuple(result.answer)
            groups = [[(w,), *([(*answer, w)] if fit((*answer, w)) else [])] for w in options_alone]
            gains |= measured.by_starts([[answer], *groups] if answer else groups)
    for combination, value in sorted(gains.items(), key=lambda pair: -pair[1]):
        print(f"  {value:.4f} x {name_of(combination)}")
    best = max(gains.items(), key=lambda pair: pair[1], default=((), 1.0))
    same = [v for c, v in gains.items() if one_side(c) == one_side(result.answer)]
    confirmed = over_batches(result.times)
    value = same[0] if same else confirmed.value if confirmed else 1.0
    near = value >= (1 - WITHIN) * best[1]
    print(
        f"tune's answer {' '.join(result.answer) or 'nothing'}: {value:.4f} x; the best is "
        f"{name_of(best[0])}, {best[1]:.4f} x{'' if near else '  NOT REACHED'}"
    )
    return near


class Measured:
    """Gains of combinations over the base, by either way to measure them."""

    def __init__(self, engines: Engines, journal: Journal) -> None:
        self._engines, self._journal = engines, journal

    def in_pairs(self, every: Sequence[Combination], seconds: float) -> dict[Combination, float]:
        """Of swaps that can be switched between steps, in as few engines as hold them."""
        gains: dict[Combination, float] = {}
        for first in range(0, len(every), MOST_SIDES):
            pairs = [Pair(combination) for combination in every[first : first + MOST_SIDES]]
            with told_of_end():
                for trial in self._engines.together(
                    "search", 0, pairs, (), seconds, self._engines.left
                ):
                    self._journal.add(trial)
                    if (gain := over_batches(trial.times)) and trial.outcome == "measured":
                        gains[trial.combination] = gain.value
        return gains

    def by_starts(self, groups: Sequence[Sequence[Combination]]) -> dict[Combination, float]:
        """Of groups that differ in swaps only, each group in an engine of its own, twice.

        The second time in the other order, so that no group is always the later one.
        """
        steps: dict[Combination, list[tuple[float, ...]]] = {}
        for number, order in enumerate(([[BASE], *groups], [[BASE], *reversed(groups)])):
            for group in order:
                with told_of_end():
                    for trial in self._engines.start("search", number, group, self._engines.left):
                        self._journal.add(trial)
                        us = tuple(timed.own_us or 0.0 for timed in trial.times)
                        if us and all(us):
                            steps.setdefault(trial.combination, []).append(us)
        base = steps.pop(BASE, [])
        return {c: typical(base) / typical(swapped) for c, swapped in steps.items() if base}


@contextmanager
def told_of_end() -> Iterator[None]:
    """An engine that ends is told, and is no end of the benchmark."""
    try:
        yield
    except EngineEndedError as error:
        print(f"exhaustive: {error}", flush=True)
    except TimeUpError:
        print("exhaustive: the minutes are over; what follows is not measured", flush=True)


def typical(starts: Sequence[tuple[float, ...]]) -> float:
    """The geometric mean of all starts and batch sizes."""
    return geometric_mean([us for start in starts for us in start])


def one_side(combination: Sequence[str]) -> tuple[object, ...]:
    """What is on, however it is put into words."""
    side = side_of(tuple(combination))
    return frozenset(side.swaps), frozenset(side.options), frozenset(side.environment)


def is_swap(words: str) -> bool:
    """Whether it is one swap and nothing else."""
    side = side_of((words,))
    return len(side.swaps) == 1 and not side.options and not side.environment


def fit(combination: Combination) -> bool:
    """Whether all of it can be on together."""
    return all(fits(combination[:place], w) for place, w in enumerate(combination))


if __name__ == "__main__":
    sys.exit(main())
