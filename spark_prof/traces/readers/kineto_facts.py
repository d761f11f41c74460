"""What a Kineto trace says about the process and the GPU that it is of, and what it lacks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.traces.readers.kineto_collect import Collected
from spark_prof.traces.readers.kineto_events import plain_text
from spark_prof.traces.readers.kineto_frames import Launches

ACCELERATORS = (
    ("mtia_", "mtia_ccp_events", "an MTIA"),
    ("hpu_", "hpu_op", "an HPU (Intel Gaudi)"),
    ("xpu_", "xpu_runtime", "an XPU (Intel GPU)"),
    ("async_npu", "async_npu", "an NPU (Huawei Ascend)"),
    ("privateuse1_", "privateuse1_runtime", "an accelerator with a PyTorch backend of its own"),
)
"""Categories of events that tell an accelerator whose work is not read, each with an example;
those of libkineto's ActivityType.cpp, and those of torch_npu."""

RANK_NAMES: tuple[tuple[str, str, int], ...] = (
    (r"(?<![a-z])rank[-_]?(\d{1,5})(?!\d)", "llama_rank-3.json.gz", 3),
    (
        r"(?i)^(?!.*(?<![a-z])(?:dp|pp)[-_]?0*[1-9]).*(?<![a-z])tp[-_]?(\d{1,5})(?!\d)",
        "1767189312-TP-5-DP-0.trace.json.gz",
        5,
    ),
    (r"(?<![a-z])worker[-_]?(\d{1,5})(?!\d)", "worker7_step_12.1694128201545.pt.trace.json", 7),
    (r"_(\d{1,3})(?:\.pt)?(?:\.trace)?\.json", "trace_4.json.gz", 4),
)
"""How file names tell a rank: pattern, an example, and the rank that it tells.

A tensor-parallel number is the rank only where nothing else is parallel.
"""

_TRAINS = ("autograd::engine::evaluate_function", "Optimizer.step#")
_AMD = ("AMD", "gfx", "Radeon", "Instinct")
_NVIDIA = ("NVIDIA", "Tesla", "GeForce", "Quadro")


def rank_of(found: Collected, file_name: str) -> int | None:
    """The rank that the trace itself tells, else the one in the file's name, else None."""
    told = _object(found.around.get("distributedInfo")).get("rank")
    if type(told) is int and told >= 0:
        return told
    for pattern, _, _ in RANK_NAMES:
        if match := re.search(pattern, file_name):
            return int(match.group(1))
    return None


def replica_of(file_name: str) -> dict[str, int]:
    """The fact `replica`: the data-parallel number in the file's name, if it is not the first."""
    match = re.search(r"(?i)(?<![a-z])dp[-_]?0*([1-9]\d{0,4})(?!\d)", file_name)
    return {"replica": int(match[1])} if match else {}


def accelerator_of(found: Collected) -> str:
    """The accelerator that the trace is of where it is no GPU of NVIDIA or AMD, else empty."""
    told = sorted(found.categories)
    return next((name for key, _, name in ACCELERATORS if any(c.startswith(key) for c in told)), "")


def is_amd(found: Collected) -> bool:
    """Whether it ran on an AMD GPU: its API is HIP's, or the device says so."""
    calls = np.unique(found.api.column("name")).tolist()
    return any(found.texts[number].startswith("hip") for number in calls) or _name(
        _device(found)
    ).startswith(_AMD)


def process_facts(found: Collected, launches: Launches) -> dict[str, Any]:
    """The facts of the process, with the keys of a recording's facts; what is unknown is left out.

    `training` is set where gradients are computed; `gpu.vendor` is AMD or NVIDIA; `cuda` is the
    version of the runtime, `cuda_driver` what the driver supports.
    """
    device = _device(found)
    amd = is_amd(found)
    gpu: dict[str, Any] = {}
    if name := _name(device):
        gpu["name"] = name
    major, minor = device.get("computeMajor"), device.get("computeMinor")
    if not amd and isinstance(major, int) and isinstance(minor, int):
        gpu["compute_capability"] = f"{major}.{minor}"
    for key, field in (("numSms", "multiprocessors"), ("totalGlobalMem", "memory_bytes")):
        if isinstance(device.get(key), int):
            gpu[field] = device[key]
    calls = [found.texts[number] for number in np.unique(found.api.column("name")).tolist()]
    if amd:
        gpu["vendor"] = "AMD"
    elif gpu.get("name", "").startswith(_NVIDIA) or any(c.startswith("cu") for c in calls):
        gpu["vendor"] = "NVIDIA"
    facts: dict[str, Any] = {"gpu": gpu} if gpu else {}
    for key, field in (("cuda_runtime_version", "cuda"), ("cuda_driver_version", "cuda_driver")):
        version = found.around.get(key)
        if isinstance(version, int) and version > 0:
            facts[field] = f"{version // 1000}.{version % 1000 // 10}"
    world = _object(found.around.get("distributedInfo")).get("world_size")
    if isinstance(world, int) and world > 0:
        facts["world_size"] = world
    if any(text.startswith(_TRAINS) for text in found.texts):
        facts["training"] = True
    pid = _process(found, launches)
    if pid is not None:
        facts["pid"] = pid
    return facts


