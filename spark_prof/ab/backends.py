"""vLLM's own kernels by the names of its options, for `moe=marlin` on a side."""

from __future__ import annotations

BACKENDS: dict[str, tuple[str, ...]] = {
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

OPTION_OF_SLOT = {
    "moe": "--moe-backend",
    **dict.fromkeys(("qkv", "o", "mlp", "lm_head"), "--linear-backend"),
}
"""The option that chooses the kernels of a slot."""
