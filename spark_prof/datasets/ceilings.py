"""Finds the measured ceilings of the GPU that a recording is of."""

from __future__ import annotations

from pathlib import Path

from spark_prof.analyzers.roofline.ceilings import device_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.measured import Measured, measured_for


def ceilings_for(bundle: Bundle, rank: int | None, file: Path | None = None) -> Measured | None:
    """What `spark-prof doctor --measure` kept of the GPU of a rank; None where it kept nothing.

    Args:
        bundle: the recording.
        rank: the rank, the lowest one if None.
        file: what a person named, else the latest one that is kept on this machine.

    Raises:
        CommandError: the file cannot be read, or was measured on another device.
    """
    if rank is None:
        rank = bundle.ranks[0] if bundle.ranks else 0
    return measured_for(device_of(bundle.facts(rank))[0], file)
