"""Sections about where a gain came from, one set for each recorded batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_prof.analyzers.comparing.swap_attribution import (
    Attribution,
    ComponentGain,
    KernelGain,
    LayerGain,
    LayerProof,
)
from spark_prof.dashboards.compare_gate import numbers
from spark_prof.dashboards.section import Column, Section
from spark_prof.dashboards.units import (
    MISSING,
    clean,
    counted,
    figure,
    microseconds,
    share,
    spans,
)

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
    columns = (
        Column("Component"),
        *numbers("a", "b", "Saved", "+-", "Of the gain"),
        *numbers("Kernels a", "Kernels b", optional=True),
        Column("Swapped"),
    )
    total = found.explained_us if found.gain_us is None else found.gain_us
    if not has_gain:
        total = 0.0
    rows = [
        (
            clean(row.component),
            *_times(row),
            microseconds(row.noise_us),
            _part(row.saved_us, total),
            _number(row.kernels_a),
            _number(row.kernels_b),
            "yes" if row.touched else "",
        )
        for row in found.components
        if row.a_us or row.b_us
    ]
    if found.residual_us is not None:
        residual = (microseconds(found.residual_us), "", _part(found.residual_us, total))
        rows.append(("residual", "", "", *residual, "", "", ""))
    rows.append(
        ("step", *_step(found), "", "", _number(found.a.kernels), _number(found.b.kernels), "")
    )
    intro = (
        f"Mean decode step of {counted(found.batch_size, 'request')}: {found.a.steps:,} recorded "
        f"steps of a, {found.b.steps:,} of b, gaps before kernels included, time in which several "
        f"kernels run counted once. Taken off each gap: {microseconds(found.tracing_us)}, what "
        "tracing cost on side a.",
        *map(clean, found.notes),
    )
    title = f"Where it came from, batch {found.batch_size}"
    return Section(f"ab_components_{found.batch_size}", title, columns, tuple(rows), intro)


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
    table: dict[int | None, list[LayerGain]] = {}
    saved: dict[str, float] = {}
    for row in found.layers:
        table.setdefault(row.layer, []).append(row)
        if row.touched:
            saved[row.component] = saved.get(row.component, 0.0) + abs(row.saved_us)
    named = sorted(saved, key=lambda name: -saved[name])[:_MOST_COMPONENTS]
    columns = (
        Column("Layer"),
        *(Column(clean(name), "number") for name in named),
        *numbers("others", "Saved"),
    )
    rows = tuple(
        ("outside" if layer is None else str(layer), *_saved_in(rows, named))
        for layer, rows in table.items()
    )
    title = f"What each layer saves, batch {found.batch_size}"
    return Section(f"ab_layers_{found.batch_size}", title, columns, rows)


def kernels(found: Attribution) -> Section:
    """The kernels whose time changed most."""
    columns = (
        Column("Kernel", "name"),
        Column("Component"),
        *numbers("Calls a", "Calls b", optional=True),
        *numbers("a", "b", "Saved"),
    )
    rows = tuple(
        (
            clean(row.name),
            clean(row.component),
            _number(row.calls_a),
            _number(row.calls_b),
            *_times(row),
        )
        for row in found.kernels[:_MOST_KERNELS]
    )
    left = len(found.kernels) - len(rows)
    intro = (f"In a step. {counted(left, 'kernel')} changed less and are in the JSON.",)
    title = f"Kernels that changed most, batch {found.batch_size}"
    return Section(
        f"ab_kernels_{found.batch_size}", title, columns, rows, intro if left else ("In a step.",)
    )


def _ran(proofs: Sequence[LayerProof]) -> Iterator[tuple[str, str, str]]:
    slots: dict[tuple[str, str], list[LayerProof]] = {}
    for each in proofs:
        slots.setdefault((each.side, each.slot), []).append(each)
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
        holds = "no" if absent else "yes" if len(ran) == len(found) else "not told"
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
        return claim, "not told", "the step was not measured without recording"
    if found.residual_us is None:
        return claim, "not told", "the device waits for the host, which recording slows down"
    if not has_gain:
        return (
            claim,
            "not told",
            f"no gain to add up to; residual {microseconds(found.residual_us)}",
        )
    of_it = "" if found.residual_share is None else f", {share(found.residual_share)} of it"
    evidence = (
        f"{microseconds(found.explained_us)} of {microseconds(found.gain_us)}, residual "
        f"{microseconds(found.residual_us)}{of_it}"
    )
    holds = {True: "yes", False: "no", None: "not told"}[found.adds_up]
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
    saved = dict.fromkeys(named, 0.0)
    others = 0.0
    for row in rows:
        if row.component in saved:
            saved[row.component] += row.saved_us
        else:
            others += row.saved_us
    total = others + sum(saved.values())
    return tuple(microseconds(us) for us in (*saved.values(), others, total))


def _times(row: ComponentGain | KernelGain) -> tuple[str, str, str]:
    a, b, saved = (microseconds(us) for us in (row.a_us, row.b_us, row.saved_us))
    return a, b, saved


def _step(found: Attribution) -> tuple[str, str, str]:
    a = found.a.corrected_us if found.a.untraced_us is None else found.a.untraced_us
    b = found.b.corrected_us if found.b.untraced_us is None else found.b.untraced_us
    gain = found.explained_us if found.gain_us is None else found.gain_us
    return microseconds(a), microseconds(b), microseconds(gain)


def _part(us: float, total: float) -> str:
    return share(us / total) if total else MISSING


def _number(value: float) -> str:
    return figure(value, ",.0f" if value == round(value) else ",.1f")
