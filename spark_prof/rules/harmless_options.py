"""Which variables and options of vLLM's are taken from a file that somebody else may have written.

They choose among vLLM's own things, or are a number: no shape takes a path to code, a dotted name
of Python or a URL. Names by vllm/engine/arg_utils.py, vllm/entrypoints/common/cli_args.py and
vllm/benchmarks of 0.24 to 0.33.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_SWITCH = "[01]|[Tt]rue|[Ff]alse"
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,6})?[kKmMgG]?"
_WORD = "[A-Za-z0-9_-]{1,64}"
_WORDS = f"{_WORD}(,{_WORD}){{0,31}}"
_NUMBERS = rf"{_NUMBER}( {_NUMBER}){{0,255}}"
_PART = "[A-Za-z0-9_.+@=À-ɏ一-鿿][A-Za-z0-9_.+@=À-ɏ一-鿿-]{0,127}"

HUB = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(:[A-Za-z0-9_]{1,20})?"
"""A model on a hub with its owner, and of a GGUF file which of its quantizations."""
PATH = rf"(~|\.{{1,2}})?(/{_PART}){{1,32}}/?"
MODEL = rf"{HUB}|{PATH}|{_PART}(/{_PART}){{0,31}}/?"
"""A model as it is named: on a hub, or by its folder."""

BACKEND_VALUES: dict[str, tuple[str, ...]] = {
    "--moe-backend": (
        "auto", "triton", "batched_triton", "deep_gemm", "deep_gemm_mega_moe", "cutlass",
        "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl",
        "flashinfer_moe_ep_cutedsl", "flashinfer_b12x", "b12x",
        "flashinfer_moe_ep_mega_deep_gemm", "flashinfer_moe_ep_mega_cutedsl", "marlin", "humming",
        "triton_unfused", "aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16",
        "aiter_triton_mxfp4_mxfp4", "flydsl", "hpc", "emulation", "rdna3",
    ),
    "--linear-backend": (
        "auto", "cutlass", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm",
        "flashinfer_cudnn", "flashinfer_b12x", "b12x", "marlin", "humming", "triton", "deep_gemm",
        "torch", "aiter", "machete", "fbgemm", "conch", "exllama", "emulation", "xpu", "xpu_woq",
    ),
}  # fmt: skip
"""vLLM's own kernels by the option that chooses them: MoEBackend and LinearBackend of
vllm/config/kernel.py, 0.24 to 0.33 together. vLLM refuses what its version lacks."""

VARIABLES: dict[str, str] = {
    **dict.fromkeys(
        (
            "VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_ALLREDUCE_USE_SYMM_MEM",
            "VLLM_B12X_MOE_FP4_FORCE_A16", "VLLM_BATCH_INVARIANT",
            "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER", "VLLM_CPU_SGL_KERNEL",
            "VLLM_DISABLE_SHARED_EXPERTS_STREAM", "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE",
            "VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_MOE_USE_DEEP_GEMM", "VLLM_MXFP4_USE_MARLIN",
            "VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_TRITON_ATTN_USE_TD", "VLLM_TRITON_USE_TD",
            "VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_USE_DEEP_GEMM", "VLLM_USE_DEEP_GEMM_E8M0",
            "VLLM_USE_FBGEMM", "VLLM_USE_FLASHINFER_MOE_FP16", "VLLM_USE_FLASHINFER_MOE_FP4",
            "VLLM_USE_FLASHINFER_MOE_FP8", "VLLM_USE_FLASHINFER_MOE_INT4",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", "VLLM_USE_FLASHINFER_SAMPLER",
            "VLLM_USE_FUSED_MOE_GROUPED_TOPK", "VLLM_USE_NCCL_SYMM_MEM",
            "VLLM_USE_NVFP4_CT_EMULATIONS", "VLLM_USE_TRITON_AWQ", "VLLM_USE_TRTLLM_ATTENTION",
            "VLLM_USE_V2_MODEL_RUNNER",
        ),
        _SWITCH,
    ),
    **dict.fromkeys(
        (
            "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_FLASH_ATTN_VERSION",
            "VLLM_FUSED_MOE_CHUNK_SIZE", "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "VLLM_ALL2ALL_BACKEND", "VLLM_ATTENTION_BACKEND", "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
            "VLLM_FLASHINFER_MOE_BACKEND", "VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_KV_CACHE_LAYOUT",
            "VLLM_MARLIN_INPUT_DTYPE", "VLLM_NVFP4_GEMM_BACKEND",
        ),
        _WORD,
    ),
    "VLLM_DISABLED_KERNELS": _WORDS,
}  # fmt: skip
"""Variables that are taken from a file, and the shape of their values: they choose among vLLM's
own kernels, or are a number."""

_SWITCHES = (
    "async-engine", "async-scheduling", "calculate-kv-scales", "cohere-is-reasoning-model",
    "cudagraph-metrics", "dcp-q-replicate", "disable-cascade-attn", "disable-chunked-mm-input",
    "disable-custom-all-reduce", "disable-detokenize", "disable-fastapi-docs",
    "disable-frontend-multiprocessing", "disable-hybrid-kv-cache-manager", "disable-log-requests",
    "disable-log-stats", "disable-nccl-for-dp-synchronization", "disable-sliding-window",
    "disable-uvicorn-access-log", "enable-auto-tool-choice", "enable-batch-sharded-sampling",
    "enable-chunked-prefill", "enable-cumem-allocator", "enable-dbo", "enable-ep-weight-filter",
    "enable-eplb", "enable-expert-parallel", "enable-flash-late-interaction",
    "enable-flashinfer-autotune", "enable-force-include-usage", "enable-hc-sp",
    "enable-layerwise-nvtx-tracing", "enable-log-deltas", "enable-log-requests",
    "enable-logging-iteration-details", "enable-lora", "enable-mamba-cache-stochastic-rounding",
    "enable-mamba-shared-prefix-checkpoint", "enable-mfu-metrics", "enable-mixed-moe-lora-format",
    "enable-moe-shared-loras", "enable-per-request-metrics", "enable-prefix-caching",
    "enable-prompt-tokens-details", "enable-request-id-headers", "enable-return-routed-experts",
    "enable-server-load-tracking", "enable-shm-tensor-arena", "enable-sleep-mode",
    "enable-tower-connector-lora", "enforce-eager", "exclude-tools-when-tool-choice-none",
    "fully-sharded-loras", "interleave-mm-strings", "jit-monitor-verbose", "kv-cache-metrics",
    "kv-sharing-fast-prefill", "language-model-only", "long-prefill-token-threshold-adaptive",
    "mm-device-do-normalize", "mm-encoder-only", "monokernel", "numa-bind", "prequeue-requests",
    "return-sampling-mask", "return-tokens-as-token-ids", "scheduler-reserve-full-isl",
    "skip-mm-profiling", "skip-tokenizer-init", "specialize-active-lora", "swa-bounded-replay",
    "use-beam-search", "use-fp64-gumbel", "use-replayssm", "use-tqdm-on-load",
)  # fmt: skip

OPTIONS: dict[str, str] = {
    **dict.fromkeys((f"{no}{name}" for name in _SWITCHES for no in ("--", "--no-")), ""),
    **dict.fromkeys(("-O0", "-O1", "-O2", "-O3", "-ep", "-dpe", "-dph"), ""),
    **dict.fromkeys(
        (
            "--batch-size", "--block-size", "--cp-kv-cache-interleave-size", "--cpu-offload-gb",
            "--cpu-distributed-timeout-seconds", "--data-parallel-rank",
            "--data-parallel-rpc-port", "--data-parallel-size", "--data-parallel-size-local",
            "--data-parallel-start-rank", "--dbo-decode-token-threshold",
            "--dbo-prefill-token-threshold", "--dcp-kv-cache-interleave-size",
            "--decode-context-parallel-size", "--distributed-timeout-seconds",
            "--dp-sync-interval", "--gpu-memory-utilization", "--input-len",
            "--kv-cache-memory-bytes", "--kv-cache-metrics-sample", "--kv-offloading-size",
            "--long-prefill-token-threshold", "--mamba-block-size", "--mamba-cache-philox-rounds",
            "--master-port", "--max-cpu-loras", "--max-cudagraph-capture-size", "--max-log-len",
            "--max-logprobs", "--max-long-partial-prefills", "--max-lora-rank", "--max-loras",
            "--max-num-active-seqs", "--max-num-batched-tokens", "--max-num-partial-prefills",
            "--max-num-queued-reqs", "--max-num-queued-tokens", "--max-num-scheduled-tokens",
            "--max-num-seqs", "--max-parallel-loading-workers", "--mm-ipc-gpu-memory-gb",
            "--mm-processor-cache-gb", "--mm-shm-cache-max-object-size-mb", "--n", "--nnodes",
            "--node-rank", "--num-gpu-blocks-override", "--num-iters", "--num-iters-warmup",
            "--num-lookahead-slots", "--num-prompts", "--num-warmups", "--offload-group-size",
            "--offload-num-in-group", "--offload-prefetch-step", "--output-len",
            "--pipeline-parallel-size", "--port", "--prefill-context-parallel-size",
            "--prefill-schedule-interval", "--prefix-cache-retention-interval", "--prefix-len",
            "--prefix-match-unit", "--random-input-len", "--random-output-len",
            "--renderer-num-workers", "--replayssm-buffer-len", "--request-rate",
            "--safetensors-prefetch-block-size", "--safetensors-prefetch-num-threads", "--seed",
            "--shutdown-timeout", "--spec-tokens", "--sse-keep-alive-interval",
            "--stream-interval", "--swap-space", "--tensor-parallel-size", "--ubatch-size",
            "--video-pruning-rate", "--watermark", "-dcp", "-dp", "-dpl", "-dpn", "-dpp", "-dpr",
            "-n", "-pcp", "-pp", "-r", "-tp", "--max-concurrency", "--api-server-count", "-asc",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "--all2all-backend", "--attention-backend", "--chat-template-content-format",
            "--config-format", "--convert", "--data-parallel-backend", "--dataset-name",
            "--dcp-comm-backend", "--dtype", "--expert-placement-strategy",
            "--gdn-prefill-backend", "--guided-decoding-backend", "--kda-decode-backend",
            "--kda-prefill-backend", "--kv-cache-dtype", "--kv-offloading-backend", "--log-level",
            "--logprobs-mode", "--lora-dtype", "--mamba-backend", "--mamba-cache-dtype",
            "--mamba-cache-mode", "--mamba-ssm-cache-dtype", "--mamba-ssu-algorithm",
            "--mm-encoder-attn-backend", "--mm-encoder-attn-dtype", "--mm-encoder-tp-mode",
            "--mm-hasher-algorithm", "--mm-processor-cache-type", "--model-impl",
            "--offload-backend", "--per-request-spec-decode-metrics", "--performance-mode",
            "--prefix-caching-hash-algo", "--quantization", "--reasoning-parser",
            "--response-role", "--runner", "--safetensors-load-strategy", "--scheduling-policy",
            "--sleep-mode-backend", "--sparse-indexer-topk-backend", "--task",
            "--tokenizer-mode", "--tool-call-parser", "--uvicorn-log-level",
            "--video-pruning-method", "-dpb", "-q",
        ),
        _WORD,
    ),
    **{option: "|".join(values) for option, values in BACKEND_VALUES.items()},
    "--cudagraph-capture-sizes": _NUMBERS,
    "--distributed-executor-backend": "mp|ray|uni|external_launcher",
    "--load-format": "auto|bitsandbytes|dummy|fastsafetensors|gguf|hf|instanttensor|mistral|"
        "modelexpress|npcache|runai_streamer|runai_streamer_sharded|safetensors|sharded_state",
    "--max-model-len": rf"{_NUMBER}|auto|-1",
    "--optimization-level": "O?[0-3]",
    "--spec-method": "(?!custom)[A-Za-z0-9_-]{1,64}",
    "-O": "O?[0-3]",
}  # fmt: skip
"""Options of vLLM's that are taken from a file, and the shape of their values. A method of
speculation that begins with custom loads a class by its dotted name."""

_ADDRESS = r"[A-Za-z0-9][A-Za-z0-9.:-]{0,127}|::1?"
_NAMES = r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,127}( [A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,127}){0,15}"
_ADAPTERS = rf"{_WORD}=({MODEL})( {_WORD}=({MODEL})){{0,15}}"
_COMMIT = r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}"

RECORDED_OPTIONS: dict[str, str] = {
    **OPTIONS,
    "--data-parallel-address": _ADDRESS,
    "--download-dir": PATH,
    "--generation-config": f"auto|vllm|{PATH}",
    "--host": _ADDRESS,
    "--kv-cache-dtype-skip-layers": _NUMBERS,
    "--lora-modules": _ADAPTERS,
    "--lora-target-modules": f"{_WORD}( {_WORD}){{0,31}}",
    "--master-addr": _ADDRESS,
    "--model": MODEL,
    "--revision": _COMMIT,
    "--served-model-name": _NAMES,
    "--spec-model": f"{HUB}|{PATH}",
    "--tokenizer": MODEL,
    "--tokenizer-revision": _COMMIT,
    "-dpa": _ADDRESS,
}
"""Options with which an engine was recorded, and may be started again by who reads the command:
also a model, where it lies, and where a server listens."""

LEFT_OUT: frozenset[str] = frozenset(
    {
        "--allowed-headers", "--allowed-methods", "--allowed-origins", "--api-key",
        "--chat-template", "--hf-token", "--log-config-file", "--otlp-traces-endpoint",
        "--root-path", "--ssl-ca-certs", "--ssl-certfile", "--ssl-keyfile",
    }
)  # fmt: skip
"""Options without which a command measures the same engine: keys, and files of the server's."""

