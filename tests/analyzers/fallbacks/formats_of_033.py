"""Log calls of vLLM 0.33.0: level, text with its placeholders, and file."""

from __future__ import annotations

from spark_prof.rules.vllm_versions import log_formats

_NO_FP4 = (
    "Your GPU does not have native support for FP4 computation but FP4 quantization is being used. "
    "Weight-only FP4 compression will be used leveraging the Marlin kernel."
)
BEGINNINGS = {
    "ar_backends": "Using %s all-reduce",
    "async_off": "Async scheduling is disabled because",
    "attention": "Using %s attention",
    "autotune": "Running FlashInfer autotune",
    "b12x_warm": "Warmed up %d b12x",
    "bf16": "Using FlashInfer %s",
    "breakable": "Breakable CUDA graph",
    "breakable_env": "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1. Set",
    "chunked": "Chunked prefill is enabled",
    "compiled": "%sCompiling a graph",
    "core_failed": "EngineCore failed to",
    "core_fatal": "EngineCore encountered a",
    "cudagraph_eager": "Cudagraph is disabled",
    "custom_ar": "Custom allreduce is disabled because your",
    "drafter": "Loading drafter",
    "dynamic_off": "Dynamic speculative decoding is not supported with the",
    "eager": "Enforce eager set, disabling torch.compile,",
    "eagle_head": "Detected EAGLE model with distinct lm_head",
    "emulation": "Using Nvfp4QuantizationEmulationTritonExperts MOE",
    "flashinfer_ar": "FlashInfer All Reduce is disabled because no",
    "fp8_scale": "In FP8 linear,",
    "gdn_prefill": "Using %s GDN prefill kernel (requested=%s,",
    "gdn_triton": "Falling back to the",
    "gemma_heads": "Gemma4 model has heterogeneous head dimensions %s. FA4",
    "graph_none": (
        "Piecewise compilation with empty splitting_ops does not contain piecewise cudagraph. "
        "Setting cudagraph_mode to NONE."
    ),
    "humming_gemm": "Using %s gemm",
    "kv": "%s KV cache",
    "kv_memory": "Available KV cache",
    "lacks_fp4": "This device lacks",
    "loaded": "Model loading took",
    "mtp_head": "Detected MTP model. Sharing target model lm_head",
    "nvfp4": "Using %s for NVFP4",
    "padding": "Add %d padding",
    "ready": (
        "init engine (profile, create kv cache, warmup model) took %.2f s (compilation: %.2f s)"
    ),
    "sampling": "Default vLLM sampling",
    "scheduled": "max_num_scheduled_tokens is set",
    "u_grammar": "Unexpected: grammar rejected",
    "u_kv": "Group index `%s`",
    "u_req": "Unexpected error pre-processing",
    "u_spec": "Speculative decoding (method=%s)",
    "u_tokens": "Encountered invalid prefix",
    "u_wsp": "WorkspaceManager already initialized",
    "warmup": "JIT kernel warmup finished",
    "worker_died": "Worker proc %s",
    "worker_failed": "WorkerProc failed to",
    "worker_hit": "WorkerProc hit an",
}
"""How those begin that the generated table has."""

FORMATS: dict[str, tuple[str, str, str]] = {
    **{
        name: next(row for row in log_formats("0.33.0") if row[1].startswith(beginning))
        for name, beginning in BEGINNINGS.items()
    },
    # Written by three modules, of which this one is for experts as well.
    "marlin_fp4": ("WARNING", f"{_NO_FP4} This may degrade performance", "marlin_utils_fp4.py"),
    "args": ("INFO", "non-default args: %s", "startup.py"),
    "captured": ("INFO", "Graph capturing finished in %.0f secs, took %.2f GiB", "model_runner.py"),
    "dynamo": ("INFO", "%sDynamo bytecode transform time: %.2f s", "backends.py"),
    "moe": ("INFO", "Using '%s' NvFp4 MoE backend out of potential backends: %s.", "nvfp4.py"),
    "mxfp4_moe": ("INFO", "Using '%s' Mxfp4 MoE backend.", "mxfp4.py"),
    "selected": ("INFO", "Selected %s for %s", "__init__.py"),
    "start": ("INFO", "Initializing a V1 LLM engine (v%s) with config: %s", "core.py"),
    "status": (
        "INFO",
        "Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
        "tokens/s, Running: %d reqs, Waiting: %d reqs, GPU KV cache usage: %.1f%%, Prefix cache "
        "hit rate: %.1f%%",
        "loggers.py",
    ),
    "status_preempted": (
        "INFO",
        "Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
        "tokens/s, Running: %d reqs, Waiting: %d reqs, Preemptions: %d, GPU KV cache usage: "
        "%.1f%%",
        "loggers.py",
    ),
    "weights": ("INFO", "Loading weights took %.2f seconds", "default_loader.py"),
}
"""Those, and others whose text is no constant of the sources or was left out as a rule reads it."""
