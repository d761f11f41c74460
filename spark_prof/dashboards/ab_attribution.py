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


def sections(attribution: Attribution, *, has_gain: bool, each_layer: bool) -> Iterator[Section]:
    """All that is said of one attribution."""
    yield components(attribution, has_gain=has_gain)
    yield proof(attribution, has_gain=has_gain)
    if each_layer:
        yield layers(attribution)
    yield kernels(attribution)


def components(attribution: Attribution, *, has_gain: bool) -> Section:
    """What each component saves, and how far that is from what was measured."""
    gain = attribution.explained_us if attribution.gain_us is None else attribution.gain_us
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
    rows = [row for row in attribution.components if row.a_us or row.b_us]
    below: list[tuple[str, ...]] = []
    if attribution.residual_us is not None:
        part = share(attribution.residual_us / total) if total else MISSING
        below.append(
            ("residual", "", "", microseconds(attribution.residual_us), "", part, "", "", "")
        )
    step_us = [side.corrected_us if side.untraced_us is None else side.untraced_us
               for side in (attribution.a, attribution.b)]  # fmt: skip
    kernel_counts = (_number(attribution.a.kernels), _number(attribution.b.kernels))
    below.append(("step", *map(microseconds, (*step_us, gain)), "", "", *kernel_counts, ""))
    intro = (
        f"Mean decode step of {counted(attribution.batch_size, 'request')}: "
        f"{attribution.a.steps:,} recorded steps of a, {attribution.b.steps:,} of b, gaps before "
        "kernels included, time in which several kernels run counted once. Taken off each gap: "
        f"{microseconds(attribution.tracing_us)}, what tracing cost on side a.",
        *map(clean, attribution.notes),
    )
    title = f"Where it came from, batch {attribution.batch_size}"
    return table(f"ab_components_{attribution.batch_size}", title, rows, columns, intro, below)


def proof(attribution: Attribution, *, has_gain: bool) -> Section:
    """What is claimed, and whether the recordings say so."""
    columns = (Column("Claim", "prose"), Column("Holds"), Column("Evidence", "prose"))
    rows = [
        *_slot_claims(attribution.proofs),
        _moved(attribution.moved),
        *_other_kernels("appeared", attribution.appeared),
        *_other_kernels("vanished", attribution.vanished),
        _adds_up(attribution, has_gain),
    ]
    title = f"Proof, batch {attribution.batch_size}"
    return Section(f"ab_proof_{attribution.batch_size}", title, columns, tuple(rows))


def layers(attribution: Attribution) -> Section:
    """What each layer saves."""
    by_layer: dict[int | None, list[LayerGain]] = defaultdict(list)
    saved: dict[str, float] = defaultdict(float)
    for row in attribution.layers:
        by_layer[row.layer].append(row)
        if row.touched:
            saved[row.component] += abs(row.saved_us)
    named = sorted(saved, key=lambda name: -saved[name])[:_MOST_COMPONENTS]
    columns = (Column("Layer"), *numbers(*map(clean, named), "others", "Saved"))
    rows = tuple(
        ("outside" if layer is None else str(layer), *_saved_in(rows, named))
        for layer, rows in by_layer.items()
    )
    title = f"What each layer saves, batch {attribution.batch_size}"
    return Section(f"ab_layers_{attribution.batch_size}", title, columns, rows)


def kernels(attribution: Attribution) -> Section:
    """The kernels whose time changed most."""
    columns = (
        cells.Name("Kernel", "name"),
        cells.Text("Component", "component"),
        _Number("Calls a", "calls_a", optional=True),
        _Number("Calls b", "calls_b", optional=True),
        *_TIMES,
    )
    rows = attribution.kernels[:_MOST_KERNELS]
    intro = "In a step."
    if left := len(attribution.kernels) - len(rows):
        intro += f" {counted(left, 'kernel')} changed less and are in the JSON."
    title = f"Kernels that changed most, batch {attribution.batch_size}"
    return table(f"ab_kernels_{attribution.batch_size}", title, rows, columns, (intro,))


