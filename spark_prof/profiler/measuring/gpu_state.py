"""Clocks, temperature and power of a GPU at one moment, by NVML."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spark_prof.traces.measured import DeviceState

THROTTLES: tuple[tuple[int, str], ...] = (
    (0x2, "application clocks"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "temperature (software)"),
    (0x40, "temperature (hardware)"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
)
"""Bits of nvmlClocksEventReasons, NVML API reference; 0x1 only says that the GPU is idle."""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """What holds the clocks down, by NVML's bits."""
    return tuple(words for bit, words in THROTTLES if bits & bit)


def device_state(uuid: str) -> DeviceState:
    """The state of that GPU; what NVML or the driver does not tell is None.

    Args:
        uuid: as NVML writes it, with "GPU-" before it; empty for a processor.
    """
    if not uuid:
        return DeviceState()
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # absent package, or a driver without NVML
        return DeviceState()
    reasons = _asked(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if reasons is None:  # its name before driver 535
        reasons = _asked(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    power = _asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return DeviceState(
        sm_mhz=_asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_mhz=_asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        temperature_c=_asked(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        # NVML tells milliwatts.
        power_w=None if power is None else power / 1e3,
        throttled=throttle_reasons(reasons or 0),
    )


def _asked(question: Callable[[], Any]) -> int | None:
    """An answer of NVML; GB10's driver has none to some questions."""
    with suppress(Exception):
        return int(question())
    return None
