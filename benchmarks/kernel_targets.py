"""What the kernels have to reach on an H100, how far a run is from it, and its lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Literal

import msgspec

from spark_prof.kernels.bench.results import (
    BenchCell,
    BenchMachine,
    BenchReport,
    MachineCeilings,
    TimeSpread,
    cell_line,
    work_text,
)
from spark_prof.kernels.bench.shapes import Kind
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import write_whole

Statistic = Literal["smallest share", "largest us", "mean ratio", "smallest ratio"]


@dataclass(frozen=True)
class Bar:
    """One claim about many pieces of work.

    Attributes:
        statistic: what is taken over all of them. A share is that of the measured read bandwidth; a
            ratio is the time of the fastest peer over that of this project's kernel, and its mean
            the geometric one.
        bound: what the statistic must be at least, or at most for microseconds.
        peers: beginnings of the names of the peers that count, all if empty.
    """

    claim: str
    kind: Kind
    tokens: tuple[int, ...]
    statistic: Statistic
    bound: float
    peers: tuple[str, ...] = ()
    smallest_bytes: float = 0.0
    largest_bytes: float = math.inf
    lm_head: bool = False

    def counts(self, cell: BenchCell) -> bool:
        """Whether a piece of work is one that this is about."""
        # The bars are those of FP4. FP8 is what BF16 layers may become, and BF16 what they are.
        return (
            cell.kind == self.kind
            and cell.work.format not in ("fp8", "bf16")
            and cell.work.tokens in self.tokens
            and self.smallest_bytes <= cell.weight_bytes < self.largest_bytes
            and (cell.is_lm_head or not self.lm_head)
        )


@dataclass(frozen=True)
class Reached:
    """How a run did by one bar.

    Attributes:
        value: of the statistic, None where nothing of the kind was measured.
        cells: those pieces of work with the value of each, from the farthest from the bar on.
    """

    bar: Bar
    value: float | None
    cells: tuple[tuple[float, BenchCell], ...]

    @property
    def passed(self) -> bool:
        """Whether the bar was reached; not if nothing was measured."""
        if self.value is None:
            return False
        at_most = self.bar.statistic == "largest us"
        return self.value <= self.bar.bound if at_most else self.value >= self.bar.bound


MARLIN = ("vLLM Marlin",)
SMALL, ALL = (1, 2, 4, 8), (1, 2, 4, 8, 16)
MB = 1e6

BARS = (
    Bar("from 16 MB of weights, M = 1: at least 60 % of read bandwidth", "dense", (1,),
        "smallest share", 0.60, smallest_bytes=16 * MB),
    Bar("from 56 MB of weights, M = 1: at least 75 % of read bandwidth", "dense", (1,),
        "smallest share", 0.75, smallest_bytes=56 * MB),
    Bar("lm_head, M = 1: at least 80 % of read bandwidth", "dense", (1,),
        "smallest share", 0.80, lm_head=True),
    Bar("under 8 MB of weights, M = 1 to 8: at most 6 us a call", "dense", SMALL,
        "largest us", 6.0, largest_bytes=8 * MB),
    Bar("against Marlin, M = 1: geometric mean at least 1.5 x", "dense", (1,),
        "mean ratio", 1.5, MARLIN),
    Bar("against Marlin, M = 2 to 8: geometric mean at least 1.25 x", "dense", (2, 4, 8),
        "mean ratio", 1.25, MARLIN),
    Bar("against Marlin, M = 1 to 16: nowhere under 0.97 x, before the dispatcher", "dense", ALL,
        "smallest ratio", 0.97, MARLIN),
    Bar("MoE block, M = 1: everywhere at least 1.5 x", "moe", (1,), "smallest ratio", 1.5),
    Bar("MoE block, M = 4 and 8: everywhere at least 1.2 x", "moe", (4, 8),
        "smallest ratio", 1.2),
    Bar("MoE block, M = 1 to 16: nowhere under 0.97 x, before the dispatcher", "moe", ALL,
        "smallest ratio", 0.97),
)  # fmt: skip


def judge_bars(
    cells: Sequence[BenchCell], ceilings: MachineCeilings, bars: Iterable[Bar] = BARS
) -> list[Reached]:
    """Takes each bar's statistic over a run's results."""
    return [_reached(bar, cells, ceilings) for bar in bars]


def _reached(bar: Bar, cells: Sequence[BenchCell], ceilings: MachineCeilings) -> Reached:
    value_of = _VALUES[bar.statistic]
    measurements = [
        (value, cell)
        for cell in cells
        if bar.counts(cell) and (value := value_of(bar, cell, ceilings)) is not None
    ]
    if not measurements:
        return Reached(bar, None, ())
    measurements.sort(key=lambda pair: pair[0], reverse=bar.statistic == "largest us")
    farthest = measurements[0][0]
    mean = bar.statistic == "mean ratio"
    return Reached(
        bar, geometric_mean(v for v, _ in measurements) if mean else farthest, tuple(measurements)
    )


def _share(_: Bar, cell: BenchCell, ceilings: MachineCeilings) -> float | None:
    return None if cell.ours is None else ceilings.share(cell, cell.ours)


def _us(_: Bar, cell: BenchCell, __: MachineCeilings) -> float | None:
    return cell.ours


def _ratio(bar: Bar, cell: BenchCell, _: MachineCeilings) -> float | None:
    peer = cell.best_peer(*bar.peers)
    return None if cell.ours is None or peer is None else peer[1] / cell.ours


_VALUES: dict[Statistic, Callable[[Bar, BenchCell, MachineCeilings], float | None]] = {
    "smallest share": _share,
    "largest us": _us,
    "mean ratio": _ratio,
    "smallest ratio": _ratio,
}


def machine_lines(machine: BenchMachine, ceilings: MachineCeilings) -> Iterator[str]:
    """What the run is on, and what that reaches."""
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    driver = f", driver {machine.driver}" if machine.driver else ""
    cuda = f", CUDA {machine.cuda}" if machine.cuda else ""
    yield f"{machine.name} ({machine.architecture}{driver}{cuda}), {machine.date}; {versions}"
    yield f"read {_rate(ceilings.read)} ({ceilings.read_by})"
    yield f"copy {_rate(ceilings.copy)} ({ceilings.copied_by})"
    yield f"launch {ceilings.launch_us.median:.2f} us ({ceilings.launched})"


def bar_lines(reached: Sequence[Reached]) -> Iterator[str]:
    """One line a bar: whether it was reached, and where it is farthest from being so."""
    for result in reached:
        if result.value is None:
            yield f"not measured  {result.bar.claim}"
            continue
        word = "reached     " if result.passed else "NOT REACHED "
        value, cell = result.cells[0]
        over = f"{result.value:.3g} over {len(result.cells)} pieces of work"
        worst = f"worst {value:.3g}, {work_text(cell)}"
        yield f"{word}  {result.bar.claim}: {over}; {worst}{_slower(result)}"


def bar_tables(reached: Sequence[Reached], ceilings: MachineCeilings) -> Iterator[str]:
    """Each bar with all that it is about, from the worst on."""
    for result in reached:
        yield from ("", *bar_lines([result]))
        yield from (cell_line(cell, ceilings) for _, cell in result.cells)


def failure_lines(cells: Sequence[BenchCell]) -> Iterator[str]:
    """Each reason for which a competitor has no time, once, and how often it was met."""
    reasons = Counter(
        (cell.kind, result.contestant, result.failed)
        for cell in cells
        for result in cell.results
        if result.failed
    )
    for (kind, competitor, why), times in reasons.most_common():
        yield f"{competitor} has no time for {times} of {kind}: {why}"


def _slower(result: Reached) -> str:
    if not result.bar.statistic.endswith("ratio"):
        return ""
    slower = sum(ratio < 1 for ratio, _ in result.cells)
    return f"; the dispatcher leaves {slower} to the other kernel" if slower else ""


def _rate(measured: TimeSpread) -> str:
    figures = (measured.median, measured.lower, measured.upper)
    median, lower, upper = (f"{figure / 1e12:.3f}" for figure in figures)
    return f"{median} TB/s [{lower}, {upper}]"


def write_report(report: BenchReport, path: Path) -> None:
    """Writes the file of a run, whole or not at all.

    Raises:
        KernelError: it cannot be written.
    """
    write_whole(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read_report(path: Path) -> BenchReport:
    """Reads a file of results.

    Raises:
        KernelError: it cannot be read or is no such file.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=BenchReport)
    except OSError as error:
        raise KernelError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KernelError(f"{path} is no result of benchmarks/kernels.py ({error})") from error
    if report.schema != 1:
        raise KernelError(f"{path} is of another version of spark-prof; measure again")
    return report
