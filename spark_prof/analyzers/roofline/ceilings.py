"""What a GPU allows: measured on this machine, else from what is known of such GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_prof.analyzers.roofline.model import Bandwidth, Ceilings
from spark_prof.rules.gpus import find_gpu
from spark_prof.traces.measured import Measured
from spark_prof.vocabulary import PRECISIONS


def device_of(facts: Mapping[str, Any]) -> tuple[str, str | None]:
    """The recorded GPU or processor by its driver's name, and its compute capability.

    Args:
        facts: of a rank.
    """
    gpu = facts.get("gpu")
    gpu = gpu if isinstance(gpu, Mapping) else {}
    capability = gpu.get("compute_capability")
    return str(gpu.get("name") or "unknown"), str(capability) if capability else None


def ceilings_of(
    gpu: str, compute_capability: str | None, measured: Measured | None = None
) -> Ceilings:
    """The ceilings of a GPU, or of a processor that was measured.

    Args:
        gpu: its name as the driver tells it.
        compute_capability: None where unknown.
        measured: what `spark-prof doctor --measure` kept; of another device it is not used.
    """
    if measured is not None and measured.device != gpu:
        measured = None
    known = find_gpu(gpu, compute_capability)
    peaks = {name: figure.value for name, figure in known.peaks.items()} if known else {}
    reached = None
    if known and known.read_bandwidth:
        reached = Bandwidth(known.read_bandwidth.value, known.read_bandwidth.source)
    source = known.source if known else ""
    if measured is None:
        return Ceilings(
            gpu,
            Bandwidth(known.memory_bandwidth.value, source) if known else None,
            reached,
            tuple(peaks.items()),
            source,
            l2_bytes=known.l2_bytes if known else None,
        )
    found = {p: rate for p in PRECISIONS if (rate := measured.value(p)) is not None}
    read = next((m for m in measured.measurements if m.quantity == "read"), None)
    if read:
        reached = Bandwidth(read.value, f"measured here on {measured.taken}: {read.how}")
    smallest = measured.value("launch_graph")
    return Ceilings(
        gpu,
        Bandwidth(known.memory_bandwidth.value, source) if known else None,
        reached,
        tuple((peaks | found).items()),
        f"measured here on {measured.taken}" if found else source,
        measured.after.words,
        None if smallest is None else smallest * 1e6,
        known.l2_bytes if known else None,
    )