_FIELD = "[A-Za-z][A-Za-z0-9_]{0,63}"
_UNSAFE_FIELD = re.compile(
    "trust|remote|allow|insecure|pickle|plugin|module|class|cls|path|dir|url|file|script|import",
    re.I,
)
_DRAFTER = f"{HUB}|{PATH}|\\[?ngram\\]?"
_CUSTOM_OP = "all|none|[+-][A-Za-z0-9_]{1,64}"

CONFIGURATIONS: dict[str, dict[str, str]] = {
    "--additional-config": {"gdn_prefill_backend": _WORD, "kda_prefill_backend": _WORD},
    "--attention-config": {
        "backend": _WORD, "backend_per_kind.*": _WORD, "indexer_kv_dtype": _WORD,
        "minimax_m3_msa_decode_backend": _WORD, "mla_prefill_backend": _WORD,
        "trtllm_ragged_backend": _WORD,
    },
    "--compilation-config": {
        "backend": "eager|inductor|", "compile_cache_save_format": _WORD, "compile_sizes": _WORD,
        "cudagraph_mode": _WORD, "custom_ops": _CUSTOM_OP, "dynamic_shapes_config.type": _WORD,
        "mode": _WORD, "splitting_ops": "[a-z][a-z0-9_]{0,63}(::|\\.)[a-z][a-z0-9_]{0,63}",
    },
    "--default-chat-template-kwargs": {"reasoning_effort": _WORD},
    "--eplb-config": {"communicator": _WORD, "policy": _WORD},
    "--hf-overrides": {"rope_scaling.rope_type": _WORD, "rope_scaling.type": _WORD,
        "rope_parameters.rope_type": _WORD, "rope_parameters.type": _WORD},
    "--kernel-config": {
        "ir_op_priority.*": _WORD, "linear_backend": _WORD, "linear_backend_per_quant.*": _WORD,
        "moe_backend": _WORD, "sparse_indexer_topk_backend": _WORD,
    },
    "--kv-transfer-config": {
        "kv_buffer_device": _WORD, "kv_connector": _WORD, "kv_load_failure_policy": _WORD,
        "kv_role": _WORD,
    },
    "--limit-mm-per-prompt": {},
    "--mamba-config": {"backend": _WORD, "ssu_algorithm": _WORD},
    "--media-io-kwargs": {},
    "--mm-processor-kwargs": {},
    "--model-loader-extra-config": {},
    "--override-generation-config": {},
    "--pooler-config": {"pooling_type": _WORD, "seq_pooling_type": _WORD,
        "tok_pooling_type": _WORD},
    "--rope-scaling": {"rope_type": _WORD, "type": _WORD},
    "--speculative-config": {
        "attention_backend": _WORD, "draft_lm_head_quantization": _WORD,
        "draft_sample_method": _WORD, "kv_cache_dtype": _WORD,
        "method": "(?!custom)[A-Za-z0-9_-]{1,64}", "model": _DRAFTER, "moe_backend": _WORD,
        "quantization": _WORD, "rejection_sample_method": _WORD, "revision": _COMMIT,
    },
    "--structured-outputs-config": {"backend": _WORD, "reasoning_parser": _WORD},
}  # fmt: skip
"""Options that take a configuration, and the shape of those of its fields that are texts; of the
others numbers and switches are taken. A drafter's dotted name would load a class."""