def _slot_claims(proofs: Sequence[LayerProof]) -> Iterator[tuple[str, str, str]]:
    slots: dict[tuple[str, str], list[LayerProof]] = defaultdict(list)
    for layer_proof in proofs:
        slots[layer_proof.side, layer_proof.slot].append(layer_proof)
    for (side, slot), layer_proofs in slots.items():
        present = [layer_proof for layer_proof in layer_proofs if layer_proof.ran == "ran"]
        absent = [layer_proof for layer_proof in layer_proofs if layer_proof.ran == "did not run"]
        evidence = [f"{len(present)} of {counted(len(layer_proofs), 'layer')}: {_where(present)}"]
        evidence += [f"not in {_where(absent)}"] if absent else []
        for names, word in (
            ([name for layer_proof in present for name in layer_proof.new], "new"),
            ([name for layer_proof in layer_proofs for name in layer_proof.left], "still there"),
        ):
            if names:
                evidence.append(f"{word}: {_names(names)}")
        evidence += list(
            dict.fromkeys(layer_proof.why for layer_proof in layer_proofs if layer_proof.why)
        )[:_MOST_NAMES]
        holds = "no" if absent else "yes" if len(present) == len(layer_proofs) else "unknown"
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


def _other_kernels(verb: str, gains: Sequence[KernelGain]) -> Iterator[tuple[str, str, str]]:
    if gains:
        evidence = _names([f"{row.name} ({row.component})" for row in gains])
        yield f"No kernel {verb} elsewhere", "no", clean(evidence)


def _adds_up(attribution: Attribution, has_gain: bool) -> tuple[str, str, str]:
    claim = "Components add up to the measured gain within 3 %"
    if attribution.gain_us is None:
        return claim, "unknown", "the step was not measured without recording"
    if attribution.residual_us is None:
        return claim, "unknown", "the device waits for the host, which recording slows down"
    residual = microseconds(attribution.residual_us)
    if not has_gain and (gain_us := attribution.device_gain_us):
        part = attribution.residual_us / gain_us
        evidence = (
            "no gain is told of the step, whose time the host makes; of what the device alone "
            f"saves: {microseconds(gain_us - attribution.residual_us)} of {microseconds(gain_us)}, "
            f"residual {residual}, {share(part)} of it"
        )
        return claim, "yes" if abs(part) <= WITHIN else "no", evidence
    if not has_gain:
        return claim, "unknown", f"no gain to add up to; residual {residual}"
    of_it = (
        "" if attribution.residual_share is None else f", {share(attribution.residual_share)} of it"
    )
    evidence = (
        f"{microseconds(attribution.explained_us)} of {microseconds(attribution.gain_us)}, "
        f"residual {residual}{of_it}"
    )
    holds = {True: "yes", False: "no", None: "unknown"}[attribution.adds_up]
    return claim, holds, evidence


def _where(proofs: Sequence[LayerProof]) -> str:
    numbers = [layer_proof.layer for layer_proof in proofs if layer_proof.layer is not None]
    outside = (
        ["outside of the layers"]
        if any(layer_proof.layer is None for layer_proof in proofs)
        else []
    )
    return ", ".join([spans(numbers)] * bool(numbers) + outside) or "none"


def _names(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    left = len(different) - _MOST_NAMES
    return ", ".join(different[:_MOST_NAMES]) + (f" and {left} more" if left > 0 else "")


def _saved_in(rows: Sequence[LayerGain], named: Sequence[str]) -> tuple[str, ...]:
    saved = dict.fromkeys((*named, ""), 0.0)
    for row in rows:
        saved[row.component if row.component in named else ""] += row.saved_us
    return tuple(map(microseconds, (*saved.values(), sum(saved.values()))))


def _number(value: float) -> str:
    return figure(value, ",.0f" if value == round(value) else ",.1f")


_Number = cells.Quantity("number", _number)
_TIMES = (cells.Time("a", "a_us"), cells.Time("b", "b_us"), cells.Time("Saved", "saved_us"))
