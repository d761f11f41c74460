"""Whether a second copy of the swapped weights fits beside the model, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.sides import Side
from spark_prof.analyzers.comparing.swap_proof import COMPONENTS_OF_SLOT
from spark_prof.errors import CommandError
from spark_prof.rules.components import component_of
from spark_prof.swaps.swap_settings import Swap
from spark_prof.traces.checkpoint import BITS, Tensor, read_checkpoint

_USED = 0.9
"""vLLM's --gpu-memory-utilization before 0.31, the lower of its defaults."""
_BESIDE = 1 << 30
"""Bytes that activations, CUDA graphs and the smallest KV cache take at least."""
_BITS_OF_FORMAT = {"mxfp4": 4.25, "fp8": 8.0}
"""Of a weight, scales included."""


def check_memory(
    command: EngineCommand, a: Side, b: Side, free: int | None
) -> tuple[bool | None, str]:
    """Adds up the model and the copies of its weights, by the headers of its files.

    Args:
        free: bytes of the GPU's memory, None where that is not known.

    Returns:
        Whether both sides fit, None where that is not known, and the figures or why not.
    """
    if free is None:
        return (None, "memory for both sides was not checked: NVML tells of no GPU here")
    folder = _folder(command.model)
    tensors: tuple[Tensor, ...] = ()
    if folder is not None:
        with suppress(CommandError):
            tensors = read_checkpoint(folder).tensors
    if not tensors:
        return (
            None,
            "memory for both sides was not checked: the model's files, which tell how large its "
            "weights are, are not on this machine",
        )
    ranks = _number(command.option("--tensor-parallel-size") or command.option("-tp"), 1.0)
    share = _number(command.option("--gpu-memory-utilization"), _USED)
    weights = sum(tensor.bytes for tensor in tensors) / ranks
    copies = sum(_copy(swap, tensors) for swap in {*a.swaps, *b.swaps}) / ranks
    needed = weights + copies + _BESIDE
    line = (
        f"both sides need {needed / 1e9:.1f} GB ({weights / 1e9:.1f} GB of weights, "
        f"{copies / 1e9:.1f} GB for swapped ones), of {share * free / 1e9:.1f} GB that the engine "
        "may use"
    )
    return needed <= share * free, line


def _copy(swap: Swap, tensors: Iterable[Tensor]) -> float:
    """Bytes of what a swap holds beside vLLM's own weights."""
    component = COMPONENTS_OF_SLOT[swap.slot][0]
    found = [t for t in tensors if component_of(t.name.rpartition(".")[0], "") == component]
    if bits := _BITS_OF_FORMAT.get(swap.kernel):
        return sum(tensor.bytes * bits / BITS[tensor.dtype] for tensor in found)
    return sum(tensor.bytes for tensor in found)


def _folder(model: str) -> Path | None:
    """The model's folder, or that of Hugging Face's cache."""
    if not model:
        return None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    cached = hub / f"models--{model.replace('/', '--')}"
    return next((folder for folder in (Path(model), cached) if folder.is_dir()), None)


def free_bytes() -> int | None:
    """Free memory of the first GPU that an engine would use; None where NVML tells of none."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    with suppress(Exception):  # absent package, or no driver
        import pynvml as nvml

        nvml.nvmlInit()
        handle = (
            nvml.nvmlDeviceGetHandleByUUID(first)
            if first.startswith("GPU-")
            else nvml.nvmlDeviceGetHandleByIndex(int(first or 0))
        )
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    return None


def _number(text: str | None, otherwise: float) -> float:
    with suppress(ValueError):
        value = float(text or otherwise)
        return value if value > 0 else otherwise
    return otherwise
