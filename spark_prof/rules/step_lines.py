"""Lines of vLLM 0.20 to 0.33 and FlashInfer about what makes steps slow, or their answers worse.

Rows as in `engine_log_lines`. Many of them are a person's to act on: rules of
`analyzers/findings/engine_setup.py` name them.
"""

from __future__ import annotations

from spark_prof.rules.log_line_rule import LineRule
from spark_prof.rules.log_line_rule import line_rule as _rule

STEP_LINES: tuple[LineRule, ...] = (
    # Attention.
    _rule("attention-forced", "attention", "heterogeneous head",
        r"(?P<detail>\w+)(?: model)? has heterogeneous head dimensions.*?[Ff]orcing (?P<value>\w+)",
        "The model's layers have heads of several sizes, which one attention backend alone takes.",
        "Gemma4 model has heterogeneous head dimensions (head_dim=256, global_head_dim=512). "
        "Forcing TRITON_ATTN backend to prevent mixed-backend numerical divergence.",
        "Gemma4 model has heterogeneous head dimensions {256, 512}. FA4 not available, forcing "
        "TRITON_ATTN backend."),
    _rule("attention-by-layer", "attention", "heterogeneous head",
        r"has heterogeneous head dimensions.*?Using (?:per-layer )?(?P<value>FA\w+(?:/FA\w+)*) "
        r"(?:selection|for all layers)",
        "The model's layers have heads of several sizes, and an attention kernel each.",
        "Gemma4 model has heterogeneous head dimensions {256, 512}. Using per-layer FA3/FA4 "
        "selection for FP8 KV cache on SM90.",
        "Gemma4 model has heterogeneous head dimensions {256, 512}. Using FA4 for all layers to "
        "avoid mixed FA3/FA4 penalty."),
    _rule("attention-overridden", "attention", "attention backend",
        r"(?:no attention backend was specified; defaulting to|Overriding attention "
        r"backend.{0,80}? "
        r"to|Forcing) (?P<value>[A-Z][A-Z0-9_]{3,})",
        "Another setting decides the attention backend.",
        "VLLM_BATCH_INVARIANT is enabled and no attention backend was specified; defaulting to "
        "TRITON_ATTN."),
    _rule("attention-trtllm", "attention", "TRTLLM",
        r"Using TRTLLM(?: \w+)? attention \((?P<value>.{1,120}?)\)\.?$",
        "FlashInfer's TensorRT-LLM kernels compute attention.",
        "Using TRTLLM attention (enabled for speculative decoding).",
        "Using TRTLLM decode attention (auto-detected)."),
    _rule("trtllm-refused", "attention", "TRTLLM",
        r"(?:TRTLLM attention is not supported (?P<detail>.{1,160}?), but|TRTLLM prefill does not "
        r"support (?P<value>\w+), reverting)",
        "TensorRT-LLM's attention was asked for and does not run here.",
        "TRTLLM attention is not supported on this platform for decode, but "
        "--attention-config.use_trtllm_attention is set to 1",
        "TRTLLM prefill does not support DCP, reverting to FlashInfer"),
    _rule("b12x-attention", "attention", "b12x",
        r"Using (?P<value>b12x) with q_heads",
        "b12x computes attention.",
        "Using b12x with q_heads=32 kv_heads=4 head_dim_qk=128 head_dim_vo=128 window_left=-1 "
        "planned_page_sizes=(64,) verify_q_per_req=4"),
    _rule("mla-prefill", "attention", "MLA prefill",
        r"Using (?P<value>[\w.]+) MLA prefill backend",
        "The kernel of the prompts of latent attention.",
        "Using FLASHINFER MLA prefill backend."),
    _rule("xqa-refused", "fallback", "XQA decode",
        r"FlashInfer (?P<value>XQA) decode does not support (?P<detail>.{1,80}?)(?: and "
        r"therefore.*)?"
        r"[;,] reverting",
        "Some layers decode with FlashInfer's own kernel instead of XQA.",
        "FlashInfer XQA decode does not support head_dim=512; reverting this KV-cache group to "
        "native FlashInfer decode."),
    _rule("sparse-mla-slow", "attention", "parse MLA",
        r"(?:Sparse MLA top-k mask workspace \((?P<value>\d+) MiB\) is too small|Sparse MLA layer "
        r"has no dense-MHA prefill path|sparse MLA will use the top-k MQA path only)",
        "Some prompts take the slower path of sparse attention.",
        "Sparse MLA top-k mask workspace (512 MiB) is too small for some prefill batches; those "
        "fall back to slower sparse MQA.",
        "Sparse MLA layer has no dense-MHA prefill path; using the top-k MQA path only.",
        "No MLA prefill backend supports this model; sparse MLA will use the top-k MQA path only "
        "(no dense-MHA prefill)."),
    _rule("fp8-prefill-off", "attention", "prefill queries are not quantized",
        r"FP8 KV cache is enabled but prefill queries are not quantized",
        "Prompts are computed with 16-bit queries although the KV cache is FP8.",
        "FP8 KV cache is enabled but prefill queries are not quantized to FP8. For long-context "
        "workloads (ISL >= 4K), enabling FP8 prefill attention can significantly optimize prefill "
        "latency."),
    # Linear layers, experts and gated delta nets of 0.28 and later.
    _rule("bf16-gemm", "kernel linear unquantized", "BF16 GEMM",
        r"Using FlashInfer (?P<value>[\w.-]+) for eligible unquantized BF16 GEMMs",
        "The kernel of BF16 layers of a suitable size.",
        "Using FlashInfer mm_bf16 for eligible unquantized BF16 GEMMs."),
    _rule("linear-override", "setting", "linear backend override",
        r"Applied linear backend override for (?P<detail>.{1,80}?): (?P<value>.{1,60})$",
        "A backend was asked for by kind of quantization, and taken.",
        "Applied linear backend override for 'nvfp4': 'flashinfer_b12x'"),
    _rule("bf16-backend-refused", "setting", "mm_bf16 backend",
        r"--linear-backend=(?P<value>\w+) requested FlashInfer mm_bf16 backend .{1,40}?, but it is "
        r"unavailable",
        "No kernel of the backend that was asked for suits the BF16 layers here.",
        "--linear-backend=flashinfer_cutlass requested FlashInfer mm_bf16 backend 'cutlass', but "
        "it "
        "is unavailable on the current hardware or environment; using automatic selection for "
        "unquantized layers."),
    _rule("humming-gemm", "kernel dispatch", "humming moe",
        r"Using (?P<value>\w+) gemm for humming moe",
        "Which of Humming's two ways computes the experts.",
        "Using grouped_contiguous gemm for humming moe"),
    _rule("moe-lora", "kernel dispatch", "MoE LoRA backend",
        r"Using (?P<value>\w+) Unquantized MoE LoRA backend",
        "The backend of the experts' adapters.",
        "Using TRITON Unquantized MoE LoRA backend"),
    _rule("moe-tuned-config", "config moe", "Using ",
        r"Using configuration from .*?(?P<detail>[^'\"\s/\\]+\.json) for MoE layer",
        "A tuned configuration for the Triton experts on this GPU was found.",
        "Using configuration from /x/configs/E=128,N=768,device_name=NVIDIA_H200.json for MoE "
        "layer."),
    _rule("humming-config", "config moe", "No tuning config",
        r"No tuning config found for shape (?P<value>.{1,80}?), using default",
        "Humming has no tuned configuration for these experts.",
        "No tuning config found for shape (128, 768, 2048), using default block_size=64"),
    _rule("gdn-spec-triton", "speculation ssm", "GDN spec decode",
        r"Falling back to the Triton GDN spec decode path: (?P<detail>.{1,200})",
        "Drafts are verified by the slower kernel of the gated delta net.",
        "Falling back to the Triton GDN spec decode path: FlashInfer does not support head_dim=64"),
    _rule("gdn-spec-kernel", "speculation ssm", "GDN spec decode",
        r"GDN spec decode kernel: (?P<value>.{1,80})",
        "The kernel that verifies drafts in the gated delta net.",
        "GDN spec decode kernel: flashinfer"),
    _rule("gdn-prefill-refused", "setting", "GDN prefill backend",
        r"GDN prefill backend '(?P<value>\w+)' is selected but cannot use this kernel",
        "The kernel that was asked for cannot run the gated delta net's prompts here.",
        "GDN prefill backend 'flashinfer' is selected but cannot use this kernel on the current "
        "platform. Falling back to Triton/FLA."),
    _rule("autotuner-untuned", "config", "No tuned config covers",
        r"No tuned config covers (?P<detail>.{1,200}?)(?:[;.]|$)",
        "FlashInfer was not tuned for a size that runs, and takes its first tactic for it.",
        "[AutoTuner]: No tuned config covers trtllm_fp4_block_scale_moe for shapes (8, 2048); "
        "using "
        "fallback tactic=-1. This may be a perf cliff."),
    _rule("sparse-mla-untuned", "config", "autotune cache entries",
        r"No FlashInfer SM120 sparse MLA (?P<value>\w+) decode autotune cache entries found",
        "FlashInfer was not tuned for sparse attention, and takes its first tactic.",
        "No FlashInfer SM120 sparse MLA fp8 decode autotune cache entries found. Falling back to "
        "FlashInfer's default tactic heuristic."),
    _rule("autotuner-skipped", "config", "Skipping ",
        r"\[Auto[Tt]uner\]:? Skipping tactic (?P<detail>.{1,160})",
        "FlashInfer tried one of its kernels and it failed: the tuner goes on without it.",
        "[AutoTuner]: Skipping tactic <flashinfer.gemm.CutlassFp4GemmRunner> 14, due to failure "
        "while profiling"),
    _rule("autotune-off", "config", "FlashInfer autotune",
        r"Skipping FlashInfer autotune because it is (?P<value>disabled)",
        "FlashInfer takes its kernels untuned.",
        "Skipping FlashInfer autotune because it is disabled."),
    _rule("fusion-off", "fallback", "usion not enabled",
        r"(?P<value>QK[ -]Norm\+[\w/+]*RoPE[\w/+]*) fusion not enabled(?: for a "
        r"layer(?:/style)?)?: "
        r"(?P<detail>.{1,120}?)(?: Falling back.*)?\.?$",
        "Norm, rotary embedding and cache write run as kernels of their own.",
        "QK Norm+RoPE fusion not enabled: layer head_size=96 is not supported by "
        "fused_qk_norm_rope kernel (supported: (64, 128, 256)). Falling back to unfused QK norm + "
        "RoPE path."),
    _rule("stock-path", "install", "using the stock path",
        r"(?P<value>[\w ]{1,80}) needs flashinfer-python (?P<detail>\S+) \(found [^)]{1,40}\); "
        r"using the stock path",
        "A faster path needs another version of FlashInfer.",
        "DeepSeek-V4.1 specialized decode: attention needs flashinfer-python >=0.7.2 (found "
        "0.7.0); "
        "using the stock path instead."),
    _rule("top-k-slow", "install", "half the speed",
        r"flashinfer is unavailable.*half the speed",
        "The choice of tokens runs at half its speed without FlashInfer.",
        "flashinfer is unavailable; vocab-parallel top-k falls back to torch at roughly half the "
        "speed."),
    # Graphs.
    _rule("breakable-graphs", "execution", "reakable CUDA graph",
        r"(?P<value>Breakable) CUDA graph enabled",
        "CUDA graphs are broken where an operation cannot be captured; the model is not compiled.",
        "Breakable CUDA graph enabled"),
    _rule("breakable-graphs-set", "execution", "BREAKABLE_CUDAGRAPH",
        r"uto-enabling (?P<value>VLLM_USE_BREAKABLE_CUDAGRAPH)=1",
        "vLLM chose breakable CUDA graphs for this architecture.",
        "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1. Set VLLM_USE_BREAKABLE_CUDAGRAPH=0 to opt "
        "out."),
    _rule("not-compiled", "execution", "torch.compile",
        r"`torch\.compile` is turned on, but the model (?P<value>\S{1,200}) does not support it",
        "The model is not compiled.",
        "`torch.compile` is turned on, but the model m does not support it. Please open an issue "
        "on "
        "GitHub if you want it to be supported."),
    _rule("draft-eager", "speculation", "draft attention",
        r"(?P<value>\S+) draft attention \((?P<detail>[^)]{1,80})\) does not support full CUDA "
        r"graphs",
        "The draft model's kernels are launched one by one.",
        "DFlash draft attention (FlexAttentionBackend) does not support full CUDA graphs; running "
        "the draft eagerly."),
    _rule("graphs-off", "execution", "Disabling CUDA Graphs",
        r"Disabling CUDA Graphs since (?P<detail>.{1,160})",
        "No CUDA graph is captured: another setting does not go with them.",
        "DeepEP: Disabling CUDA Graphs since DeepEP high-throughput kernels are optimized for "
        "prefill and are incompatible with CUDA Graphs.",
        "MoonEP: Disabling CUDA Graphs since the MoonEP integration is currently eager-only."),
    _rule("graph-size-truncated", "execution", "max_cudagraph_capture_size",
        r"Truncating max_cudagraph_capture_size to (?P<value>\d+)",
        "CUDA graphs are captured for fewer tokens than was asked for.",
        "Truncating max_cudagraph_capture_size to 256"),
    _rule("chunked-prefill-off", "execution", "hunked prefill",
        r"(?:Disabling chunked prefill|Chunked prefill is not supported|chunked prefill is "
        r"disabled|do not support chunked prefill)",
        "A prompt is computed in one step, and who decodes waits for it.",
        "Disabling chunked prefill: model has non-causal attention layers.",
        "Disabling chunked prefill for model without KVCache"),
    _rule("chunked-prefill", "execution", "hunked prefill",
        r"Chunked prefill is enabled with max_num_batched_tokens=(?P<value>\d+)",
        "How many tokens a step computes at most.",
        "Chunked prefill is enabled with max_num_batched_tokens=8192."),
    # Speculation.
    _rule("speculation-limits-tokens", "speculation", "max_num_scheduled_tokens",
        r"max_num_scheduled_tokens is set to\s+(?P<value>\d+) based on the speculative decoding "
        r"settings",
        "Speculation takes tokens of the budget of a step: prompts are computed in smaller parts.",
        "max_num_scheduled_tokens is set to 1536 based on the speculative decoding settings. This "
        "may lead to suboptimal performance. Consider increasing max_num_batched_tokens to "
        "accommodate the additional draft token slots, or decrease num_speculative_tokens or "
        "max_num_seqs."),
    _rule("dynamic-speculation-off", "speculation", "ynamic speculative decoding",
        r"Dynamic speculative decoding is not supported with (?P<detail>.{1,120}?)(?: "
        r"because.*?)?\. "
        r".*?static num_speculative_tokens=(?P<value>\d+)",
        "Drafts do not follow the batch: as many are made at any load.",
        "Dynamic speculative decoding is not supported with the 'ngram' speculative method on "
        "Model "
        "Runner V1. Disabling num_speculative_tokens_per_batch_size and falling back to static "
        "num_speculative_tokens=3.",
        "Dynamic speculative decoding is not supported with data parallelism because data-parallel "
        "ranks can select different speculative-token counts, causing DP divergence and deadlocks. "
        "Disabling num_speculative_tokens_per_batch_size and falling back to static "
        "num_speculative_tokens=3."),
    _rule("draft-limits-requests", "speculation", "draft pass needs",
        r"draft pass needs (?P<detail>\d+) query tokens.*Overriding max_num_\w+ from \d+ to "
        r"(?P<value>\d+)",
        "Speculation lets fewer requests run at a time.",
        "The dspark draft pass needs 16 query tokens per request within "
        "max_num_batched_tokens=2048. "
        "Overriding max_num_active_seqs from 256 to 128."),
    _rule("mtp-layer-repeated", "speculation", "num_speculative_tokens > 1",
        r"Enabling num_speculative_tokens > 1 will run multiple times of forward on same MTP layer",
        "One layer makes all drafts of a step: the later ones are accepted less often.",
        "Enabling num_speculative_tokens > 1 will run multiple times of forward on same MTP "
        "layer,which may result in lower acceptance rate"),
    _rule("draft-shortens", "speculation", "draft model's max_model_len",
        r"draft model's max_model_len \((?P<detail>\d+)\) is smaller.*reducing max_model_len to "
        r"(?P<value>\d+)",
        "The draft model shortens the longest context.",
        "The draft model's max_model_len (4096) is smaller than the target model's (32768) and the "
        "V2 model runner can't skip speculation for longer sequences; reducing max_model_len to "
        "4096."),
    _rule("draft-lm-head", "speculation", "lm_head weights",
        r"with distinct lm_head weights|keeping draft model's own lm_head|Keeping separate lm_head",
        "The draft model reads an lm_head of its own.",
        "Detected EAGLE model with distinct lm_head weights. Keeping separate lm_head weights from "
        "the target model."),
    _rule("sampling-limits", "speculation", "won't work with speculative",
        r"(?P<value>min_p and logit_bias) parameters won't work with speculative decoding",
        "Speculation leaves these parameters of a request out.",
        "min_p and logit_bias parameters won't work with speculative decoding."),
    # Collectives.
    _rule("custom-all-reduce-off", "collective", "Custom ",
        r"Custom (?:allreduce|collectives) (?:is|are) disabled (?:because|due to) "
        r"(?P<detail>.{1,160}?)"
        r"(?:\. To silence.*)?\.?$",
        "All-reduces of few bytes run on NCCL, which takes longer.",
        "Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test "
        "failed. To silence this warning, specify disable_custom_all_reduce=True explicitly.",
        "Custom allreduce is disabled due to an unsupported world size: 3. Supported world sizes: "
        "[2, 4, 6, 8]. To silence this warning, specify disable_custom_all_reduce=True "
        "explicitly."),
    _rule("flashinfer-all-reduce-off", "collective", "FlashInfer All Reduce",
        r"(?:FlashInfer All Reduce is disabled because (?P<detail>.{1,160}?)\.?$|Failed to "
        r"initialize FlashInfer All Reduce workspace: (?P<value>.{1,120}))",
        "FlashInfer's all-reduce, which is fused with the norm behind it, does not run.",
        "FlashInfer All Reduce is disabled because no supported backend is available for this "
        "process group.",
        "FlashInfer All Reduce is disabled because it is not supported for world_size=3."),
    _rule("pcie-all-reduce-off", "collective", "PCIe IPC all-reduce",
        r"FlashInfer PCIe IPC all-reduce (?P<detail>(?:was requested but|requires|does not|has "
        r"no).*)",
        "FlashInfer's all-reduce over PCIe was asked for and does not run.",
        "FlashInfer PCIe IPC all-reduce requires every rank in the TP group to be on one node.",
        "FlashInfer PCIe IPC all-reduce does not support dtype=torch.float32; falling back to "
        "another all-reduce backend."),
    _rule("all-reduce-backends", "collective", "all-reduce backends",
        r"Using (?P<value>.{1,160}?) all-reduce backends \(in dispatch order\) for group "
        r"'(?P<detail>[\w:]+)'",
        "What sums over the GPUs, the first that suits a size first.",
        "Using ['FLASHINFER', 'CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) for "
        "group "
        "'tp:0' out of potential backends: ['FLASHINFER', 'CUSTOM', 'SYMM_MEM', 'PYNCCL']."),
    _rule("all-reduce-fusion-off", "collective", "llreduce",
        r"(?:Flashinfer|AllReduce|allreduce).{0,60}(?:fusion (?:pass is|will be) disabled|skipping "
        r"allreduce fusion pass|fusion is not supported for world size)",
        "All-reduce and norm run as two kernels.",
        "Flashinfer is not installed or comm module not found, skipping allreduce fusion pass",
        "Flashinfer allreduce fusion is not supported for world size 2 or max size is not "
        "provided"),
    _rule("gemm-reduce-off", "collective", "GEMM-RS/AR",
        r"Some projections are incompatible with (?P<value>GEMM-RS/AR)",
        "Products and their sum over the GPUs run as kernels of their own.",
        "Some projections are incompatible with GEMM-RS/AR; using the unfused path instead."),
    _rule("symmetric-memory-off", "collective", "SymmMemCommunicator",
        r"SymmMemCommunicator: (?P<detail>.{1,160})",
        "All-reduces through symmetric memory do not run here.",
        "SymmMemCommunicator: Device capability 12.0 not supported, communicator is not available."
        ),
    # Caches.
    _rule("cache-padding-layers", "cache", "padding layers",
        r"Add (?P<value>\d+) padding layers, may waste at most (?P<detail>[\d.]+)\s?% KV cache",
        "Groups of layers are filled up to the same size: part of the KV cache holds nothing.",
        "Add 5 padding layers, may waste at most 12.50% KV cache memory"),
    _rule("cache-not-unified", "cache", "treating sliding-window",
        r"KV cache page sizes cannot be unified; treating sliding-window layers as full attention",
        "Layers with a sliding window keep the KV of the whole context.",
        "KV cache page sizes cannot be unified; treating sliding-window layers as full attention "
        "for cache allocation. Sliding-window attention compute is unchanged."),
    _rule("hybrid-cache-turned-off", "cache", "ybrid kv cache manager",
        r"Turning off hybrid kv cache manager because (?P<detail>.{1,120}?)\.",
        "Layers with a sliding window keep the KV of the whole context.",
        "Turning off hybrid kv cache manager because `--kv-transfer-config` selects a KV connector "
        "that does not support it. Impact: hybrid SSM models (e.g. Jamba, Bamba) will not work."),
    _rule("context-reduced", "cache", "Auto-fit max_model_len",
        r"Auto-fit max_model_len: reduced from (?P<detail>\d+) to (?P<value>\d+)",
        "The longest context was cut to what the KV cache holds.",
        "Auto-fit max_model_len: reduced from 262144 to 98304 to fit in available KV cache memory "
        "(9.31 GiB)"),
    # Quality.
    _rule("scales-differ", "quality", "In ",
        r"In (?P<format>NVFP4|FP8) linear, the (?P<value>[\w ]{0,30}?scale)(?: for input or "
        r"weight)? "
        r"(?:differs across|is different for|are different for) parallel layers",
        "Layers that are computed together were quantized with scales of their own: one is taken "
        "for all, and answers may get worse.",
        "In NVFP4 linear, the global weight scale differs across parallel layers (e.g. q_proj, "
        "k_proj, v_proj). This will likely reduce accuracy. Consider a checkpoint with the same "
        "global NVFP4 scale for fused weights.",
        "In FP8 linear, the static input scale differs across parallel layers (e.g. q_proj, "
        "k_proj, "
        "v_proj). Collapsing them to the max will likely reduce accuracy.",
        "In NVFP4 linear, the weight global scale is different for parallel layers (e.g. q_proj, "
        "k_proj, v_proj). This  will likely result in reduced accuracy.",
        "In NVFP4 linear, the global scale for input or weight are different for parallel layers "
        "(e.g. q_proj, k_proj, v_proj). This will likely result in reduced accuracy."),
    _rule("expert-scales-differ", "quality moe", "cale",
        r"(?:w1_weight_\w+ must match w3_weight_\w+|activation global scale for inputs are "
        r"different "
        r"for MOE|Found input_scales that are not equal)",
        "Experts were quantized with scales of their own where one is taken for all: answers may "
        "get worse.",
        "w1_weight_scale_2 must match w3_weight_scale_2. Accuracy may be affected.",
        "Found input_scales that are not equal for fp8 MoE layer. Using the maximum across experts "
        "for each layer."),
    _rule("scales-not-loaded", "quality", "is not loaded",
        r"Found (?P<value>\w+) in the checkpoint .*? is not loaded",
        "Scales of the checkpoint were not found by the model: less exact, no slower.",
        "Found k_scale in the checkpoint (e.g. a.k_scale), but not found the expected name in the "
        "model (e.g. b.k_scale). k_scale is not loaded."),
    _rule("negative-scales", "quality nvfp4", "negative scales",
        r"NVFP4 Marlin assumes the scales to be >=0",
        "Marlin cannot hold the negative scales of this checkpoint: answers get worse.",
        "NVFP4 Marlin assumes the scales to be >=0, but has encountered negative scales. Accuracy "
        "will likely be degraded."),
    _rule("attention-scales", "quality", "cal",
        r"(?:Using uncalibrated q_scale|Checkpoint does not provide a q scaling factor)",
        "FP8 attention has no scale of the queries from the checkpoint: less exact, no slower.",
        "Checkpoint does not provide a q scaling factor. Setting it to k_scale. This only matters "
        "for FP8 Attention backends (flash-attn or flashinfer).",
        "Using uncalibrated q_scale 1.0 and/or prob_scale 1.0 with fp8 attention. This may cause "
        "accuracy issues."),
)  # fmt: skip
