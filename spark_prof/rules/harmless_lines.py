"""Warnings that most engines write and nobody has to act on: rows as in `engine_log_lines`.

What stands here is not counted among the warnings that nothing knows.
"""

from __future__ import annotations

from spark_prof.rules.log_line_rule import LineRule, line_rule


def _harmless(name: str, word: str, pattern: str, means: str, *examples: str) -> LineRule:
    return line_rule(name, "harmless", word, pattern, means, *examples)


HARMLESS_LINES: tuple[LineRule, ...] = (
    _harmless("sampling-defaults", "sampling parameters",
        r"Default (?:vLLM )?sampling parameters have been overridden by (?P<value>[^:]{1,60})",
        "Requests that name no temperature get the model's own.",
        "Default vLLM sampling parameters have been overridden by the model's "
        "`generation_config.json`: `{'temperature': 0.6}`. If this is not intended, please "
        "relaunch "
        "vLLM instance with `--generation-config vllm`."),
    _harmless("custom-collectives-untaken", "AllReduce fusion pass",
        r"AllReduce fusion pass is disabled",
        "There is nothing to sum over GPUs, or another way to do it.",
        "AllReduce fusion pass is disabled for tp_size <= 1."),
    _harmless("nothing-to-fuse", "usion",
        r"(?:fusion is enabled, but no (?:MLA )?attention layers were found|fusion enabled, but no "
        r"Attention layers were discovered|fusion (?:will be disabled|currently only enabled on "
        r"ROCm)|shared-expert fusion:)",
        "A fusion of the compiler found nothing to fuse.",
        "QK Norm+RoPE fusion enabled, but no Attention layers were discovered.",
        "Attention + quant fusion is enabled, but no attention layers were found in "
        "CompilationConfig.static_forward_context so no fusion patterns were registered."),
    _harmless("architecture-renamed", "rope",
        r"(?:Replacing legacy rope_type|rope_parameters contains a deprecated key|Dropping .{1,60} "
        r"from rope_parameters|Unrecognized keys in `rope_(?:scaling|parameters)`)",
        "The model's configuration is written in an older way.",
        "Replacing legacy rope_type 'mrope' with 'default'"),
    _harmless("dtype-cast", "Casting ",
        r"Casting (?P<value>torch\.\w+) to (?P<detail>torch\.\w+)",
        "The weights are kept in another format than they are stored in.",
        "Casting torch.float32 to torch.bfloat16."),
    _harmless("quantization-deprecated", "deprecated",
        r"quantization method (?P<value>\w+) is deprecated|--quantization fp8 is deprecated",
        "This quantization still works and will not in a later vLLM.",
        "The quantization method gptq is deprecated and will be removed in future versions of "
        "vLLM."),
    _harmless("argument-deprecated", "deprecated",
        r"(?:argument '?(?P<value>[\w-]+)'? is deprecated|method `(?P<detail>\w+)` is deprecated "
        r"and "
        r"replaced|is deprecated and will be removed in v?\d|`torch_dtype` is "
        r"deprecated|DEPRECATED\. Found kv_scale|deprecated attribute "
        r"name|"
        r"(?:Deprecation|Future)Warning: (?!VLLM_))",
        "Something is written in a way that a later version will not take.",
        "argument 'disable-log-requests' is deprecated",
        "The lm-format-enforcer structured outputs backend is deprecated and will be removed in "
        "v0.35.0. Use auto, xgrammar, or guidance instead.",
        "method `deepseek_mtp` is deprecated and replaced with mtp.",
        "`torch_dtype` is deprecated! Use `dtype` instead!",
        "<frozen importlib._bootstrap_external>:1184: FutureWarning: The cuda.cudart module is "
        "deprecated"),
    _harmless("python-warning", "UserWarning: ",
        r"UserWarning: (?P<detail>.{1,100})",
        "A library's remark to programmers.",
        "/x/torch/cuda/__init__.py:63: UserWarning: The pynvml package is not what it seems."),
    _harmless("model-option", "`--model`",
        r"you should provide the model as a positional argument",
        "The model is named in an older way.",
        "With `vllm serve`, you should provide the model as a positional argument or in a config "
        "file instead of via the `--model` option."),
    _harmless("development-endpoints", "SECURITY WARNING",
        r"SECURITY WARNING: Development endpoints are enabled",
        "Whoever reaches the server may use its development endpoints.",
        "SECURITY WARNING: Development endpoints are enabled! This should NOT be used in "
        "production!"),
    _harmless("profiler-enabled", "enabled in the API server",
        r"Profiler with mode '\w+' is enabled|LoRA dynamic loading & unloading is enabled",
        "The server offers more than it should to strangers.",
        "Profiler with mode 'torch' is enabled in the API server. This should ONLY be used for "
        "local "
        "development!"),
    _harmless("memory-pinned", "pin_memory=False",
        r"Using 'pin_memory=False' as WSL",
        "Copies from the host take longer under WSL.",
        "Using 'pin_memory=False' as WSL is detected. This may slow down performance."),
    _harmless("numa", "NUMA",
        r"(?:Failed to get NUMA node|Could not detect NUMA node)",
        "The host's memory is not bound to the GPU.",
        "Failed to get NUMA node for GPU 0: x"),
    _harmless("nvlink", "NVLink detection",
        r"NVLink detection (?:failed|not possible)",
        "No NVLink was found.",
        "NVLink detection failed. This is normal if your machine has no NVLink equipped."),
    _harmless("monitor-off", "spinloop",
        r"spinloop extension could not be loaded",
        "Waiting for other processes is less quick.",
        "spinloop extension could not be loaded, disabling VLLM_USE_SPINLOOP_EXT!"),
    _harmless("nccl-unloaded", "process_group",
        r"destroy_process_group\(\) was not called|barrier\(\): using the device",
        "NCCL's remark at the end of a process, or at its first barrier.",
        "[rank0]:[W1128 20:22:44.123456789 ProcessGroupNCCL.cpp:1524] Warning: WARNING: "
        "destroy_process_group() was not called before program exit, which can leak resources."),
    _harmless("address-unknown", "IP address",
        r"Failed to get the IP address|variable HOST_IP is deprecated",
        "vLLM guesses this host's address.",
        "Failed to get the IP address, using 0.0.0.0 by default. The value can be set by the "
        "environment variable VLLM_HOST_IP or HOST_IP."),
    _harmless("spawned", "`spawn`",
        r"We must use the `spawn` multiprocessing start method",
        "Processes are started anew instead of copied.",
        "We must use the `spawn` multiprocessing start method. Overriding "
        "VLLM_WORKER_MULTIPROC_METHOD to 'spawn'."),
    _harmless("variable-overwritten", "environment variable",
        r"Overwriting environment variable (?P<value>\w+)|Skipping environment variable",
        "vLLM set an environment variable anew.",
        "Overwriting environment variable OMP_NUM_THREADS from '20' to '1'"),
    _harmless("few-files", "ulimit",
        r"Found ulimit of (?P<value>\d+) and failed to automatically increase",
        "Few files may be open at a time: many clients may meet errors.",
        "Found ulimit of 1024 and failed to automatically increase with error x. This can cause fd "
        "limit errors like `OSError: [Errno 24] Too many open files`."),
    _harmless("capture-sizes", "cudagraph_capture_sizes",
        r"cudagraph_capture_sizes specified in compilation_config .* is overridden",
        "The sizes of CUDA graphs were given twice.",
        "cudagraph_capture_sizes specified in compilation_config [1, 2] is overridden by config "
        "[1, 2, 4]"),
    _harmless("flash-version-lower", "FA",
        r"Cannot use FA version (?P<value>\d)|FA4 on Blackwell does not support head_size|"
        r"FA4's Blackwell head_size=256 kernel does not support",
        "FlashAttention runs in another version.",
        "Cannot use FA version 3 on Blackwell platform, defaulting to FA version 4 if supported, "
        "otherwise FA2.",
        "FA4 on Blackwell does not support head_size=192 due to TMEM capacity limits, defaulting "
        "to "
        "FA version 2."),
    _harmless("mamba-cache", "amba",
        r"Mamba cache mode is set to '(?P<value>\w+)'|model specifies mamba_ssm_dtype",
        "How the state of the linear attention is kept.",
        "Mamba cache mode is set to 'align' for Qwen3NextForCausalLM by default when prefix "
        "caching "
        "is enabled"),
    _harmless("threads", "OMP_NUM_THREADS",
        r"OMP_NUM_THREADS(?:=\w+)? is (?:set; leaving|invalid)",
        "How many threads torch has on the processor.",
        "OMP_NUM_THREADS=8 is set; leaving Torch threads at 8 for serving."),
    _harmless("metadata-missing", "safetensors metadata",
        r"Could not retrieve safetensors metadata",
        "The size of the checkpoint is not known beforehand.",
        "Could not retrieve safetensors metadata for m (Hub fetch failed and no local cache "
        "snapshot is available): x."),
    _harmless("api-server-deprecated", "api_server` ",
        r"vllm\.entrypoints\.openai\.api_server` (?:is|command is) deprecated",
        "The server is started in an older way.",
        "The `python -m vllm.entrypoints.openai.api_server` command is deprecated and may be "
        "removed "
        "in a future release. Please use `vllm server` instead."),
    _harmless("numa-permission", "SYS_NICE",
        r"cap-add SYS_NICE",
        "The host's memory is not bound to the GPU.",
        "User lacks permission to set NUMA memory policy. Automatic NUMA detection may not work; "
        "if "
        "you are using Docker, try adding --cap-add SYS_NICE."),
    _harmless("nccl-symbols", "NCCL",
        r"The symbol \w+ is not found in the NCCL library|Failed to compile NCCL memory allocator",
        "NCCL's symmetric memory is not used.",
        "The symbol ncclCommWindowRegister is not found in the NCCL library libnccl.so.2. To "
        "enable "
        "VLLM_USE_NCCL_SYMM_MEM  please update your NCCL version to >= 2.27.03."),
    _harmless("extension-import", "Failed to import from vllm",
        r"Failed to import from vllm\._C",
        "A part of vLLM's own kernels could not be loaded.",
        "Failed to import from vllm._C: ImportError('libcudart.so.12')"),
    _harmless("no-multicast", "NVSwitch",
        r"mnnvl allreduce (?:quantization fusion )?workspace unavailable",
        "There is no NVSwitch: another way to sum over the GPUs is taken.",
        "FlashInfer mnnvl allreduce workspace unavailable (likely no NVSwitch multicast support); "
        "falling back to trtllm backend for single node."),
    _harmless("hostname", "hostname of the client",
        r"hostname of the client socket cannot be retrieved",
        "torch found no name for this host.",
        "[W1121 11:09:55.882384055 socket.cpp:207] [c10d] The hostname of the client socket cannot "
        "be retrieved. err=-3"),
    _harmless("no-tokenizer", "tokenizer is not initialized",
        r"Using None for \w+ token id because tokenizer is not initialized",
        "Prompts come as tokens, not as text.",
        "Using None for EOS token id because tokenizer is not initialized"),
    _harmless("inductor-off", "Inductor compilation",
        r"Inductor compilation was disabled by user settings",
        "What only the compiler can do is left out.",
        "Inductor compilation was disabled by user settings, optimizations settings that are only "
        "active during inductor compilation will be ignored."),
    _harmless("hub-unauthenticated", "unauthenticated requests",
        r"unauthenticated requests to the HF Hub",
        "Downloads without an account are slower.",
        "Warning: You are sending unauthenticated requests to the HF Hub. Please set a HF_TOKEN to "
        "enable higher rate limits and faster downloads."),
    _harmless("cache-reset", "prefix cache",
        r"Failed to reset prefix cache because some blocks",
        "The prefix cache was to be emptied while requests ran.",
        "Failed to reset prefix cache because some blocks (12) are not freed yet"),
    _harmless("hash-seed", "NONE_HASH",
        r"Using a random per-process NONE_HASH seed",
        "Blocks of the KV cache have other names in every process.",
        "Using a random per-process NONE_HASH seed because builtin is not collision resistant."),
    _harmless("max-batch", "max_num_batched_tokens",
        r"max_num_batched_tokens \((?P<value>\d+)\) exceeds max_num_seqs",
        "The budget of a step is more than its requests can fill.",
        "max_num_batched_tokens (8192) exceeds max_num_seqs * max_model_len (4096). This may "
        "lead to "
        "unexpected behavior."),
    _harmless("interrupted", "erminated",
        r"WorkerProc was terminated|resource_tracker: There appear to be|"
        r"\[shutdown\] (?:Executor|EngineCore)",
        "The engine was ended by its user.",
        "WorkerProc was terminated",
        "[shutdown] Executor: workers still running after grace period; terminated count=2"),
    _harmless("bf16-marlin", "tomic_add",
        r"Marlin kernel can achieve better performance for small size_n with experimental "
        r"use_atomic_add",
        "Marlin offers a way that gives other sums in every run.",
        "Marlin kernel can achieve better performance for small size_n with experimental "
        "use_atomic_add feature. You can consider set environment variable "
        "VLLM_MARLIN_USE_ATOMIC_ADD to 1 if possible."),
    _harmless("triton-remark", "operation scheduled",
        r"operation scheduled before its operands' can be ignored",
        "A remark about Triton.",
        "The following error message 'operation scheduled before its operands' can be ignored."),
    _harmless("reasoning-tokens", "reasoning token",
        r"Auto-initialization of reasoning token IDs failed",
        "The reasoning parser does not name its tokens.",
        "Auto-initialization of reasoning token IDs failed. Please check whether your reasoning "
        "parser has implemented the `reasoning_start_str` and `reasoning_end_str`."),
    _harmless("jit-gdn", "GDN prefill is JIT",
        r"FlashInfer GDN prefill is JIT-compiled",
        "The first run compiles a kernel.",
        "FlashInfer GDN prefill is JIT-compiled; first run may take a while. Set "
        "--gdn-prefill-backend triton to skip JIT."),
    _harmless("tie-weights", "word embeddings are tied",
        r"says the word embeddings are tied, but the checkpoint contains a different",
        "The checkpoint has an lm_head of its own.",
        "The config for m says the word embeddings are tied, but the checkpoint contains a "
        "different "
        "lm_head, which has been used instead of tying."),
    _harmless("lora-kernels", "LoRA kernel config",
        r"(?:No LoRA kernel configs found|Using default LoRA kernel configs)",
        "Adapters run on untuned kernels.",
        "Using default LoRA kernel configs"),
)  # fmt: skip
