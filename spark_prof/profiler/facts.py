"""What a recorded run was: versions, engine configuration, environment, GPU and clocks."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any

from spark_prof.redact import is_secret, redacted_text
from spark_prof.traces.execution import Execution
from spark_prof.traces.measured import DeviceState
from spark_prof.traces.swapped import SWAPS

_PREFIXES = (
    "VLLM_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "OMP_", "MKL_",
    "HF_HUB_OFFLINE", "NVIDIA_", "MAX_JOBS", "LD_PRELOAD",
)  # fmt: skip
_CONFIGS = (
    "model_config", "cache_config", "parallel_config", "scheduler_config", "compilation_config",
    "speculative_config", "observability_config", "kernel_config", "attention_config",
)  # fmt: skip
_LONGEST = 2000
RUNNING_SWAPS = "spark_prof_running_swaps"
"""The attribute of a worker with swapped kernels that tells which run now (`swaps.install`)."""


def engine_facts(worker: Any) -> dict[str, Any]:
    """Reads the facts from a vLLM worker whose model is loaded."""
    import torch
    import vllm

    config = worker.vllm_config
    model_config = config.model_config
    hf_config = getattr(model_config, "hf_config", None)
    parallel = config.parallel_config
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "flashinfer": _installed("flashinfer-python"),
        "model": str(model_config.model),
        "model_config": json.loads(hf_config.to_json_string(use_diff=False)) if hf_config else {},
        "engine_config": {name: _plain(getattr(config, name, None)) for name in _CONFIGS},
        "quantization": str(getattr(model_config, "quantization", None) or ""),
        "dtype": str(getattr(model_config, "dtype", "")).removeprefix("torch."),
        "execution": execution_of(config.compilation_config),
        "model_runner": "V2" if getattr(worker, "use_v2_model_runner", False) else "V1",
        "async_scheduling": bool(getattr(config.scheduler_config, "async_scheduling", False)),
        "parallel": {
            "tensor": parallel.tensor_parallel_size,
            "pipeline": parallel.pipeline_parallel_size,
            "data": parallel.data_parallel_size,
        },
        "environment": visible_environment(os.environ),
        SWAPS: _swaps(worker),
        "gpu": device_facts(),
    }


def _swaps(worker: Any) -> list[dict[str, Any]]:
    """Which kernels of this package run now in place of vLLM's; none where none is swapped."""
    running_swaps = getattr(worker, RUNNING_SWAPS, None)
    return list(running_swaps()) if callable(running_swaps) else []


def _installed(package: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def visible_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that vLLM and its libraries read, without those of secrets."""
    return {
        name: redacted_text(value)
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) and not is_secret(name) and len(value) <= _LONGEST
    }


def execution_of(compilation: Any) -> str:
    """How vLLM runs the model, such as torch.compile (VLLM_COMPILE), CUDA graphs (FULL)."""
    values = (getattr(compilation, name, None) for name in ("mode", "cudagraph_mode"))
    mode, graphs = (getattr(value, "name", str(value)) for value in values)
    eager, replays = mode == "NONE", graphs not in ("NONE", "None")
    # vLLM sets it itself for models that it gives breakable graphs.
    breakable = replays and os.environ.get("VLLM_USE_BREAKABLE_CUDAGRAPH") == "1"
    mode_of_graphs = graphs if replays else ""
    return str(Execution(None if eager else mode, replays, mode_of_graphs, breakable, eager))


def _plain(config: Any) -> dict[str, str]:
    """A configuration object's fields as short strings, without those of secrets."""
    fields = getattr(config, "__dataclass_fields__", {})
    return {
        # A text is cut when it holds no secret any more: half of one would not be known.
        name: redacted_text(str(getattr(config, name, None)))[:_LONGEST]
        for name in fields
        if not is_secret(name)
    }


def device_facts() -> dict[str, Any]:
    """The GPU of this process with its clocks; the processor's name where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return {"name": processor(), "compute_capability": None}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    gpu: dict[str, Any] = {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", 0),
    }
    try:
        nvml, handle = nvml_gpu(f"GPU-{properties.uuid}")
        gpu["driver"] = str(nvml.nvmlSystemGetDriverVersion())
        gpu["clocks_mhz"] = {
            "sm": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "sm_max": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        }
        gpu["temperature_c"] = nvml.nvmlDeviceGetTemperature(handle, 0)
    except Exception as error:  # absent package, driver without NVML, GB10's missing counters
        gpu["clocks_missing"] = str(error)
    return gpu


def nvml_gpu(which: str) -> tuple[Any, Any]:
    """NVML, ready to be asked, and its handle of a GPU by number or by UUID, as "GPU-...".

    It raises what it likes: no package, a driver without NVML, no such GPU.
    """
    import pynvml as nvml

    nvml.nvmlInit()
    if which.startswith("GPU-"):
        return nvml, nvml.nvmlDeviceGetHandleByUUID(which)
    return nvml, nvml.nvmlDeviceGetHandleByIndex(int(which))


def device_now() -> dict[str, Any] | None:
    """Clocks, temperature and power of this worker's GPU, and what holds the clocks down.

    None where there is no GPU, or its driver tells no clock.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    state = device_state(f"GPU-{torch.cuda.get_device_properties(None).uuid}")
    return None if state.sm_mhz is None else asdict(state)


def processor() -> str:
    """The name of the CPU."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
    """The state of a GPU by its UUID, as "GPU-..."; what NVML does not tell is None."""
    if not uuid:  # a processor
        return DeviceState()
    try:
        nvml, handle = nvml_gpu(uuid)
    except Exception:  # absent package, or a driver without NVML
        return DeviceState()

    def answer_to(name: str, *kind: int) -> int | None:
        with suppress(Exception):  # GB10's driver has no answer to some questions
            return int(getattr(nvml, f"nvmlDeviceGet{name}")(handle, *kind))
        return None

    reasons = answer_to("CurrentClocksEventReasons")
    if reasons is None:  # its name before driver 535
        reasons = answer_to("CurrentClocksThrottleReasons")
    milliwatts = answer_to("PowerUsage")
    return DeviceState(
        sm_mhz=answer_to("ClockInfo", nvml.NVML_CLOCK_SM),
        memory_mhz=answer_to("ClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=answer_to("Temperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=None if milliwatts is None else milliwatts / 1e3,
        throttled=throttle_reasons(reasons or 0),
    )
