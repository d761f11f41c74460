"""A run for each known issue: what an engine that has it writes, or what its worker tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_prof.traces.readers.engine_log import EngineLog
from tests.analyzers.fallbacks.runs import log

A100, L40S, H100, B200, B300, RTX, GB10 = "8.0", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"
QWEN = "Qwen3_5MoeForConditionalGeneration"
GLM = "GlmMoeDsaForCausalLM"
V4 = "DeepseekV4ForCausalLM"
NEMOTRON = "NemotronHForCausalLM"
LLAMA = "LlamaForCausalLM"
GPT = "GptOssForCausalLM"
NO_FP4 = (
    "Your GPU does not have native support for FP4 computation but FP4 quantization is being "
    "used. Weight-only FP4 compression will be used leveraging the Marlin kernel."
)
BLOCKS = (
    "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not "
    "found at /w/configs/N=4096,K=1024,device_name=NVIDIA_GB10,dtype=fp8_w8a8,"
    "block_shape=[128,128].json"
)
EXPERTS = (
    "Using default MoE config. Performance might be sub-optimal! Config file not found at "
    "/w/configs/E=512,N=2688,device_name=NVIDIA_GB10.json"
)
NOT_TUNED = (
    "[AutoTuner]: No tuned config covers {} input_shapes=(torch.Size([1, 4096]),); falling back "
    "to runner=X tactic=-1"
)
NO_DRAFT = (
    "SpecDecoding metrics: Mean acceptance length: 1.00, Accepted throughput: 0.00 tokens/s, "
    "Drafted throughput: 90.1 tokens/s, Accepted: 0 tokens, Drafted: 901 tokens, Per-position "
    "acceptance rate: 0.000, Avg Draft acceptance rate: 0.0%"
)
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
PCIE = (
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To "
    "silence this warning, specify disable_custom_all_reduce=True explicitly."
)
TOP_K = (
    "flashinfer is unavailable; vocab-parallel top-k uses torch.topk, at roughly half the speed."
)
SPARSE = "Using FLASHINFER_MLA_SPARSE_SM120 attention backend out of potential backends: ['X']."
HIDDEN = "AttributeError: 'FlashInferMLASparseSM120Impl' object has no attribute "
V2 = "Using V2 Model Runner"


@dataclass(frozen=True)
class Engine:
    """One start of vLLM: its version, its GPU, its model and what else it writes."""

    vllm: str
    capability: str
    architecture: str = LLAMA
    said: tuple[str, ...] = ()
    model: str = "/models/served"
    quantization: str = "None"
    given: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Its log, in the wording of real ones."""
        given = {"model": self.model, **self.given}
        told = {name: value for name, value in given.items() if not isinstance(value, dict)}
        told = {
            "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1,
            "quantization": self.quantization, "enforce_eager": False, "kv_cache_dtype": "auto",
            "max_seq_len": given.get("max_model_len", 1024), **told,
        }  # fmt: skip
        drafts = given.get("speculative_config")
        config = None
        if isinstance(drafts, dict):
            config = (
                f"SpeculativeConfig(method='{drafts['method']}', model='{self.model}', "
                f"num_spec_tokens={drafts['num_speculative_tokens']})"
            )
        names = ", ".join(f"{k}={v}" for k, v in told.items() if k != "model")
        return [
            f"INFO 11-21 11:09:54 [api_utils.py:273] non-default args: {given}",
            f"INFO 11-21 11:09:54 [model.py:623] Resolved architecture: {self.architecture}",
            f"(EngineCore pid=3226) INFO 11-21 11:09:55 [core.py:116] Initializing a V1 LLM engine "
            f"(v{self.vllm}) with config: model='{self.model}', speculative_config={config}, "
            f"tokenizer='{self.model}', dtype=torch.bfloat16, {names}, "
            "structured_outputs_config=StructuredOutputsConfig(backend='auto'), seed=0",
            *(f"(EngineCore pid=3226) INFO 11-21 11:10:02 [x.py:1] {line}" for line in self.said),
        ]

    def log(self) -> EngineLog:
        """The same as it is read."""
        return log(*self.lines())


def _linear(kernel: str) -> str:
    return f"Using {kernel} for NVFP4 GEMM"


def _moe(backend: str, stored: str) -> str:
    return f"Using '{backend}' {stored} MoE backend out of potential backends: ['X', 'MARLIN']."


def _attention(name: str) -> str:
    return f"Using {name} attention backend out of potential backends: ['FLASH_ATTN']."


def _drafts(method: str, tokens: int, **more: Any) -> dict[str, Any]:
    drafts = {"method": method, "num_speculative_tokens": tokens, **more}
    return {"speculative_config": drafts}


