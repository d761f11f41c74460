"""What is known about each kernel, one row each: the table of the page of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.model import RooflinePhase, RooflineRow
from spark_prof.analyzers.roofline.rows import together


@dataclass(frozen=True)
class KernelFacts:
    """One kernel and component.

    Attributes:
        place: of its name in the kernels' names, -1 where they do not have it.
        row: what the report says.
        calls: in a mean step.
        floor: what the roofline says of a mean call; None where it says nothing.
    """

    place: int
    row: KernelRow
    calls: float
    floor: RooflineRow | None


@dataclass(frozen=True)
class Wanted:
    """Which kernels are looked for; what is empty does not matter.

    Attributes:
        text: words that all stand in name, component, roles or conversion, in any case.
        engine: of the vocabulary.
        precision: of the arithmetic.
        component: of the vocabulary.
    """

    text: str = ""
    engine: str = ""
    precision: str = ""
    component: str = ""


def phase_of(report: Report) -> RooflinePhase | None:
    """The phase whose floors are shown: decode, or another where no step decodes."""
    found = report.roofline
    if found is None:
        return None
    return found.decode or next(iter(found.phases), None)


def facts_of(report: Report, names: Sequence[str]) -> tuple[KernelFacts, ...]:
    """All kernels of a report, what takes the most time first.

    Args:
        report: of a rank.
        names: of the rank's kernels, as `KernelColumns` has them.
    """
    places = {name: place for place, name in enumerate(names)}
    phase = phase_of(report)
    floors = together(phase.rows) if phase else {}
    steps = report.steps.count or 1
    return tuple(
        KernelFacts(
            places.get(row.name, -1), row, row.calls / steps, floors.get((row.name, row.component))
        )
        for row in sorted(report.kernels, key=lambda row: -row.us)
    )


def search(found: Sequence[KernelFacts], wanted: Wanted) -> tuple[KernelFacts, ...]:
    """Those that are looked for, in their order."""
    words = wanted.text.casefold().split()
    return tuple(facts for facts in found if _fits(facts.row, wanted, words))


def _fits(row: KernelRow, wanted: Wanted, words: Sequence[str]) -> bool:
    text = " ".join((row.name, row.component, *row.roles, row.conversion or "")).casefold()
    return (
        wanted.engine in ("", row.engine)
        and wanted.precision in ("", row.precision)
        and wanted.component in ("", row.component)
        and all(word in text for word in words)
    )
