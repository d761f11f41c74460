"""Why an engine did not start or died: what its last error says, one row a cause, first match wins.

Messages are those of vLLM 0.24 to 0.33, torch, CUDA, NCCL, Triton, FlashInfer and Hugging Face.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_prof.lazy_pattern import LazyPattern


@dataclass(frozen=True)
class FailureRule:
    """One cause for which an engine ends, and how its error is recognised."""

    id: str
    pattern: LazyPattern  # is searched in `ErrorClass: message`, its next lines behind it
    failure: str  # what failed, as the end of a sentence; {0} and {1} are the pattern's groups
    fix: str  # what to do, where the message itself does not say it
    examples: tuple[str, ...]  # each is a test
    fix_of_experts: str = ""  # what to do where it is the experts' kernel, if that differs


def _failure(
    name: str, pattern: str, failure: str, fix: str, *examples: str, of_experts: str = ""
) -> FailureRule:
    return FailureRule(name, LazyPattern(pattern, re.S), failure, fix, examples, of_experts)


_MEMORY = (
    "Lower --max-model-len or --max-num-seqs, raise --gpu-memory-utilization where memory is "
    "free, or use --kv-cache-dtype fp8."
)
_FREE = (
    "End what else holds memory (on a GB10 the page cache counts: it shares one memory), or lower "
    "--gpu-memory-utilization."
)
_TOOLKIT = (
    "Use a CUDA toolkit that knows the GPU (12.9 or later for compute capability 12.1) and point "
    "CUDA_HOME and TRITON_PTXAS_PATH at it, or install flashinfer-cubin."
)

FAILURES: tuple[FailureRule, ...] = (
    # Kernels. The image first: its message stands in many an error of CUDA.
    _failure("no-kernel-image", r"no kernel image is available|cudaErrorNoKernelImageForDevice",
        "{library} has no code for this GPU",
        "Install builds of vLLM and FlashInfer for this GPU, or choose a backend that has code for "
        "it: --linear-backend and --moe-backend marlin run everywhere.",
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the "
        "device"),
    _failure("no-linear-kernel",
        r"Failed to find a kernel that can implement the (\w+) linear layer",
        "no kernel can run the {0} linear layers",
        "One of the reasons has to go: another --tensor-parallel-size, --linear-backend, "
        "quantization or version of vLLM.",
        "ValueError: Failed to find a kernel that can implement the NVFP4 linear layer. Reasons: "),
    _failure("no-moe-backend",
        r"No (\w+(?: Int8)?) MoE backends? (?:supports the deployment configuration|available)",
        "no backend can run the {0} experts",
        "VLLM_LOGGING_LEVEL=DEBUG makes vLLM name the reason of each backend; leave --moe-backend "
        "and expert parallelism out.",
        "NotImplementedError: No NvFp4 MoE backend supports the deployment configuration."),
    _failure("moe-backend-refused",
        r"(\w+(?: Int8)?) MoE backend '?([\w ]{1,60}?)'? does not support the deployment",
        "the {0} experts cannot run on {1}, which was asked for",
        "Leave --moe-backend out, or ask for another.",
        "ValueError: NvFp4 MoE backend 'FLASHINFER_TRTLLM' does not support the deployment "
        "configuration since kernel does not support current device cuda."),
    _failure("no-attention-backend",
        r"No valid attention backend found|Selected backend \S+ is not valid|"
        r"\S+ is not valid for this configuration",
        "no attention backend suits this model and these settings",
        "Leave --attention-backend, --block-size and --kv-cache-dtype out, or change what the "
        "reasons name.",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig()."),
    _failure("ptxas",
        r"PTXASError|PTXAS error|ptxas fatal|is not defined for option 'gpu-name'|"
        r"[Uu]nsupported gpu architecture|not supported on \.target|"
        r"`?ptxas`? failed with error code",
        "a kernel could not be compiled: the compiler does not know this GPU", _TOOLKIT,
        "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error",
        "nvcc fatal   : Unsupported gpu architecture 'compute_121a'"),
    _failure("jit",
        r"Ninja build failed|Error building extension|Could not find nvcc|[Nn]inja is required|"
        r"No such file or directory: 'ninja'|cicc|nvcc (?:error|fatal)|NoTritonConfigsError|"
        r"Python\.h: No such file|Failed to find C compiler|OutOfResources",
        "a kernel could not be compiled on this machine",
        "Install what the message names (ninja, nvcc, a C compiler, Python's headers), or "
        "flashinfer-cubin, which needs none of them.",
        "RuntimeError: Ninja build failed. Ninja output:",
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable"),
    _failure("cutlass", r"cutlass\w*.*Error Internal|cutlass.*(?:cannot implement|failed)|"
        r"Failed to run cutlass",
        "{kernel} failed",
        "Ask for another kernel, such as --linear-backend marlin or triton, and report the shape.",
        "RuntimeError: cutlass_gemm_caller, /w/cutlass_gemm_caller.cuh:62, Error Internal",
        of_experts="Ask for another kernel, such as --moe-backend marlin or triton, and report the "
        "shape."),
    _failure("cublas", r"CUBLAS_STATUS_(?!ALLOC)(\w+)|cublasLt\w* failed",
        "cuBLAS failed ({0})", "Look for an earlier error: cuBLAS is often only the first to see "
        "memory that is full or damaged; CUDA_LAUNCH_BLOCKING=1 names the kernel.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    # Memory.
    _failure("kv-none", r"No available memory for the cache blocks",
        "no memory was left for the KV cache", _MEMORY,
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine."),
    _failure("kv-small",
        r"max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed.*?memory \(([\d.]+) GiB",
        "one request of {0} tokens needs {1} GiB of KV cache, and {2} GiB are left", _MEMORY,
        "ValueError: To serve at least one request with the model's max seq len (262144), (24.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (9.31 GiB)."),
    _failure("kv-few-tokens",
        r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in "
        r"KV cache \((\d+)\)",
        "one request of {0} tokens does not fit into the KV cache, which holds {1}", _MEMORY,
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens "
        "that can be stored in KV cache (82416)."),
    _failure("kv-too-small",
        r"larger than the (?:maximum number of tokens that can be stored in|available) KV cache",
        "the KV cache is too small for one request of the maximum length", _MEMORY,
        "ValueError: the request is larger than the available KV cache memory"),
    _failure("memory-taken", r"Free memory on device .*?\(([\d.]+)/([\d.]+) GiB\).*less than "
        r"desired",
        "only {0} of {1} GiB were free, less than --gpu-memory-utilization asks for", _FREE,
        "ValueError: Free memory on device cuda:0 (93.1/121.69 GiB) on startup is less than "
        "desired GPU memory utilization (0.9, 109.52 GiB)."),
    _failure("out-of-memory",
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|NV_ERR_NO_MEMORY|"
        r"CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory|DefaultCPUAllocator: can't allocate",
        "memory ran out{stage}", _MEMORY,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total "
        "capacity of 121.69 GiB of which 512.00 MiB is free.",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
    _failure("crashed", r"Killed by signal (4|6|7|8|11)\b",
        "its process crashed (signal {0})",
        "Code of a library crashed: the lines before it name which; PYTHONFAULTHANDLER=1 shows "
        "where.",
        "Killed by signal 11"),
    _failure("killed", r"Killed by signal (\d+)",
        "the system ended its process (signal {0})",
        "Signal 9 is most often the system's memory killer (dmesg tells): the model does not fit "
        "into this memory, or loading it twice does not.",
        "Killed by signal 9"),
    # Checkpoint and model.
    _failure("weights-not-initialized", r"[Ff]ollowing weights were not initialized",
        "the checkpoint lacks weights that this vLLM's model has",
        "The checkpoint and vLLM's model differ: use the version that the model's card names, or a "
        "checkpoint that was quantized for vLLM.",
        "ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight'}"
        ),
    _failure("weights-do-not-fit",
        r"There is no module or parameter named|Attempted to load weight|KeyError: '[\w.]*\.\w*(?:"
        r"weight|bias|scale)|size of tensor .* must match|"
        r"(?:start|narrow|copy_).*size mismatch|param_data\.shape == loaded_weight\.shape",
        "the checkpoint's weights do not fit vLLM's model",
        "The checkpoint and vLLM's model differ: use the version that the model's card names, or "
        "another quantization of the model.",
        "ValueError: There is no module or parameter named 'language_model' in Qwen3ForCausalLM",
        "KeyError: 'layers.0.mlp.experts.w2_weight_scale'"),
    _failure("no-weights", r"Cannot find any model weights|SafetensorError|HeaderTooLarge|"
        r"incomplete metadata, file not fully covered",
        "the checkpoint's files are missing or damaged", "Download the checkpoint again.",
        "RuntimeError: Cannot find any model weights with `/models/m`",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, "
        "file not fully covered"),
    _failure("unknown-architecture",
        r"does not recognize this architecture|Model architectures? .{0,200} (?:are|is) not "
        r"supported|Transformers implementation is not compatible|model type [`'\"][\w.-]+[`'\"] "
        r"but Transformers",
        "this vLLM or its transformers does not know the model's architecture",
        "Update vLLM, and with it transformers, to the version that the model's card names.",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value "
        "error, The checkpoint you are trying to load has model type `qwen9` but Transformers does "
        "not recognize this architecture.",
        "ValueError: Model architectures ['MyForCausalLM'] are not supported for now."),
    _failure("remote-code", r"trust_remote_code|trust-remote-code",
        "the model brings code of its own, which was not allowed to run",
        "Read that code; if it may run, add --trust-remote-code.",
        "ValueError: Loading /m requires you to execute the configuration file in that repo on "
        "your local machine. Please set the option `trust_remote_code=True` to remove this error."),
    _failure("quantization",
        r"does not match the quantization (?:method )?specified|Unknown quantization method|"
        r"quantization (?:method|scheme) .{0,60}is not supported|"
        r"Quantization scheme is not supported|"
        r"is not divisible by weight quantization block|not aligned with the quantized weight|"
        r"is not supported for quantization method",
        "the quantization does not fit this vLLM, GPU or tensor-parallel size",
        "Leave --quantization out (the checkpoint tells it), and try another tensor-parallel size.",
        "ValueError: Quantization method specified in the model config (modelopt) does not match "
        "the quantization method specified in the `quantization` argument (fp8).",
        "ValueError: Weight output_partition_size = 576 is not divisible by weight quantization "
        "block_n = 128."),
    _failure("max-model-len", r"max_model_len \((\d+)\) is greater than the derived max_model_len",
        "--max-model-len {0} is more than the model was made for",
        "Lower --max-model-len, or give the model's rope scaling with --hf-overrides.",
        "ValueError: User-specified max_model_len (262144) is greater than the derived "
        "max_model_len (max_position_embeddings=131072.0)."),
    _failure("parallel-size",
        r"must be divisible by tensor[ -]parallel|larger than the number of available GPUs|"
        r"World size .{0,80}(?:larger|greater) than|invalid device ordinal",
        "the model cannot be shared by that many GPUs here",
        "Change --tensor-parallel-size.",
        "ValueError: Total number of attention heads (25) must be divisible by tensor parallel "
        "size (2)."),
    # Where from and where to.
    _failure("gated", r"GatedRepoError|gated repo|401 Client Error|403 Client Error|"
        r"Access to model .{0,200} is restricted",
        "the model may not be downloaded with this account",
        "Accept the model's terms on its page, and set HF_TOKEN.",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo"),
    _failure("download",
        r"RepositoryNotFoundError|LocalEntryNotFoundError|couldn't connect to|Invalid repository "
        r"ID|is not a valid model identifier|HfHubHTTPError|OfflineModeIsEnabled|"
        r"NameResolutionError|Max retries exceeded",
        "the model was not found, or could not be downloaded",
        "Check its name or path, the network, HF_TOKEN and HF_HUB_OFFLINE.",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        "ValueError: Invalid repository ID or local directory specified: '/models/x'"),
    _failure("port", r"[Aa]ddress already in use|EADDRINUSE",
        "its port is in use",
        "Choose another --port, or end what holds it (an engine that was left over?).",
        "OSError: [Errno 98] Address already in use"),
    _failure("argument", r"^argument error: (.{0,200})",
        "an argument is not known to this vLLM ({0})", "Compare with: vllm serve --help=all",
        "argument error: unrecognized arguments: --moe-backend"),
    # Several GPUs.
    _failure("nccl", r"NCCL error|ncclUnhandled|ncclSystemError|ncclInternalError|ncclRemoteError|"
        r"ncclInvalidUsage|DistBackendError|NCCL WARN",
        "NCCL failed between the GPUs",
        "NCCL_DEBUG=INFO names the reason; between machines NCCL_SOCKET_IFNAME and NCCL_IB_HCA "
        "must name the fast interface of each.",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled "
        "system error, NCCL version 2.28.9"),
    _failure("timeout", r"TimeoutError|RPC call to (\w+) timed out|"
        r"Timed out after \d+ seconds waiting|Watchdog caught collective operation timeout",
        "one process waited for another for too long",
        "Look at what the other processes wrote; the first compilation of kernels may take that "
        "long, and so may a lost connection.",
        "TimeoutError: RPC call to sample_tokens timed out.",
        "torch.distributed.DistNetworkError: Timed out after 601 seconds waiting for clients. 1/2 "
        "clients joined."),
    # What breaks while it runs.
    _failure("illegal-access", r"illegal memory access|cudaErrorIllegalAddress|misaligned address",
        "a kernel read or wrote memory that is not its own",
        "CUDA_LAUNCH_BLOCKING=1 names the kernel; try another backend for its layers, and report "
        "it.",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    _failure("device-assert", r"device-side assert",
        "a kernel's own check failed",
        "CUDA_LAUNCH_BLOCKING=1 names the kernel; an index out of range is the usual reason.",
        "torch.AcceleratorError: CUDA error: device-side assert triggered"),
    _failure("illegal-instruction",
        r"illegal instruction|unspecified launch failure|CUDA error: invalid (?:argument|"
        r"configuration|resource)",
        "the GPU refused or broke off a kernel",
        "CUDA_LAUNCH_BLOCKING=1 names the kernel; it may be built for another GPU.",
        "torch.AcceleratorError: CUDA error: an illegal instruction was encountered"),
    _failure("capture", r"operation not permitted when stream is capturing|"
        r"cudaErrorStreamCapture\w*|operation failed due to a previous error during capture",
        "a CUDA graph could not be captured",
        "--cudagraph-capture-sizes, another --attention-backend or, at last, --enforce-eager goes "
        "around it.",
        "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing"),
    # What is installed.
    _failure("driver", r"driver version is insufficient|No CUDA GPUs are available|"
        r"Failed to infer device type|CUDA driver initialization failed|"
        r"system has unsupported display driver",
        "it found no GPU that it can use",
        "Compare the driver (nvidia-smi) with the CUDA version of torch; in a container: --gpus "
        "all.",
        "RuntimeError: Failed to infer device type, please set the environment variable "
        "`VLLM_LOGGING_LEVEL=DEBUG`"),
    _failure("import",
        r"ModuleNotFoundError: No module named '?([\w.]+)|ImportError: (.{0,120})|"
        r"undefined symbol|cannot open shared object",
        "a package is missing or of the wrong version",
        "Install the versions that this vLLM pins, in the environment that serves.",
        "ModuleNotFoundError: No module named 'flashinfer'",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
)  # fmt: skip

LIBRARIES: tuple[tuple[str, str], ...] = (
    (r"flashinfer", "FlashInfer"), (r"deep_?gemm", "DeepGEMM"), (r"humming", "Humming"),
    (r"b12x", "b12x"), (r"flash_?attn|flash_?attention_interface", "FlashAttention"),
    (r"flash_?mla", "FlashMLA"), (r"xformers", "xFormers"), (r"/triton/|triton_kernels", "Triton"),
    (r"causal_conv1d|mamba_ssm", "causal-conv1d"), (r"bitsandbytes", "bitsandbytes"),
    (r"_custom_ops|vllm/_C|marlin|cutlass", "vLLM"), (r"site-packages/torch/|torch/nn", "torch"),
)  # fmt: skip
"""What in a frame of a traceback tells whose code ran; of a traceback the innermost frame counts,
and torch only where no other frame tells."""

LAYERS: tuple[tuple[str, str], ...] = (
    (r"fused_moe|/moe/|_moe\.py|experts", "the experts"),
    (r"lm_head|logits_processor|vocab_parallel", "the lm_head"),
    (r"attention|/mla/|mla\.py", "attention"),
    (r"/gdn|gated_delta|mamba|linear_attn|causal_conv", "the linear attention"),
    (r"kernels/linear|layers/linear\.py|quantization/\S*linear|scaled_mm|_gemm\b|mm_fp4",
     "the linear layers"),
    (r"layernorm|rms_norm", "the norms"), (r"rotary", "the rotary embedding"),
    (r"sample[r/]|topk_topp", "the sampler"),
    (r"multimodal|vision|/vit", "the vision encoder"),
)  # fmt: skip
"""What in a frame tells which layers were computed; the innermost frame that tells counts."""

STAGES: tuple[tuple[str, str], ...] = (
    (r"load_model|load_weights|get_model|process_weights", " while the weights were loaded"),
    (r"capture_model|capture_cudagraph|_capture", " while CUDA graphs were captured"),
    (r"profile_run|determine_available_memory|_dummy_run",
     " while the memory of a step was measured"),
    (r"initialize_kv_cache|allocate_kv|init_kv", " while the KV cache was laid out"),
    (r"execute_model|sample_tokens", " while a step ran"),
)  # fmt: skip
"""What in a traceback tells how far the engine was; the innermost frame that tells counts."""