SHORT: Mapping[str, str] = {
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-sc": "--speculative-config",
}


def harmless_variable(name: str, value: str) -> bool:
    """Whether a variable only chooses among vLLM's own kernels, or is a number."""
    return name in VARIABLES and bool(re.fullmatch(VARIABLES[name], value))


def harmless_option(words: Sequence[str]) -> bool:
    """Whether an option with the words of its values only chooses kernels or sizes of vLLM's."""
    name, equals, value = words[0].partition("=")
    values = " ".join([value, *words[1:]] if equals else words[1:])
    return name in OPTIONS and bool(re.fullmatch(OPTIONS[name], values))


def harmless_configuration(name: str, text: str) -> bool:
    """Whether a configuration, JSON or one field by its path, has nothing that can run code.

    harmless_configuration("--compilation-config.cudagraph_mode", "FULL") is True
    harmless_configuration("--compilation-config", '{"backend": "evil.f"}') is False
    """
    root, _, path = name.partition(".")
    root = SHORT.get(root, root.replace("_", "-"))
    if root not in CONFIGURATIONS or not text.isascii() or len(text) > 4096:
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if not path:
        return isinstance(value, dict) and _harmless_value(root, "", value)
    fields = path.removesuffix("+").replace("-", "_")
    if not all(_harmless_field(field) for field in fields.split(".")):
        return False
    return _harmless_value(root, fields, value)


