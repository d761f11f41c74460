"""The machine that a measurement was made on, and the versions of what took part."""

from __future__ import annotations

import importlib
import platform
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

from spark_prof.kernels.bench.repeated import cache_bytes
from spark_prof.kernels.operands import architecture

_PACKAGES = ("spark-prof", "torch", "triton", "vllm", "cuda-core", "nvidia-cuda-nvrtc")
_NVML = ("pynvml", "vllm.third_party.pynvml")


@dataclass(frozen=True)
class Machine:
    """What a figure must be read with.

    Attributes:
        name: of the GPU as its driver tells it, or of the processor.
        architecture: what kernels are compiled for there, such as sm_90a; cpu for a processor.
        driver: its version, empty where nothing tells it.
        cuda: the CUDA version that torch was built with, empty for a build without.
        cache_bytes: of the last cache before the memory.
        date: of the measurement, ISO 8601 in UTC.
        versions: of what took part and is installed, by package.
    """

    name: str
    architecture: str
    driver: str
    cuda: str
    cache_bytes: int
    date: str
    versions: dict[str, str]


def machine_of(device: torch.device) -> Machine:
    """The machine as it is now."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return Machine(
        name=name,
        architecture=architecture(device),
        driver=_driver() if device.type == "cuda" else "",
        cuda=str(torch.version.cuda or ""),
        cache_bytes=cache_bytes(device),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions,
    )


def _driver() -> str:
    for module in _NVML:
        # Absent package, or a machine without NVML.
        with suppress(Exception):
            nvml = importlib.import_module(module)
            nvml.nvmlInit()
            found = nvml.nvmlSystemGetDriverVersion()
            return found.decode() if isinstance(found, bytes) else str(found)
    return ""
