"""What a side may take from a result alone: tables of names, and the shapes of their values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_prof.ab.backends import BACKENDS
from spark_prof.ab.sides import is_own_or_installed
from spark_prof.swaps.spec import Swap

# No shape takes a path, a dotted name of Python or a URL: those can load code.
_SWITCH = "[01]|[Tt]rue|[Ff]alse"
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,6})?[kKmMgG]?"
_WORD = "[A-Za-z0-9_-]{1,64}"
_WORDS = f"{_WORD}(,{_WORD}){{0,31}}"

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
"""Variables that are taken from a result, and the shape of their values: they choose among vLLM's
own kernels, or are a number."""

OPTIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "--async-scheduling", "--disable-custom-all-reduce", "--enable-chunked-prefill",
            "--enable-expert-parallel", "--enable-prefix-caching", "--enforce-eager",
            "--no-async-scheduling", "--no-enable-chunked-prefill", "--no-enable-prefix-caching",
            "--no-enforce-eager", "-O0", "-O1", "-O2", "-O3",
        ),
        "",
    ),
    **dict.fromkeys(
        (
            "--block-size", "--gpu-memory-utilization", "--kv-cache-memory-bytes",
            "--max-cudagraph-capture-size", "--max-model-len", "--max-num-batched-tokens",
            "--max-num-seqs", "--pipeline-parallel-size", "--seed", "--tensor-parallel-size",
            "-pp", "-tp",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "--all2all-backend", "--attention-backend", "--dtype", "--kv-cache-dtype",
            "--quantization", "-q",
        ),
        _WORD,
    ),
    **{option: "|".join(backends) for option, backends in BACKENDS.items()},
    "--cudagraph-capture-sizes": rf"{_NUMBER}( {_NUMBER}){{0,255}}",
}  # fmt: skip
"""Options of vLLM's that are taken from a result, and the shape of their values."""


def harmless_swap(swap: Swap) -> bool:
    """Whether a kernel's name is that of this package's or of an installed one, and no file's."""
    return bool(re.fullmatch("[A-Za-z0-9_-]+!?", swap.kernel)) and is_own_or_installed(swap.kernel)


def harmless_variable(name: str, value: str) -> bool:
    """Whether a variable only chooses among vLLM's own kernels, or is a number."""
    return name in VARIABLES and bool(re.fullmatch(VARIABLES[name], value))


def harmless_option(words: Sequence[str]) -> bool:
    """Whether an option with the words of its values only chooses kernels or sizes of vLLM's."""
    name, equals, value = words[0].partition("=")
    values = " ".join([value, *words[1:]] if equals else words[1:])
    return name in OPTIONS and bool(re.fullmatch(OPTIONS[name], values))
