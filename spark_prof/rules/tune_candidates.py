"""What can be tried on a vLLM engine to make a token cheaper, and when: one rule table.

Checked against the sources of vLLM 0.26 and against 0.32 itself by the table's tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_prof.rules.environment import Version

TRAITS: Mapping[str, str] = {
    "gpu": "it does not run on an NVIDIA GPU",
    "cpu": "it runs on a GPU",
    "eager": "it does not run eagerly",
    "compiled": "it runs without torch.compile; tune again with it",
    "no-full-graphs": "full CUDA graphs run its decode steps already",
    "uncaptured": "each of these batch sizes has a CUDA graph of its own",
    "native-norms": "it has no plain RMS norms that Inductor made",
    "attention": "the model has no attention with a KV cache",
    "wide-cache": "its KV cache is narrow already",
    "fp8-unit": "GPUs compute FP8 from compute capability 8.9 on",
    "qk-norm": "the model has no plain RMS norms of q and k",
    "mla": "the model has no latent attention (MLA)",
    "gdn": "the model has no gated delta net",
    "attention-quantizes": "only Triton's and FlashInfer's attention can quantize what it writes",
    "fp8-activations": "no linear layer quantizes its activations to FP8",
    "mlp-quantizes": "no MLP outside of experts computes with FP8 or FP4 activations",
    "o-quantizes": "the matrix behind attention computes with 16-bit activations",
    "flashinfer-blocks": "FlashInfer multiplies no FP8 weights with a scale for each block",
    "deepgemm": "DeepGEMM computes none of its layers",
    "small-marlin": "no Marlin layer has fewer than 2,048 rows, where atomic sums can help",
    "shared-experts": "the model has no shared experts",
    "several-gpus": "one GPU: nothing is summed over GPUs",
    "fused-sums": "vLLM fuses sums over GPUs on compute capability 9.0 and 10.x only",
    "cards": "its GPUs are not cards of compute capability 12.0, which have PCIe alone",
    "sequence-parallel": "it is not DeepSeek V4.1 or Kimi K3 on GPUs of compute capability 10.x",
    "b12x-experts": "b12x does not compute its experts in FP4",
    "synchronous": "the scheduler works ahead of the GPU already",
    "v1-runner": "it runs model runner V2 already",
    "v2-runner": "it does not run model runner V2",
}
"""What a row may need of an engine, and what is said where that is not so."""


@dataclass(frozen=True)
class Tunable:
    """One thing to try."""

    # A side of `spark-prof ab`; {sizes} are the batch sizes, {graphs} those and the captured ones.
    words: str
    source: str  # as `tune.tune_trial.Candidate` has it
    condition: str  # when it can help, one line
    needs: str  # traits that the engine must have, blanks between
    findings: tuple[str, ...] = ()  # ids of what it can answer
    components: tuple[str, ...] = ()  # whose time is all that it can save; empty for any
    since: Version = (0, 24)  # the first vLLM that has it
    until: Version = (999, 0)  # the first that has not
    narrows_cache: bool = False  # and so must be allowed
    never: str = ""  # why it is never tried, where it is not
    also: str = ""  # traits, beside those, of the engine that is its example

    @property
    def example(self) -> str:
        """Traits of an engine that it is for; its test."""
        return f"{self.needs} {self.also}"


_CONFIG = "--compilation-config"
_PASS = f"{_CONFIG}.pass_config"
_GRAPHS = f"{_CONFIG}.cudagraph_mode"
_WAITS = ("host-gaps", "scheduler-gaps", "idle-gpu")
_NO_DECODE = "it changes how prompts are cut, not a step that only decodes, which is what is timed"
_AMD = "vLLM has it on AMD's GPUs only"

TUNABLES: tuple[Tunable, ...] = (
    Tunable("--no-enforce-eager", "compilation",
        "the engine runs eagerly: torch.compile fuses and, on a GPU, graphs launch for the host",
        "eager", ("eager-mode", *_WAITS, "small-kernels"), also="gpu"),
    Tunable(f"{_GRAPHS}=FULL_AND_PIECEWISE", "compilation",
        "decode steps are launched in pieces: a full graph needs one launch a step",
        "gpu no-full-graphs compiled", ("host-gaps", "graphs-downgraded")),
    Tunable("--cudagraph-capture-sizes {graphs}", "compilation",
        "steps of these batch sizes are padded to a larger graph, or have none",
        "gpu compiled uncaptured", ("graph-sizes-missing",)),
    Tunable("--async-scheduling", "scheduler", "the GPU waits while the host prepares each step",
        "gpu synchronous", ("scheduler-gaps", *_WAITS)),
    Tunable("VLLM_USE_V2_MODEL_RUNNER=1", "scheduler",
        "model runner V1 prepares the steps; V2 does more of that on the GPU", "gpu v1-runner",
        _WAITS),
    Tunable(f"{_PASS}.enable_qk_norm_rope_fusion=true", "fusion passes",
        "norms of q and k, and the rotation, are kernels of their own", "gpu compiled qk-norm",
        ("small-kernels",), ("norm", "rope")),
    Tunable(f"{_PASS}.fuse_norm_quant=true", "fusion passes",
        "a norm and the quantization of its result to FP8 are two kernels",
        "gpu compiled fp8-activations", ("activations-quantized-apart", "small-kernels")),
    Tunable(f"{_PASS}.fuse_act_quant=true", "fusion passes",
        "an activation function and the quantization of its result are two kernels",
        "gpu compiled mlp-quantizes", ("activations-quantized-apart", "small-kernels")),
    Tunable(f"{_PASS}.fuse_attn_quant=true", "fusion passes",
        "attention and the quantization of its result are two kernels",
        "gpu compiled o-quantizes attention-quantizes", ("activations-quantized-apart",)),
    Tunable(f"{_PASS}.fuse_allreduce_rms=true", "fusion passes",
        "GPUs sum, and then norm, in two kernels; FlashInfer's kernel does both",
        "gpu compiled several-gpus fused-sums", ("nccl-all-reduce",)),
    Tunable(f"{_CONFIG}.use_inductor_graph_partition=true", "compilation",
        "the rotation and the KV cache's update of MLA are two kernels, and one with it",
        "gpu compiled mla", ("small-kernels",), ("rope", "attention")),
    Tunable("'--compilation-config.compile_sizes=[{sizes}]'", "compilation",
        "torch.compile makes one kernel for all batch sizes; these get their own", "gpu compiled",
        ("small-kernels",), ("norm", "rope", "mlp")),
    Tunable("--ir-op-priority.rms_norm=vllm_c --ir-op-priority.fused_add_rms_norm=vllm_c",
        "compilation", "norms are Inductor's kernels; vLLM has hand-written ones",
        "gpu compiled native-norms", ("small-kernels",), ("norm",)),
    Tunable(f"{_CONFIG}.custom_ops+=all", "compilation",
        "activations, norms and rotations are Inductor's code; vLLM has hand-written ones",
        "compiled", ("small-kernels",), ("norm", "rope", "mlp"), also="cpu"),
    Tunable(f"{_CONFIG}.mode=0", "compilation",
        "a small model on a CPU may be faster without torch.compile", "cpu compiled"),
    Tunable("VLLM_CPU_ATTN_SPLIT_KV=0", "environment",
        "attention splits its KV cache over cores, which a short context may not be worth",
        "cpu attention"),
    Tunable("VLLM_MARLIN_USE_ATOMIC_ADD=1", "environment",
        "Marlin sums parts of K with locks; narrow layers may do it with atomic additions",
        "gpu small-marlin", ("grid-smaller-than-gpu", "far-from-memory-floor")),
    Tunable("VLLM_USE_DEEP_GEMM=0", "environment",
        "DeepGEMM computes FP8 layers; without it CUTLASS or Triton do", "gpu deepgemm",
        ("far-from-memory-floor", "grid-smaller-than-gpu")),
    Tunable("VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER=0", "environment",
        "FlashInfer multiplies FP8 blocks; without it another kernel does", "gpu flashinfer-blocks",
        ("far-from-memory-floor",)),
    Tunable("VLLM_DISABLE_SHARED_EXPERTS_STREAM=1", "environment",
        "shared experts run on a stream of their own, which small batches may not be worth",
        "gpu shared-experts"),
    Tunable("VLLM_GDN_DECODE_KERNEL=triton", "environment",
        "gated delta nets decode with CUDA kernels; Triton's are the other choice", "gpu gdn",
        since=(0, 28)),
    Tunable("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1", "environment",
        "cards without NVLink sum with NCCL or a custom kernel; FlashInfer has one for PCIe",
        "gpu several-gpus cards", ("nccl-all-reduce",), since=(0, 30)),
    Tunable("VLLM_ENABLE_GEMM_RS=1", "environment",
        "the product behind attention and the sum over GPUs are two kernels, and one with it",
        "gpu several-gpus sequence-parallel", ("nccl-all-reduce",), since=(0, 31)),
    Tunable("VLLM_B12X_MOE_FP4_FORCE_A16=1", "environment",
        "b12x quantizes what comes to the experts; few tokens may not be worth that",
        "gpu b12x-experts", ("activations-quantized-apart", "small-kernels"), ("experts",),
        since=(0, 29)),
    Tunable("VLLM_USE_V2_MODEL_RUNNER=0", "scheduler",
        "model runner V2 prepares the steps; V1 is the other choice", "gpu v2-runner", _WAITS),
    Tunable("--kv-cache-dtype=fp8", "KV cache", "attention reads half as many bytes",
        "gpu attention wide-cache fp8-unit", narrows_cache=True),
    Tunable(f"{_GRAPHS}=FULL", "compilation", "", "gpu compiled",
        never="a decode step replays the same full graph as with FULL_AND_PIECEWISE"),
    Tunable(f"{_GRAPHS}=PIECEWISE", "compilation", "", "gpu compiled",
        never="a decode step would launch each layer's attention apart from its graphs"),
    Tunable("-O3", "compilation", "", "compiled", never="it sets what -O2 does"),
    Tunable(f"{_PASS}.enable_sp=true", "fusion passes", "", "gpu compiled several-gpus",
        until=(0, 32),
        never="it splits sums of many tokens, as prompts have them, not those of decode steps"),
    Tunable(f"{_PASS}.fuse_gemm_comms=true", "fusion passes", "", "gpu compiled several-gpus",
        until=(0, 32),
        never="it splits sums of many tokens, as prompts have them, not those of decode steps"),
    Tunable(f"{_PASS}.fuse_rope_kvcache=true", "fusion passes", "", "gpu compiled", never=_AMD),
    Tunable(f"{_PASS}.fuse_qk_norm_rope_kvcache=true", "fusion passes", "", "gpu compiled qk-norm",
        since=(0, 26), never=_AMD),
    Tunable("--max-num-batched-tokens", "scheduler", "", "", never=_NO_DECODE),
    Tunable("--no-enable-chunked-prefill", "scheduler", "", "", never=_NO_DECODE),
    Tunable("--enable-prefix-caching", "scheduler", "", "",
        never="no decode step reads less by it, and `spark-prof ab` times without it"),
    Tunable("VLLM_USE_FLASHINFER_SAMPLER=0", "environment", "", "gpu",
        never="it is for top-k and top-p, and tokens are timed as the most probable ones"),
)  # fmt: skip
"""Of two that answer no finding the first is tried first."""


@dataclass(frozen=True)
class SwappableSlot:
    """A slot that kernels of this package can be put into."""

    slot: str
    components: tuple[str, ...]  # whose weights its layers hold
    formats: tuple[str, ...]  # of weights that the kernels take as they are
    quantizes: bool = False  # whether BF16 weights can be quantized at load


_LINEAR = ("nvfp4", "mxfp4", "fp8", "int4", "bf16")

SWAPS: tuple[SwappableSlot, ...] = (
    SwappableSlot("moe", ("experts",), ("nvfp4", "mxfp4", "fp8", "bf16")),
    SwappableSlot("router", ("router",), ("bf16", "fp32")),
    SwappableSlot("qkv", ("qkv",), _LINEAR, quantizes=True),
    SwappableSlot("o", ("o_proj",), _LINEAR, quantizes=True),
    SwappableSlot("mlp", ("mlp", "shared_experts"), _LINEAR, quantizes=True),
    SwappableSlot("lm_head", ("lm_head",), _LINEAR, quantizes=True),
)
"""As docs/kernels.md lists them."""

SLOT_OF: Mapping[str, str] = {part: swap.slot for swap in SWAPS for part in swap.components}


def slot_of(component: str) -> str:
    """The slot of `spark-prof ab` that has a component's kernels; empty where none has.

    slot_of("o_proj") == "o"
    """
    return SLOT_OF.get(component, "layer" if component in IN_LAYER else "")


MOST_TOKENS = 16
"""That a step may compute for its layers to run kernels of this package."""

IN_LAYER = ("qkv", "attention", "rope", "kv_write", "norm", "router", "experts", "mlp")
"""Components whose kernels the slot `layer` has."""

DENSE_LAYER_MODELS = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""Models without experts whose decoder layers slot `layer` knows."""

EXPERTS_LAYER_MODELS = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "MiniMaxM2ForCausalLM",
    "NemotronHForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
"""Models of whose decoder layers slot `layer` knows all but attention."""

UNMEASURED_LAYER_MODELS = ("MistralForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM")
"""Models of whose decoder layers slot `layer` knows all, and no engine's time was measured."""

MEASURED_ONCE = ("DeepseekV2ForCausalLM", "NemotronHForCausalLM", "Qwen3NextForCausalLM")
"""Those of them with which an H200 took less a step of one request, in one engine start a side."""

LAYER_MODELS = (
    "GptOssForCausalLM",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    *DENSE_LAYER_MODELS,
    *EXPERTS_LAYER_MODELS,
)
"""Models whose decoder layers slot `layer` knows."""

FOREIGN: Mapping[str, str] = {
    "aiter aiter_mega_moe aiter_triton_mxfp4_bf16 aiter_triton_mxfp4_mxfp4 flydsl rdna3":
        "AMD's GPUs only",
    "xpu xpu_woq": "Intel's GPUs only",
    "emulation": "it computes in BF16 what the GPU has no unit for, to be checked, not to be fast",
}  # fmt: skip
"""Values of vLLM's backend options that are for other machines than this one."""
