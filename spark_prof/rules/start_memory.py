"""Lines of a start that tell what takes the GPU's memory: one row a line, with examples as tests.

A pattern's groups are the parts and totals of `MEMORY_PARTS` and `MEMORY_TOTALS`, in GiB, and
`graphs_estimated`, which vLLM adds to the activations where it tells `consumed`.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.lazy_pattern import LazyPattern

MEMORY_PARTS: dict[str, str] = {
    "weights": "Weights",
    "consumed": "Weights and what torch does not manage",
    "non_torch": "What torch does not manage",
    "activation": "Peak of activations and workspaces",
    "graphs": "CUDA graphs",
    "kv_cache": "KV cache",
}
"""Parts in the order in which they are shown; `consumed` has weights and `non_torch` in it."""

MEMORY_TOTALS: dict[str, str] = {
    "budget": "What vLLM may take (--gpu-memory-utilization)",
    "free": "Free on the GPU before the start",
    "device": "The GPU's memory",
}

HELD_PARTS: dict[str, str] = {
    "weights": "Weights",
    "drafter": "Weights of the drafter alone",
    "kv_cache": "KV cache",
    "graphs": "CUDA graphs",
    "workspaces": "Workspaces and buffers",
    "activation": "Activations: what torch's allocator keeps for the next step",
    "context": "CUDA context, libraries and collectives",
    "later": "Kernels and libraries that were loaded later",
    "imports": "Python and the imported packages",
    "processes": "Devices and collectives",
    "load": "Loading the model",
    "profile": "The profiling run and what it compiled",
    "warm-up": "Warming up and capturing graphs",
    "page_cache": "Page cache",
}
"""Parts of a measured account in the order in which they are shown; those of a process's memory of
the host are what each stage of its start added."""

TOLD_BY: dict[str, str] = {
    "process": "NVML's figure of this process",
    "only": "NVML's figure of the GPU's only process",
    "growth": "NVML: what the GPU's use grew by since the process began",
    "host": "/proc/meminfo: what the use of the one memory grew by since the process began",
    "torch": "torch's allocator, which does not know of CUDA's context and libraries",
    "rss": "/proc: the resident memory of the process",
    "meminfo": "/proc/meminfo: all memory that is not free",
}
"""Who tells the total of an account."""


@dataclass(frozen=True)
class MemoryLine:
    """One kind of line."""

    id: str
    word: str  # stands in every such line
    pattern: LazyPattern
    examples: tuple[str, ...]


def _row(name: str, word: str, pattern: str, *examples: str) -> MemoryLine:
    return MemoryLine(name, word, LazyPattern(pattern), examples)


def _gib(name: str) -> str:
    return rf"(?P<{name}>-?\d+(?:\.\d+)?)"


MEMORY_LINES: tuple[MemoryLine, ...] = (
    _row("model-loaded", "odel loading took", rf"^Model loading took {_gib('weights')} GiB",
        "Model loading took 16.81 GiB memory and 45.124212 seconds"),
    _row("cache-available", "Available KV cache",
        rf"^Available KV cache memory: {_gib('kv_cache')} GiB",
        "Available KV cache memory: 74.25 GiB"),
    _row("cache-reserved", "memory for KV Cache",
        rf"^Initial free memory {_gib('free')} GiB, reserved "
        rf"{_gib('kv_cache')} GiB memory for KV Cache",
        "Initial free memory 123.01 GiB, reserved 1.0 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling."),
    _row("graphs", "Graph capturing",
        rf"^Graph capturing finished in [\d.]+ secs?, took {_gib('graphs')} GiB",
        "Graph capturing finished in 21 secs, took 1.32 GiB"),
    _row("graph-pool", "CUDA graph pool", r"^CUDA graph pool memory: [\d.]+ GiB \(actual\), "
        rf"{_gib('graphs_estimated')} GiB \(estimated\)",
        "CUDA graph pool memory: 0.06 GiB (actual), 0.05 GiB (estimated), difference: 0.01 GiB "
        "(22.6%)."),
    _row("usage", "Free memory on device",
        rf"^Free memory on device \({_gib('free')}/{_gib('device')} GiB\) on startup\. Desired GPU "
        rf"memory utilization is \([\d.]+, {_gib('budget')} GiB\)\. Actual usage is (?:"
        rf"{_gib('consumed')} GiB for consumed memory \(weights \+ non-torch\), |[\d.]+ GiB for "
        rf"weight, ){_gib('activation')} GiB for peak activation, (?:{_gib('non_torch')} GiB for "
        r"non-torch memory, )?",
        "Free memory on device (78.65/79.18 GiB) on startup. Desired GPU memory utilization is "
        "(0.8, 63.34 GiB). Actual usage is 13.03 GiB for weight, 1.12 GiB for peak activation, "
        "0.23 GiB for non-torch memory, and 0.06 GiB for CUDAGraph memory. Replace",
        "Free memory on device (138.2/139.81 GiB) on startup. Desired GPU memory utilization is "
        "(0.9, 125.83 GiB). Actual usage is 14.1 GiB for consumed memory (weights + non-torch), "
        "2.31 GiB for peak activation, and 0.4 GiB for CUDAGraph memory. Replace"),
)  # fmt: skip
