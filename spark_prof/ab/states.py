"""What the GPUs went through while steps were timed, in a few figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_prof.ab.machine import Sample
from spark_prof.ab.result import Machine, Range

__all__ = ["with_states"]


def with_states(machine: Machine, samples: Sequence[Sample]) -> Machine:
    """The machine with the ranges of what was seen of it, and of what was known before."""
    states = [sample.state for sample in samples]
    reasons = {reason for state in states for reason in state.throttled}
    return replace(
        machine,
        sm_mhz=_range(machine.sm_mhz, [state.sm_mhz for state in states]),
        memory_mhz=_range(machine.memory_mhz, [state.memory_mhz for state in states]),
        temperature_c=_range(machine.temperature_c, [state.temperature_c for state in states]),
        power_w=_range(machine.power_w, [state.power_w for state in states]),
        throttled=tuple(sorted({*machine.throttled, *reasons})),
    )


def _range(before: Range | None, values: Sequence[float | None]) -> Range | None:
    known = [float(value) for value in values if value is not None]
    if before is not None:
        known += [before.lowest, before.highest]
    return Range(min(known), max(known)) if known else None
