"""What limits the decode steps of a run: formats, memory, shapes, or the host."""

from __future__ import annotations

from spark_prof.analyzers.answers.model import Answer
from spark_prof.analyzers.answers.shares import shares
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS

_FEW_BUSY = 0.5
_ENOUGH_KNOWN = 0.5
"""Share of the kernel time whose needs must be known; a floor of less says nothing of a step."""


def formats(report: Report) -> Answer | None:
    """In which formats the weights are read, and what changing formats costs."""
    roofline = report.roofline
    per_token = report.conversions.us_per_token
    if not report.steps.decode or (roofline is None and per_token is None):
        return None
    parts = []
    if roofline and roofline.weights:
        stored = shares(
            ("in fewer bits than BF16" if row.quantized else row.dtype, row.share)
            for row in roofline.weights
        )
        parts.append(f"Of the weights that a decode step streams: {stored}.")
    if per_token is not None:
        parts.append(
            f"Kernels that only change a format take {per_token:.1f} us a token."
            if per_token
            else "No kernel only changes a format."
        )
    if not parts:
        return None
    basis = "Storage types of the live model's weights; kernels by their names."
    return Answer("formats", "Does it stay in its format from end to end?", " ".join(parts), basis)


def memory(report: Report) -> Answer | None:
    """How far the decode steps are from what memory and arithmetic allow."""
    decode = report.roofline.decode if report.roofline else None
    if report.roofline is None or decode is None or decode.of_floor is None:
        return None
    bandwidth = report.roofline.ceilings.bandwidth
    if bandwidth is None or not decode.step_us or decode.floor_us is None:
        return None
    placed, known = (
        us / decode.kernels_us if decode.kernels_us else 0.0
        for us in (decode.placed_us, decode.known_us)
    )
    if known < _ENOUGH_KNOWN:
        return None
    text = (
        f"A decode step needs {decode.streamed_bytes / 1e9:.2f} GB from memory, "
        f"{decode.floor_us / 1e3:.2f} ms at the ceiling; it takes {decode.step_us / 1e3:.2f} ms: "
        f"{100 * decode.of_floor:.0f} % of it is the floor."
    )
    basis = (
        f"{bandwidth.value / 1e9:,.0f} GB/s: {bandwidth.source.rstrip('.')}. "
        f"Which kernel needs what is proven for {100 * placed:.0f} % of the kernel time."
    )
    return Answer("memory", "How far is it from the memory limit?", text, basis)


def shapes(report: Report) -> Answer | None:
    """Which part of the time runs on a GPU that its grids do not fill."""
    found = report.shapes
    if found is None or not found.rows:
        return None
    known = [row for row in found.rows if row.busy is not None]
    total = sum(row.us for row in known)
    if not total:
        return None
    idle = sum(row.us for row in known if row.busy is not None and row.busy < _FEW_BUSY) / total
    mean = sum(row.us * row.busy for row in known if row.busy is not None) / total
    time = "decode kernel time" if report.steps.decode else "kernel time"
    text = (
        f"{100 * idle:.1f} % of the {time} runs on less than half of the GPU's "
        f"multiprocessors; over all kernels {100 * mean:.0f} % of them are busy."
    )
    covered = total / sum(row.us for row in found.rows)
    basis = f"Grids, registers and shared memory of {100 * covered:.0f} % of the time."
    return Answer("shapes", "Do the kernels fill the GPU at this batch size?", text, basis)


def overhead(report: Report) -> Answer | None:
    """What the host and the gaps between kernels take."""
    ledger = report.decode_ledger
    if ledger is None or not ledger.step_us:
        return None
    cpu = report.run.units == "op"
    idle, unit = ("no operator runs for", "operators") if cpu else ("the GPU waits", "kernels")
    text = (
        f"Of a median decode step of {ledger.step_us / 1e3:.2f} ms {idle} "
        f"{ledger.us(LAUNCH_GAPS) / 1e3:.2f} ms between {unit} and {ledger.us(HOST) / 1e3:.2f} ms "
        "before the first and after the last one."
    )
    basis = f"{ledger.steps} decode steps, each instant of them accounted for."
    return Answer("overhead", "What do launches and the host take?", text, basis)
