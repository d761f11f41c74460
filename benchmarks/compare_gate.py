"""Whether the intervals of `compare` hold the truth, and its gate fails only what is too slow.

Recordings are made of real ones in tests/data: stretches of their step times are drawn again, each
recording gets the factor of its engine start (standard deviations up to 1.5 %), and side b a true
effect. Each row says of many comparisons how often the 95 % interval of the change held the effect,
and how often `decode_us.median > 3%` failed, passed and was undecided. The same is done with the
components, layers and kernels of stretches of the recordings, all of which a start moves alike and
each on its own by KERNEL_SD. Last come real engine starts of the same thing, each against each.

usage: python benchmarks/compare_gate.py [--runs 1000] [--seed 1]

It fails where coverage is below 0.93, or more than 5 % fail whose effect is within the limit.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spark_prof.analyzers.comparing.compare_sides import compare  # noqa: E402
from spark_prof.analyzers.comparing.comparison import ComparedRecording  # noqa: E402
from spark_prof.analyzers.comparing.noise import START, Figure, change, figure_of  # noqa: E402
from spark_prof.analyzers.comparing.parts import taken_apart  # noqa: E402
from spark_prof.analyzers.comparing.swapped_steps import KernelTime, stable_name  # noqa: E402
from spark_prof.analyzers.comparing.threshold_expression import parse  # noqa: E402
from spark_prof.analyzers.comparing.thresholds import (  # noqa: E402
    MetricReading,
    check,
    gate_outcome_of,
)
from spark_prof.datasets.opened import read_side  # noqa: E402
from spark_prof.vocabulary import COMPONENTS  # noqa: E402

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Pool = Sequence[Sequence[Figure]]
"""Recordings of one thing, and of each the rows that are compared."""

DATA = ROOT / "tests" / "data"
RECORDED = (
    ("compare-h100/qwen-graph", 1),
    ("compare-h100/qwen-graph", 8),
    ("compare-h100/gpt-graph", 1),
    ("compare-h100/gpt-graph", 8),
    ("benchmarks/vllm-serve-bundle", 2),
)
"""Recordings whose steps are drawn again, and the batch size of these steps."""

STARTS = (
    (
        "compare-h100/qwen-graph",
        "h100-qwen3-30b-a3b-nvfp4-graphs",
        "code-h100/qwen3-30b-a3b-nvfp4",
    ),
    ("compare-h100/gpt-graph", "code-h100/gpt-oss-20b-mxfp4"),
)
"""Engine starts of the same thing, hours apart."""

START_SDS = (0.0, 0.005, 0.01, 0.015)
RECORDINGS = (1, 2, 3, 5)
EFFECTS = (0.0, 0.02, 0.03, 0.035, 0.05, 0.10)
KERNEL_SD = 0.004
LIMIT = "decode_us.median > 3%"
COVERAGE = 0.93
FALSE_ALARMS = 0.05
_STEPS = 200
_STRETCH = 25
_GROUP = 24


@dataclass(frozen=True)
class Cell:
    """What became of the comparisons of one kind.

    Attributes:
        sd: standard deviation from start to start, as a share.
        recordings: of each side.
        effect: by how much side b is slower, as a share.
        covered: share of the intervals that held the effect.
        outcomes: how often the gate came to each.
        runs: comparisons whose starts are their own; the rows of one share them.
    """

    sd: float
    recordings: int
    effect: float
    covered: float
    outcomes: Counter[str]
    runs: int

    def share(self, outcome: str) -> float:
        """Of the comparisons, those with an outcome."""
        return self.outcomes[outcome] / max(self.outcomes.total(), 1)

    def missed(self) -> bool:
        """Whether it misses a bar by more than chance explains in 1 of 1,000 such rows."""
        slack = 3.1 * math.sqrt(COVERAGE * (1 - COVERAGE) / self.runs)
        alarm = self.effect <= 0.03 and self.share("failed") > FALSE_ALARMS + slack
        return self.covered < COVERAGE - slack or alarm


def step_pools(random: np.random.Generator, size: int) -> list[Pool]:
    """For each real recording many that are drawn from its decode steps, stretch by stretch."""
    pools: list[Pool] = []
    for path, batch in RECORDED:
        steps = read_side(str(DATA / path)).steps
        chosen = (steps["phase"].astype(str) == "decode") & (steps["decode_requests"] == batch)
        us = steps.loc[chosen, "step_us"].to_numpy(np.float64)
        pool = []
        for _ in range(size):
            begins = random.integers(0, len(us), _STEPS // _STRETCH)
            drawn = us[(begins[:, None] + np.arange(_STRETCH)).ravel() % len(us)]
            pool.append([figure_of(drawn, "median", START["kernel"])])
        pools.append(pool)
    return pools


def part_pools(random: np.random.Generator, size: int) -> dict[str, list[Pool]]:
    """Components, layers and kernels of typical steps of stretches of the same recordings."""
    codes: dict[str, Callable[[KernelTime], Int64s]] = {
        "components": lambda kernel_time: kernel_time.component,
        "layers": lambda kernel_time: kernel_time.layer + 1,
        "kernels": lambda kernel_time: kernel_time.name,
    }
    pools: dict[str, list[Pool]] = {name: [] for name in codes}
    for path, batch in RECORDED[:4]:
        side = read_side(str(DATA / path))
        names: dict[str, int] = {}
        places_of = [names.setdefault(stable_name(n), len(names)) for n in side.kernels.names]
        chosen = (side.steps["phase"].astype(str) == "decode").to_numpy()
        places = np.flatnonzero(chosen & (side.steps["decode_requests"] == batch).to_numpy())
        divisor = np.ones(len(side.steps))
        rows = {
            "components": len(COMPONENTS),
            "layers": int(side.kernels.layer.max()) + 2,
            "kernels": len(names),
        }
        stretch_figures: dict[str, list[list[Figure]]] = {name: [] for name in codes}
        for _ in range(size):
            first = int(random.integers(0, len(places) - _GROUP + 1))
            group = places[first : first + _GROUP], 1.0
            kernel_times = taken_apart(side, np.array(places_of), [group], divisor)
            for name, code in codes.items():
                stretch_figures[name].append(kernel_times.figures(code, rows[name]))
        for name, figures in stretch_figures.items():
            # Stretches of one recording differ by its drift; a pool is of the same thing.
            level = np.mean([[figure.value for figure in row] for row in figures], axis=0)
            pools[name].append(
                [
                    [
                        figure.times(float(mean / figure.value))
                        for figure, mean in zip(row, level, strict=True)
                        if figure.value > 0
                    ]
                    for row in figures
                ]
            )
    return pools


def cell(
    random: np.random.Generator,
    pools: Sequence[Pool],
    runs: int,
    sd: float,
    recordings: int,
    effect: float,
    own_sd: float = 0.0,
) -> Cell:
    """Compares as often as asked, every time with recordings of one pool."""
    limit = parse(LIMIT)
    covered, compared = 0, 0
    outcomes: Counter[str] = Counter()
    for run in range(runs):
        pool = pools[run % len(pools)]
        drawn = random.choice(len(pool), 2 * recordings, replace=False)
        start = np.exp(random.normal(0, sd, 2 * recordings))
        rows = min(len(pool[place]) for place in drawn)
        row_factors = np.exp(random.normal(0, own_sd, (2 * recordings, rows)))
        for row in range(rows):
            figures = [
                pool[place][row].times(start[number] * row_factors[number, row])
                for number, place in enumerate(drawn)
            ]
            slower = [figure.times(1 + effect) for figure in figures[recordings:]]
            time_change = change(figures[:recordings], slower)
            low, high = time_change.shares
            covered += low <= effect <= high
            compared += 1
            outcomes[gate_outcome_of(limit, MetricReading("time", time_change))] += 1
    return Cell(sd, recordings, effect, covered / compared, outcomes, runs)


def cells(
    random: np.random.Generator,
    pools: Sequence[Pool],
    runs: int,
    effects: Sequence[float] = EFFECTS,
    own_sd: float = 0.0,
) -> Iterator[Cell]:
    """Every start, number of recordings and effect."""
    for sd in START_SDS:
        for recordings in RECORDINGS:
            for effect in effects:
                yield cell(random, pools, runs, sd, recordings, effect, own_sd)


def real_starts() -> Iterator[tuple[str, float, str]]:
    """Each real engine start against each other one of the same thing: change and outcome."""
    for names in STARTS:
        sides: dict[str, ComparedRecording] = {name: read_side(str(DATA / name)) for name in names}
        for one, two in permutations(names, 2):
            comparison = compare(sides[one], sides[two])
            [checked] = check(comparison, [parse(LIMIT)])
            moved = checked.reading.change
            yield f"{one} | {two}", moved.share(moved.us), checked.outcome


def _show(kind: str, result: Cell) -> None:
    outcomes = " ".join(
        f"{100 * result.share(outcome):6.1f}" for outcome in ("failed", "undecided", "passed")
    )
    print(
        f"{kind:10} {100 * result.sd:4.1f} {result.recordings:5} {100 * result.effect:7.1f} "
        f"{result.covered:9.3f}  {outcomes}  {'MISSED' if result.missed() else ''}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    print(f"{'figure':10} sd %  each effect %   covered  failed  undec. passed %  ({LIMIT})")
    missed = 0
    pools = step_pools(random, 200)
    for result in cells(random, pools, options.runs):
        _show("step", result)
        missed += result.missed()
    for name, parts in part_pools(random, 40).items():
        # Every comparison has a row of each, so that fewer are needed.
        few = max(options.runs // 5, len(parts))
        for result in cells(random, parts, few, (0.0, 0.10), KERNEL_SD):
            _show(name, result)
            missed += result.missed()
    alarms = 0
    for pair, share, outcome in real_starts():
        print(f"{100 * share:+6.2f} %  {outcome:9}  {pair}")
        alarms += outcome == "failed"
    print(f"{missed} cells miss a bar; {alarms} false alarms between real starts")
    return int(bool(missed or alarms))


if __name__ == "__main__":
    sys.exit(main())
