"""What `spark-prof kernels` lists, checks and measures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_prof.dashboards import cells
from spark_prof.dashboards.render import draw
from spark_prof.dashboards.section import Section, document, table
from spark_prof.dashboards.units import MISSING, bandwidth, count, counted, microseconds
from spark_prof.kernels.registry import ARCHITECTURES, ReplacementKernel
from spark_prof.kernels.tuning import Run, Work

if TYPE_CHECKING:
    from spark_prof.kernels.bench.results import Cell, Report
    from spark_prof.kernels.check.verdict import Verdict

_SCHEMA = 1
_STATUS = ("passed", "failed", "skipped")
_MOST_FAILURES = 8  # that a page shows: the others are in the JSON
_LETTERS = (
    "Bytes: M tokens, N rows and K columns of a weight, w bytes a weight with its scales. Of "
    "experts: D of E take part, k a token, H hidden and I intermediate size."
)
_TITLES = {"dense": "Dense layers", "moe": "Mixtures of experts"}


def render_kernels(
    kernels: Sequence[ReplacementKernel],
    runs: Sequence[Run],
    kind: str,
    width: int = 100,
    color: bool = False,
) -> str:
    """Draws the list of replacement kernels, and what was measured of them."""
    number = [("kernels", count(len(kernels)))]
    drawn = (_kernels(kernels, runs), _proofs(kernels))
    found = document("spark-prof: replacement kernels", number, drawn)
    return draw(lambda: found, lambda: [_listed(k, runs) for k in kernels], kind, width, color)


def _kernels(kernels: Sequence[ReplacementKernel], runs: Sequence[Run]) -> Section:
    columns = (
        cells.Text("Name", "name"),
        cells.Text("Slot", "slot"),
        cells.Text("Formats", lambda kernel: " ".join(kernel.formats)),
        cells.Text("Tokens", lambda kernel: " to ".join(map(count, kernel.tokens))),
        cells.Prose("Sizes", "shapes"),
        cells.Prose("Computes", "does"),
        cells.Prose(
            "Tuned on",
            lambda kernel: ", ".join(dict.fromkeys(r.machine for r in _measured(kernel, runs))),
            missing=MISSING,
        ),
    )
    everywhere = ", ".join(ARCHITECTURES)
    intro = (
        f"The tests compile them for {everywhere} and look at the machine code. Tuned on: whose "
        "measurements the dispatcher goes by."
    )
    return table("kernels", "Kernels", kernels, columns, (intro,))


def _proofs(kernels: Iterable[ReplacementKernel]) -> Section:
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kernel in kernels:
        alike[kernel.tolerance, kernel.bytes].append(kernel.name)
    columns = (
        cells.Prose("Name", lambda pair: ", ".join(pair[1])),
        cells.Prose("A result may be off by", lambda pair: pair[0][0]),
        cells.Prose("Bytes of a call", lambda pair: pair[0][1]),
    )
    return table("proofs", "What each is held against", alike.items(), columns, (_LETTERS,))


def _measured(kernel: ReplacementKernel, runs: Iterable[Run]) -> list[Run]:
    """Where any of its formats was; another kernel's row of the same code says nothing of it."""

    def is_its(work: Work) -> bool:
        return work.kernel == kernel.tuned_as and work.format in kernel.formats

    return [run for run in runs if any(is_its(row.work) for row in run.rows)]


def _listed(kernel: ReplacementKernel, runs: Iterable[Run]) -> dict[str, Any]:
    """The keys of the contract, then what else is known."""
    fewest, most = kernel.tokens
    return {
        "name": kernel.name,
        "slot": kernel.slot,
        "formats": list(kernel.formats),
        "shapes": {"fewest_tokens": fewest, "most_tokens": most, "sizes": kernel.shapes},
        "architectures": list(ARCHITECTURES),
        "computes": kernel.does,
        "operation": kernel.operation,
        "reference": kernel.reference,
        "bytes": kernel.bytes,
        "tolerance": kernel.tolerance,
        "check": kernel.check,
        "measured": [
            {"architecture": run.architecture, "machine": run.machine, "date": run.date}
            for run in _measured(kernel, runs)
        ],
    }


@dataclass(frozen=True)
class Checked:
    """One run of the checks."""

    kernels: tuple[ReplacementKernel, ...]  # what was asked for
    where: str  # on what it ran, in words
    device: str  # the type: cpu or cuda
    verdicts: tuple[Verdict, ...]  # one a case

    def number(self, status: str, check: str | None = None) -> int:
        """How many cases ended like that, of all kernels or those of one name in `check`."""
        wanted = (v for v in self.verdicts if check in (None, v.kernel))
        return sum(verdict.status == status for verdict in wanted)


