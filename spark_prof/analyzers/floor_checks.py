"""Which kernels and steps are faster than the roofline lets them be: their lower bound is wrong."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.model import Broken, Report
from spark_prof.analyzers.roofline.sure_floors import memory_us, surely_us
from spark_prof.rules.gpus import find_gpu

_LOOKED_AT = 1 << 16


def kernel_floors(report: Report, kernels: pd.DataFrame) -> list[Broken] | None:
    """Kernels that are faster than their bytes and their arithmetic allow.

    Args:
        report: the report.
        kernels: start_ns and end_ns of the kernels of its steps.
    """
    roofline = report.roofline
    if roofline is None or not any(row.floor_us for p in roofline.phases for row in p.rows):
        return None
    clock, tick = _clock(report), _tick_us(kernels)
    found = []
    for phase in roofline.phases:
        for row in phase.rows:
            least = surely_us(row, roofline.ceilings, clock) / row.calls
            if row.floor_us is None or least <= row.us + tick:
                continue
            name = f"{short_name(row.name)} ({row.role or row.component})"
            text = (
                f"{name} takes {row.us:,.2f} us a call in {phase.phase} steps, less than the "
                f"{least:,.2f} us that its bytes need at least: it reads other weights than those "
                "it is taken to read. Its floor is not known."
            )
            found.append(Broken(text, f"roofline.phases.rows: {phase.phase}, {name}",
                                (phase.phase, *row.place)))  # fmt: skip
    return found


def step_floors(report: Report) -> list[Broken] | None:
    """Phases whose median step is shorter than its bytes allow."""
    roofline = report.roofline
    phases = [p for p in roofline.phases if p.floor_us and p.step_us] if roofline else []
    if roofline is None or not phases:
        return None
    return [
        Broken(
            f"A {phase.phase} step takes {step:,.1f} us, less than the {least:,.1f} us that its "
            "bytes need at least: which weights it reads is not known. Its floor is not known.",
            f"roofline.phases: {phase.phase}",
            (phase.phase,),
        )
        for phase in phases
        for step in [phase.step_us or 0.0]
        for least in [memory_us(phase.streamed_bytes, roofline.ceilings)]
        if least > step
    ]


def _clock(report: Report) -> float:
    """Highest clock over the data sheet's; 1 where either is not known."""
    known = find_gpu(report.gpu.name, report.gpu.compute_capability)
    highest = report.gpu.clocks.highest_mhz if report.gpu.clocks else None
    if not known or not known.clock_hz or not highest:
        return 1.0
    return max(highest * 1e6 / known.clock_hz, 1.0)


def _tick_us(kernels: pd.DataFrame) -> float:
    """Step of the clock that times were read from: what a call may have taken longer."""
    took = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()[:_LOOKED_AT]
    return float(np.gcd.reduce(took)) / 1e3 if len(took) else 0.0
