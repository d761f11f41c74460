"""The comparison of two sides as one pure function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.comparison import Comparison, Side
from spark_prof.analyzers.comparing.kernel_time import charges_of
from spark_prof.analyzers.comparing.noise import FEWEST
from spark_prof.analyzers.comparing.phases import compare_phase
from spark_prof.analyzers.comparing.setup import setup_differences, unlike
from spark_prof.analyzers.views.kernel_columns import KernelColumns
from spark_prof.errors import CommandError

Int64s = npt.NDArray[np.int64]

_PHASES = ("decode", "prefill", "unknown")
_MIX = 0.005
"""A mix that explains a smaller share of the step is not worth a line."""


def compare(a: Side | Sequence[Side], b: Side | Sequence[Side]) -> Comparison:
    """Compares with the reference.

    Raises:
        CommandError: a recording has sums only, or they share no phase.
    """
    notes: list[str] = []
    sides = tuple(
        _starts((each,) if isinstance(each, Side) else tuple(each), letter, notes)
        for each, letter in ((a, "a"), (b, "b"))
    )
    for side in (*sides[0], *sides[1]):
        if not side.report.books:
            raise CommandError(
                f"{side.source} holds sums without steps, which cannot be compared; "
                "take a recording or a trace"
            )
    stable: dict[str, int] = {}
    known = _layers_of_all((*sides[0], *sides[1]))
    charges = tuple(
        [charges_of(_in_layers(side.kernels, known), side.steps, stable) for side in recordings]
        for recordings in sides
    )
    both = sides[0], sides[1]
    found = [compare_phase(both, (charges[0], charges[1]), phase) for phase in _PHASES]
    phases = tuple(phase for phase in found if phase)
    first = sides[0][0], sides[1][0]
    if not phases:
        raise CommandError(
            f"{first[0].source} and {first[1].source} have no steps of one phase "
            f"({_phases(sides[0])} against {_phases(sides[1])}); record both the same way"
        )
    compared = Comparison(
        *first, phases, setup_differences(*first), (), (sides[0][1:], sides[1][1:])
    )
    return replace(compared, notes=(*_assumed(compared), *notes, *_notes(compared)))


def _layers_of_all(sides: Sequence[Side]) -> Int64s | None:
    """The layers that all recordings show; None where no report has one that is not known."""
    if not any(side.report.failed("layers-") for side in sides):
        return None
    shown = [{row.layer for row in side.report.layers if row.layer is not None} for side in sides]
    return np.array(sorted(set.intersection(*shown)), np.int64)


def _in_layers(kernels: KernelColumns, known: Int64s | None) -> KernelColumns:
    """The kernels, those of other layers in none: against nothing they would be a difference."""
    if known is None:
        return kernels
    layer = np.where(np.isin(kernels.layer, known), kernels.layer, -1).astype(np.int16)
    return replace(kernels, layer=layer)


def _starts(side: tuple[Side, ...], letter: str, notes: list[str]) -> tuple[Side, ...]:
    """The recordings of a side that are of different engine starts; the notes get what is not."""
    kept: list[Side] = []
    for number, each in enumerate(side, start=1):
        name = f"Recording {number} of side {letter} ({each.source})"
        same = next((other for other in kept if _same_steps(each, other)), None)
        if same is not None:
            notes.append(f"{name} has the same steps as {same.source}: it counts once.")
            continue
        if kept and (other := unlike(kept[0], each)):
            notes.append(
                f"{name} is not of the same thing as {kept[0].source}: {other}. What these differ "
                "by counts as noise; compare like with like."
            )
        elif any(_process(each) and _process(each) == _process(other) for other in kept):
            notes.append(
                f"{name} is of the same engine start as another one of that side: how much starts "
                "differ cannot be told from these; start the engine anew for each recording."
            )
        kept.append(each)
    return tuple(kept)


def _same_steps(a: Side, b: Side) -> bool:
    columns = ["begin_ns", "finish_ns"]
    return a.steps[columns].equals(b.steps[columns]) and len(a.steps) > 0


def _process(side: Side) -> tuple[str, ...]:
    """What tells the engine's process from every other one; empty where nothing does."""
    known = [str(side.facts.get(name) or "") for name in ("boot", "pid")]
    return tuple(known) if all(known) else ()


