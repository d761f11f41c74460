"""How often `spark-prof ab` finds the effect that it prints as the minimum detectable one.

Runs without an effect are simulated, through the functions that a real run goes through: times of
steps, quads, interval, side a against itself, verdict. Then the effect that the median of them
prints is planted into as many other runs. Noise is that of recorded steps, of which stretches of
one or two quads are drawn, and synthetic; that of engine starts is normal.

usage: python benchmarks/ab_power.py [--runs N] [--quads N...] [--seed N]
exit code: 1 if a row has a power outside of 75 to 85 %, more than 5 % false claims or a coverage
    outside of 93 to 98 %, each by more than three standard errors of that many runs
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from spark_prof.ab.result import AARun, SideComparison, detectable_in, effect_of  # noqa: E402  # noqa: E402
from spark_prof.ab.statistics import Estimate, aa_test, compare, compare_starts  # noqa: E402
from spark_prof.ab.timed_steps import SETTLE, Quad, block_order, middle_mean  # noqa: E402  # noqa: E402

DATA = ROOT / "tests/data"
STEPS = 12
"""Of a block."""
Array = npt.NDArray[np.float64]
Random = np.random.Generator
Noise = Callable[[Random, int], Array]
"""Times of that many steps that follow each other, in us."""


def white(random: Random, count: int) -> Array:
    return 3000 * (1 + random.normal(0, 0.01, count))


def autoregressive(random: Random, count: int) -> Array:
    """What a step has in common with the one before: AR(1), as a sum over the last 60."""
    shocks = random.normal(0, 0.004, count + 59)
    return 3000 * (1 + np.convolve(shocks, 0.9 ** np.arange(60), "valid"))


def hiccups(random: Random, count: int) -> Array:
    late = random.random(count) < 0.02
    return white(random, count) + 3000 * late * random.uniform(0, 9, count)


def stalls(random: Random, count: int) -> Array:
    """A stretch as long as a block takes 30 % longer, three times in a run."""
    times = white(random, count)
    for start in random.integers(0, count, 3):
        times[start : start + STEPS] += 900
    return times


def frequent_stalls(random: Random, count: int) -> Array:
    """The same once in ten quads."""
    times = white(random, count)
    for start in random.integers(0, count, max(1, count // (40 * STEPS))):
        times[start : start + STEPS] += 900
    return times


def drift(random: Random, count: int) -> Array:
    places = np.arange(count) / count
    return white(random, count) + 3000 * (0.05 * places**2 + 0.03 * places)


def jitter(random: Random, count: int) -> Array:
    """Steps that start late: longer, and the next one shorter."""
    return 3000 * (1 + np.diff(random.exponential(0.02, count + 1)))


@dataclass(frozen=True)
class Recorded:
    """Steps of a recording in tests/data.

    Attributes:
        folder: of the bundle.
        requests: that each step decodes.
        watched: whether kernels were recorded meanwhile.
    """

    folder: str
    requests: int = 1
    watched: bool = True

    def __call__(self, random: Random, count: int) -> Array:
        """Stretches of one or two quads, drawn with replacement."""
        times = recorded(self)
        length = 4 * STEPS * (2 if len(times) > 200 else 1)
        starts = random.integers(0, len(times), -(-count // length))
        drawn = times[(starts[:, None] + np.arange(length)) % len(times)].reshape(-1)[:count]
        return cast(Array, drawn)


@cache
def recorded(noise: Recorded) -> Array:
    """From the start of each step to that of the next."""
    table = pq.read_table(DATA / noise.folder / "steps-rank0.parquet")
    decode = pc.and_(
        pc.equal(table["phase"], "decode"), pc.equal(table["decode_requests"], noise.requests)
    )
    table = table.filter(pc.and_(decode, pc.equal(table["watched"], noise.watched)))
    follows = np.diff(table["step"].to_numpy()) == 1
    return cast(Array, np.diff(table["start_ns"].to_numpy())[follows] / 1e3)


NOISES: dict[str, Noise] = {
    "H100, gpt-oss, batch 1": Recorded("compare-h100/gpt-duty", watched=False),
    "H100, gpt-oss, batch 8": Recorded("compare-h100/gpt-graph", 8),
    "H100, Qwen3, batch 1": Recorded("compare-h100/qwen-graph"),
    "H100, Qwen3, batch 8": Recorded("compare-h100/qwen-graph", 8),
    "H100, ab's side a": Recorded("ab-h100/recording-a-1"),
    "H100, ab's side b": Recorded("ab-h100/recording-b-1"),
    "vllm bench serve": Recorded("benchmarks/vllm-serve-bundle", 2),
    "white": white,
    "AR(1)": autoregressive,
    "hiccups": hiccups,
    "stalls": stalls,
    "frequent stalls": frequent_stalls,
    "drift": drift,
    "jitter": jitter,
}


@dataclass(frozen=True)
class Design:
    """What is simulated.

    Attributes:
        noise: a name of `NOISES`; empty for engine starts.
        count: quads, or starts of both sides together.
        tests: of side a against itself; the second one is captured again.
        spread: standard deviation of a start's times, as a share.
    """

    noise: str
    count: int
    tests: int = 1
    spread: float = 0.0


@dataclass(frozen=True)
class DesignResult:
    """What came out of a design, as shares.

    Attributes:
        printed: median of the effects that are printed; None where most runs print none.
        unknown: of runs print no effect.
        power: of runs find the median.
        power_quantiles: of runs find an effect that is printed, at the 10, 50 and 90 % quantiles
            of those effects.
        false: of runs claim an effect where there is none.
        coverage: of intervals contain the truth.
    """

    printed: float | None
    unknown: float
    power: float | None
    power_quantiles: tuple[float, ...]
    false: float
    coverage: float


def quads_of(random: Random, noise: Noise, count: int, effect: float = 0.0) -> list[Quad]:
    """Quads of times of steps; b's are shorter by the effect."""
    times = noise(random, 4 * count * STEPS).reshape(-1, STEPS)[:, SETTLE:]
    sides: dict[str, list[float]] = {"a": [], "b": []}
    for block, steps in zip(block_order(count, STEPS), times, strict=True):
        ns = (1e3 * steps / (1 + effect * (block.side == "b"))).astype(int).tolist()
        sides[block.side].append(middle_mean(ns) / 1e3)
    pairs = (np.array(sides[side]).reshape(-1, 2).mean(1).tolist() for side in "ab")
    return [
        Quad(number, a, b, 4 * (STEPS - SETTLE), ())
        for number, (a, b) in enumerate(zip(*pairs, strict=True))
    ]


