"""What `spark-prof kernels` lists and checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_prof.dashboards import cells
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Section, document, table
from spark_prof.dashboards.units import MISSING, count, counted
from spark_prof.kernels.registry import ARCHITECTURES, ReplacementKernel
from spark_prof.kernels.tuning import TunedShape, TuningRun

if TYPE_CHECKING:
    from spark_prof.kernels.check.verdict import CheckVerdict

_SCHEMA = 1
_STATUS = ("passed", "failed", "skipped")
_MOST_FAILURES = 8  # that a page shows: the others are in the JSON
_LETTERS = (
    "Bytes: M tokens, N rows and K columns of a weight, w bytes a weight with its scales. Of "
    "experts: D of E take part, k a token, H hidden and I intermediate size."
)


def render_kernels(
    kernels: Sequence[ReplacementKernel], runs: Sequence[TuningRun], layout: Layout
) -> str:
    """Draws the list of replacement kernels, and what was measured of them."""
    number = [("kernels", count(len(kernels)))]
    drawn = (_kernels(kernels, runs), _proofs(kernels))
    page = document("spark-prof: replacement kernels", number, drawn)
    record = [_listed(kernel, runs) for kernel in kernels]
    return draw(lambda: page, lambda: record, layout)


def _kernels(kernels: Sequence[ReplacementKernel], runs: Sequence[TuningRun]) -> Section:
    columns = (
        cells.Text("Name", "name"),
        cells.Text("Formats", lambda kernel: " ".join(kernel.formats)),
        cells.Prose("Sizes", "shapes"),
        cells.Prose("Computes", "does"),
        cells.Prose(
            "Tuned on",
            lambda kernel: ", ".join(dict.fromkeys(r.machine for r in _measured(kernel, runs))),
            missing=MISSING,
        ),
    )
    least = min((kernel.tokens[0] for kernel in kernels), default=0)
    most = min((kernel.tokens[1] for kernel in kernels), default=0)
    limited_names: dict[tuple[tuple[str, ...], int], list[str]] = defaultdict(list)
    for kernel in kernels:
        if (kernel.targets, kernel.tokens[1]) != (ARCHITECTURES, most):
            limited_names[kernel.targets, kernel.tokens[1]].append(kernel.name)
    intro = (
        f"For {least} to {most} tokens. The tests compile them for {', '.join(ARCHITECTURES)} and "
        "look at the machine code. Tuned on: whose measurements the dispatcher goes by."
    )
    exceptions = (
        f"{', '.join(names)}: for {' and '.join(targets)} alone, up to {tokens} tokens."
        for (targets, tokens), names in limited_names.items()
    )
    return table("kernels", "Kernels", kernels, columns, (intro, *exceptions))


def _proofs(kernels: Iterable[ReplacementKernel]) -> Section:
    names_by_proof: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kernel in kernels:
        names_by_proof[kernel.tolerance, kernel.bytes].append(kernel.name)
    columns = (
        cells.Prose("Name", lambda pair: ", ".join(pair[1])),
        cells.Prose("A result may be off by", lambda pair: pair[0][0]),
        cells.Prose("Bytes of a call", lambda pair: pair[0][1]),
    )
    return table(
        "proofs", "What each is held against", names_by_proof.items(), columns, (_LETTERS,)
    )


def _measured(kernel: ReplacementKernel, runs: Iterable[TuningRun]) -> list[TuningRun]:
    """Where any of its formats was; another kernel's row of the same code says nothing of it."""

    def is_its(work: TunedShape) -> bool:
        return work.kernel == kernel.tuned_as and work.format in kernel.formats

    return [run for run in runs if any(is_its(row.work) for row in run.rows)]


def _listed(kernel: ReplacementKernel, runs: Iterable[TuningRun]) -> dict[str, Any]:
    """The keys of the contract, then what else is known."""
    fewest, most = kernel.tokens
    return {
        "name": kernel.name,
        "slot": kernel.slot,
        "formats": list(kernel.formats),
        "shapes": {"fewest_tokens": fewest, "most_tokens": most, "sizes": kernel.shapes},
        "architectures": list(kernel.targets),
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
class KernelCheckRun:
    """One run of the checks."""

    kernels: tuple[ReplacementKernel, ...]  # what was asked for
    where: str  # on what it ran, in words
    device: str  # the type: cpu or cuda
    verdicts: tuple[CheckVerdict, ...]  # one a case

    def number(self, status: str, check: str | None = None) -> int:
        """How many cases ended like that, of all kernels or those of one name in `check`."""
        verdicts = (v for v in self.verdicts if check in (None, v.kernel))
        return sum(verdict.status == status for verdict in verdicts)


def render_checks(checked: KernelCheckRun, layout: Layout) -> str:
    """Draws a run of the checks in a format."""
    ended = {status: checked.number(status) for status in _STATUS}
    record = {
        "schema": _SCHEMA, "device": checked.device, "where": checked.where, **ended,
        "cases": checked.verdicts,
    }  # fmt: skip
    drawn = document(
        f"spark-prof kernels check: {checked.where}",
        [(status, count(number)) for status, number in ended.items()],
        (_failed(checked), _summary(checked), _skipped(checked)),
    )
    return draw(lambda: drawn, lambda: record, layout)


def _summary(checked: KernelCheckRun) -> Section:
    def used(check: str) -> float | None:
        errors = (v.used for v in checked.verdicts if v.kernel == check and v.used is not None)
        return max(errors, default=None)

    def stands_for(check: str) -> str:
        return ", ".join(kernel.name for kernel in checked.kernels if kernel.check == check)

    columns = (
        cells.Text("Cases of", str),
        cells.Count("Passed", lambda check: checked.number("passed", check)),
        cells.Count("Failed", lambda check: checked.number("failed", check)),
        cells.Count("Skipped", lambda check: checked.number("skipped", check)),
        cells.Share("Error used", used),
        cells.Prose("Stand for", stands_for),
    )
    intro = (
        "Error used: the largest error of an element, as a share of what its sum allows; 0.0 % is "
        f"the exact result rounded everywhere. Where it says {MISSING}, bits have to be equal."
    )
    bounded = any(verdict.used is not None for verdict in checked.verdicts)
    checks = dict.fromkeys(verdict.kernel for verdict in checked.verdicts)
    return table("checks", "Cases", checks, columns, (intro,) if bounded else ())


def _failed(checked: KernelCheckRun) -> Section:
    """What went wrong, each once: where a kernel does not compile all its cases say the same."""
    cases_by_failure: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verdict in checked.verdicts:
        if verdict.status == "failed":
            cases_by_failure[verdict.kernel, verdict.detail].append(verdict.case)
    columns = (
        cells.Text("Failed", lambda pair: pair[0][0]),
        cells.Count("Times", lambda pair: len(pair[1])),
        cells.Prose("First case", lambda pair: pair[1][0]),
        cells.Prose("What is wrong", lambda pair: pair[0][1]),
    )
    rows = list(cases_by_failure.items())
    note = f"The first {_MOST_FAILURES} of {len(rows)}; --format json has all."
    intro = (note,) if len(rows) > _MOST_FAILURES else ()
    return table("failed", "Failures", rows[:_MOST_FAILURES], columns, intro)


def _skipped(checked: KernelCheckRun) -> Section:
    why = [verdict.detail for verdict in checked.verdicts if verdict.status == "skipped"]
    columns = (
        cells.Text("Skipped", lambda reason: counted(why.count(reason), "case")),
        cells.Prose("Why", str),
    )
    return table("skipped", "Not checked", dict.fromkeys(why), columns)
