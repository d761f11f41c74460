"""What a Kineto trace lacks, in words."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.traces.readers.kineto_collect import Collected
from spark_prof.traces.readers.kineto_facts import accelerator_of, is_amd
from spark_prof.traces.readers.kineto_launches import Launches


def why_refused(found: Collected, launches: Launches, name: str) -> str:
    """Why a trace without work on a GPU is of no use, empty where it may be of a CPU.

    Args:
        found: the trace.
        launches: what launched work.
        name: what the file is called.
    """
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
        found: the trace.
        gpu: what ran on its GPU.
        launches: what launched that.
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
