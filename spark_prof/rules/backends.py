"""What the names of kernel classes, backends and GPU kernels mean: one rule table.

Names: class names of vLLM's model_executor/kernels/linear and layers/fused_moe, values of its
backend enums, the words of its older logs, and kernels as a trace has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_prof.rules.kernel_names import NAME_LIMIT


@dataclass(frozen=True)
class Choice:
    """Kernel classes or backends of one library."""

    pattern: str  # is searched in the name, upper and lower case alike
    family: str  # the library or method
    activations: str  # 16-bit; a format; same, for that of the weights; empty where unknown
    traced: tuple[str, ...]  # families of GPU kernels that do its work in a trace
    examples: tuple[str, ...]  # names as vLLM writes them; each is a test


CHOICES: tuple[Choice, ...] = (
    Choice(r"emulation|simulated", "emulation", "16-bit", (),
        ("EmulationNvFp4LinearKernel", "EMULATION", "Nvfp4QuantizationEmulationTritonExperts")),
    Choice(r"unquantized", "unquantized", "16-bit", (),
        ("UnquantizedLinearMethod", "UnquantizedFusedMoEMethod")),
    Choice(r"cute_?dsl\w*w4a16", "FlashInfer CuTe DSL, weight-only", "16-bit", ("CuTe DSL",),
        ("FlashInferCuteDslNvFp4W4A16LinearKernel",)),
    Choice(r"b12x\w*(w4a16|bf16)", "b12x, weight-only", "16-bit", ("CuTe DSL",),
        ("B12xNvFp4W4A16LinearKernel", "B12X_MXFP4_BF16")),
    Choice(r"b12x", "b12x", "same", ("CuTe DSL",),
        ("B12xNvFp4LinearKernel", "FLASHINFER_B12X", "FlashInferB12xExperts")),
    Choice(r"marlin", "Marlin", "16-bit", ("Marlin",), ("MarlinNvFp4LinearKernel", "MARLIN",
        "MarlinExperts", "NvFp4LinearBackend.MARLIN", "CompressedTensorsWNA16MarlinMoEMethod")),
    Choice(r"humming", "Humming", "", ("Humming",), ("HummingNvFp4LinearKernel", "HUMMING")),
    Choice(r"mxfp4[_ ]mxfp8\w*|mxfp4[_ ]afp8", "FlashInfer", "mxfp8", ("CUTLASS", "TensorRT-LLM"),
        ("FLASHINFER_CUTLASS_MXFP4_MXFP8", "FlashInfer MXFP4 MXFP8 CUTLASS")),
    Choice(r"mxfp4[_ ]bf16", "FlashInfer", "16-bit", ("CUTLASS", "TensorRT-LLM"),
        ("FLASHINFER_TRTLLM_MXFP4_BF16", "FlashInfer MXFP4 BF16")),
    Choice(r"triton_?or", "Triton or another", "same", ("Triton", "CUTLASS", "DeepGEMM"),
        ("TritonOrDeepGemmExperts", "TritonOrCutlassExperts")),
    Choice(r"deep_?gemm", "DeepGEMM", "same", ("DeepGEMM", "Triton"),
        ("DeepGemmExperts", "DEEPGEMM", "BATCHED_DEEPGEMM")),
    Choice(r"oaitriton|mxfp4\w*\.triton", "Triton", "16-bit", ("Triton",),
        ("OAITritonMxfp4ExpertsMonolithic Mxfp4MoeBackend.TRITON", "UnfusedOAITritonExperts")),
    Choice(r"triton\w*(w4a16|wna16)|machete|exllama|conch|allspark", "weight-only integers",
        "16-bit", ("Machete", "Triton", "Exllama"), ("MacheteLinearKernel",
        "TritonW4A16LinearKernel", "TritonWNA16Experts", "ExllamaLinearKernel")),
    Choice(r"trt_?llm", "FlashInfer TensorRT-LLM", "same", ("TensorRT-LLM",),
        ("FLASHINFER_TRTLLM", "TrtLlmNvFp4ExpertsModular", "FlashInfer TRTLLM")),
    Choice(r"cute_?dsl", "FlashInfer CuTe DSL", "same", ("CuTe DSL",),
        ("FlashInferCuteDslNvFp4LinearKernel", "FLASHINFER_CUTEDSL_BATCHED")),
    Choice(r"cudnn", "cuDNN", "same", ("cuDNN",), ("FlashInferCudnnNvFp4LinearKernel",)),
    Choice(r"flashinfer[_ -]?cutlass|flashinferexperts|flashinfermxfp4|flashinferfp8|"
        r"flashinfer(_cutlass)?( kernels)?$",
        "FlashInfer CUTLASS", "same", ("CUTLASS", "cuBLAS", "cuDNN", "TensorRT-LLM"),
        ("FlashInferCutlassNvFp4LinearKernel", "flashinfer-cutlass", "FLASHINFER_CUTLASS",
        "FlashInferExperts", "FlashInferFP8ScaledMMLinearKernel", "FlashInfer kernels",
        "FlashInfer CUTLASS")),
    Choice(r"cutlass", "vLLM CUTLASS", "same", ("CUTLASS",), ("CutlassNvFp4LinearKernel",
        "VLLM_CUTLASS", "CutlassExpertsFp4", "Cutlass", "CutlassFP8ScaledMMLinearKernel")),
    Choice(r"fbgemm", "FBGEMM", "same", ("CUTLASS",), ("FbgemmNvFp4LinearKernel",)),
    Choice(r"torch", "torch", "same", ("cuBLAS", "CUTLASS"),
        ("TorchNvFp4LinearKernel", "ChannelWiseTorchFP8ScaledMMLinearKernel")),
    Choice(r"triton", "Triton", "same", ("Triton",),
        ("TritonExperts", "TRITON", "BATCHED_TRITON", "TritonInt8ScaledMMLinearKernel")),
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


def choice_of(name: str) -> Choice | None:
    """What a kernel class or backend is; None where the table does not know it."""
    name = name[:NAME_LIMIT]
    return next((choice for pattern, choice in _CHOICES if pattern.search(name)), None)


def family_of_kernel(name: str) -> str:
    """The family of a GPU kernel by its name; empty where the table does not know it."""
    name = name[:NAME_LIMIT]
    return next((family for family, pattern in _TRACED if pattern.search(name)), "")


@dataclass(frozen=True)
class Backend:
    """A value of one of vLLM's options that chooses kernels, and where it runs."""

    option: str  # --linear-backend, --moe-backend or --attention-backend
    value: str
    stored: str
    """The formats of the weights that it takes, blanks between; of attention `plain`, or `sinks`
    where the model has attention sinks."""
    capabilities: tuple[tuple[int, int], ...]  # the first and the last of each span; 121 is 12.1
    source: str  # where vLLM tests that: under vllm/ of 0.32, and of 0.26 as far as that has it
    since: tuple[int, int] = (0, 23)  # the first vLLM in which that holds
    implementation: str = ""  # of attention, the class that vLLM's layers name


