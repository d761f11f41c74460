"""Sections about where a gain came from, one set for each recorded batch size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from spark_prof.analyzers.comparing.swap_attribution import (
    WITHIN,
    Attribution,
    ComponentGain,
    KernelGain,
    LayerGain,
    LayerProof,
)
from spark_prof.dashboards import cells
from spark_prof.dashboards.compare_gate import numbers
from spark_prof.dashboards.section import Column, Section, table
from spark_prof.dashboards.units import MISSING, clean, counted, figure, microseconds, share, spans

_MOST_KERNELS = 12
_MOST_NAMES = 3
_MOST_COMPONENTS = 5


def sections(found: Attribution, *, has_gain: bool, each_layer: bool) -> Iterator[Section]:
    """All that is said of one attribution."""
    yield components(found, has_gain=has_gain)
    yield proof(found, has_gain=has_gain)
    if each_layer:
        yield layers(found)
    yield kernels(found)


def components(found: Attribution, *, has_gain: bool) -> Section:
    """What each component saves, and how far that is from what was measured."""
    gain = found.explained_us if found.gain_us is None else found.gain_us
    total = gain if has_gain else 0.0
    columns = (
        cells.Text("Component", "component"),
        *_TIMES,
        cells.Time("+-", "noise_us", optional=True),
        cells.Share("Of the gain", lambda row: row.saved_us / total if total else None),
        _Number("Kernels a", "kernels_a", optional=True),
        _Number("Kernels b", "kernels_b", optional=True),
        cells.Text("Swapped", lambda row: "yes" if row.touched else ""),
    )
    rows = [row for row in found.components if row.a_us or row.b_us]
    below: list[tuple[str, ...]] = []
    if found.residual_us is not None:
        part = share(found.residual_us / total) if total else MISSING
        below.append(("residual", "", "", microseconds(found.residual_us), "", part, "", "", ""))
    step_us = [side.corrected_us if side.untraced_us is None else side.untraced_us
               for side in (found.a, found.b)]  # fmt: skip
    ran = (_number(found.a.kernels), _number(found.b.kernels))
    below.append(("step", *map(microseconds, (*step_us, gain)), "", "", *ran, ""))
    intro = (
        f"Mean decode step of {counted(found.batch_size, 'request')}: {found.a.steps:,} recorded "
        f"steps of a, {found.b.steps:,} of b, gaps before kernels included, time in which several "
        f"kernels run counted once. Taken off each gap: {microseconds(found.tracing_us)}, what "
        "tracing cost on side a.",
        *map(clean, found.notes),
    )
    title = f"Where it came from, batch {found.batch_size}"
    return table(f"ab_components_{found.batch_size}", title, rows, columns, intro, below)


def proof(found: Attribution, *, has_gain: bool) -> Section:
    """What is claimed, and whether the recordings say so."""
    columns = (Column("Claim", "prose"), Column("Holds"), Column("Evidence", "prose"))
    rows = [
        *_ran(found.proofs),
        _moved(found.moved),
        *_other_kernels("appeared", found.appeared),
        *_other_kernels("vanished", found.vanished),
        _adds_up(found, has_gain),
    ]
    title = f"Proof, batch {found.batch_size}"
    return Section(f"ab_proof_{found.batch_size}", title, columns, tuple(rows))


def layers(found: Attribution) -> Section:
    """What each layer saves."""
    by_layer: dict[int | None, list[LayerGain]] = defaultdict(list)
    saved: dict[str, float] = defaultdict(float)
    for row in found.layers:
        by_layer[row.layer].append(row)
        if row.touched:
            saved[row.component] += abs(row.saved_us)
    named = sorted(saved, key=lambda name: -saved[name])[:_MOST_COMPONENTS]
    columns = (Column("Layer"), *numbers(*map(clean, named), "others", "Saved"))
    rows = tuple(
        ("outside" if layer is None else str(layer), *_saved_in(rows, named))
        for layer, rows in by_layer.items()
    )
    title = f"What each layer saves, batch {found.batch_size}"
    return Section(f"ab_layers_{found.batch_size}", title, columns, rows)


def kernels(found: Attribution) -> Section:
    """The kernels whose time changed most."""
    columns = (
        cells.Name("Kernel", "name"),
        cells.Text("Component", "component"),
        _Number("Calls a", "calls_a", optional=True),
        _Number("Calls b", "calls_b", optional=True),
        *_TIMES,
    )
    shown = found.kernels[:_MOST_KERNELS]
    intro = "In a step."
    if left := len(found.kernels) - len(shown):
        intro += f" {counted(left, 'kernel')} changed less and are in the JSON."
    title = f"Kernels that changed most, batch {found.batch_size}"
    return table(f"ab_kernels_{found.batch_size}", title, shown, columns, (intro,))


def _ran(proofs: Sequence[LayerProof]) -> Iterator[tuple[str, str, str]]:
    slots: dict[tuple[str, str], list[LayerProof]] = defaultdict(list)
    for each in proofs:
        slots[each.side, each.slot].append(each)
    for (side, slot), found in slots.items():
        ran = [each for each in found if each.ran == "ran"]
        absent = [each for each in found if each.ran == "did not run"]
        evidence = [f"{len(ran)} of {counted(len(found), 'layer')}: {_where(ran)}"]
        evidence += [f"not in {_where(absent)}"] if absent else []
        for names, word in (
            ([name for each in ran for name in each.new], "new"),
            ([name for each in found for name in each.left], "still there"),
        ):
            if names:
                evidence.append(f"{word}: {_names(names)}")
        evidence += list(dict.fromkeys(each.why for each in found if each.why))[:_MOST_NAMES]
        holds = "no" if absent else "yes" if len(ran) == len(found) else "unknown"
        claim = f"{slot}: the kernel of {side} ran in every layer"
        yield clean(claim), holds, clean("; ".join(evidence))


def _moved(moved: Sequence[ComponentGain]) -> tuple[str, str, str]:
    evidence = "; ".join(
        f"{row.component} {microseconds(row.a_us)} to {microseconds(row.b_us)}" for row in moved
    )
    return (
        "Components without a swap kept their time within 1 % of the step",
        "no" if moved else "yes",
        clean(evidence),
    )


def _other_kernels(what: str, found: Sequence[KernelGain]) -> Iterator[tuple[str, str, str]]:
    if found:
        evidence = _names([f"{row.name} ({row.component})" for row in found])
        yield f"No kernel {what} elsewhere", "no", clean(evidence)


def _adds_up(found: Attribution, has_gain: bool) -> tuple[str, str, str]:
    claim = "Components add up to the measured gain within 3 %"
    if found.gain_us is None:
        return claim, "unknown", "the step was not measured without recording"
    if found.residual_us is None:
        return claim, "unknown", "the device waits for the host, which recording slows down"
    residual = microseconds(found.residual_us)
    if not has_gain and (gain_us := found.device_gain_us):
        part = found.residual_us / gain_us
        evidence = (
            "no gain is told of the step, whose time the host makes; of what the device alone "
            f"saves: {microseconds(gain_us - found.residual_us)} of {microseconds(gain_us)}, "
            f"residual {residual}, {share(part)} of it"
        )
        return claim, "yes" if abs(part) <= WITHIN else "no", evidence
    if not has_gain:
        return claim, "unknown", f"no gain to add up to; residual {residual}"
    of_it = "" if found.residual_share is None else f", {share(found.residual_share)} of it"
    evidence = (
        f"{microseconds(found.explained_us)} of {microseconds(found.gain_us)}, residual "
        f"{residual}{of_it}"
    )
    holds = {True: "yes", False: "no", None: "unknown"}[found.adds_up]
    return claim, holds, evidence


def _where(proofs: Sequence[LayerProof]) -> str:
    numbers = [each.layer for each in proofs if each.layer is not None]
    outside = ["outside of the layers"] if any(each.layer is None for each in proofs) else []
    return ", ".join([spans(numbers)] * bool(numbers) + outside) or "none"


def _names(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    more = len(different) - _MOST_NAMES
    return ", ".join(different[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _saved_in(rows: Sequence[LayerGain], named: Sequence[str]) -> tuple[str, ...]:
    saved = dict.fromkeys((*named, ""), 0.0)
    for row in rows:
        saved[row.component if row.component in named else ""] += row.saved_us
    return tuple(map(microseconds, (*saved.values(), sum(saved.values()))))


def _number(value: float) -> str:
    return figure(value, ",.0f" if value == round(value) else ",.1f")


_Number = cells.Quantity("number", _number)
_TIMES = (cells.Time("a", "a_us"), cells.Time("b", "b_us"), cells.Time("Saved", "saved_us"))
