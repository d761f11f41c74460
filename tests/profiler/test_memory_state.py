"""What a process is said to hold, with torch and NVML made by hand, and of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.profiler.memory_state import (
    MemoryGauge,
    held_by_runner,
    host_memory,
    machine_memory,
)

MIB = 1 << 20


class Driver:
    """An NVML of one GPU, whose use and processes a test sets."""

    def __init__(self) -> None:
        self.used: int | None = 100 * MIB
        self.processes: dict[int, int | None] = {}

    def memory(self, _: str) -> Any:
        if self.used is None:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(total=1000 * MIB, used=self.used, free=1000 * MIB - self.used)

    def module(self) -> Any:
        return SimpleNamespace(
            nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=str, nvmlDeviceGetHandleByUUID=str,
            nvmlDeviceGetUUID=lambda _: "GPU-1", nvmlDeviceGetMemoryInfo=self.memory,
            nvmlDeviceGetComputeRunningProcesses=lambda _: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()
            ],
        )  # fmt: skip


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    cuda = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, current_device=lambda: 0,
        memory_allocated=lambda: 30 * MIB, memory_reserved=lambda: 40 * MIB,
        max_memory_allocated=lambda: 35 * MIB, max_memory_reserved=lambda: 45 * MIB,
        get_device_properties=lambda _: SimpleNamespace(uuid="1", is_integrated=0),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "pynvml", made.module())
    return made


def test_the_first_source_that_answers_tells_what_is_used(driver: Driver) -> None:
    gauge = MemoryGauge()
    driver.used = 170 * MIB
    driver.processes = {os.getpid(): 60 * MIB, 1: 5}
    assert (gauge.read()["used"], gauge.read()["source"]) == (60 * MIB, "process")
    driver.processes = {1: 65 * MIB}
    assert (gauge.read()["used"], gauge.read()["source"]) == (65 * MIB, "only")
    driver.processes = {os.getpid(): None, 1: None}
    assert (gauge.read()["used"], gauge.read()["source"]) == (70 * MIB, "growth")
    values = gauge.read_all()
    assert values["device"] == {"total": 1000 * MIB, "used": 170 * MIB, "free": 830 * MIB}
    assert (values["allocated"], values["peak_reserved"]) == (30 * MIB, 45 * MIB)
    assert values["processes"] == 2


def test_one_memory_is_told_by_the_host(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.used = None
    torch: Any = sys.modules["torch"]
    assert "used" not in MemoryGauge().read()
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1", is_integrated=1)
    )
    values = MemoryGauge().read_all()
    assert values["source"] == "host"
    assert values["shared"] is True
    assert "device" not in values


@pytest.mark.parametrize("name", ["torch", "pynvml"])
def test_without_a_package_there_is_less(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    values = MemoryGauge().read_all()
    assert ("allocated" in values) == (name == "pynvml")
    assert "used" not in values
    assert values["host"]["rss"] > 0


def test_the_parts_of_this_process_add_up() -> None:
    values = host_memory()
    resident = values["anonymous"] + values["file"] + values["shared"]
    assert resident == values["rss"]
    assert values["share"] <= values["peak_rss"]
    machine = machine_memory()
    assert machine["free"] < machine["total"]
    assert host_memory(Path("/proc/none")) == {}


def test_storages_of_caches_and_drafters_count_once() -> None:
    class Tensor:
        def __init__(self, at: int, size: int) -> None:
            self.at, self.size = at, size

        def untyped_storage(self) -> Any:
            return SimpleNamespace(data_ptr=lambda: self.at, nbytes=lambda: self.size)

    def model(*tensors: Tensor) -> Any:
        return SimpleNamespace(
            parameters=lambda: iter(tensors), buffers=lambda: iter(()), named_modules=dict
        )

    runner = SimpleNamespace(
        kv_caches=[Tensor(1, 10), [Tensor(1, 10), Tensor(2, 5)]],
        model=model(Tensor(3, 100), Tensor(4, 50)),
        drafter=SimpleNamespace(model=model(Tensor(4, 50), Tensor(5, 7))),
    )
    assert held_by_runner(runner) == {"kv_cache": 15, "weights": 150, "drafter": 7}
    assert held_by_runner(None) == {"kv_cache": 0}