_HOPPER = (90, 90)
_B200 = (100, 109)
_GB10 = (120, 129)
_ANY = ((75, 129),)


def _rows(option: str, folder: str) -> Callable[..., Backend]:
    """What makes the rows of an option, whose sources lie in that folder."""

    def row(value: str, stored: str, spans: tuple[Any, ...], file: str, **more: Any) -> Backend:
        return Backend(option, value, stored, spans, folder + file, **more)

    return row


_linear = _rows("--linear-backend", "model_executor/kernels/linear/")
_moe = _rows("--moe-backend", "model_executor/layers/fused_moe/experts/")
_attention = _rows("--attention-backend", "v1/attention/backends/")

BACKENDS: tuple[Backend, ...] = (
    _linear("flashinfer_cutedsl", "nvfp4", (_B200,), "nvfp4/flashinfer.py"),
    _linear("flashinfer_cutlass", "nvfp4", (_B200, _GB10), "nvfp4/flashinfer.py"),
    _linear("cutlass", "nvfp4", (_B200, _GB10), "nvfp4/cutlass.py"),
    _linear("marlin", "nvfp4", _ANY, "nvfp4/marlin.py"),
    # On 12.x vLLM says yes and FlashInfer 0.6.12 has no kernel.
    _linear("flashinfer_cutlass", "mxfp4", (_B200,), "mxfp4/flashinfer.py"),
    _linear("marlin", "mxfp4", _ANY, "mxfp4/marlin.py"),
    _linear("flashinfer_cutlass", "mxfp8", (_B200, _GB10), "mxfp8/flashinfer.py"),
    _linear("marlin", "mxfp8", _ANY, "mxfp8/marlin.py"),
    # What else FP8 has depends on how its scales are stored.
    _linear("cutlass", "fp8", (_HOPPER, _B200, _GB10), "scaled_mm/cutlass.py"),
    _linear("marlin", "fp8", _ANY, "scaled_mm/marlin.py"),
    _linear("machete", "int4", (_HOPPER,), "mixed_precision/machete.py"),
    _linear("marlin", "int4", _ANY, "mixed_precision/marlin.py"),
    _moe("flashinfer_trtllm", "nvfp4 mxfp4", (_B200,), "trtllm_nvfp4_moe.py, trtllm_mxfp4_moe.py"),
    _moe("flashinfer_cutedsl", "nvfp4", (_B200,), "flashinfer_cutedsl_moe.py"),
    _moe("flashinfer_cutlass", "nvfp4", (_B200, _GB10), "flashinfer_cutlass_moe.py"),
    _moe("cutlass", "nvfp4", ((100, 119), _GB10), "cutlass_moe.py"),
    _moe("flashinfer_b12x", "nvfp4", (_GB10,), "flashinfer_b12x_moe.py"),
    _moe("triton", "mxfp4", ((90, 109),), "gpt_oss_triton_kernels_moe.py"),
    _moe("triton", "mxfp4", (_GB10,), "gpt_oss_triton_kernels_moe.py", since=(0, 32)),
    _moe("flashinfer_cutlass", "mxfp4", (_HOPPER,), "flashinfer_cutlass_moe.py"),
    _moe("flashinfer_cutlass", "bf16", (_HOPPER, _B200, _GB10), "flashinfer_cutlass_moe.py"),
    _moe("triton", "bf16 int4", _ANY, "triton_moe.py"),
    _moe("triton", "fp8", ((89, 129),), "triton_moe.py"),
    _moe("marlin", "nvfp4 mxfp4 mxfp8 fp8 int4", _ANY, "marlin_moe.py"),
    _attention("FLASH_ATTN", "plain", ((80, 129),), "flash_attn.py",
        implementation="FlashAttentionImpl"),
    _attention("FLASH_ATTN", "sinks", (_HOPPER,), "fa_utils.py",
        implementation="FlashAttentionImpl"),
    _attention("FLASHINFER", "plain", ((80, 121),), "flashinfer.py",
        implementation="FlashInferImpl"),
    _attention("FLASHINFER", "sinks", (_B200,), "flashinfer.py", implementation="FlashInferImpl"),
    _attention("TRITON_ATTN", "plain sinks", _ANY, "triton_attn.py",
        implementation="TritonAttentionImpl"),
)  # fmt: skip
"""In the order in which vLLM tries them. A row stands here only where vLLM's own test decides by
the compute capability and the format alone; all other values are unknown."""


def backends_for(
    option: str, stored: str, capability: float | None, vllm: tuple[int, int]
) -> tuple[Backend, ...]:
    """The values of an option that run weights of a format on a GPU; none where nothing is known.

        backends_for("--moe-backend", "nvfp4", 9.0, (0, 26))[0].value == "marlin"

    Format and capability are those of `Backend`; below vLLM 0.23 no value is known.
    """
    number = 0 if capability is None else round(10 * capability)
    return tuple(
        row
        for row in BACKENDS
        if row.option == option
        and stored in row.stored.split()
        and vllm >= row.since
        and any(low <= number <= high for low, high in row.capabilities)
    )
