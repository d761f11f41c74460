"""What a recording says about the GPU that ran it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_prof.analyzers.model import Clocks, Gpu

_HIGHEST_MHZ = 100_000
"""No GPU's clock is higher."""


def gpu_of(facts: Mapping[str, Any]) -> Gpu:
    """The GPU of a rank, or the processor of a CPU engine.

    Args:
        facts: what the rank's worker said about itself.
    """
    gpu = _object(facts, "gpu")
    name, capability = str(gpu.get("name") or "unknown"), gpu.get("compute_capability")
    vendor = gpu.get("vendor") or ("NVIDIA" if name.startswith("NVIDIA") else None)
    return Gpu(
        name,
        str(capability) if capability else None,
        str(vendor) if vendor else None,
        _clocks(_object(facts, "device_after_steps"), _object(gpu, "clocks_mhz")),
    )


def _clocks(after: Mapping[str, Any], before: Mapping[str, Any]) -> Clocks | None:
    clock = _megahertz(after.get("sm_mhz"))
    if clock is None:
        return None
    reasons = after.get("throttled")
    held_down = tuple(map(str, reasons)) if isinstance(reasons, list | tuple) else ()
    return Clocks(clock, _megahertz(before.get("sm_max")), held_down)


def _megahertz(value: object) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _HIGHEST_MHZ
    return value if known and isinstance(value, int) else None


def _object(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}
