"""The lines of an engine's log that tell how it runs the model: one row a line, first match wins.

Wordings are those of vLLM 0.6 to 0.33, of SGLang, and of FlashInfer, torch and Triton where they
tell why a kernel was not chosen. vLLM writes most of them once per process and value, not once per
layer. A new wording is a new row, or another example of a row whose pattern takes it.
"""

from __future__ import annotations

from spark_prof.rules.harmless_lines import HARMLESS_LINES
from spark_prof.rules.issue_lines import ISSUE_LINES
from spark_prof.rules.log_line_rule import TOPICS as TOPICS
from spark_prof.rules.log_line_rule import LineRule as LineRule
from spark_prof.rules.log_line_rule import line_rule as _rule
from spark_prof.rules.start_lines import START_LINES
from spark_prof.rules.step_lines import STEP_LINES

_PATH_END = r"[^'\"\s/\\]+\.json"
_FP4_WARNING = (
    "Your GPU does not have native support for FP4 computation but FP4 quantization is being used. "
    "Weight-only FP4 compression will be used leveraging the Marlin kernel. This may degrade "
    "performance for compute-heavy workloads."
)

LINE_RULES: tuple[LineRule, ...] = (
    # What runs: version, arguments, configuration, GPU.
    _rule("engine-config", "engine", "Initializing a",
        r"Initializing an? (?:V\d )?LLM engine \(v?(?P<value>[\w.+]+)\) with config: "
        r"(?P<detail>.+)",
        "The engine's version and whole configuration.",
        "Initializing a V1 LLM engine (v0.23.0) with config: model='m', enforce_eager=False",
        "Initializing an LLM engine (v0.6.3) with config: model='m', enforce_eager=True"),
    _rule("engine-version", "engine", "version ",
        r"(?:vLLM (?:API server|SwiftServer|server)? ?|[█▄▀]\s+)version v?(?P<value>\d[\w.+]*)",
        "The engine's version.",
        "vLLM API server version 0.11.2",
        "       ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.19.0"),
    _rule("arguments", "engine", "non-default args",
        r"non-default args: (?P<detail>.+)",
        "The arguments that were given to vLLM.",
        "non-default args: {'model_tag': 'openai/gpt-oss-20b', 'enforce_eager': True}"),
    _rule("sglang-arguments", "engine", "ServerArgs(",
        r"server_args=ServerArgs\((?P<detail>.+)",
        "SGLang's whole configuration.",
        "server_args=ServerArgs(model_path='m', attention_backend='triton', "
        "disable_cuda_graph=False)"),
    _rule("modelopt-checkpoint", "engine", "Detected ModelOpt",
        r"Detected ModelOpt \w+ checkpoint \(quant_algo=(?P<value>\w+)\)",
        "A quantization of the checkpoint; a mixed one is told as several.",
        "Detected ModelOpt NVFP4 checkpoint (quant_algo=W4A16_NVFP4). Please note that the format "
        "is experimental and could change in future.",
        "Detected ModelOpt fp8 checkpoint (quant_algo=FP8)."),
    _rule("torch-version", "engine", "PyTorch version",
        r"PyTorch version (?P<value>\d[\w.+]*)",
        "torch's version.",
        "PyTorch version 2.9.0+cu130 available."),
    _rule("gpu", "engine", "cuda capability",
        r"Found GPU\d+ (?P<value>.{1,80}?) which is of cuda capability (?P<detail>\d+\.\d)",
        "The GPU; torch was not built for its compute capability by that number.",
        "Found GPU0 NVIDIA GB10 which is of cuda capability 12.1."),
    # Settings that do nothing, or soon will.
    _rule("unknown-variable", "setting", "Unknown vLLM environment",
        r"Unknown vLLM environment variable detected: (?P<value>\w+)",
        "This environment variable is not read by this vLLM: it does nothing.",
        "Unknown vLLM environment variable detected: VLLM_USE_FLASHINFER_MOE_FP4"),
    _rule("deprecated-variable", "setting", " is deprecated",
        r"\b(?P<value>VLLM_\w{1,120})(?: environment variable)? is deprecated and will be removed "
        r"in (?P<detail>v?\d[\w.]*\w|a future release)",
        "This environment variable still works and will not in a later vLLM.",
        "VLLM_USE_FLASHINFER_MOE_FP4 is deprecated and will be removed in v0.23. Use --moe-backend "
        "(e.g. flashinfer_trtllm, flashinfer_cutlass, flashinfer_cutedsl).",
        "Using VLLM_ATTENTION_BACKEND environment variable is deprecated and will be removed in "
        "v0.14.0 or v1.0.0, whichever is soonest."),
    _rule("backend-not-for-layer", "setting", "--linear-backend=",
        r"--linear-backend=(?P<value>\w+) (?:has no kernel for this linear layer type|"
        r"was requested,? but no '?\w+'? kernel exists for (?P<layer>[\w ]+?)(?: layers?)?[;.])",
        "No kernel of the backend that was asked for suits these layers.",
        "--linear-backend=marlin has no kernel for this linear layer type; using automatic "
        "selection for that layer type.",
        "--linear-backend=flashinfer_b12x was requested but no 'flashinfer_b12x' kernel exists for "
        "NVFP4 layers.",
        "--linear-backend=cutlass was requested, but no cutlass kernel exists for MXFP8 layers; "
        "falling back to normal kernel selection for this layer."),
    _rule("batch-invariant", "setting", "VLLM_BATCH_INVARIANT",
        r"VLLM_BATCH_INVARIANT (?:overrides --linear-backend=(?P<detail>\w+)|forces NVFP4 linear "
        r"to use the (?P<value>\w+) backend|is set but the batch-invariant NVFP4 kernel is not "
        r"supported)",
        "Batch invariance decides the kernel, whatever was asked for.",
        "VLLM_BATCH_INVARIANT overrides --linear-backend=marlin; using the CUTLASS backend for "
        "deterministic execution.",
        "VLLM_BATCH_INVARIANT forces NVFP4 linear to use the CUTLASS backend for deterministic "
        "execution.",
        "VLLM_BATCH_INVARIANT is set but the batch-invariant NVFP4 kernel is not supported on this "
        "platform; falling back to emulation for deterministic execution. Reason: x"),
    _rule("kernel-not-forced", "setting linear", "Tried to force",
        r"Tried to force (?P<value>\w+), but the kernel couldn't be implemented",
        "A kernel that was asked for cannot run here.",
        "Tried to force CutlassFP8ScaledMMLinearKernel, but the kernel couldn't be implemented"),
    # Fallbacks, before the plain choices: some of their lines begin alike.
    _rule("nvfp4-emulation", "fallback linear nvfp4", "alling back",
        r"NVFP4 linear falling back to the slow and unoptimized emulation backend",
        "Weights are widened to BF16 and multiplied in BF16 in every step: the slowest way.",
        "NVFP4 linear falling back to the slow and unoptimized emulation backend as no optimized "
        "backend is available (unavailable reasons:"),
    _rule("emulation-experts", "fallback", "Using ",
        r"Using (?P<value>\w*Emulation\w*)(?: MO?o?E backend|, with simulated)",
        "Weights are widened before every product: the slowest way.",
        "Using Nvfp4QuantizationEmulationTritonExperts MOE backend. This will dequantize weights "
        "on the fly and may be slower than native quantized MOE.",
        "The current platform does not support native MXFP4 computation. Using "
        "EmulationMxfp4LinearKernel, with simulated weight dequantization and activation QDQ"),
    _rule("simulated-mx", "fallback linear", "Simulated weight",
        r"(?:does not support|supports) native (?P<format>MXFP\d)\S* computation.*Simulated weight",
        "MX formats are simulated: weights are widened before every product.",
        "The current platform does not support native MXFP4/MXFP6 computation. Simulated weight "
        "dequantization and activation QDQ (quantize and dequantize) will be used, with the linear "
        "layers computed in high precision."),
    _rule("mxfp8-widened", "fallback moe mxfp8", "MoE backend",
        r"No native MXFP8 MoE backend available on this device; MXFP8 weights will be dequantized",
        "Experts in MXFP8 are widened to BF16 when the model is loaded: twice the bytes per token.",
        "No native MXFP8 MoE backend available on this device; MXFP8 weights will be dequantized "
        "to BF16 once at load time and the MoE will run in BF16 (no per-step dequant)."),
    _rule("no-kernel", "fallback linear", "Failed to find a kernel",
        r"Failed to find a kernel that can implement the (?P<format>\w+) linear layer",
        "No kernel can run these layers.",
        "Failed to find a kernel that can implement the NVFP4 linear layer. Reasons:"),
    _rule("no-moe-backend", "fallback moe", "MoE backend",
        r"No (?P<format>\w+) MoE backends? (?:supports the deployment configuration|available)",
        "No kernel can run these experts.",
        "NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.",
        "No MXFP8 MoE backends available."),
    _rule("activations-not-quantized", "fallback moe", "alling back",
        r"No (?P<format>\w+) MoE backend supports activation=(?P<detail>.+?) for the deployment "
        r"configuration\. Falling back to '(?P<value>\w+)'",
        "Experts run with 16-bit activations although quantized ones were asked for.",
        "No Mxfp4 MoE backend supports activation=mxfp8 for the deployment configuration. Falling "
        "back to 'MARLIN' with BF16 activations."),
    _rule("activations-ignored", "fallback linear mxfp4", "weight-only (A16) kernel",
        r"\b(?P<value>\w{1,120}) is a weight-only \(A16\) kernel; the requested activation "
        r"quantization \((?P<detail>.*?)\) is ignored",
        "Activations stay in 16 bit although the checkpoint asks for less.",
        "MarlinMxFp4LinearKernel is a weight-only (A16) kernel; the requested activation "
        "quantization (mxfp4) is ignored."),
    _rule("mxfp4-activations", "fallback linear mxfp4", "alling back",
        r"No MXFP4 linear kernel supports (?P<detail>\w+) activations on this platform",
        "Activations are quantized to another format than the checkpoint asks for.",
        "No MXFP4 linear kernel supports FP8 activations on this platform; falling back to MXFP4 "
        "activations."),
    _rule("mxfp4-linear-unquantized", "fallback linear mxfp4", "alling back",
        r"MXFP4 linear layer is not implemented - falling back to (?P<value>\w+)",
        "Linear layers of this MXFP4 model run unquantized.",
        "MXFP4 linear layer is not implemented - falling back to UnquantizedLinearMethod."),
    _rule("layer-unquantized", "kernel linear unquantized", "alling back",
        r"Acceleration for non-quantized schemes is not supported by Compressed Tensors\. Falling "
        r"back to (?P<value>UnquantizedLinearMethod)",
        "Some layers are not quantized in the checkpoint and run as they are.",
        "Acceleration for non-quantized schemes is not supported by Compressed Tensors. Falling "
        "back to UnquantizedLinearMethod"),
    _rule("flashinfer-unavailable-moe", "fallback moe nvfp4", "FlashInfer",
        r"FlashInfer kernels unavailable for (?P<detail>\w[\w -]{0,80}?) on current platform",
        "FlashInfer's FP4 experts were asked for and are not built for this GPU (vLLM up to 0.12).",
        "FlashInfer kernels unavailable for ModelOptNvFp4FusedMoE on current platform.",
        "FlashInfer kernels unavailable for CompressedTensorsW4A4Nvfp4MoEMethod on current "
        "platform."),
    _rule("marlin-fp4-moe", "fallback moe nvfp4", "alling back",
        r"Falling back to (?P<value>Marlin) FP4 MoE kernel",
        "Experts run on Marlin, which takes FP4 weights and 16-bit activations.",
        "Falling back to Marlin FP4 MoE kernel."),
    _rule("int4-fallback", "fallback - int4", "alling back",
        r"Layer '[^']*' is not supported by (?P<detail>\w+)\. Falling back to "
        r"(?P<value>[\w -]+?) kernels",
        "Marlin does not take the shape of this layer; a slower kernel does its work.",
        "Layer 'model.layers.0.mlp.gate_up_proj' is not supported by AutoAWQMarlin. Falling back "
        "to unoptimized AWQ kernels.",
        "Layer 'model.layers.1.mlp.experts' is not supported by GPTQMoeMarlin. Falling back to Moe "
        "WNA16 kernels."),
    _rule("transformers-model", "fallback", "alling back",
        r"\b(?P<value>\w{1,120}) has no vLLM implementation, falling back to Transformers",
        "The model runs as Transformers wrote it, without vLLM's own layers.",
        "MyForCausalLM has no vLLM implementation, falling back to Transformers implementation. "
        "Some features may not be supported and performance may not be optimal."),
    _rule("deepgemm-off", "fallback - fp8", "DeepG",
        r"(?:Auto-disabled DeepGemm for (?P<detail>\S+)|DeepGEMM backend requested but not "
        r"(?P<value>available))",
        "FP8 blocks are not multiplied by DeepGEMM.",
        "DeepGEMM backend requested but not available.",
        "Auto-disabled DeepGemm for model_type=glm on Blackwell. DeepGemm E8M0 scale format causes "
        "accuracy degradation for this architecture. Falling back to CUTLASS."),
    _rule("kernel-failed", "fallback - nvfp4", "ailed to ",
        r"(?P<value>Failed to initialize cutlass TMA WS grouped gemm|"
        r"Failed to run cutlass FP4 gemm on sm\d+)",
        "A CUTLASS kernel was tried and refused; FlashInfer's tuner goes on without it.",
        "Failed to initialize cutlass TMA WS grouped gemm",
        "RuntimeError: [FP4 gemm Runner] Failed to run cutlass FP4 gemm on sm120. Error: Error "
        "Internal"),
    _rule("no-image", "fallback", "no kernel image",
        r"(?P<value>no kernel image is available for execution on the device)",
        "A library holds no code for this GPU.",
        "CUDA error: no kernel image is available for execution on the device"),
    # Why a backend was not taken; most need VLLM_LOGGING_LEVEL=DEBUG.
    _rule("moe-backend-refused", "refused moe", "MoE backend",
        r"(?P<format>\w+(?: Int8)?) MoE backend '?(?P<value>[\w ]{1,60}?)'? does not support the "
        r"deployment configuration(?: since (?P<detail>.+?))?\.?$",
        "Why these experts do not run on that backend.",
        "NvFp4 MoE backend 'FLASHINFER_CUTLASS' does not support the deployment configuration "
        "since kernel does not support current device cuda.",
        "FP8 MoE backend DEEPGEMM does not support the deployment configuration since x."),
    _rule("linear-kernel-refused", "refused linear", "LinearKernel",
        r"(?:-|:)\s+(?P<value>\w+LinearKernel)(?: cannot implement due to:?|:| is not supported:?|)"
        r" (?P<detail>(?:disabled by|\S+ ).+)$",
        "Why these layers do not run on that kernel.",
        " -  FlashInferCutlassNvFp4LinearKernel disabled by environment variable",
        " - CutlassNvFp4LinearKernel: CUTLASS FP4 is not supported on this device"),
    _rule("attention-refused", "refused", "attention backends are not valid",
        r"Some attention backends are not valid for (?P<value>.+?) with .*?Reasons: (?P<detail>.+)",
        "Why attention does not run on those backends.",
        "Some attention backends are not valid for NVIDIA GB10 with AttentionSelectorConfig(). "
        "Reasons: {FLASHMLA: [compute capability not supported]}."),
    # Misleading or honest warnings that a weight-only kernel runs.
    _rule("marlin-linear", "warning linear nvfp4", "native support for FP",
        r"\[(?P<value>marlin)\.py:\d+\] Your GPU does not have native support for FP4 computation",
        "Linear layers run weight-only on Marlin, also where no other line says so. What it says "
        "about the GPU is not checked by vLLM.",
        f"WARNING 06-01 21:40:20 [marlin.py:34] {_FP4_WARNING}"),
    _rule("no-native-fp", "warning", "native support for FP",
        r"Your GPU does not have native support for (?P<format>FP4|FP8) computation",
        "A weight-only kernel runs. What it says about the GPU is not checked by vLLM.",
        _FP4_WARNING,
        "Your GPU does not have native support for FP8 computation but FP8 quantization is being "
        "used. Weight-only FP8 compression will be used leveraging the Marlin kernel."),
    _rule("lacks-native-fp4", "warning", "lacks native FP4",
        r"This device lacks native (?P<format>FP4) compute; using weight-only FP4",
        "A weight-only kernel runs.",
        "This device lacks native FP4 compute; using weight-only FP4 via the Marlin kernel, which "
        "may reduce performance for compute-heavy workloads."),
    # Tuned configurations.
    _rule("default-moe-config", "config moe", "Using ",
        r"Using default (?P<value>(?:FlyDSL )?MoE) (?:kernel )?config\. Performance might be "
        rf"sub-optimal!.*?(?:Config file not found at .*?(?P<detail>{_PATH_END})|$)",
        "No tuned configuration for the Triton experts on this GPU and shape.",
        "Using default MoE config. Performance might be sub-optimal! Config file not found at "
        "/x/vllm/model_executor/layers/fused_moe/configs/E=256,N=512,device_name=NVIDIA_GB10.json",
        "Using default MoE config. Performance might be sub-optimal! Config file not found at "
        "['/w/fused_moe/configs/E=16,N=1536,device_name=NVIDIA_L40S,dtype=fp8_w8a8,"
        "block_shape=[128,128].json']",
        "Using default MoE kernel config. Performance might be sub-optimal! Config file not found "
        "at /s/configs/triton_3_4_0/E=128,N=768,device_name=NVIDIA_GB10.json, you can create them "
        "with https://github.com/sgl-project/sglang"),
    _rule("default-block-config", "config linear", "Using ",
        r"Using default W8A8 Block (?P<format>FP8|INT8) kernel config\. Performance might be "
        rf"sub-optimal!.*?(?:Config file not found at .*?(?P<detail>{_PATH_END})|$)",
        "No tuned configuration for the block-scaled Triton GEMM on this GPU and shape.",
        "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file "
        "not found at /w/configs/N=4096,K=1024,device_name=NVIDIA_L40S,dtype=fp8_w8a8,"
        "block_shape=[128,128].json"),
    _rule("default-ssm-config", "config ssm", "Using ",
        r"Using default (?P<value>Mamba SSU) config\. Performance might be sub-optimal!.*?"
        rf"(?:Config file not found at .*?(?P<detail>{_PATH_END})|$)",
        "No tuned configuration for the state-space kernel on this GPU.",
        "Using default Mamba SSU config. Performance might be sub-optimal! Config file not found "
        "at /w/configs/headdim=64,dstate=128,device_name=NVIDIA_GB10.json"),
    _rule("few-multiprocessors", "config", "Not enough SMs",
        r"Not enough SMs to use (?P<value>max_autotune_gemm) mode",
        "torch.compile does not tune GEMMs on a GPU with that few multiprocessors.",
        "Not enough SMs to use max_autotune_gemm mode"),
    # The plain choices.
    _rule("linear-kernel", "kernel linear", "Using ",
        r"Using (?P<value>[\w.-]{1,120}(?: [\w.-]{1,60})?) for "
        r"(?P<format>NVFP4|MXFP4|MXFP6|MXFP8) GEMM",
        "The kernel of the linear layers in that format.",
        "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
        "Using NvFp4LinearBackend.MARLIN for NVFP4 GEMM",
        "Using flashinfer-cutlass for NVFP4 GEMM",
        "Using MarlinMxFp4LinearKernel for MXFP4 GEMM"),
    _rule("linear-selected", "kernel linear", "Selected ",
        r"Selected (?P<value>\w+Kernel\w*) for (?P<detail>\w+)",
        "The kernel of the linear layers with that method.",
        "Selected FlashInferFP8ScaledMMLinearKernel for ModelOptFp8LinearMethod",
        "Selected CutlassScaledMMLinearKernel for CompressedTensorsW8A8Int8"),
    _rule("mixed-linear", "kernel linear int4", "Using ",
        r"Using (?P<value>\w+LinearKernel) for (?P<detail>\w+(?: linear)?|mixed-precision linear)",
        "The kernel of the linear layers with that method.",
        "Using MarlinLinearKernel for GPTQMarlinLinearMethod",
        "Using MacheteLinearKernel for mixed-precision linear"),
    _rule("moe-backend", "kernel moe", "Using ",
        r"Using '?(?P<value>[A-Za-z][\w .]{0,60}?)'? (?P<format>(?:NvFp4|Mxfp4|MxFp8|Mxfp8|Fp8|FP8|"
        r"Int8|WNA16|W4A8(?: Int8)?|Unquantized|Humming)) MoE backend",
        "The backend of the experts in that format.",
        "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: "
        "['FLASHINFER_TRTLLM', 'MARLIN'].",
        "Using 'MARLIN' Mxfp4 MoE backend.",
        "Using TRITON Fp8 MoE backend out of potential backends: ['TRITON'].",
        "Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: ['TRITON']."),
    _rule("moe-backend-older", "kernel moe", "Using ",
        r"Using (?P<value>[\w .]{1,60}?) backend for "
        r"(?P<format>FP8|NVFP4|NvFp4|MXFP4|Unquantized|FP4) MoE",
        "The backend of the experts in that format (vLLM up to 0.15).",
        "Using Marlin backend for FP8 MoE",
        "Using FlashInfer TRTLLM backend for FP8 MoE"),
    _rule("moe-flashinfer-older", "kernel moe", "Using ",
        r"Using (?P<value>FlashInfer (?P<format>MXFP4|FP8) (?:MoE )?[\w ]{1,60}?) backend for "
        r"SM\d+",
        "The backend of the experts in that format (vLLM up to 0.18).",
        "Using FlashInfer MXFP4 BF16 backend for SM90",
        "Using FlashInfer MXFP4 MXFP8 CUTLASS backend for SM100",
        "Using FlashInfer FP8 MoE CUTLASS backend for SM90/SM100"),
    _rule("moe-mxfp4-older", "kernel moe mxfp4", "Using ",
        r"(?:mxfp4\.py:\d+\]|\[get_mxfp4_backend\w*\]) Using (?P<value>Marlin|Triton) backend",
        "The backend of the MXFP4 experts (vLLM up to 0.18).",
        "INFO 11-28 11:46:20 [mxfp4.py:136] Using Triton backend",
        "[get_mxfp4_backend_with_lora] Using Marlin backend"),
    _rule("moe-method-older", "kernel moe nvfp4", "Using ",
        r"Using (?P<value>Cutlass|Marlin|FlashInfer(?: CUTLASS| TRTLLM)?(?: kernels)?) for "
        r"(?P<detail>\w*Nvfp4\w*|ModelOptNvFp4\w*)",
        "The backend of the NVFP4 experts (vLLM up to 0.13).",
        "Using Cutlass for CompressedTensorsW4A4Nvfp4MoEMethod.",
        "Using FlashInfer kernels for ModelOptNvFp4FusedMoE."),
    _rule("moe-experts", "kernel moe", "Using ",
        r"Using (?P<value>\w+Experts\w*)(?: \(weight-only FP4\))?(?: for (?:AutoRound )?"
        r"(?P<format>MXFP4) MoE| MoE backend|\.?\s*$)",
        "The class that runs the experts.",
        "Using MarlinExperts for MXFP4 MoE",
        "Using TritonExperts MoE backend",
        "Using OAITritonMxfp4ExpertsMonolithic"),
    _rule("moe-sglang", "kernel moe", "MoE runner backend",
        r"Use (?P<value>\w+) as MoE runner backend",
        "The backend of the experts in SGLang.",
        "Use flashinfer_trtllm as MoE runner backend on sm100 for Qwen3MoeForCausalLM"),
    _rule("moe-wna16", "kernel moe int4", "Using ",
        r"Using (?P<value>CompressedTensorsWNA16\w*MoEMethod)",
        "The method of integer experts.",
        "Using CompressedTensorsWNA16MarlinMoEMethod"),
    _rule("prepare-finalize", "kernel dispatch", "Using ",
        r"Using (?P<value>\w*PrepareAndFinalize\w*)",
        "How tokens get to the experts and back.",
        "Using MoEPrepareAndFinalizeNoDPEPModular"),
    _rule("gdn-kernel", "kernel ssm", "Using ",
        r"Using (?P<value>\S+) GDN prefill kernel",
        "The kernel of the gated delta net's prompts.",
        "Using Triton/FLA GDN prefill kernel (requested=auto, head_k_dim=None)."),
    # Attention.
    _rule("attention-of-images", "attention", "Using ",
        r"Using (?:backend )?\S+ for (?:vit attention|MMEncoderAttention)",
        "The kernel of attention over images.",
        "Using backend AttentionBackendEnum.FLASH_ATTN for vit attention"),
    _rule("attention", "attention", "Using ",
        r"Using (?:AttentionBackendEnum\.)?(?P<value>[A-Z][A-Z0-9_]{3,}) (?:attention )?backend"
        r"(?: out of potential backends|\.| \(selected)",
        "The backend of attention.",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
        "Using AttentionBackendEnum.FLASHINFER backend."),
    _rule("attention-older", "attention", "Using ",
        r"Using (?P<value>Flash Attention|FlashAttention-\d|FlashInfer|FlashMLA|FlexAttention|"
        r"Triton|Triton MLA|Cutlass MLA|XFormers|TORCH_SDPA|Torch SDPA) backend"
        r"(?: on V1 engine\b|\.\s*$|$)",
        "The backend of attention.",
        "Using Flash Attention backend on V1 engine.",
        "Using Triton MLA backend on V1 engine."),
    _rule("attention-sglang", "attention", "ttention backend not",
        r"Attention backend not (?:explicitly specified|set)\. Use (?P<value>\w+)(?: attention)? "
        r"backend",
        "The backend of attention in SGLang.",
        "Attention backend not explicitly specified. Use triton backend by default."),
    _rule("flash-version", "attention", "Using ",
        r"Using FlashAttention version (?P<value>\d)",
        "The version of FlashAttention.",
        "Using FlashAttention version 2"),
    _rule("flashinfer-decode", "attention", "decode_backend=",
        r"decode_backend=(?P<value>\w+).*?kv_cache_dtype=(?P<format>[\w.]+).*?arch=(?P<detail>\w+)",
        "What FlashInfer decodes with, and for which architecture it was built.",
        "FlashInfer resolved query dtypes: prefill=torch.bfloat16, decode=torch.float8_e4m3fn, "
        "decode_backend=xqa, kv_cache_dtype=torch.float8_e4m3fn, arch=sm121"),
    _rule("block-size", "attention", "--block-size",
        r"--block-size (?P<detail>\d+) precluded higher-priority backend\(s\) .*?Using "
        r"(?P<value>\w+) instead",
        "The block size that was asked for rules out a faster attention.",
        "--block-size 16 precluded higher-priority backend(s) FLASHINFER. Using TRITON_ATTN "
        "instead, which may result in reduced performance."),
    # How steps are executed.
    _rule("eager", "execution", "ager",
        r"(?:Enforce eager set, disabling|(?:CUDA |Cuda|cuda)graph is disabled under eager "
        r"mode|enforce-eager is "
        r"enabled|fallback to the eager mode|Compilation disabled, using eager mode)",
        "Kernels are launched one by one: no CUDA graphs.",
        "Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting "
        "-cc.mode=none -cc.cudagraph_mode=none",
        "Cudagraph is disabled under eager mode",
        "To see benefits of async output processing, enable CUDA graph. Since, enforce-eager is "
        "enabled, async output processor cannot be used",
        "CUDA graph is not supported on BitsAndBytes 8bit yet, fallback to the eager mode."),
    _rule("graphs-skipped", "execution", "CUDA graph capture",
        r"Skipping (?:encoder and decoder )?CUDA graph capture",
        "No CUDA graph was captured.",
        "Skipping CUDA graph capture. To turn on CUDA graph capture, ensure `cudagraph_mode` was "
        "not manually set to `NONE`"),
    _rule("graph-mode", "execution", "udagraph",
        r"(?:CUDAGraphMode\.(?P<detail>\w+) is not supported with .+?)?(?:[Cc]udagraph[_ ]mode|"
        r"CUDAGraphMode).*?(?:=| to )(?P<value>NONE|PIECEWISE|FULL_AND_PIECEWISE|FULL_DECODE_ONLY|"
        r"FULL)\b",
        "vLLM uses other CUDA graphs than it was asked for.",
        "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend "
        "FlashInferBackend (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting "
        "cudagraph_mode=PIECEWISE",
        "Cudagraph mode PIECEWISE is not compatible with compilation mode 0.Overriding to NONE.",
        "Dynamic speculative decoding changes the target verification length at runtime. "
        "Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE for reliability. Use "
        "VLLM_USE_V2_MODEL_RUNNER=1 if you want to use full CUDA graphs.",
        "Pooling models do not support full cudagraphs. Overriding cudagraph_mode to PIECEWISE.",
        "Cudagraph mode FULL_AND_PIECEWISE requires piecewise capture, but the loaded model "
        "provides neither a compiled submodule nor breakable CUDA graphs. Overriding to FULL.",
        "CUDA graphs are not supported with stock torch.compile in Model Runner V2. Overriding "
        "cudagraph_mode FULL to NONE.",
        "Piecewise compilation with empty splitting_ops does not contain piecewise cudagraph. "
        "Setting cudagraph_mode to NONE. Hint: If you are using attention backends that support "
        "cudagraph, consider manually setting cudagraph_mode to FULL"),
    _rule("graphs-captured", "execution", "Profiling CUDA graph",
        r"Profiling CUDA graph memory: (?P<value>[\w=(), ]+)",
        "How many CUDA graphs of each kind there are, and their largest size.",
        "Profiling CUDA graph memory: PIECEWISE=4 (largest=12), FULL=4 (largest=12)"),
    _rule("compile-off", "execution", "disabling torch.compile",
        r"(?P<value>TORCH_COMPILE_DISABLE) is set, disabling torch\.compile",
        "The model is not compiled.",
        "TORCH_COMPILE_DISABLE is set, disabling torch.compile. This is equivalent to setting "
        "-cc.mode=none"),
    _rule("graph-sizes-sglang", "execution", "Capture cuda graph bs",
        r"Capture cuda graph bs \[(?P<value>[\d, ]+)\]",
        "The batch sizes for which SGLang captured CUDA graphs.",
        "Capture cuda graph bs [1, 2, 4, 8]"),
    _rule("model-runner", "execution", "odel Runner",
        r"(?:Using (?P<value>V2) Model Runner|Model Runner V2 (?:does not yet support "
        r"(?P<detail>.+?)|requires Triton); using the V1 model)",
        "Which of vLLM's model runners drives the steps.",
        "Using V2 Model Runner",
        "Model Runner V2 does not yet support x; using the V1 model runner instead."),
    _rule("async-scheduling-off", "execution", "sync scheduling",
        r"Async scheduling (?:is|will be) (?P<value>disabled) because (?P<detail>.{1,200}?)\.?\s*$",
        "The next step is scheduled only when this one has ended: the host's time adds to it.",
        "Async scheduling is disabled because the V1 model runner does not support it with ngram.",
        "Async scheduling will be disabled because it is not supported with the `ray` distributed "
        "executor backend. "),
    _rule("async-scheduling", "execution", "ynchronous scheduling",
        r"Asynchronous scheduling is (?P<value>enabled|disabled)",
        "Whether the next step is scheduled while this one runs.",
        "Asynchronous scheduling is enabled."),
    _rule("compiled-in-flight", "execution", "JIT compilation during inference",
        r"JIT compilation during inference: (?P<value>\w+)",
        "A kernel was compiled while requests waited.",
        "Triton kernel JIT compilation during inference: _compute_slot_mapping_kernel"),
    # What is installed.
    _rule("flashinfer-missing", "install", "FlashInfer",
        r"FlashInfer unavailable since (?P<value>package|nvcc) was not found",
        "vLLM cannot use FlashInfer: the root of many fallbacks.",
        "FlashInfer unavailable since package was not found",
        "FlashInfer unavailable since nvcc was not found and not using pre-downloaded cubins"),
    _rule("flashinfer-disabled", "install", "FlashInfer",
        r"(?:FlashInfer kernels are disabled: (?P<detail>.+?)\.? Set|FlashInfer's precompiled "
        r"kernels are missing or do not match (?P<value>flashinfer-python \S+))",
        "FlashInfer is off, or must compile its kernels first.",
        "FlashInfer kernels are disabled: flashinfer-cubin is not installed and nvcc (CUDA_HOME, "
        "CUDA_PATH, PATH or /usr/local/cuda) or ninja (PATH) is missing. Set CUDA_HOME to a CUDA "
        "toolkit",
        "FlashInfer's precompiled kernels are missing or do not match flashinfer-python 0.6.15 "
        "(x)."),
    _rule("flashinfer-cubin", "install", "flashinfer-cubin package",
        r"(?P<value>flashinfer-cubin) package was not found",
        "FlashInfer compiles its kernels on this machine instead of loading them.",
        "flashinfer-cubin package was not found"),
    _rule("sampler-fallback", "install", "FlashInfer",
        r"FlashInfer (?:top-p/top-k sampling unavailable: (?P<detail>.+?); falling back|is not "
        r"available\. Falling back to the PyTorch-native implementation of top-p)",
        "Sampling runs in torch instead of FlashInfer.",
        "FlashInfer top-p/top-k sampling unavailable: no nvcc; falling back. Set "
        "VLLM_USE_FLASHINFER_SAMPLER=0 to silence.",
        "FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p & "
        "top-k sampling."),
    _rule("nvcc-missing", "install", "ould not find nvcc",
        r"[Cc]ould not find (?P<value>nvcc)",
        "Nothing can be compiled for this GPU: no nvcc.",
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"),
    _rule("architecture-unknown", "install", "sm_1",
        r"(?:ptxas fatal\s*: Value '(?P<value>sm_\w+)' is not defined|(?P<detail>Instruction "
        r"'cvt[^']*'|Feature 'cvt[^']*') not supported on \.target '(?P<format>sm_\w+)')",
        "A compiler does not know this GPU, or code was built without its own features.",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        "Instruction 'cvt with .e2m1x2' not supported on .target 'sm_121'"),
    _rule("triton-kernels-missing", "install moe mxfp4", "riton",
        r"(?:Failed to import Triton kernels|triton_kernels unavailable in this build)",
        "The Triton kernels for MXFP4 experts are not installed.",
        "Failed to import Triton kernels. Please make sure your triton version is compatible. "
        "Error: No module named 'triton_kernels.routing'",
        "triton_kernels unavailable in this build. Please consider installing triton_kernels"),
    _rule("cute-dsl-missing", "install", "DSL",
        r"cuteDSL (?:\(CUTLASS Python\) )?(?:is )?not available",
        "Kernels written in CUTLASS's Python are not installed.",
        "cuteDSL (CUTLASS Python) not available, ll_bf16_gemm disabled"),
    # Caches.
    _rule("prefix-caching-off", "cache", "refix caching",
        r"(?:Disabling prefix caching(?:: | for )(?P<detail>.+?)\.?$|[Pp]refix caching is not "
        r"(?:supported|enabled)|without support for prefix caching|disabling both"
        r"|KV cache events are on, but prefix caching is not)",
        "Each prompt is computed anew.",
        "Disabling prefix caching: model has non-causal attention layers.",
        "Prefix caching is not supported for RISC-V CPUs; disabling it for V1 backend.",
        "Hybrid or mamba-based model detected without support for prefix caching: disabling"),
    _rule("kv-cache-type", "cache", "Using ",
        r"Using (?P<value>\w+) data type to store kv cache",
        "The KV cache's format.",
        "Using fp8 data type to store kv cache. It reduces the GPU memory footprint and boosts the "
        "performance."),
    _rule("kv-cache-size", "cache", "KV cache size",
        r"\b\w+ KV cache size: (?P<value>[\d,]+) tokens",
        "How many tokens the KV cache holds.",
        "GPU KV cache size: 1,138,176 tokens"),
    _rule("kv-scale", "cache", "Using ",
        r"Using KV cache scaling factor 1\.0 for (?P<value>\w+)",
        "The FP8 KV cache has no scales from the checkpoint: less exact, no slower.",
        "Using KV cache scaling factor 1.0 for fp8_e4m3."),
    _rule("hybrid-cache-off", "cache", "Hybrid KV cache manager",
        r"Hybrid KV cache manager is disabled",
        "Layers with a sliding window keep the KV of the whole context.",
        "Hybrid KV cache manager is disabled for this hybrid model, This means we do not enable "
        "any optimizations for saving KV cache memory"),
    # Padding.
    _rule("marlin-padding", "padding", "thread-tile padding",
        r"Marlin requires thread-tile padding for (?P<value>the MoE intermediate size|some weight "
        r"shapes)",
        "Activations are padded and cut around these GEMMs in every step.",
        "Marlin requires thread-tile padding for some weight shapes in this model.",
        "Marlin requires thread-tile padding for the MoE intermediate size of some layers in this "
        "model. Padded experts pad/slice activations on every forward; performance may be "
        "degraded."),
    _rule("hidden-padding", "padding moe", "Padding ",
        r"Padding hidden size from (?P<value>\d+) to (?P<detail>\d+) for (?P<format>[\w ]+) "
        r"weights",
        "Activations are padded and cut around these experts in every step.",
        "Padding hidden size from 2880 to 3072 for TRTLLM NVFP4 MoE weights. This requires "
        "activation slicing at runtime and may cause performance degradation."),
    _rule("intermediate-padding", "padding moe", "Padding ",
        r"Padding intermediate size from (?P<value>\d+) to (?P<detail>\d+)",
        "Expert weights are padded: more bytes per token.",
        "Padding intermediate size from 2880 to 3072 for up/down projection weights."),
    # Speculative decoding.
    _rule("drafter", "speculation", "Loading drafter model",
        r"(?P<value>Loading drafter model)",
        "A draft model is loaded: its layers write lines of their own.",
        "Loading drafter model..."),
    _rule("mtp", "speculation", "Detected ",
        r"Detected (?P<value>MTP|EAGLE) model(?!.*Keeping separate lm_head)",
        "Drafts come from the model's own extra layers or an EAGLE head.",
        "Detected MTP model. Sharing target model embedding weights with the draft model."),
    *STEP_LINES,
    *START_LINES,
    *ISSUE_LINES,
    *HARMLESS_LINES,
)  # fmt: skip

WORDS: tuple[bytes, ...] = tuple(dict.fromkeys(rule.word for rule in LINE_RULES))
"""What to look for before any pattern is tried."""