def render_checks(found: Checked, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a run of the checks in a format."""
    ended = {status: found.number(status) for status in _STATUS}
    record = {
        "schema": _SCHEMA, "device": found.device, "where": found.where, **ended,
        "cases": found.verdicts,
    }  # fmt: skip
    drawn = document(
        f"spark-prof kernels check: {found.where}",
        [(status, count(number)) for status, number in ended.items()],
        (_failed(found), _summary(found), _skipped(found)),
    )
    return draw(lambda: drawn, lambda: record, kind, width, color)


def _summary(found: Checked) -> Section:
    def used(check: str) -> float | None:
        known = (v.used for v in found.verdicts if v.kernel == check and v.used is not None)
        return max(known, default=None)

    def stands_for(check: str) -> str:
        return ", ".join(kernel.name for kernel in found.kernels if kernel.check == check)

    columns = (
        cells.Text("Cases of", str),
        cells.Count("Passed", lambda check: found.number("passed", check)),
        cells.Count("Failed", lambda check: found.number("failed", check)),
        cells.Count("Skipped", lambda check: found.number("skipped", check)),
        cells.Share("Error used", used),
        cells.Prose("Stand for", stands_for),
    )
    intro = (
        "Error used: the largest error of an element, as a share of what its sum allows; 0.0 % is "
        f"the exact result rounded everywhere. Where it says {MISSING}, bits have to be equal."
    )
    bounded = any(verdict.used is not None for verdict in found.verdicts)
    checks = dict.fromkeys(verdict.kernel for verdict in found.verdicts)
    return table("checks", "Cases", checks, columns, (intro,) if bounded else ())


def _failed(found: Checked) -> Section:
    """What went wrong, each once: where a kernel does not compile all its cases say the same."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verdict in found.verdicts:
        if verdict.status == "failed":
            alike[verdict.kernel, verdict.detail].append(verdict.case)
    columns = (
        cells.Text("Failed", lambda pair: pair[0][0]),
        cells.Count("Times", lambda pair: len(pair[1])),
        cells.Prose("First case", lambda pair: pair[1][0]),
        cells.Prose("What is wrong", lambda pair: pair[0][1]),
    )
    rows = list(alike.items())
    told = f"The first {_MOST_FAILURES} of {len(rows)}; --format json has all."
    intro = (told,) if len(rows) > _MOST_FAILURES else ()
    return table("failed", "Failures", rows[:_MOST_FAILURES], columns, intro)


def _skipped(found: Checked) -> Section:
    why = [verdict.detail for verdict in found.verdicts if verdict.status == "skipped"]
    columns = (
        cells.Text("Skipped", lambda reason: counted(why.count(reason), "case")),
        cells.Prose("Why", str),
    )
    return table("skipped", "Not checked", dict.fromkeys(why), columns)


def render_bench(found: Report, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a run of the benchmark in a format."""
    headline = (
        ("read", bandwidth(found.ceilings.read.median)),
        ("copied", bandwidth(found.ceilings.copy.median)),
        ("an empty launch in a graph", microseconds(found.ceilings.launch_us.median)),
    )
    sections = (*(_times(each, found) for each in _TITLES), _not_timed(found))
    drawn = document(f"spark-prof kernels bench: {found.machine.name}", headline, sections)
    record = asdict(found) | {"cells": [_timed(cell, found) for cell in found.cells]}
    return draw(lambda: drawn, lambda: record, kind, width, color)


def _times(kind: str, found: Report) -> Section:
    timed = [cell for cell in found.cells if cell.kind == kind]
    columns = (
        cells.Prose("Layer", "label"),
        cells.Text("Format", "work.format"),
        cells.Text("Size", lambda cell: _size(cell.work)),
        cells.Count("Tokens", "work.tokens"),
        cells.Time("Time", "ours"),
        cells.Share("Of read", lambda cell: _of_read(cell, found) if cell.weight_bytes else None),
        cells.Time("Floor", found.ceilings.floor_us),
        cells.Text("Fastest other", lambda cell: (cell.best_peer() or (MISSING,))[0]),
        cells.Time("Its time", lambda cell: (cell.best_peer() or (None, None))[1]),
        cells.Times("Gain", lambda cell: _gain(cell) or None),
    )
    intro = [
        "Medians inside a CUDA graph with a cold L2. Floor: the bytes at the measured read "
        "bandwidth and one launch. Of read: the share of that bandwidth that the weights reach."
    ]
    if gains := [gain for cell in timed if (gain := _gain(cell))]:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        intro.append(f"Geometric mean of the gain: {mean:.2f} x.")
    return table(kind, _TITLES[kind], timed, columns, intro)


def _size(work: Work) -> str:
    size = f"{work.rows} x {work.columns}"
    return f"{size}, {work.top_k} of {work.experts}" if work.experts > 1 else size


def _gain(cell: Cell) -> float | None:
    peer = cell.best_peer()
    return peer[1] / cell.ours if cell.ours and peer else None


def _of_read(cell: Cell, found: Report) -> float | None:
    return found.ceilings.share(cell, cell.ours) if cell.ours else None


def _not_timed(found: Report) -> Section:
    reasons: dict[str, list[str]] = defaultdict(list)
    for result in (result for cell in found.cells for result in cell.results):
        if result.failed:
            reasons[result.contestant].append(result.failed)
    for shape in found.left_out:
        reasons[shape.what].append(shape.why)
    columns = (
        cells.Text("Not timed", lambda pair: pair[0]),
        cells.Count("Times", lambda pair: len(pair[1])),
        cells.Prose("First reason", lambda pair: pair[1][0]),
    )
    return table("failures", "Not timed", reasons.items(), columns)


def _timed(cell: Cell, found: Report) -> dict[str, Any]:
    return asdict(cell) | {
        "floor_us": found.ceilings.floor_us(cell),
        "share_of_read": _of_read(cell, found),
        "gain": _gain(cell),
    }
