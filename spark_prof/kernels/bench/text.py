"""A run of the benchmark in lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from spark_prof.kernels.bench.bars import Reached
from spark_prof.kernels.bench.machine import Machine
from spark_prof.kernels.bench.results import Ceilings, Cell, Result, Spread


def machine_lines(machine: Machine, ceilings: Ceilings) -> Iterator[str]:
    """What the run is on, and what that reaches."""
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    driver = f", driver {machine.driver}" if machine.driver else ""
    cuda = f", CUDA {machine.cuda}" if machine.cuda else ""
    yield f"{machine.name} ({machine.architecture}{driver}{cuda}), {machine.date}; {versions}"
    yield f"read {_rate(ceilings.read)} ({ceilings.read_by})"
    yield f"copy {_rate(ceilings.copy)} ({ceilings.copied_by})"
    yield f"launch {ceilings.launch_us.median:.2f} us ({ceilings.launched})"


def work_text(cell: Cell) -> str:
    """What was computed: `dense nvfp4 5120 x 2880, M 4`."""
    work = cell.work
    experts = f", {work.experts} experts, top {work.top_k}" if work.experts > 1 else ""
    shape = f"{work.rows} x {work.columns}" if work.rows > 1 else str(work.columns)
    return f"{work.kernel} {work.format} {shape}{experts}, M {work.tokens}"


def cell_line(cell: Cell, ceilings: Ceilings) -> str:
    """Our time, its share of read bandwidth, its floor, and how many times as long others take."""
    parts = [f"{work_text(cell):44}"]
    ours = cell.ours
    if ours is not None:
        floor = ceilings.floor_us(cell)
        parts.append(_us(cell))
        if cell.kind != "fused":
            parts.append(f"{ceilings.share(cell, ours):4.0%} of read")
        parts.append(f"floor {floor:6.2f} x {ours / floor:.2f}")
    parts += [_other(r, ours) for r in cell.results if r.contestant != cell.subject or r.us is None]
    return "  ".join(parts)


def bar_lines(reached: Sequence[Reached]) -> Iterator[str]:
    """One line a bar: whether it was reached, and where it is farthest from being so."""
    for found in reached:
        if found.value is None:
            yield f"not measured  {found.bar.claim}"
            continue
        word = "reached     " if found.passed else "NOT REACHED "
        value, cell = found.cells[0]
        over = f"{found.value:.3g} over {len(found.cells)} pieces of work"
        worst = f"worst {value:.3g}, {work_text(cell)}"
        yield f"{word}  {found.bar.claim}: {over}; {worst}{_slower(found)}"


def bar_tables(reached: Sequence[Reached], ceilings: Ceilings) -> Iterator[str]:
    """Each bar with all that it is about, from the worst on."""
    for found in reached:
        yield from ("", *bar_lines([found]))
        yield from (cell_line(cell, ceilings) for _, cell in found.cells)


def failure_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Each reason for which a contestant has no time, once, and how often it was met."""
    reasons = Counter(
        (cell.kind, result.contestant, result.failed)
        for cell in cells
        for result in cell.results
        if result.failed
    )
    for (kind, contestant, why), times in reasons.most_common():
        yield f"{contestant} has no time for {times} of {kind}: {why}"


def _slower(found: Reached) -> str:
    if not found.bar.statistic.endswith("ratio"):
        return ""
    slower = sum(ratio < 1 for ratio, _ in found.cells)
    return f"; the dispatcher leaves {slower} to the other kernel" if slower else ""


def _us(cell: Cell) -> str:
    spread = next(r.us for r in cell.results if r.contestant == cell.subject and r.us)
    return f"{spread.median:8.2f} us [{spread.lower:.2f}, {spread.upper:.2f}]"


def _other(result: Result, ours: float | None) -> str:
    if result.us is None:
        return f"{result.contestant}: failed"
    ratio = "" if ours is None else f" = {result.us.median / ours:.2f} x"
    return f"{result.contestant} {result.us.median:.2f} us{ratio}"


def _rate(measured: Spread) -> str:
    figures = (measured.median, measured.lower, measured.upper)
    median, lower, upper = (f"{figure / 1e12:.3f}" for figure in figures)
    return f"{median} TB/s [{lower}, {upper}]"
