"""What the names of kernel classes, backends and GPU kernels mean: one rule table.

Names: class names of vLLM's model_executor/kernels/linear and layers/fused_moe, values of its
backend enums, the words of its older logs, and kernels as a trace has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_prof.rules.kernel_names import NAME_LIMIT


@dataclass(frozen=True)
class LibraryBackends:
    """Kernel classes or backends of one library."""

    pattern: str  # is searched in the name, upper and lower case alike
    family: str  # the library or method
    activations: str  # 16-bit; a format; same, for that of the weights; empty where unknown
    traced: tuple[str, ...]  # families of GPU kernels that do its work in a trace
    examples: tuple[str, ...]  # names as vLLM writes them; each is a test


CHOICES: tuple[LibraryBackends, ...] = (
    LibraryBackends(r"emulation|simulated", "emulation", "16-bit", (),
        ("EmulationNvFp4LinearKernel", "EMULATION", "Nvfp4QuantizationEmulationTritonExperts")),
    LibraryBackends(r"unquantized", "unquantized", "16-bit", (), ("UnquantizedLinearMethod",
        "UnquantizedFusedMoEMethod", "CPUUnquantizedExperts", "UnquantizedMoeBackend.MOONEP")),
    # For other machines than NVIDIA's GPUs; their names may hold those of the libraries below.
    LibraryBackends(r"aiter|rocm|rdna|octave", "AMD", "", (), ("AITER_MXFP4_BF16",
        "ROCM_AITER_TRITON_MLA",
        "AiterMxfp4LinearKernel", "RDNA3W4A16LinearKernel", "ROCmFP8ScaledMMLinearKernel",
        "ROCM_FLASHMLA_SPARSE_DSV41", "RocmDotScaledMxfp8LinearKernel")),
    LibraryBackends(r"\bxpu|^xpu", "Intel", "", (), ("XPU", "XPUW8A16FP8LinearKernel",
        "XPU_MLA_SPARSE")),
    LibraryBackends(r"\bcpu|^amx_|zentorch|zen_cpu|dynamic4bit", "CPU", "", (), ("CPU_W8A8",
        "CPU_ATTN",
        "CPUWNA16LinearKernel", "AMX_MLA", "ZentorchWNA16LinearKernel", "ZEN_CPU",
        "Dynamic4bitLinearKernel")),
    LibraryBackends(r"^(\w+\.)?(none|oot|tpu|custom|no_attention)$", "none of vLLM's", "", (),
        ("NONE", "Mxfp4MoeBackend.NONE", "CUSTOM", "NO_ATTENTION")),
    # Attention: what its names have in common with libraries of products tells nothing of those.
    LibraryBackends(r"^triton_flash_?infer", "Triton and FlashInfer", "", ("Triton",),
        ("TRITON_FLASHINFER",)),
    LibraryBackends(r"^triton_flash_?attn", "Triton and FlashAttention", "", ("Triton",),
        ("TRITON_FLASH_ATTN",)),
    LibraryBackends(r"^flash_?attn|^flash ?attention", "FlashAttention", "", (), ("FLASH_ATTN",
        "FLASH_ATTN_MLA_SPARSE_FA4", "FlashAttention-3", "FLASH_ATTN_DIFFKV")),
    LibraryBackends(r"^flash_?mla", "FlashMLA", "", (), ("FLASHMLA", "FLASHMLA_SPARSE_DSV41",
        "FLASHMLA_MEGA_ATTN_DSV41")),
    LibraryBackends(r"^flashinfer_mla|(?-i:^FLASHINFER$)", "FlashInfer", "", ("TensorRT-LLM",),
        ("FLASHINFER", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE_SM90")),
    LibraryBackends(r"^flex_?attention", "FlexAttention", "", ("Triton",), ("FLEX_ATTENTION",)),
    LibraryBackends(r"^tokenspeed", "TokenSpeed", "", (), ("TOKENSPEED_MLA",)),
    LibraryBackends(r"^step5_dsa|^minimax_m3_sparse", "sparse attention of the model's own", "", (),
        ("STEP5_DSA", "MINIMAX_M3_SPARSE")),
    LibraryBackends(r"^(turbo|ultra)quant", "narrow KV cache", "", (), ("TURBOQUANT",
        "ULTRAQUANT")),
    LibraryBackends(r"\bhpc", "HPC-Ops", "same", (), ("HPC", "HPC_ATTN", "HPCExperts")),
    LibraryBackends(r"moonep", "MoonEP", "16-bit", (), ("MOONEP",)),
    LibraryBackends(r"cute_?dsl\w*w4a16", "FlashInfer CuTe DSL (weight-only)", "16-bit",
        ("CuTe DSL",),
        ("FlashInferCuteDslNvFp4W4A16LinearKernel",)),
    LibraryBackends(r"b12x\w*(w4a16|bf16)", "b12x (weight-only)", "16-bit", ("CuTe DSL",),
        ("B12xNvFp4W4A16LinearKernel", "B12X_MXFP4_BF16")),
    LibraryBackends(r"b12x_mxfp4_mxfp8", "b12x", "mxfp8", ("CuTe DSL",), ("B12X_MXFP4_MXFP8",)),
    LibraryBackends(r"b12x", "b12x", "same", ("CuTe DSL",),
        ("B12xNvFp4LinearKernel", "FLASHINFER_B12X", "FlashInferB12xExperts")),
    LibraryBackends(r"marlin", "Marlin", "16-bit", ("Marlin",), ("MarlinNvFp4LinearKernel",
        "MARLIN",
        "MarlinExperts", "NvFp4LinearBackend.MARLIN", "CompressedTensorsWNA16MarlinMoEMethod")),
    # Of MXFP4 it multiplies what the GPU has: since vLLM 0.33 E4M3 on Hopper.
    LibraryBackends(r"hummingmxfp4", "Humming", "", ("Humming",), ("HummingMxFp4LinearKernel",)),
    LibraryBackends(r"(nv|mx)fp4\w*\.humming|hummingnvfp4|wna16\w*\.humming", "Humming",
        "16-bit",
        ("Humming",), ("HummingNvFp4LinearKernel", "NvFp4MoeBackend.HUMMING",
        "WNA16MoEBackend.HUMMING")),
    LibraryBackends(r"humming", "Humming", "", ("Humming",), ("HUMMING",
        "HummingFP8ScaledMMLinearKernel",
        "HummingIndexedExperts")),
    LibraryBackends(r"mxfp4[_ ]mxfp8\w*|mxfp4[_ ]afp8", "FlashInfer", "mxfp8", ("CUTLASS",
        "TensorRT-LLM"),
        ("FLASHINFER_CUTLASS_MXFP4_MXFP8", "FlashInfer MXFP4 MXFP8 CUTLASS")),
    LibraryBackends(r"mxfp4[_ ]bf16", "FlashInfer", "16-bit", ("CUTLASS", "TensorRT-LLM"),
        ("FLASHINFER_TRTLLM_MXFP4_BF16", "FlashInfer MXFP4 BF16")),
    LibraryBackends(r"triton_?or", "Triton or another", "same", ("Triton", "CUTLASS", "DeepGEMM"),
        ("TritonOrDeepGemmExperts", "TritonOrCutlassExperts")),
    LibraryBackends(r"deepgemm_mxfp4|mxfp4\w*\.\w*deep_?gemm", "DeepGEMM", "fp8", ("DeepGEMM",),
        ("DEEPGEMM_MXFP4", "Mxfp4MoeBackend.FLASHINFER_MOE_EP_DEEP_GEMM")),
    LibraryBackends(r"deep_?gemm", "DeepGEMM", "same", ("DeepGEMM", "Triton"),
        ("DeepGemmExperts", "DEEPGEMM", "BATCHED_DEEPGEMM", "deep_gemm_mega_moe",
        "FLASHINFER_MOE_EP_DEEP_GEMM")),
    LibraryBackends(r"oaitriton|mxfp4\w*\.triton", "Triton", "16-bit", ("Triton",),
        ("OAITritonMxfp4ExpertsMonolithic Mxfp4MoeBackend.TRITON", "UnfusedOAITritonExperts")),
    LibraryBackends(r"triton\w*(w4a16|wna16)|wna16\w*\.triton|machete|exllama|conch|allspark",
        "weight-only integers", "16-bit", ("Machete", "Triton", "Exllama"), ("MacheteLinearKernel",
        "TritonW4A16LinearKernel", "TritonWNA16Experts", "ExllamaLinearKernel")),
    LibraryBackends(r"trt_?llm", "FlashInfer TensorRT-LLM", "same", ("TensorRT-LLM",),
        ("FLASHINFER_TRTLLM", "TrtLlmNvFp4ExpertsModular", "FlashInfer TRTLLM")),
    LibraryBackends(r"cute_?dsl", "FlashInfer CuTe DSL", "same", ("CuTe DSL",),
        ("FlashInferCuteDslNvFp4LinearKernel", "FLASHINFER_CUTEDSL_BATCHED",
        "FLASHINFER_MOE_EP_CUTEDSL")),
    LibraryBackends(r"cudnn", "cuDNN", "same", ("cuDNN",), ("FlashInferCudnnNvFp4LinearKernel",)),
    LibraryBackends(r"flashinfer[_ -]?cutlass|flashinferexperts|flashinfermxfp4|flashinferfp8|"
        r"flashinfer(_cutlass)?( kernels)?$",
        "FlashInfer CUTLASS", "same", ("CUTLASS", "cuBLAS", "cuDNN", "TensorRT-LLM"),
        ("FlashInferCutlassNvFp4LinearKernel", "flashinfer-cutlass", "FLASHINFER_CUTLASS",
        "FlashInferExperts", "FlashInferFP8ScaledMMLinearKernel", "FlashInfer kernels",
        "FlashInfer CUTLASS")),
    LibraryBackends(r"cutlass", "vLLM CUTLASS", "same", ("CUTLASS",), ("CutlassNvFp4LinearKernel",
        "VLLM_CUTLASS", "CutlassExpertsFp4", "Cutlass", "CutlassFP8ScaledMMLinearKernel",
        "CUTLASS_MXFP4_MXFP4", "CUTLASS_MSA")),
    LibraryBackends(r"fbgemm", "FBGEMM", "same", ("CUTLASS",), ("FbgemmNvFp4LinearKernel",)),
    LibraryBackends(r"torch", "torch", "same", ("cuBLAS", "CUTLASS"),
        ("TorchNvFp4LinearKernel", "ChannelWiseTorchFP8ScaledMMLinearKernel")),
    LibraryBackends(r"triton|native_mxfp8", "Triton", "same", ("Triton",), ("NATIVE_MXFP8",
        "TritonExperts", "TRITON", "BATCHED_TRITON", "TritonInt8ScaledMMLinearKernel")),
)  # fmt: skip
"""First match wins."""

TRACED: tuple[tuple[str, str, str], ...] = (
    ("Marlin", r"\bmarlin(_moe_wna16)?::Marlin|gptq_marlin|marlin_gemm",
     "void marlin_moe_wna16::Marlin<1125899906909960l>"),
    ("Machete", r"\bmachete::", "machete::MacheteKernelTemplate<>"),
    ("Exllama", r"\bgemm_half_q_half|exllama", "vllm::gptq::gemm_half_q_half_gptq_4bit_kernel"),
    ("DeepGEMM", r"deep_gemm|\bfp8_gemm_kernel|sm\d+_(fp8|bf16)_gemm_1d",
     "void deep_gemm::sm90_fp8_gemm_1d2d_impl<>"),
    ("TensorRT-LLM", r"^bmm_\w*(E2m1|E4m3|Bfloat16|MxE)|trtllm", "bmm_E2m1_E2m1E2m1_Fp32_t128x8"),
    ("CuTe DSL", r"^kernel_cutlass_|b12x", "kernel_cutlass_kernel_b12x_gemm"),
    ("Triton", r"\bfused_moe_kernel|matmul_ogs|_matmul_kernel|fused_moe_\w*triton",
     "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1"),
    ("Humming", r"humming", "humming_gemm_kernel"),
    ("cuDNN", r"cudnn_", "cudnn_generated_fort_native_matmul"),
    ("cuBLAS", r"\bnvjet|cublas|gemv|\b(ampere|sm\d+|turing)_xmma|^cutlass_80_|splitKreduce",
     "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
    ("CUTLASS", r"\bcutlass::|_cutlass_", "void cutlass::device_kernel<cutlass::gemm::kernel<>>"),
)  # fmt: skip
"""Family of a GPU kernel, pattern of its name, example; first match wins."""

_CHOICES = tuple((re.compile(choice.pattern, re.I), choice) for choice in CHOICES)
_TRACED = tuple((family, re.compile(pattern)) for family, pattern, _ in TRACED)


def choice_of(name: str) -> LibraryBackends | None:
    """What a kernel class or backend is; None where the table does not know it."""
    name = name[:NAME_LIMIT]
    return next((choice for pattern, choice in _CHOICES if pattern.search(name)), None)


def family_of_kernel(name: str) -> str:
    """The family of a GPU kernel by its name; empty where the table does not know it."""
    name = name[:NAME_LIMIT]
    return next((family for family, pattern in _TRACED if pattern.search(name)), "")