W4A4, W4A16 = "modelopt_fp4", "modelopt_mixed"
A4 = "Detected ModelOpt NVFP4 checkpoint (quant_algo=NVFP4)."
A16 = "Detected ModelOpt NVFP4 checkpoint (quant_algo=W4A16_NVFP4)."
FIRST = _linear("FlashInferCuteDslNvFp4W4A16LinearKernel")
CUTLASS = _linear("FlashInferCutlassNvFp4LinearKernel")
NANO, SUPER = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"
TP2, TP4, TP8 = ({"tensor_parallel_size": count} for count in (2, 4, 8))
TRITON_GDN = "Using Triton/FLA GDN prefill kernel (requested=auto, head_k_dim=None)."
FLASH = _attention("FLASHINFER")

LOGS: Mapping[str, Engine] = {
    "trtllm-experts-host-time": Engine("0.25.1", B200, NEMOTRON,
        (_moe("FLASHINFER_TRTLLM", "Unquantized"),), given={"enforce_eager": True}),
    "trtllm-nvfp4-relu2-corrupt": Engine("0.26.0", B200, NEMOTRON,
        (_moe("FLASHINFER_TRTLLM", "NvFp4"),), NANO + "-NVFP4", W4A4),
    "latent-experts-reduced-twice": Engine("0.28.0", H100, NEMOTRON, (), SUPER + "-BF16",
        given=TP4),
    "mxfp4-trtllm-tuned-to-graphs": Engine("0.27.0", B200, GPT,
        (_moe("FLASHINFER_TRTLLM_MXFP4_MXFP8", "Mxfp4"),), quantization="mxfp4"),
    "trtllm-experts-tuned-to-8192": Engine("0.25.0", B200, NEMOTRON,
        (_moe("FLASHINFER_TRTLLM", "NvFp4"),), quantization=W4A4,
        given={"data_parallel_size": 4, "max_num_batched_tokens": 16384}),
    "hopper-flashinfer-bf16-experts": Engine("0.21.0", H100, "MixtralForCausalLM",
        ("Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: ['X'].",)),
    "hopper-flashinfer-fp8-experts": Engine("0.30.0", H100, NEMOTRON,
        (_moe("FLASHINFER_CUTLASS", "Fp8"),), NANO + "-FP8", "modelopt"),
    "hopper-flashinfer-fp8-block-experts": Engine("0.15.0", H100, "DeepseekV3ForCausalLM",
        ("Using FLASHINFER_CUTLASS Fp8 MoE backend out of potential backends: ['TRITON'].",),
        quantization="fp8"),
    "sm12x-no-cutlass-fp8-experts": Engine("0.29.0", GB10, "Qwen3MoeForCausalLM",
        (_moe("TRITON", "Fp8"),), quantization="modelopt"),
    "triton-fp8-experts-before-ada": Engine("0.29.0", A100, "Qwen3MoeForCausalLM",
        ("ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes "
         "are ('fp8e4b15', 'fp8e5')",), quantization="fp8"),
    "gemma4-cutlass-experts-with-drafts": Engine("0.23.0", RTX, "Gemma4ForConditionalGeneration",
        (_moe("VLLM_CUTLASS", "NvFp4"),), quantization=W4A4, given=_drafts("mtp", 3)),
    "gpt-oss-marlin-on-gb10": Engine("0.20.0", GB10, GPT, (_moe("MARLIN", "Mxfp4"),),
        quantization="mxfp4"),
    "minimax-m3-marlin-on-hopper": Engine("0.25.1", H100, "MiniMaxM3ForCausalLM",
        (_moe("MARLIN", "NvFp4"),), quantization=W4A4),
    "hopper-humming-mxfp4-experts": Engine("0.28.0", H100, V4, (_moe("MARLIN", "Mxfp4"),),
        quantization="deepseek_v4_fp8"),
    "sm120-marlin-experts-not-b12x": Engine("0.29.0", RTX, QWEN, (A16, _moe("MARLIN", "NvFp4")),
        quantization=W4A4),
    "gb10-no-tuned-experts": Engine("0.29.0", GB10, NEMOTRON, (EXPERTS,)),
    "nvfp4-scales-not-zeroed": Engine("0.24.0", B200, LLAMA, (A4, CUTLASS),
        "nvidia/Llama-3.3-70B-Instruct-FP4", W4A4),
    "weight-only-before-fp4": Engine("0.28.1rc1.dev388+g8a728663c", GB10, LLAMA, (A4, FIRST),
        quantization=W4A4),
    "nvfp4-garbage-at-8-ranks": Engine("0.25.1", RTX, "Qwen2_5_VLForConditionalGeneration",
        (A4, CUTLASS), quantization=W4A4, given=TP8),
    "no-native-fp4-message": Engine("0.30.0", GB10, LLAMA, (A16, NO_FP4), quantization=W4A4),
    "gb10-cutlass-fp8-blocks-fail": Engine("0.21.0", GB10, QWEN,
        ("RuntimeError: Error Internal at /workspace/csrc/cutlass_gemm_caller.cuh:61",)),
    "flashinfer-needs-cuda-12-9": Engine("0.26.0", RTX, LLAMA,
        ("RuntimeError: No supported CUDA architectures found for major versions [12].",)),
    "fp8-products-not-tuned": Engine("0.24.0", RTX, LLAMA,
        (NOT_TUNED.format("flashinfer::bmm_fp8"),), quantization="fp8"),
    "lm-head-not-tuned": Engine("0.26.0", B200, LLAMA,
        (NOT_TUNED.format("bf16_gemm"),)),
    "gb10-fp8-blocks-default-tiles": Engine("0.26.0", GB10, V4, (BLOCKS,)),
    "sm12x-decodes-without-xqa": Engine("0.27.1", GB10, LLAMA, (FLASH,),
        given={"kv_cache_dtype": "fp8"}),
    "sm12x-delta-net-prompts-on-triton": Engine("0.28.0", GB10, QWEN, (TRITON_GDN,)),
    "sm120-long-prompts-since-flashinfer-0-6-13": Engine("0.25.1", RTX, QWEN, (FLASH,)),
    "sm120-nvfp4-cache-prompts": Engine("0.26.0", RTX, LLAMA, (FLASH,),
        given={"kv_cache_dtype": "nvfp4"}),
    "sm12x-sparse-latent-attention-ends-engine": Engine("0.28.0", GB10, GLM,
        (HIDDEN + "'masked_mha_available'",)),
    "sm12x-sparse-latent-attention-long-prompts": Engine("0.28.0", RTX, GLM, (SPARSE,)),
    "gb10-glm-sparse-latent-attention-garbled": Engine("0.26.0", GB10, GLM, (SPARSE,)),
    "sparks-drafts-slower-than-none": Engine("0.29.0", GB10, "MiMoV2FlashForCausalLM",
        given=TP2 | _drafts("dflash", 7)),
    "delta-net-drafts-end-engine": Engine("0.26.0", RTX, QWEN, (ILLEGAL,),
        given=_drafts("mtp", 3)),
    "delta-net-five-drafts-end-engine": Engine("0.20.1", H100, QWEN, (ILLEGAL,),
        given=_drafts("qwen3_next_mtp", 5)),
    "drafts-never-accepted-after-32k": Engine("0.27.1", RTX, QWEN, (NO_DRAFT,),
        given={"max_model_len": 65536} | _drafts("mtp", 2)),
    "gb10-dspark-acceptance": Engine("0.26.0", GB10, V4, given=TP2 | _drafts("dspark", 5)),
    "probabilistic-drafts-not-exact": Engine("0.28.0", H100, LLAMA, (V2,),
        given=_drafts("eagle3", 3, draft_sample_method="probabilistic")),
    "drafts-in-pipeline-without-async": Engine("0.29.0", H100, LLAMA, (V2,),
        given={"pipeline_parallel_size": 2, "async_scheduling": False} | _drafts("mtp", 2)),
    "drafts-in-pipeline-refused": Engine("0.29.0", H100, LLAMA,
        ("Worker failed with error 'PP+async expects sampled_token_ids to have shape [n, 1]'",)),
    "graphs-too-small-for-drafts": Engine("0.29.0", GB10, LLAMA,
        ("Truncating max_cudagraph_capture_size to 40",),
        given={"max_num_seqs": 6} | _drafts("mtp", 6)),
    "drafts-chosen-without-flashinfer": Engine("0.29.0", RTX, LLAMA, (TOP_K,),
        given=_drafts("mtp", 2)),
    "breakable-graphs-on-b300": Engine("0.25.0", B300, V4,
        ("Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1. Set VLLM_USE_BREAKABLE_CUDAGRAPH=0 to opt "
         "out.",)),
    "confidential-computing-slow": Engine("0.29.0", H100, QWEN, ("CC status: ON",)),
    "gb10-workers-spin": Engine("0.29.0", GB10, LLAMA, given=TP2 | {"nnodes": 2}),
    "pcie-all-reduce-by-nccl": Engine("0.30.0", RTX, LLAMA, (PCIE,), given=TP4),
    "sparks-without-rdma": Engine("0.29.0", GB10, LLAMA,
        ("spark-1:211:211 [0] NCCL INFO NET/IB : No device found.",)),
    "sparks-nccl-hangs": Engine("0.25.1", GB10, LLAMA,
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12590)",),
        given=TP2),
}  # fmt: skip
"""Those that a log tells."""