def _assumed(found: Comparison) -> Iterator[str]:
    """That nothing is known of the starts of a side, and what decides it."""
    if not found.assumed:
        return
    counts = [len(side) for side in found.sides]
    which = "One recording a side" if max(counts) == 1 else "One recording on a side"
    yield (
        f"{which}: engine starts are taken to differ by up to {100 * found.assumed:g} % (standard "
        "deviation); give several starts a side (spark-prof compare A1,A2,A3 B1,B2,B3) to decide "
        "smaller differences."
    )


def _phases(sides: Sequence[Side]) -> str:
    names = {name for side in sides for name in side.steps["phase"].astype(str)}
    return " and ".join(sorted(names)) or "none"


def _notes(found: Comparison) -> Iterator[str]:
    a, b = found.a, found.b
    every = [each for side in found.sides for each in side]
    if len({each.report.run.units for each in every}) > 1:
        yield "One side is a GPU's kernels, the other a CPU engine's operators: no kernel matches."
    for each in every:
        for text in each.report.failed("layers-"):
            yield f"{each.source}: {text} Nothing is compared by these layers."
    if b.report.run.model != a.report.run.model:
        yield f"The models differ: {a.report.run.model} against {b.report.run.model}."
    if a.report.run.backend != b.report.run.backend:
        yield (
            f"{a.report.run.backend or 'unknown'} watched a and {b.report.run.backend or 'unknown'}"
            " watched b: what watching costs is part of the difference."
        )
    several = any(len(side) > 1 for side in found.sides)
    for phase in found.phases:
        if phase.fewest < FEWEST["median"]:
            yield (
                f"A {'recording' if several else 'side'} has only {phase.fewest} {phase.phase} "
                f"steps; its interval says little, and a gate needs {FEWEST['median']}."
            )
        if not phase.alike:
            what = "batch size" if phase.phase == "decode" else "length of prompts"
            where = "in all recordings" if several else "on both sides"
            yield (
                f"No {what} occurs {where}: the difference between {phase.phase} steps "
                "contains that."
            )
        elif abs(phase.mix_us) > _MIX * phase.whole.a:
            yield (
                f"The sides ran {phase.phase} steps of different sizes, which explains "
                f"{phase.mix_us:+.1f} us of the {phase.whole.us:+.1f} us between their medians."
            )
    yield from _left_out(found)
    for letter, side in zip("ab", found.sides, strict=True):
        for number, each in enumerate(side, start=1):
            name = f"side {letter}" if len(side) == 1 else f"side {letter}, recording {number}"
            clocks = each.report.gpu.clocks
            if clocks and clocks.throttled:
                held = ", ".join(clocks.throttled)
                yield f"The GPU's clock was held down on {name} ({held})."
            if "mixed" in set(each.steps["phase"].astype(str)):
                yield f"{name.capitalize()} has mixed steps, which are not compared."
    yield from _lost(found)


def _left_out(found: Comparison) -> Iterator[str]:
    """The phases that some recordings of a side have and others lack."""
    compared = {phase.phase for phase in found.phases}
    for letter, side in zip("ab", found.sides, strict=True):
        for phase in _PHASES:
            has = [phase in set(each.steps["phase"].astype(str)) for each in side]
            if phase not in compared and any(has) and not all(has):
                lacking = has.index(False) + 1
                yield (
                    f"Recording {lacking} of side {letter} has no {phase} steps: "
                    "these are not compared."
                )


def _lost(found: Comparison) -> Iterator[str]:
    """What limits the figures of one side and not those of the other."""
    notes = [
        list(dict.fromkeys(note for each in side for note in each.report.notes))
        for side in found.sides
    ]
    for letter, own, other in (("a", *notes), ("b", *notes[::-1])):
        yield from (f"Side {letter}: {note}" for note in own if note not in other)