def _device(found: Collected) -> dict[str, Any]:
    """The properties of the GPU that did most."""
    listed = found.around.get("deviceProperties")
    devices = (
        [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    )
    used, counts = np.unique(found.gpu.column("device"), return_counts=True)
    wanted = int(used[np.argmax(counts)]) if len(used) else 0
    return next((item for item in devices if item.get("id") == wanted), {})


def _name(device: dict[str, Any]) -> str:
    name = device.get("name")
    return plain_text(name) if isinstance(name, str) else ""


def _process(found: Collected, launches: Launches) -> int | None:
    """The process that launched most, or ran most operators."""
    threads = found.api.column("thread")[launches.rows]
    if not len(threads):
        threads = found.operators.column("thread")
    if not len(threads):
        return None
    used, counts = np.unique(threads, return_counts=True)
    pid = list(found.threads)[int(used[np.argmax(counts)])][0]
    return pid if isinstance(pid, int) and pid >= 0 else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def why_refused(found: Collected, launches: Launches, name: str) -> str:
    """Why a trace without work on a GPU is of no use, empty where it may be of a CPU."""
    accelerator = accelerator_of(found)
    if len(found.gpu) or not (accelerator or launches.idle):
        return ""
    if accelerator:
        return f"{name} is of {accelerator}; only NVIDIA and AMD GPUs, and CPUs, can be analyzed"
    return (f"{name} has no device activity, though it launched kernels: record again with "
            "ProfilerActivity.CUDA among the profiler's activities")  # fmt: skip


def what_is_lost(
    found: Collected, gpu: pd.DataFrame, launches: Launches, by_operator: int
) -> list[str]:
    """One line for each thing that the trace lacks.

    Args:
        by_operator: how many rows have their module from an operator for want of a launch.
    """
    orphans = int((launches.of_gpu < 0).sum())
    names = [name.lower() for name in found.texts]
    graph = np.array(["graphlaunch" in name for name in names], bool)
    api_name = np.append(found.api.column("name"), -1)[launches.of_gpu]
    replayed = int((np.append(graph, False)[api_name] & (launches.of_gpu >= 0)).sum())
    unnumbered = int((found.gpu.column("correlation") < 0).sum())
    several = gpu["device"].nunique()
    lines = (
        (found.dropped, "events have no usable name, time or duration and are left out"),
        (found.unmatched, "begin and end events have no counterpart and are left out"),
        (unnumbered, "kernels and copies have no correlation number"),
        (orphans, f"kernels and copies have no launch in the trace; {by_operator} of them have "
                  "their module from the operator with the same External id"),
        (launches.idle, "launches of kernels have no kernel in the trace"),
        (launches.shared, "correlation numbers belong to several launches: work is taken to be of "
                          "the latest before it"),
        (replayed, "kernels ran in CUDA graphs: the replay of a graph carries no layer"),
        (several if several > 1 else 0, "GPUs were used by this process"),
    )  # fmt: skip
    lost = [f"{count} {text}" for count, text in lines if count]
    if found.repaired:
        lost.append(
            "the file is no strict JSON (NaN, control characters or bytes that are no text)"
        )
    if is_amd(found):
        lost.append("AMD GPU: kernels are labelled by name only, no tensor-core evidence")
    if accelerator := accelerator_of(found):
        lost.append(f"recorded on {accelerator}: kernels are labelled by name only")
    if gpu.empty:
        stand = "operators of the CPU stand for them" if len(found.operators) else "nor an operator"
        lost.append(f"the trace has no device activity, {stand}")
    return lost
