"""What a process of the engine holds of memory, from the kernel, torch's allocator and NVML.

Nothing here synchronizes or creates a CUDA context. It is read while an engine starts and when a
recording begins and ends, never in a step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark_prof.profiler.targets import models_of

_KIB = 1024
_STATUS = {
    "VmRSS": "rss", "VmHWM": "peak_rss", "VmSwap": "swap",
    "RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared",
}  # fmt: skip
_ROLLUP = {
    "Pss": "share", "Pss_Anon": "share_anonymous", "Pss_File": "share_file",
    "Pss_Shmem": "share_shared",
}  # fmt: skip
_MACHINE = {
    "MemTotal": "total", "MemFree": "free", "MemAvailable": "available", "Buffers": "buffers",
    "Cached": "cached", "Shmem": "shared", "SReclaimable": "kernel_cache",
}  # fmt: skip
_CGROUP = {"anon": "anonymous", "file": "file", "kernel": "kernel", "shmem": "shared"}
_CGROUPS = Path("/sys/fs/cgroup")


def host_memory(process: Path = Path("/proc/self"), *, shares: bool = True) -> dict[str, int]:
    """What a process holds of the host's memory, in bytes.

    Args:
        shares: also its share of pages that others map too (`share`), which takes the kernel a walk
            through all of its pages.
    """
    values = _kilobytes(process / "status", _STATUS)
    return values | (_kilobytes(process / "smaps_rollup", _ROLLUP) if shares else {})


def machine_memory() -> dict[str, Any]:
    """The host's memory, and that of this process's control group where it has one, in bytes."""
    values: dict[str, Any] = dict(_kilobytes(Path("/proc/meminfo"), _MACHINE))
    with suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").rpartition("::")[2].strip()
        folder = _CGROUPS / group.lstrip("/")
        folder = folder if (folder / "memory.stat").exists() else _CGROUPS
        rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        values["cgroup"] = {_CGROUP[name]: int(n) for name, n in rows if name in _CGROUP}
    return values


def _kilobytes(path: Path, names: Mapping[str, str]) -> dict[str, int]:
    """The lines "Name:   123 kB" of a file, in bytes by their new names."""
    values = {}
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition(":")
            if name in names and (words := rest.split()) and words[0].isdecimal():
                values[names[name]] = int(words[0]) * _KIB
    return values


def _in_use() -> int | None:
    """The host's memory in use, without what the kernel would give back."""
    values = _kilobytes(Path("/proc/meminfo"), _MACHINE)
    if not {"total", "available"} <= values.keys():
        return None
    return values["total"] - values["available"]


class MemoryGauge:
    """Reads what this process holds, the GPU's by one source as long as that answers.

    `read` tells `rss`, and on a GPU torch's `allocated` and `reserved` with their peaks, and what
    the process has `used` in all, in bytes, with the `source` of that: "process" for NVML's figure
    of this process, "only" for that of the GPU's only process (in a container NVML may know a
    process by another number), "growth" for what the GPU's use grew by since this gauge was made,
    and "host" for the same of the memory that the GPU shares with the host.
    """

    def __init__(self) -> None:
        self._before: dict[str, int] = dict(devices_in_use())
        self._host_before = _in_use()
        self._nvml: Any = None
        self._handle: Any = None
        self.shared = False  # whether GPU and host share one memory

    def read(self) -> dict[str, Any]:
        """What the process holds now."""
        values: dict[str, Any] = {"rss": host_memory(shares=False).get("rss", 0)}
        torch = _running_torch()
        if torch is None:
            return values
        values["allocated"] = torch.cuda.memory_allocated()
        values["reserved"] = torch.cuda.memory_reserved()
        values["peak_allocated"] = torch.cuda.max_memory_allocated()
        values["peak_reserved"] = torch.cuda.max_memory_reserved()
        uuid = self._open(torch)
        for source, question in (
            ("process", self._of_process), ("only", self._of_only_process),
            ("growth", lambda: self._growth(uuid)), ("host", self._host_growth),
        ):  # fmt: skip
            used = _answer(question)
            if used is not None:
                return values | {"used": used, "source": source}
        return values

    def read_all(self) -> dict[str, Any]:
        """As `read`, with peaks, the whole GPU and the host; takes some milliseconds."""
        values = self.read() | {"host": host_memory(), "machine": machine_memory()}
        torch = _running_torch()
        if torch is None:
            return values
        values["shared"] = self.shared
        values["gpu"] = int(torch.cuda.current_device())
        memory = _answer(lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        if memory is not None:
            names = ("total", "used", "free")
            values["device"] = {name: int(getattr(memory, name)) for name in names}
        values["processes"] = _answer(lambda: len(self._processes()))
        return values

    def _open(self, torch: Any) -> str:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        uuid = f"GPU-{properties.uuid}"
        if self._handle is None:
            self.shared = bool(getattr(properties, "is_integrated", False))
            with suppress(Exception):  # absent package, or a driver without NVML
                import pynvml

                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                self._nvml = pynvml
        return uuid

    def _processes(self) -> dict[int, int | None]:
        rows = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return {int(row.pid): row.usedGpuMemory for row in rows}

    def _of_process(self) -> int | None:
        return self._processes().get(os.getpid())

    def _of_only_process(self) -> int | None:
        processes = self._processes()
        return next(iter(processes.values())) if len(processes) == 1 else None

    def _growth(self, uuid: str) -> int | None:
        before = self._before.get(uuid)
        if before is None:
            return None
        return max(int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used) - before, 0)

    def _host_growth(self) -> int | None:
        now = _in_use()
        if not self.shared or now is None or self._host_before is None:
            return None
        return max(now - self._host_before, 0)


def held_by_runner(runner: Any) -> dict[str, int]:
    """Bytes of the KV cache, the model's weights, and those of a drafter that it has alone."""
    values = {}
    with suppress(Exception):
        caches = dict(_storages(getattr(runner, "kv_caches", ())))
        values["kv_cache"] = sum(caches.values())
    with suppress(Exception):
        (_, model), *drafters = models_of(runner)
        weights = dict(_storages([*model.parameters(), *model.buffers()]))
        values["weights"] = sum(weights.values())
        for _, drafter in drafters:
            storages = dict(_storages([*drafter.parameters(), *drafter.buffers()]))
            values["drafter"] = sum(size for at, size in storages.items() if at not in weights)
    return values


def _storages(value: Any) -> Iterator[tuple[int, int]]:
    """Address and size of the storages of tensors in nested lists."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _storages(item)
    elif hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()


def _running_torch() -> Any:
    """The package torch where it has a CUDA context here, else None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return torch


def devices_in_use() -> Iterator[tuple[str, int]]:
    """The bytes in use on every GPU by its UUID; none where NVML does not tell."""
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            yield uuid.decode() if isinstance(uuid, bytes) else str(uuid), used


def _answer(question: Callable[[], Any]) -> Any:
    """What NVML answers; None where it has no answer, as GB10's driver to some questions."""
    with suppress(Exception):
        return question()
    return None