def harmless_arguments(text: str) -> bool:
    """Whether JSON of an engine's arguments by their names has nothing that can run code.

    harmless_arguments('{"max_num_seqs": 8, "speculative_config": {"method": "mtp"}}') is True
    """
    try:
        arguments = json.loads(text) if text.isascii() and len(text) <= 4096 else None
    except (ValueError, RecursionError):
        return False
    return isinstance(arguments, dict) and all(
        _harmless_argument(name, value) for name, value in arguments.items()
    )


def _harmless_argument(name: str, value: Any) -> bool:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, dict):
        return option in CONFIGURATIONS and _harmless_value(option, "", value)
    if isinstance(value, bool):
        return RECORDED_OPTIONS.get(option) == ""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    shape = RECORDED_OPTIONS.get(option, "")
    return (
        bool(shape)
        and isinstance(value, str | int | float | list)
        and bool(re.fullmatch(shape, text))
    )


def _harmless_field(name: str) -> bool:
    return bool(re.fullmatch(_FIELD, name)) and not _UNSAFE_FIELD.search(name)


def _harmless_value(option: str, path: str, value: Any) -> bool:
    if isinstance(value, dict):
        return all(
            _harmless_field(name)
            and _harmless_value(option, f"{path}.{name}" if path else name, entry)
            for name, entry in value.items()
        )
    if isinstance(value, list):
        return all(_harmless_value(option, path, entry) for entry in value)
    if value is None or isinstance(value, bool | int | float):
        return True
    shapes = CONFIGURATIONS[option]
    shape = shapes.get(path, shapes.get(f"{path.rpartition('.')[0]}.*"))
    return shape is not None and bool(re.fullmatch(shape, value))
