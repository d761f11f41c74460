"""What a GPU allows: measured on this machine, else from what is known of such GPUs.

And what kernels and steps surely take by that, and a roofline without floors that cannot hold.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
    totals,
)
from spark_prof.rules.gpus import GPUS, SourcedFigure, find_gpu
from spark_prof.rules.node_prices import DEPENDENT, NODE_PRICES, SERIAL, NodePrice
from spark_prof.traces.measured import MeasuredMachine
from spark_prof.vocabulary import PRECISIONS

_FROM_BYTES = (
    "needed_bytes", "bandwidth", "of_data_sheet", "of_reached", "floor_us", "limiter", "left_us",
    "left_ms_per_token", "amplification",
)  # fmt: skip
"""What of a kernel's row stands on the bytes that it has to move."""
_LARGEST_L2 = max(gpu.l2_bytes or 0 for gpu in GPUS)
"""Of a GPU that nobody knows: no cache of the table is larger."""


def surely_us(row: RooflineRow, ceilings: Ceilings, clock: float = 1.0) -> float:
    """What all calls of a kernel in a step take at the very least, in us.

    A floor stands on the bandwidth that a reader reaches and on every byte. A kernel may be faster:
    up to the data sheet's bandwidth, and by what lay in the level-2 cache when the step began,
    which is no more than the cache holds. Activations never have to come from memory. Arithmetic
    counts at the GPU's highest clock; at a peak that was measured, which a better kernel may pass,
    not at all.

    Args:
        clock: highest clock over the one that the data sheet's peaks stand on.
    """
    least_us = memory_us(row.streamed_bytes * row.calls, ceilings)
    if row.limiter == "arithmetic" and not ceilings.peaks_measured:
        least_us = max(least_us, (row.floor_us or 0.0) * row.calls / clock)
    return least_us


def memory_us(streamed: float, ceilings: Ceilings) -> float:
    """What reading so many bytes of weights and KV cache in a step takes at the very least."""
    fastest = max((b.value for b in (ceilings.data_sheet, ceilings.reached) if b), default=0.0)
    cached = ceilings.l2_bytes if ceilings.l2_bytes is not None else _LARGEST_L2
    return max(streamed - cached, 0.0) / fastest * 1e6 if fastest else 0.0


def without_floors(roofline: Roofline, kernels: Collection[tuple[object, ...]]) -> Roofline:
    """The roofline without the floors of some kernels; one above its measured time is that time.

    What is cut off stays as `over_us` of the phase.

    Args:
        kernels: phase, component, role and name of those whose floor cannot hold.
    """
    cut = replace(
        roofline, phases=tuple(_without_wrong_floors(phase, kernels) for phase in roofline.phases)
    )
    wrong = {component for phase, component, *_ in kernels if phase == "decode"}
    if not wrong:
        return cut
    total = cut.decode.streamed_bytes if cut.decode else 0.0
    believed = (row for row in roofline.weights if row.component not in wrong)
    shared = tuple(replace(w, share=w.bytes / total if total else 0.0) for w in believed)
    return replace(cut, weights=shared)


def without_step_floors(roofline: Roofline, phases: Collection[object]) -> Roofline:
    """The roofline without what steps of those phases need; no other floor is above its step."""
    bounded = []
    for phase in roofline.phases:
        if phase.phase in phases:
            phase = replace(phase, floor_us=None, needed_bytes=0.0, streamed_bytes=0.0, unplaced=(),
                            over_us=0.0)  # fmt: skip
        elif phase.step_us and phase.floor_us and phase.floor_us > phase.step_us:
            over_us = phase.over_us + phase.floor_us - phase.step_us
            phase = replace(phase, floor_us=phase.step_us, over_us=over_us)
        bounded.append(phase)
    weights = () if "decode" in phases else roofline.weights
    return replace(roofline, phases=tuple(bounded), weights=weights)


def _without_wrong_floors(
    phase: RooflinePhase, kernels: Collection[tuple[object, ...]]
) -> RooflinePhase:
    unknown: dict[str, Any] = dict.fromkeys(_FROM_BYTES)
    rows = [
        replace(row, streamed_bytes=0.0, operations=0.0, what="", product="", weights=(),
                basis="", expected=False, **unknown)
        if (phase.phase, *row.place) in kernels
        else row if (row.floor_us or 0.0) <= row.us else replace(row, floor_us=row.us)
        for row in phase.rows
    ]  # fmt: skip
    if rows == list(phase.rows):
        return phase
    over_us = sum(
        (row.floor_us - row.us) * row.calls
        for row in phase.rows
        if row.floor_us and row.floor_us > row.us and (phase.phase, *row.place) not in kernels
    )
    sums: dict[str, Any] = totals(phase.rows, (), 0.0)
    sizes: dict[str, Any] = totals(rows, phase.unplaced, phase.needed_bytes - sums["needed_bytes"])
    return replace(phase, rows=tuple(rows), over_us=over_us, **sizes)


def ceilings_of(
    gpu: str, compute_capability: str | None, measured: MeasuredMachine | None = None
) -> Ceilings:
    """The ceilings of a GPU, or of a processor that was measured.

    Args:
        measured: what `spark-prof doctor --measure` kept; of another device it is not used.
    """
    if measured is not None and measured.device != gpu:
        measured = None
    data_sheet = find_gpu(gpu, compute_capability)
    peaks = {name: figure.value for name, figure in data_sheet.peaks.items()} if data_sheet else {}
    reached = data_sheet.read_bandwidth if data_sheet else None
    source, clocks, smallest = data_sheet.source if data_sheet else "", "", None
    peaks_measured = False
    if measured is not None:
        measured_peaks = {p: rate for p in PRECISIONS if (rate := measured.value(p)) is not None}
        peaks |= measured_peaks
        source = f"measured here on {measured.taken}" if measured_peaks else source
        peaks_measured = bool(measured_peaks)
        clocks, smallest = measured.after.words, measured.value("launch_graph")
        for measurement in measured.measurements:
            if measurement.quantity == "read":
                reached = SourcedFigure(
                    measurement.value, f"measured here on {measured.taken}: {measurement.how}"
                )
    return Ceilings(
        gpu,
        data_sheet.memory_bandwidth if data_sheet else None,
        reached,
        tuple(peaks.items()),
        source,
        clocks,
        None if smallest is None else smallest * 1e6,
        data_sheet.l2_bytes if data_sheet else None,
        peaks_measured,
        _measured_price(measured) or (NODE_PRICES.get(data_sheet.short) if data_sheet else None),
    )


def _measured_price(measured: MeasuredMachine | None) -> NodePrice | None:
    """The least of the chains of each kind; None where a machine has no chain of both."""
    prices = [
        [us * 1e6 for name in names if (us := measured.value(name))]
        for names in (SERIAL, DEPENDENT)
        if measured
    ]
    if measured is None or not all(prices):
        return None
    serial, dependent = map(min, prices)
    return NodePrice(serial, dependent, f"measured here on {measured.taken}")
