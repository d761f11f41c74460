"""The comparison of two recordings as one pure function."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.comparing.model import Comparison, PhaseComparison, Side
from spark_prof.analyzers.comparing.noise import FEWEST
from spark_prof.analyzers.comparing.phases import compare_phase
from spark_prof.analyzers.comparing.ran import charges_of
from spark_prof.analyzers.comparing.setup import setup_differences
from spark_prof.errors import CommandError

__all__ = ["compare"]

_PHASES = ("decode", "prefill", "unknown")
_MIX = 0.005
"""A mix that explains a smaller share of the step is not worth a line."""


def compare(a: Side, b: Side) -> Comparison:
    """Compares a recording with the reference.

    Args:
        a: the reference.
        b: the other.

    Raises:
        CommandError: a side has sums only, or they share no phase.
    """
    for side in (a, b):
        if not side.report.books:
            raise CommandError(
                f"{side.source} holds sums without steps, which cannot be compared; "
                "take a recording or a trace"
            )
    stable: dict[str, int] = {}
    charges = tuple(charges_of(side.kernels, side.steps, stable) for side in (a, b))
    found = [compare_phase((a, b), (charges[0], charges[1]), phase) for phase in _PHASES]
    phases = tuple(phase for phase in found if phase)
    if not phases:
        raise CommandError(
            f"{a.source} and {b.source} have no steps of one phase ({_phases(a)} against "
            f"{_phases(b)}); record both the same way"
        )
    return Comparison(a, b, phases, setup_differences(a, b), tuple(_notes(a, b, phases)))


def _phases(side: Side) -> str:
    return " and ".join(map(str, side.steps["phase"].astype(str).unique())) or "none"


def _notes(a: Side, b: Side, phases: tuple[PhaseComparison, ...]) -> Iterator[str]:
    units = {side.report.run.units for side in (a, b)}
    if len(units) > 1:
        yield "One side is a GPU's kernels, the other a CPU engine's operators: no kernel matches."
    if all(side.report.run.model != a.report.run.model for side in (b,)):
        yield f"The models differ: {a.report.run.model} against {b.report.run.model}."
    if a.report.run.backend != b.report.run.backend:
        yield (
            f"{a.report.run.backend or 'unknown'} watched a and {b.report.run.backend or 'unknown'}"
            " watched b: what watching costs is part of the difference."
        )
    for phase in phases:
        few = min(sum(row.steps_a for row in phase.sizes), sum(row.steps_b for row in phase.sizes))
        if few < FEWEST["median"]:
            yield (
                f"A side has only {few} {phase.phase} steps; its interval says little, and a gate "
                f"needs {FEWEST['median']}."
            )
        if not phase.alike:
            what = "batch size" if phase.phase == "decode" else "length of prompts"
            yield (
                f"No {what} occurs on both sides: the difference between {phase.phase} steps "
                "contains that."
            )
        elif abs(phase.mix_us) > _MIX * phase.whole.a:
            yield (
                f"The sides ran {phase.phase} steps of different sizes, which explains "
                f"{phase.mix_us:+.1f} us of the {phase.whole.us:+.1f} us between their medians."
            )
    for side, name in ((a, "a"), (b, "b")):
        clocks = side.report.gpu.clocks
        if clocks and clocks.throttled:
            held = ", ".join(clocks.throttled)
            yield f"The GPU's clock was held down on side {name} ({held})."
        if "mixed" in set(side.steps["phase"].astype(str)):
            yield f"Side {name} has mixed steps, which are not compared."
    yield from _lost(a, b)


def _lost(a: Side, b: Side) -> Iterator[str]:
    """What limits one side's figures and not the other's."""
    for side, other, name in ((a, b, "a"), (b, a, "b")):
        for note in side.report.notes:
            if note not in other.report.notes:
                yield f"Side {name}: {note}"