def simulated(
    design: Design, random: Random, effect: float = 0.0
) -> tuple[SideComparison, list[AARun]]:
    """A run as the commands keep it, with its tests of side a against itself."""
    if not design.noise:
        a, b = np.exp(random.normal(0, design.spread, (2, design.count // 2)))
        a_us, b_us = (3000 * a).tolist(), (3000 * b / (1 + effect)).tolist()
        again = [compare_starts(a_us[::2], a_us[1::2], 100)] if len(a_us) >= 4 else []
        estimate = compare_starts(a_us, b_us, 200)
    else:
        noise = NOISES[design.noise]
        again = [compare(quads_of(random, noise, design.count)) for _ in range(design.tests)]
        estimate = compare(quads_of(random, noise, design.count, effect))
    aa = [
        AARun(1, aa_test(noise_estimate), captured_again=place == 1)
        for place, noise_estimate in enumerate(again)
    ]
    return SideComparison("decode", 1, 128, estimate), aa


def measured(design: Design, runs: int, seed: int) -> DesignResult:
    """Simulates a design; the same seed gives the same."""
    random = np.random.default_rng(seed)
    idle = [simulated(design, random) for _ in range(runs)]
    effects = [detectable_in(*run_and_tests) for run_and_tests in idle]
    detectable = sorted(effect for effect in effects if effect is not None)
    unknown = 1 - len(detectable) / len(effects)
    power_quantiles: tuple[float, ...] = ()
    printed = power = None
    if detectable and unknown <= 0.5:
        printed = float(np.median(detectable))
        planted = [simulated(design, random, printed) for _ in range(runs)]
        power = sum(effect_of(*run_and_tests) == "faster" for run_and_tests in planted) / runs
        places = [detectable[int(share * (len(detectable) - 1))] for share in (0.1, 0.5, 0.9)]
        power_quantiles = tuple(
            sum(effect_of(scaled(run, effect), aa) == "faster" for run, aa in idle) / runs
            for effect in places
        )
    return DesignResult(
        printed,
        unknown,
        power,
        power_quantiles,
        sum(effect_of(*run_and_tests) in ("faster", "slower") for run_and_tests in idle) / runs,
        sum(covers(run.estimate) for run, _ in idle) / runs,
    )


def scaled(run: SideComparison, effect: float) -> SideComparison:
    """The run as it had been with an effect: all ends of its interval grow by it."""
    gain = run.estimate.gain
    if gain is None:
        return run
    by = 1 + effect
    grown = replace(gain, value=gain.value * by, low=gain.low * by, high=gain.high * by)
    return replace(run, estimate=replace(run.estimate, gain=grown))


def covers(estimate: Estimate) -> bool:
    return estimate.gain is not None and estimate.gain.low <= 1 <= estimate.gain.high


def within_bounds(result: DesignResult, runs: int) -> bool:
    """Whether a row is within its bounds, by three standard errors of its runs."""

    def least(share: float) -> float:
        return 3 * math.sqrt(share * (1 - share) / runs)

    return (
        (result.power is None or 0.75 - least(0.75) <= result.power <= 0.85 + least(0.85))
        and result.false <= 0.05 + least(0.05)
        and result.coverage >= 0.93 - least(0.93)
    )


def designs(quads: list[int]) -> Iterator[Design]:
    for noise in NOISES:
        for count in quads:
            yield Design(noise, count)
    for noise in list(NOISES)[:2]:
        yield Design(noise, 40, tests=2)
    for starts in (4, 8, 12, 16):
        for spread in (0.002, 0.005, 0.01, 0.02):
            yield Design("", starts, spread=spread)


def row(design: Design, result: DesignResult, runs: int) -> str:
    name = design.noise or f"starts, {design.spread:.1%}"
    name += ", captured again" if design.tests > 1 else ""
    power = "-" if result.power is None else f"{result.power:.1%}"
    printed = "not known" if result.printed is None else f"{result.printed:.3%}"
    quantiles = " ".join(f"{share:4.0%}" for share in result.power_quantiles)
    return (
        f"{name:40} {design.count:5} {printed:>10} {result.unknown:8.0%} {power:>7} "
        f"{quantiles:>15} {result.false:7.1%} {result.coverage:9.1%}"
        f"{'' if within_bounds(result, runs) else '  MISSED'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=400, help="simulated for each row")
    parser.add_argument("--quads", type=int, nargs="+", default=[12, 20, 30, 60])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{'noise':40} count    printed  unknown   power planted own eff.   false  coverage",
        flush=True,
    )
    good, all_designs = True, list(designs(options.quads))
    with ProcessPoolExecutor() as pool:
        counts = [options.runs] * len(all_designs)
        seeds = range(options.seed, options.seed + len(all_designs))
        for design, result in zip(
            all_designs, pool.map(measured, all_designs, counts, seeds), strict=True
        ):
            print(row(design, result, options.runs), flush=True)
            good &= within_bounds(result, options.runs)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
