"""What shortens a stage of an engine's start for certain, and at what price."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartAdvice:
    """What shortens a stage for certain, and at what price."""

    stage: str  # one of `rules.start_stages.STAGES`
    what: str  # to do, as a sentence
    price: str  # what it costs, as a sentence; empty where nothing is lost
    reason: str  # how that is known


START_ADVICE: tuple[StartAdvice, ...] = (
    StartAdvice(
        "compile",
        "Keep vLLM's cache (~/.cache/vllm, or VLLM_CACHE_ROOT) between starts, in a container on a "
        "volume: a start with the same model, settings and version reads the compiled code from "
        "there.",
        "",
        "vLLM names the cache's directory in `Using cache directory`, and a later start writes "
        "`Directly load the compiled graph(s)` instead of compiling.",
    ),
    StartAdvice(
        "compile",
        "--enforce-eager compiles nothing.",
        "It captures no CUDA graphs either: the host launches every kernel of every step, which "
        "slows decoding.",
        "vLLM turns compilation and CUDA graphs off with that option.",
    ),
    StartAdvice(
        "deep-gemm",
        "VLLM_DEEP_GEMM_WARMUP=skip leaves it out.",
        "DeepGEMM's kernels are then compiled when a request first needs them.",
        "`model_executor/warmup/kernel_warmup.py` warms DeepGEMM up unless the variable is skip.",
    ),
    StartAdvice(
        "autotune",
        "--disable-flashinfer-autotune leaves it out.",
        "FlashInfer then takes its default kernels, which may be slower.",
        "vLLM writes so itself: `Pass --disable-flashinfer-autotune to skip autotuning`.",
    ),
    StartAdvice(
        "capture",
        "Fewer cudagraph_capture_sizes are captured sooner, and --enforce-eager captures none.",
        "A step whose size has no graph is launched kernel by kernel, which slows decoding.",
        "vLLM captures one graph a size and kind; the bars of the capture count them.",
    ),
)
"""What is free stands first; stages without a row have nothing that helps for certain."""
