"""Format strings of log calls of vLLM 0.33.0: file and line, level, text with its placeholders."""

from __future__ import annotations

FORMATS: dict[str, tuple[str, str, str]] = {
    "ar_backends": (
        "distributed/device_communicators/cuda_communicator.py:353", "INFO",
        "Using %s all-reduce backends (in dispatch order) for group '%s' out of potential "
        "backends: %s.",
    ),
    "args": (
        "entrypoints/common/startup.py:96", "INFO",
        "non-default args: %s",
    ),
    "async_off": (
        "config/vllm.py:1712", "WARNING",
        "Async scheduling is disabled because the V1 model runner does not support it with "
        "%s.",
    ),
    "attention": (
        "platforms/cuda.py:508", "INFO",
        "Using %s attention backend out of potential backends: %s.",
    ),
    "autotune": (
        "model_executor/warmup/kernel_warmup.py:371", "INFO",
        "Running FlashInfer autotune with %d tokens and token buckets %s.",
    ),
    "b12x_warm": (
        "model_executor/warmup/b12x_warmup.py:85", "INFO",
        "Warmed up %d b12x %s kernel signature(s).",
    ),
    "bf16": (
        "model_executor/layers/utils.py:706", "INFO",
        "Using FlashInfer %s for eligible unquantized BF16 GEMMs.",
    ),
    "breakable": (
        "compilation/breakable_cudagraph.py:294", "INFO",
        "Breakable CUDA graph enabled",
    ),
    "breakable_env": (
        "config/vllm.py:848", "INFO",
        "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1. Set VLLM_USE_BREAKABLE_CUDAGRAPH=0 to "
        "opt out.",
    ),
    "captured": (
        "v1/worker/gpu/model_runner.py:1163", "INFO",
        "Graph capturing finished in %.0f secs, took %.2f GiB",
    ),
    "chunked": (
        "config/scheduler.py:310", "INFO",
        "Chunked prefill is enabled with max_num_batched_tokens=%d.",
    ),
    "compiled": (
        "compilation/backends.py:417", "INFO",
        "%sCompiling a graph for compile range %s takes %.2f s",
    ),
    "core_failed": (
        "v1/engine/core.py:1584", "ERROR",
        "EngineCore failed to start.",
    ),
    "core_fatal": (
        "v1/engine/core.py:1586", "ERROR",
        "EngineCore encountered a fatal error.",
    ),
    "cudagraph_eager": (
        "config/vllm.py:2005", "INFO",
        "Cudagraph is disabled under eager mode",
    ),
    "custom_ar": (
        "distributed/device_communicators/custom_all_reduce.py:283", "WARNING",
        "Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P "
        "test failed. To silence this warning, specify disable_custom_all_reduce=True "
        "explicitly.",
    ),
    "drafter": (
        "v1/worker/gpu_model_runner.py:5010", "INFO",
        "Loading drafter model...",
    ),
    "dynamic_off": (
        "config/vllm.py:1100", "WARNING",
        "Dynamic speculative decoding is not supported with the '%s' speculative method on "
        "Model Runner V1. Disabling num_speculative_tokens_per_batch_size and falling back to"
        " static num_speculative_tokens=%d.",
    ),
    "dynamo": (
        "compilation/backends.py:1187", "INFO",
        "%sDynamo bytecode transform time: %.2f s",
    ),
    "eager": (
        "config/vllm.py:1778", "WARNING",
        "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. This "
        "is equivalent to setting -cc.mode=none -cc.cudagraph_mode=none and "
        "--kernel_config.enable_jit_warmup=False",
    ),
    "eagle_head": (
        "v1/spec_decode/llm_base_proposer.py:1543", "INFO",
        "Detected EAGLE model with distinct lm_head weights. Keeping separate lm_head weights"
        " from the target model.",
    ),
    "emulation": (
        "model_executor/layers/fused_moe/experts/nvfp4_emulation_moe.py:347", "WARNING",
        "Using Nvfp4QuantizationEmulationTritonExperts MOE backend. This will dequantize "
        "weights on the fly and may be slower than native quantized MOE. Consider using a "
        "device with native quantization support (e.g. Nvidia Blackwell) for better "
        "performance.",
    ),
    "flashinfer_ar": (
        "distributed/device_communicators/flashinfer_all_reduce.py:432", "INFO",
        "FlashInfer All Reduce is disabled because no supported backend is available for this"
        " process group.",
    ),
    "flashinfer_off": (
        "utils/flashinfer.py:99", "WARNING",
        "FlashInfer kernels are disabled: flashinfer-cubin is not installed and nvcc "
        "(CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda) or ninja (PATH) is missing. Set "
        "CUDA_HOME to a CUDA toolkit and put ninja on PATH, or run `vllm download-kernels`.",
    ),
    "fp8_scale": (
        "model_executor/layers/quantization/modelopt.py:2200", "WARNING",
        "In FP8 linear, the static input scale differs across parallel layers (e.g. q_proj, "
        "k_proj, v_proj). Collapsing them to the max will likely reduce accuracy. Consider a "
        "checkpoint with the same input scale for fused weights.",
    ),
    "gdn_prefill": (
        "model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:300", "INFO",
        "Using %s GDN prefill kernel (requested=%s, head_k_dim=%s).",
    ),
    "gdn_triton": (
        "model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:715", "INFO",
        "Falling back to the Triton GDN spec decode path: %s",
    ),
    "gemma_heads": (
        "model_executor/models/config.py:364", "INFO",
        "Gemma4 model has heterogeneous head dimensions %s. FA4 not available, forcing "
        "TRITON_ATTN backend.",
    ),
    "graph_none": (
        "config/compilation.py:1224", "WARNING",
        "Piecewise compilation with empty splitting_ops does not contain piecewise cudagraph."
        " Setting cudagraph_mode to NONE. Hint: If you are using attention backends that "
        "support cudagraph, consider manually setting cudagraph_mode to FULL or "
        "FULL_DECODE_ONLY to enable full cudagraphs.",
    ),
    "graph_other": (
        "config/compilation.py:1473", "WARNING",
        "Cudagraph mode %s requires piecewise capture, but the loaded model provides neither "
        "a compiled submodule nor breakable CUDA graphs. Overriding to %s.",
    ),
    "humming_config": (
        "model_executor/layers/fused_moe/experts/fused_humming_moe.py:706", "WARNING",
        "No tuning config found for shape %s, using default block_size=64",
    ),
    "humming_gemm": (
        "model_executor/layers/fused_moe/experts/fused_humming_moe.py:125", "INFO",
        "Using %s gemm for humming moe",
    ),
    "jit_monitor": (
        "utils/jit_monitor.py:84", "INFO",
        "Kernel JIT monitor activated; monitored JIT compilations during inference will use "
        "mode=%s.",
    ),
    "kv": (
        "v1/core/kv_cache_utils.py:1147", "INFO",
        "%s KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx",
    ),
    "kv_memory": (
        "v1/worker/gpu_worker.py:772", "INFO",
        "Available KV cache memory: %s GiB",
    ),
    "lacks_fp4": (
        "model_executor/layers/quantization/inc/schemes/inc_mxfp4_moe.py:207", "WARNING",
        "This device lacks native FP4 compute; using weight-only FP4 via the Marlin kernel, "
        "which may reduce performance for compute-heavy workloads.",
    ),
    "linear_none": (
        "model_executor/kernels/linear/__init__.py:401", "WARNING",
        "--linear-backend=%s has no kernel for this linear layer type; using automatic "
        "selection for that layer type.",
    ),
    "loaded": (
        "v1/worker/gpu/model_runner.py:428", "INFO",
        "Model loading took %s GiB memory and %.6f seconds",
    ),
    "marlin_fp4": (
        "model_executor/layers/quantization/utils/marlin_utils_fp4.py:340", "WARNING",
        "Your GPU does not have native support for FP4 computation but FP4 quantization is "
        "being used. Weight-only FP4 compression will be used leveraging the Marlin kernel. "
        "This may degrade performance for compute-heavy workloads.",
    ),
    "marlin_linear": (
        "model_executor/kernels/linear/nvfp4/marlin.py:34", "WARNING",
        "Your GPU does not have native support for FP4 computation but FP4 quantization is "
        "being used. Weight-only FP4 compression will be used leveraging the Marlin kernel. "
        "This may degrade performance for compute-heavy workloads.",
    ),
    "mixed": (
        "model_executor/kernels/linear/__init__.py:945", "INFO",
        "Using %s for mixed-precision linear",
    ),
    "modelopt_scale": (
        "model_executor/layers/quantization/modelopt.py:2086", "WARNING",
        "In NVFP4 linear, the global weight scale differs across parallel layers (e.g. "
        "q_proj, k_proj, v_proj). This will likely reduce accuracy. Consider a checkpoint "
        "with the same global NVFP4 scale for fused weights.",
    ),
    "moe": (
        "model_executor/layers/fused_moe/oracle/nvfp4.py:242", "INFO",
        "Using '%s' NvFp4 MoE backend out of potential backends: %s.",
    ),
    "moe_config": (
        "model_executor/layers/fused_moe/fused_moe.py:1165", "WARNING",
        "Using default MoE config. Performance might be sub-optimal! Config file not found at"
        " %s",
    ),
    "mtp_head": (
        "v1/spec_decode/llm_base_proposer.py:1550", "INFO",
        "Detected MTP model. Sharing target model lm_head weights with the draft model.",
    ),
    "mxfp4": (
        "model_executor/kernels/linear/__init__.py:1091", "INFO",
        "Using %s for MXFP4 GEMM",
    ),
    "mxfp4_fallback": (
        "model_executor/layers/fused_moe/oracle/mxfp4.py:555", "WARNING",
        "No Mxfp4 MoE backend supports activation=%s for the deployment configuration. "
        "Falling back to '%s' with BF16 activations.",
    ),
    "mxfp4_moe": (
        "model_executor/layers/fused_moe/oracle/mxfp4.py:539", "INFO",
        "Using '%s' Mxfp4 MoE backend.",
    ),
    "nvfp4": (
        "model_executor/kernels/linear/__init__.py:1303", "INFO",
        "Using %s for NVFP4 GEMM",
    ),
    "nvfp4_moe": (
        "model_executor/layers/fused_moe/oracle/nvfp4.py:629", "INFO",
        "Using %s",
    ),
    "padding": (
        "v1/core/kv_cache_planning.py:537", "WARNING",
        "Add %d padding layers, may waste at most %.2f%% KV cache memory",
    ),
    "prefix_off": (
        "v1/engine/core.py:272", "INFO",
        "Disabling chunked prefill: model has non-causal attention layers.",
    ),
    "qk_rope": (
        "compilation/passes/fusion/qk_norm_rope_fusion.py:230", "WARNING",
        "QK Norm+RoPE fusion not enabled: layer head_size=%d is not supported by "
        "fused_qk_norm_rope kernel (supported: %s). Falling back to unfused QK norm + RoPE "
        "path.",
    ),
    "ready": (
        "v1/engine/core.py:405", "INFO",
        "init engine (profile, create kv cache, warmup model) took %.2f s (compilation: %.2f "
        "s)",
    ),
    "sampling": (
        "config/model.py:1907", "WARNING",
        "Default vLLM sampling parameters have been overridden by %s: `%s`. If this is not "
        "intended, please relaunch vLLM instance with `--generation-config vllm`.",
    ),
    "scheduled": (
        "config/vllm.py:2360", "WARNING",
        "max_num_scheduled_tokens is set to %s based on the speculative decoding settings. "
        "This may lead to suboptimal performance. Consider increasing max_num_batched_tokens "
        "to accommodate the additional draft token slots, or decrease num_speculative_tokens.",
    ),
    "selected": (
        "model_executor/kernels/linear/__init__.py:778", "INFO",
        "Selected %s for %s",
    ),
    "sparse_mask": (
        "model_executor/layers/attention/sparse_mla_attention.py:914", "WARNING",
        "Sparse MLA top-k mask workspace (%d MiB) is too small for some prefill batches; "
        "those fall back to slower sparse MQA.",
    ),
    "start": (
        "v1/engine/core.py:139", "INFO",
        "Initializing a V1 LLM engine (v%s) with config: %s",
    ),
    "status": (
        "v1/metrics/loggers.py:329", "INFO",
        "Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
        "tokens/s, Running: %d reqs, Waiting: %d reqs, GPU KV cache usage: %.1f%%, Prefix "
        "cache hit rate: %.1f%%",
    ),
    "status_preempted": (
        "v1/metrics/loggers.py:329", "INFO",
        "Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
        "tokens/s, Running: %d reqs, Waiting: %d reqs, Preemptions: %d, GPU KV cache usage: "
        "%.1f%%",
    ),
    "u_grammar": (
        "v1/core/sched/scheduler.py:2435", "ERROR",
        "Unexpected: grammar rejected tokens %s for request %s. Terminating request.",
    ),
    "u_kv": (
        "v1/core/kv_cache_manager.py:721", "WARNING",
        "Group index `%s` not in KV cache metadata",
    ),
    "u_logits": (
        "v1/worker/gpu/model_runner.py:457", "WARNING",
        "Disabling batch-sharded sampling: %s does not implement compute_logits_local",
    ),
    "u_pages": (
        "v1/worker/mamba_utils.py:1073", "WARNING",
        "layer %s: block stride = %dB is not 8B-aligned; _memcpy_u64_tiled uint64 "
        "vectorization will pay misaligned load cost",
    ),
    "u_probs": (
        "v1/worker/gpu_model_runner.py:4702", "WARNING",
        "Missing cached draft probabilities for request %s; falling back to legacy "
        "speculative rejection behavior.",
    ),
    "u_req": (
        "v1/engine/core.py:2165", "ERROR",
        "Unexpected error pre-processing request %s",
    ),
    "u_spec": (
        "v1/core/kv_cache_planning.py:1067", "WARNING",
        "Speculative decoding (method=%s) is enabled but no KV cache group could be "
        "identified as the draft model's.",
    ),
    "u_stale": (
        "v1/engine/tensor_ipc.py:169", "WARNING",
        "Ignoring stale tensor from sender %s",
    ),
    "u_tokens": (
        "v1/engine/detokenizer.py:250", "WARNING",
        "Encountered invalid prefix detokenization error for request %s, resetting decode "
        "stream.",
    ),
    "u_wsp": (
        "v1/worker/workspace.py:327", "WARNING",
        "WorkspaceManager already initialized on device %s, reinitializing on device %s",
    ),
    "unknown_env": (
        "platforms/interface.py:1469", "WARNING",
        "Unknown vLLM environment variable detected: %s",
    ),
    "warmup": (
        "model_executor/warmup/kernel_warmup.py:192", "INFO",
        "JIT kernel warmup finished in %.2fs.",
    ),
    "weights": (
        "model_executor/model_loader/default_loader.py:506", "INFO",
        "Loading weights took %.2f seconds",
    ),
    "worker_died": (
        "v1/executor/multiproc_executor.py:380", "ERROR",
        "Worker proc %s died unexpectedly (exit code: %s), shutting down executor.",
    ),
    "worker_failed": (
        "v1/executor/multiproc_executor.py:1057", "ERROR",
        "WorkerProc failed to start.",
    ),
    "worker_hit": (
        "v1/executor/multiproc_executor.py:1189", "ERROR",
        "WorkerProc hit an exception.",
    ),
}  # fmt: skip
