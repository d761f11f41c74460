"""The one table that says from a kernel's name what it is: a row a family, first match wins.

A row's pattern is searched in the base name (`classifier.split_name`), never in the template
arguments; where the base name says too little, a row also asks for something in the arguments. A
row says only what holds for every kernel it matches, and leaves the rest open: engine "unknown",
precision, component or conversion None. Its example is its test, and so are the names in
tests/data/kernel-names.csv.

Names are untrusted: base names are cut before they are searched, and a pattern for arguments
repeats nothing without a bound behind something that can occur often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NAME_LIMIT = 4096  # characters of a name that are looked at; the rest is dropped

IN_ARGUMENTS = "in the arguments"
"""Instead of a format: it is read in the template arguments of the name at hand."""
IN_NAME = "in the name"  # instead of a format: it is read in the base name at hand


@dataclass(frozen=True)
class KernelRule:
    """One family of kernels (or of CPU operators), by name."""

    family: str  # what the family is called
    pattern: str  # regular expression, searched in the base name
    example: str  # a name of the family, as a profiler writes it
    engine: str = "unknown"  # where it runs
    component: str | None = None  # what it works for, where every kernel of the family does
    precision: str | None = None  # what the arithmetic runs in, or where that is written
    # How the weights are stored, or where that is written; it counts only where it is narrower than
    # the arithmetic.
    weights: str | None = None
    conversion: str | None = None  # set only where changing a format is all that the kernel does
    fused_conversion: str | None = None  # a change of format that it makes beside its own work
    gemm: bool = False  # a matrix product, not counting convolutions, attention and LoRA
    finishes_gemm: bool = False  # adds up the parts of the product before it
    # What it exchanges between ranks beside its product, a kind of rules/collectives.py or
    # "exchange": it waits for other ranks, and no collective is seen.
    exchanges: str | None = None
    load_time: bool = False  # runs while weights are loaded, not for tokens
    # Works for an attention, but is none itself: what chooses the tokens that a sparse one reads,
    # plans it, gathers its cache, or adds up its parts.
    helps: bool = False
    arguments: str = ""  # regular expression that the template arguments must contain as well


def _all(engine: str, component: str, *rules: KernelRule) -> tuple[KernelRule, ...]:
    """Families that run on one engine and work for one component; empty where each says its own."""
    return tuple(
        replace(rule, engine=engine or rule.engine, component=component or rule.component)
        for rule in rules
    )


_TENSOR = "tensor-core"
_CUDA = "cuda-core"
_COPY = "copy"

# CUTLASS wrappers: what they wrap is their first template argument.
_CUTLASS3 = r"^(?:cutlass::)?device_kernel$"
_CUTLASS2 = r"^(?:cutlass\w*::)?Kernel2?$"
# CuTe DSL: Python module, class and operands in one word.
_CUTE = r"^kernel_cutlass_kernel_\w*"
# DeepGEMM, which DeepSeek's published traces have under a namespace of its own.
_DEEP_GEMM = r"^(?:deep_gemm::|dpsk::gemm::)?"
# PyTorch's element-wise kernels, which name the operation in their arguments.
_ELEMENTWISE = r"(?:^|::)\w*elementwise_kernel\w*$"
# Formats that a kernel writes: what it reads stands before them, and is wider.
_TO_FP8 = r"Fp8KVCacheDataType\)?[1-9]"
_NARROW = r"__nv_fp[48]|float_e[245]m[123]_t|Float8_e"

# fmt: off
_COPIES = _all(_COPY, "memcpy",
    KernelRule("memcpy", r"^(?:CUDA )?[Mm]emcpy\b", "Memcpy HtoD (Pinned -> Device)"),
    KernelRule("memset", r"^(?:CUDA )?[Mm]emset\b", "Memset (Device)"),
)

_CPU_OPERATORS = (
    KernelRule("cpu-matmul",
         r"^aten::(?:mm|addmm|linear|matmul|bmm|baddbmm|addbmm|mv|addmv|_addmm_activation"
         r"|_scaled_mm|_int_mm|_weight_int\w*_mm\w*|mkldnn_linear|_mkl_linear)$", "aten::mm",
         gemm=True),
    KernelRule("cpu-onednn", r"^(?:_C\w*|mkldnn|onednn|mkl|quantized)::(?:onednn_(?:scaled_)?mm"
         r"|_?linear\w*|_mkl_linear|qlinear\w*|weight_packed_linear|cpu_gemm_wna16"
         r"|(?:int8|fp8|int4)_scaled_mm\w*)$", "_C::onednn_mm", gemm=True),
    KernelRule("cpu-experts", r"^\w+::(?:cpu_fused_moe|fused_experts(?:_cpu)?|dynamic_4bit_int_moe"
         r"|(?:transformers_)?moe_forward(?:_shared)?|(?:out|in)place_fused_experts)$",
         "_C::cpu_fused_moe", component="experts"),
    KernelRule("cpu-router",
         r"^(?:_C\w*|_moe_C|vllm)::(?:topk_softmax|topk_sigmoid|biased_topk_cpu|hash_topk_cpu"
         r"|grouped_topk\w*|moe_align_block_size)$", "_moe_C::topk_softmax", component="router"),
    KernelRule("cpu-kv-write",
         r"^_C\w*::(?:cpu_attn_reshape_and_cache|reshape_and_cache\w*|concat_and_cache_mla\w*"
         r"|compute_slot_mapping\w*)$|^vllm::unified_(?:mla_)?kv_cache_update$",
         "_C::cpu_attn_reshape_and_cache", component="kv_write"),
    KernelRule("cpu-attention",
         r"^(?:_C\w*|vllm)::(?:cpu_attention\w*|unified_(?:mla_)?attention\w*"
         r"|mla_decode_kvcache\w*|decode_attention_cpu|extend_attention_cpu)$"
         r"|^aten::_?scaled_dot_product_\w*attention\w*$", "vllm::unified_attention_with_output",
         component="attention"),
    KernelRule("cpu-ssm",
         r"^_C\w*::(?:mamba_\w+|selective_(?:scan|state_update)\w*|causal_conv1d_\w+"
         r"|chunk_gated_delta_rule\w*|fused_sigmoid_gating_delta_rule\w*|fused_gdn_gating\w*)$"
         r"|^vllm::(?:mamba_mixer2?|(?:qwen_|cpu_)?gdn_attention_core)$",
         "_C::causal_conv1d_update_cpu_vec", component="ssm"),
    KernelRule("cpu-norm",
         r"^(?:_C\w*|vllm|aten)::_?(?:fused_)?(?:add_)?(?:rms_norm|native_layer_norm|layer_norm)$",
         "_C::fused_add_rms_norm", component="norm"),
    KernelRule("cpu-rope", r"^_C\w*::\w*rotary_embedding$|^vllm::(?:flashinfer_)?rotary_embedding$",
         "_C::rotary_embedding", component="rope"),
    KernelRule("cpu-embedding", r"^aten::embedding$", "aten::embedding", component="embedding"),
    KernelRule("cpu-sampler", r"^aten::(?:argmax|multinomial|exponential_)$"
         r"|^_C\w*::(?:greedy_argmax|fused_gumbel_argmax|rejection_\w*sample\w*"
         r"|sample_recovered_tokens\w*)$", "_C::greedy_argmax", component="sampler"),
    KernelRule("cpu-collective",
         r"^vllm::(?:all_reduce|all_gatherv?|reduce_scatterv?|\w*fused_allreduce\w*)$"
         r"|^_C\w*::shm_\w+$|^_C_custom_ar::all_reduce$"
         r"|^(?:c10d|_c10d_functional)::_?(?:all|reduce|broadcast|send|recv|gather|scatter|barrier"
         r"|wait_tensor)\w*$|^symm_mem::\w*(?:all_|reduce_|multimem)\w*$",
         "_C::shm_allreduce", component="collective"),
    # What Inductor made of a whole graph: its fused loops are no operators of their own.
    KernelRule("cpu-compiled-graph", r"^CompiledFxGraph$",
         "## Call CompiledFxGraph fgshjysb76fvawq22qfgzq7ijs76t4mvvbgjtrvuwhrqaxhd3mng ##"),
    KernelRule("cpu-quantize",
         r"^(?:_C\w*|vllm)::(?:(?:dynamic|static)_scaled_\w*quant|\w*scaled_fp8_quant"
         r"|(?:xpu_)?mx\w+_quantize|quantize_fp8e4m3_vec)$|^aten::quantize_per_\w+$",
         "_C::dynamic_scaled_int8_quant", conversion="quantize"),
    KernelRule("cpu-dequantize", r"^aten::dequantize$|^vllm::dequant_mxfp\d$", "aten::dequantize",
         conversion="dequantize"),
    KernelRule("cpu-cast", r"^aten::_to_copy$", "aten::_to_copy", conversion="cast"),
    KernelRule("cpu-copy", r"^aten::copy_$", "aten::copy_", component="memcpy"),
    KernelRule("cpu-pad", r"^aten::(?:constant_pad_nd|pad)$", "aten::constant_pad_nd",
        conversion="pad"),
)

# Before the collectives, which one of these is by its name as well.
_PRODUCTS_THAT_EXCHANGE = _all(_TENSOR, "",
    # One class for both: it reduces and scatters, or gathers again behind that.
    KernelRule("gemm-reduce-scatter", _CUTE + r"GemmRsAr",
         "kernel_cutlass_kernel_vllmmodel_executorkernelslinearcute_dslgemm_rs_arSm100GemmRsAr"
         "_object_at__TiledMMA", gemm=True, exchanges="reduce_scatter"),
    KernelRule("gemm-publishing", _CUTE + r"Publishing\w*Gemm",
         "kernel_cutlass_kernel_vllmmodelsdeepseek_v41nvidiaspecialized_decodeboundarypublishing_"
         "gemmPublishingLowLatencyBlockscaledGemmKernel_object_at__TiledMMA", gemm=True,
         exchanges="all_reduce"),
    KernelRule("gemm-all-reduce", _CUTE + r"gemm_?all_?reduce",
         "kernel_cutlass_kernel_flashinfercute_dslgemm_allreduce_two_shotPersistentDenseGemmKernel"
         "_object_at__TiledMMA", gemm=True, exchanges="all_reduce"),
    KernelRule("deep-gemm-mega-moe", r"(?:^|::)sm\d+_fp8_fp4_mega_moe",
         "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<8192u, 7168u, 2048u>(void*)",
         component="experts", precision="fp8", weights="fp4", gemm=True, exchanges="all_to_all"),
)

_COLLECTIVES = _all(_CUDA, "collective",
    KernelRule("nccl",
         r"^nccl(?:Dev|Symk?Dev)?Kernel|^rccl\w*Kernel|^msccl(?:Kernel|pp)|^userbuffers_",
         "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    KernelRule("nvshmem", r"^nvshmem|^barrier_on_stream_kernel|^barrier_all_kernel",
         "barrier_on_stream_kernel_threadgroup"),
    KernelRule("symmetric-memory",
         r"(?:^|::)(?:barrier|put_signal|wait_signal)_kernel$"
         r"|(?:^|::)(?:allToAllV|exchangeSplitAndOffset)\w*$",
         "(anonymous namespace)::wait_signal_kernel(unsigned int**, int, int, int, unsigned long)"),
    KernelRule("deep-ep",
         r"(?:^|::)(?:deep_?ep|dpsk::ep|hybrid_ep|nccl_ep|nixl_ep|pplx)::(?:\w+::)*\w*"
         r"(?:dispatch|combine|barrier|low_latency|layout|sync|notify)|^mori::(?:\w+::)*Ep\w+",
         "void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *)"),
    KernelRule("moe-all-to-all",
         r"moeA2A\w*Kernel|moe(?:Local)?AllToAll|fusedMoeCommKernel|^_dcp_a2a_"
         r"|(?:^|::)a2a_(?:dispatch|combine)_\w+", "_dcp_a2a_pack_send_kernel"),
    KernelRule("cute-dsl-collective",
         _CUTE + r"(?:b12xcomm|Roce(?:Oneshot|AllGather)|AllReduceMHC)",
         "kernel_cutlass_kernel_b12xcommroce_oneshot_cute_RoceOneshotLaunch_object_at__ptri32gmem"),
    # The second half of those that norm what they have summed waits for the other ranks as well.
    KernelRule("collective-and-norm",
         r"(?:^|::)(?:rmsNormLamport|local_device_load_rmsnorm|fused_rs_ln_ag_cta\w*"
         r"|minimax_reduce_\w*rms\w*)",
         "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>(int)"),
    KernelRule("custom-all-reduce",
         r"(?:^|::)(?:cross_device_(?:reduce_\d|all_gather)|reduce_scatter_cross_device"
         r"|mnnvl_(?:lamport|multimem)_|multimem_\w+_kernel|quickreduce|allgather_\w+dim"
         r"|direct_dcp_\w+gather|kernel_(?:all_gather|all_reduce|reduce_scatter|all_to_all))"
         r"|^(?!triton_).*?(?i:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w{0,60}"
         r"(?i:kernel|shot|prototype)|(?i:(?:one|two)_?shot_?all_?reduce)|::ar_fusion::",
         "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)"),
)

_CACHE = _all(_CUDA, "",
    KernelRule("kv-write-fp8", r"reshape_and_cache|concat_and_cache_mla",
         "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char,"
         " (vllm::Fp8KVCacheDataType)1>(__nv_bfloat16 const*)", component="kv_write",
         fused_conversion="quantize", arguments=_TO_FP8),
    KernelRule("kv-write-quantized",
         r"reshape_and_cache_nvfp4|concat_and_cache_ds_mla|indexer_k_quant_and_cache"
         r"|fp8_set_kv_buffer|(?:^|::)quantize_and_insert_k",
         "void vllm::reshape_and_cache_nvfp4_kernel<__nv_bfloat16, true>(unsigned char*)",
         component="kv_write", fused_conversion="quantize"),
    # It rotates the keys on the way.
    KernelRule("rope-and-kv-write", r"(?:^|::)fused_rope_store_kernel",
         "void sglang::fused_rope_store_kernel<true, 128l, true, __nv_bfloat16, long>(int)",
         component="kv_write"),
    KernelRule("kv-write",
         r"reshape_and_cache|reshape_cache_|concat_and_cache_mla|(?:^|::)store_kv_?cache"
         r"|(?:^|_)compute_slot_mappings?_kernel|AppendPagedKV\w*Kernel|set_mla_kv_buffer",
         "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16,"
         " (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)", component="kv_write"),
    KernelRule("kv-gather-fp8",
         r"cp_gather_and_upconvert|dequant\w*_and_gather_k|prefill_attn_kvfp8_dequant"
         r"|dequant_gather_slots",
         "vllm::cp_gather_and_upconvert_fp8_kv_cache(unsigned char const*,"
         " __nv_bfloat16*, int const*)", component="attention", helps=True,
         fused_conversion="dequantize"),
    KernelRule("kv-gather-dequant", r"gather_and_maybe_dequant_cache",
         "void vllm::gather_and_maybe_dequant_cache<__nv_bfloat16, unsigned char,"
         " (vllm::Fp8KVCacheDataType)1, 320, 64>(unsigned char const*)", component="attention",
         helps=True, fused_conversion="dequantize", arguments=_TO_FP8),
    KernelRule("kv-gather",
         r"gather_and_maybe_dequant_cache|cp_gather_(?:cache|indexer)|cp_mha_gather_cache",
         "void vllm::gather_and_maybe_dequant_cache<unsigned short, unsigned char, 512>(int)",
         component="attention", helps=True),
)

# The helpers of an attention go before the attention itself: their names contain its name.
_ATTENTION = _all("", "attention",
    KernelRule("flash-combine", r"flash_fwd_splitkv_combine",
         "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128>,"
         " 4, 3, true>(flash::Flash_fwd_params)", _CUDA, helps=True),
    KernelRule("flash3-combine", _CUTLASS3,
         "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<16>,"
         " cute::C<64> >, 5, 256, 1> >(int)", _CUDA, helps=True, arguments=r"FlashAttnFwdCombine"),
    KernelRule("flash3-backward-helpers", _CUTLASS3,
         "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64>,"
         " cute::C<128> >, cutlass::bfloat16_t, float> >(int)", _CUDA, helps=True,
         arguments=r"FlashAttnBwd\w*(?:Preprocess|Postprocess)"),
    KernelRule("flash3-backward", _CUTLASS3,
         "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<"
         "flash::CollectiveMainloopBwdSm90<2, cutlass::bfloat16_t, float> > > >(int)", _TENSOR,
         precision=IN_ARGUMENTS, arguments=r"FlashAttnBwd(?:Sm\d+)?\b"),
    KernelRule("flash3-warp-specialized", r"(?:^|::)compute_attn_ws$",
         "void flash::compute_attn_ws<Flash_fwd_kernel_traits<192, 128, 128, 12, 2, false, 1,"
         " cutlass::bfloat16_t, 128>, true>(int)", _TENSOR, precision=IN_ARGUMENTS),
    KernelRule("flash3", _CUTLASS3,
         "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
         "flash::CollectiveMainloopFwdSm90<2, 64, cutlass::bfloat16_t, float> > > >(int)", _TENSOR,
         precision=IN_ARGUMENTS, arguments=r"FlashAttnFwdSm\d"),
    KernelRule("cutlass-mla-reduction", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaReductionKernel<"
         "cutlass::bfloat16_t, float, float, 128ul, 512ul, 256> >(int)", _CUDA, helps=True,
         arguments=r"FmhaMlaReductionKernel"),
    KernelRule("cutlass-fmha", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized<"
         "cute::tuple<int>, cutlass::fmha::collective::Sm100FmhaFwdMainloopTmaWarpspecialized<"
         "cutlass::bfloat16_t, float> > >(int)", _TENSOR, precision=IN_ARGUMENTS,
         arguments=r"Sm\d+(?:FmhaFwd|FmhaMla|Mla)Kernel\w{0,60}Warp[sS]pecialized"),
    KernelRule("flash-metadata", r"(?:^|::)prepare_varlen_num_blocks_kernel",
         "void flash::prepare_varlen_num_blocks_kernel<1, false>(int, int, int)", _CUDA,
         helps=True),
    KernelRule("flashmla-combine", r"(?:^|::)(?:flash_fwd_mla_combine|get_mla_metadata)_kernel",
         "void get_mla_metadata_kernel(Mla_metadata_params)", _CUDA, helps=True),
    # An FP8 cache is widened before it is multiplied.
    KernelRule("flashmla-sparse", r"(?:^|::)(?:\w+_mla_fp8_sparse|sparse_attn_fwd\w*)_kernel",
         "void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<sm90::decode::"
         "sparse_fp8::KernelTemplate<(ModelType)0, 128> >(int)", _TENSOR, precision="bf16"),
    KernelRule("flashmla", r"(?:^|::)flash_fwd_\w*mla\w*_kernel",
         "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, cutlass::bfloat16_t>"
         " >(Flash_fwd_mla_params)", _TENSOR, precision=IN_ARGUMENTS),
    KernelRule("flash2-backward", r"(?:^|::)flash_bwd_dq_dk_dv\w*kernel",
         "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128,"
         " cutlass::bfloat16_t> >(flash::Flash_bwd_params)", _TENSOR, precision=IN_ARGUMENTS),
    KernelRule("flash2-backward-helpers", r"(?:^|::)flash_bwd_(?:dot|convert|clear)\w*kernel",
         "void flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128> >(int)",
         _CUDA, helps=True),
    KernelRule("flash2", r"(?:^|::)flash_fwd_\w*kernel",
         "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64,"
         " cutlass::bfloat16_t>, (bool)0>(flash::Flash_fwd_params)", _TENSOR,
         precision=IN_ARGUMENTS),
    KernelRule("flash4-combine", _CUTE + r"(?:ForwardCombine|CombineKernel)",
         "kernel_cutlass_kernel_flash_attncuteflash_fwd_combineFlashAttentionForwardCombine"
         "_object_at__tensor", _CUDA, helps=True),
    KernelRule("flash4", _CUTE + r"(?:FlashAttention(?:Forward|BackwardSm\d)|Attn\w*ForwardSm\d"
         r"|FusedMultiHeadAttention)",
         "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100"
         "_object_at__tensor", _TENSOR),
    KernelRule("cute-dsl-attention", _CUTE + r"(?:b12xattention|mlakernel)",
         "kernel_cutlass_kernel_b12xattentionmlaprefill_mgUnifiedPrefillMGKernel_object_at_"),
    KernelRule("trtllm-fmha-reduction", r"fmhaReduction",
         "void fmhaReductionKernel<128, 512, true>(KernelParams)", _CUDA, helps=True),
    KernelRule("trtllm-fmha-fp8", r"^[Ff]mhaSm\d+\w*Kernel_Q(?:kv)?E4m3",
         "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
         _TENSOR, precision="fp8"),
    KernelRule("trtllm-fmha-bf16", r"^[Ff]mhaSm\d+\w*Kernel_QkvBfloat16",
         "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvDenseP16VarSeqQ8Kv128StaticSwapsAbForGen",
         _TENSOR, precision="bf16"),
    KernelRule("trtllm-fmha-fp16", r"^[Ff]mhaSm\d+\w*Kernel_QkvFp16",
         "fmhaSm100aKernel_QkvFp16OFp16H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext",
         _TENSOR, precision="fp16"),
    KernelRule("trtllm-fmha", r"^[Ff]mhaSm\d",
         "fmhaSm100aKernel_QBfloat16KvE4m3OBfloat16H128PagedKvCausalP16VarSeqQ128Kv128Context",
         _TENSOR),
    KernelRule("trtllm-fmha-v2", r"^fmha_v2_\w*kernel",
         "fmha_v2_flash_attention_bf16_64_128_S_q_k_v_128_causal_tma_ws_sm90_kernel", _TENSOR,
         precision=IN_NAME),
    KernelRule("xqa", r"^kernel_mha$",
         "kernel_mha(unsigned int, float, __nv_bfloat16*, __nv_bfloat16 const*)", _TENSOR),
    KernelRule("cudnn-attention", r"^cudnn_generated_\w*sdpa\w*(?:mma|sm100)",
         "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1",
         _TENSOR),
    KernelRule("memory-efficient-attention", r"^fmha_cutlass[FB]_(?:bf16|f16)_",
         "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(AttentionKernel<bfloat16_t>::Params)", _TENSOR,
         precision=IN_NAME),
    KernelRule("memory-efficient-attention-fp32", r"^fmha_cutlass[FB]_f32_",
         "fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float>::Params)"),
    KernelRule("flashinfer-prefill",
         r"(?:Batch|Single)Prefill\w*Kernel|BatchMLAPagedAttentionKernel|BatchPOD\w*Kernel"
         r"|(?:^|::)PrefillWithKVCacheKernel|KVCacheKernelMLACute",
         "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<"
         "__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float> >(int)", _TENSOR,
         precision=IN_ARGUMENTS),
    KernelRule("flashinfer-decode", r"(?:Batch|Single)DecodeWith\w*KVCacheKernel(?:MLA)?$",
         "void flashinfer::BatchDecodeWithPagedKVCacheKernel<1, 2, 8, 16, 8, 4>(int)", _CUDA),
    KernelRule("attention-merge",
         r"merge_attn_states|MergeStates?\w*Kernel|VariableLengthMergeStates|reduce_segments"
         r"|_fwd_kernel_stage2$|_copy_page_indices_kernel|_segmented_attention_reduce"
         r"|correct_attn_cp_out_kernel|sparse_mla_\w*merge|_merge_topk_attn_out",
         "void vllm::merge_attn_states_kernel<__nv_bfloat16, 128>(__nv_bfloat16*)", _CUDA,
         helps=True),
    KernelRule("sparse-mla", r"(?:^|::)sparse_mla_(?:decode|prefill)",
         "void flashinfer::sparse_mla_sm120::sparse_mla_decode_dsv3_2_kernel<(ModelType)2, 32>("),
    KernelRule("triton-attention",
         r"^kernel_(?:tq_)?unified_attention|^kernel_paged_attention_2d|^_fwd_grouped_kernel_stage1"
         r"|^_segmented_attention_stage|^_attn_fwd\b|^_fwd_kernel(?:_alibi)?$|^_attn_packed$"
         r"|^_gqa_sparse_(?:decode|fwd)_kernel", "kernel_unified_attention_2d", _TENSOR),
    # This one multiplies and sums without a dot product.
    KernelRule("triton-decode-attention", r"^_fwd_kernel_stage1$", "_fwd_kernel_stage1", _CUDA),
    KernelRule("flex-attention", r"^triton_tem_fused\w*_flex_(?:attention|decoding)",
         "triton_tem_fused_flex_attention_0", _TENSOR),
    KernelRule("paged-attention",
         r"(?:^|::)paged_attention_v[12]_(?:reduce_)?kernel|masked_multihead_attention_kernel",
         "void vllm::paged_attention_v1_kernel<__nv_bfloat16, 128, 16, 128>(__nv_bfloat16*)",
         _CUDA),
    KernelRule("llama-cpp-attention", r"^flash_attn_ext_f16$",
         "void flash_attn_ext_f16<128, 128, 8, 1, 4, 8, false, false>(char const*)", _TENSOR,
         precision="fp16"),
    KernelRule("llama-cpp-attention-vector", r"^flash_attn_(?:vec|tile|combine|stream_k|mask)",
         "void flash_attn_combine_results<128>(float const*, float2 const*, float*, int)", _CUDA),
    KernelRule("sparse-attention-topk",
         r"topKPerRow(?:Decode|Prefill)|(?:cooperative|persistent)_topk|FilteredTopK"
         r"|topk_transform_(?:decode|prefill)|^_topk_index_",
         "void vllm::topKPerRowDecode<512, true>(float const*)", _CUDA, helps=True),
    KernelRule("sparse-attention-scores-fp8", r"fp8_(?:paged_)?mqa_logits(?!_metadata)",
         "void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>(unsigned int, unsigned int)", _TENSOR,
         helps=True, precision="fp8"),
    KernelRule("sparse-attention-scores", r"(?:^|[:_])mqa_logits(?!_metadata)",
         "void deep_gemm::sm100_fp4_paged_mqa_logits<1u, 64u>(unsigned int, unsigned int)",
         helps=True),
    KernelRule("sparse-attention-scores-helpers", r"mqa_logits_metadata|smxx_clean_logits",
         "void deep_gemm::smxx_clean_logits<1u, 128u, 4u>(unsigned int, unsigned int)", _CUDA,
         helps=True),
    KernelRule("mla-concatenation", r"ConcatMLAQKernel|(?:^|::)concat_mla_(?:k|absorb_q)",
         "void vllm::ConcatMLAQKernel<__nv_bfloat16, 512>(__nv_bfloat16*, __nv_bfloat16 const*)",
         _CUDA, helps=True),
)

_ROUTER = _all("", "router",
    KernelRule("router-gemm",
         r"(?:^|::)(?:fp32_)?router_gemm_kernel(?:_bf16_output|_float_output)?$",
         "void router_gemm_kernel_float_output<__nv_bfloat16, 128, 8, 1, 256, 7168>(float*)", _CUDA,
         precision="fp32", gemm=True),
    KernelRule("router-gemm-other", r"router_gemm",
         "kernel_cutlass_kernel_vllmbf16x3_router_gemm_cutedslRouterGemm_object_at_", gemm=True),
    KernelRule("router-topk",
         r"topk_?Gating|topk_gating|grouped_topk_(?:fused|kernel)|group_idx_and_topk_idx"
         r"|topk_with_k2|^_topk_forward|^_(?:vllm_)?topk_softmax|^_gemma4_routing_kernel"
         r"|deepseek_v3_topk_kernel|HashTopkSoftplus|(?:^|::)moe(?:Sigmoid|Softmax|TopK)$"
         r"|^_dsv4_topk_kernel|^topk_moe_cuda|(?:^|::)moe_fused_gate|^_inkling_gate_select",
         "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16>(float const*)", _CUDA),
    KernelRule("router-bookkeeping",
         r"moe_(?:lora_)?align_block_size|count_and_sort_expert_tokens|batched_moe_align"
         r"|^_combined_routing|^_sum_bitmatrix|^_routing_|^_expt_data|^_compute_writeback_idx"
         r"|^pack_bitmatrix$|^_masked_topk_sum_kernel|routing(?:Indices|Main|Init)\w*Kernel"
         r"|computeExpertFirstTokenOffset|preprocessTopkId|(?:fused|block|global)BuildExpertMaps"
         r"|^_count_expert_num_tokens|ExpertPrefixSum|^compute_expert_(?:blockscale_)?offsets"
         r"|^compute_(?:problem_sizes|arg_sorts|batched_moe_data)|^_pack_topk_ids_weights"
         r"|^_remap_topk_to_local|^_stage2_pow2$|(?<!finalize)MoeRoutingKernel",
         "_combined_routing_compute_pow2", _CUDA),
)

_EXPERTS = _all("", "experts",
    # FP4 and integer weights are decoded to the type of the activations, which comes first.
    KernelRule("marlin-moe", r"^marlin_moe_wna16::(?:Marlin|MarlinDefault)$|^MarlinMoE",
         "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l,"
         " 256, 1, 8, 8, false, 4>(int4 const*)", _TENSOR, precision=IN_ARGUMENTS,
         weights=IN_ARGUMENTS, gemm=True),
    KernelRule("moe-wna16-int4", r"(?:^|::)moe_wna16_gemm_kernel",
         "void moe_wna16_gemm_kernel<__nv_bfloat16, 4, 1>(__nv_bfloat16 const*)", _CUDA,
         precision=IN_ARGUMENTS, weights="int4", gemm=True, arguments=r"^\w+, (?:\(int\))?4\b"),
    KernelRule("moe-wna16", r"(?:^|::)moe_wna16_gemm_kernel",
         "void moe_wna16_gemm_kernel<__half, 8, 4>(__half const*, __half*, unsigned int const*)",
         _CUDA, precision=IN_ARGUMENTS, weights="int8", gemm=True),
    # Types of the output, the activations and the weights, in this order.
    KernelRule("triton-matmul-ogs-bf16-fp4",
         r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+xbf16xmxfp4",
         "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", _TENSOR, precision="bf16",
         weights="fp4", gemm=True),
    KernelRule("triton-matmul-ogs-bf16", r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+xbf16xbf16",
         "_p_matmul_ogs_NNT_bf16xbf16xbf16_128x256x64x1", _TENSOR, precision="bf16", gemm=True),
    KernelRule("triton-matmul-ogs-fp16-fp4",
         r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+xfp16xmxfp4",
         "_p_matmul_ogs_NNT_fp16xfp16xmxfp4_128x256x128x1", _TENSOR, precision="fp16",
         weights="fp4", gemm=True),
    KernelRule("triton-matmul-ogs-fp16", r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+xfp16xfp16",
         "_p_matmul_ogs_NNN_fp16xfp16xfp16_128x256x64x1", _TENSOR, precision="fp16", gemm=True),
    # FP8 times MXFP4 is native on Blackwell and widened on Hopper.
    KernelRule("triton-matmul-ogs-fp4", r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+xmxfp4",
         "_p_matmul_ogs_NNT_bf16xmxfp8xmxfp4_128x256x128x1_swiglu", _TENSOR, weights="fp4",
         gemm=True),
    KernelRule("triton-matmul-ogs", r"^_(?:p_)?matmul_ogs|^_p_matmul|^_matmul_[NT]{3}_",
         "_p_matmul_ogs_NNN_fp32xfp8e5xfp8e5_16x16x128x5", _TENSOR, gemm=True),
    KernelRule("triton-moe-wna16", r"^fused_moe_kernel_gptq_awq", "fused_moe_kernel_gptq_awq",
         _TENSOR,
         gemm=True),
    KernelRule("triton-moe-nvfp4-emulation", r"^fused_moe_nvfp4_emulation_kernel$",
         "fused_moe_nvfp4_emulation_kernel", _TENSOR, weights="fp4", gemm=True),
    KernelRule("triton-moe",
         r"^fused_moe_kernel|^batched_triton_kernel$|^_mxfp8_grouped_gemm_kernel$"
         r"|^grouped_gemm_triton_kernel$", "fused_moe_kernel", _TENSOR, gemm=True),
    KernelRule("trtllm-moe-fp4", r"^[Bb]mm_[A-Za-z0-9]+_(?:Mx)?E2m1(?:Mx)?E2m1_\w*dynB",
         "bmm_Bfloat16_E2m1E2m1_Fp32_t128x16x512u2_s4_et128x16_m128x16x64_cga1x1x1_16dp256b_rM"
         "_TN_transOut_schedP_bN_dynBatch_sm100f", _TENSOR, precision="fp4", gemm=True),
    KernelRule("trtllm-moe-fp8-fp4", r"^[Bb]mm_[A-Za-z0-9]+_(?:Mx)?E2m1(?:Mx)?E4m3_\w*dynB",
         "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b"
         "_rM_TN_transOut_schedP2x1x2x3_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f", _TENSOR,
         precision="fp8", weights="fp4", gemm=True),
    KernelRule("trtllm-moe-fp8", r"^[Bb]mm_[A-Za-z0-9]+_(?:Mx)?E4m3(?:Mx)?E4m3_\w*dynB",
         "bmm_Bfloat16_E4m3E4m3_Fp32_t128x8x128u2_s8_et64x8_m64x8x32_c1x1x1_rM_TN_transOut_noShfl"
         "_dsFp8_schPd4x2x2x3_bN_rgTma_clmp_dynB_sm100f", _TENSOR, precision="fp8", gemm=True),
    KernelRule("trtllm-moe-bf16-fp4", r"^[Bb]mm_[A-Za-z0-9]+_(?:Mx)?E2m1Bfloat16_\w*dynB",
         "bmm_Bfloat16_MxE2m1Bfloat16_Fp32_t128x8x256u2_s4_et128x8_m128x8x16_cga1x1x1_16dp256b"
         "_rM_TN_transOut_schedS_biasM_bN_clmp_swiGlu_dynBatch_sm100f", _TENSOR, precision="bf16",
         weights="fp4", gemm=True),
    KernelRule("trtllm-moe-bf16-int4", r"^[Bb]mm_[A-Za-z0-9]+_MxInt4Bfloat16_\w*dynB",
         "bmm_Bfloat16_MxInt4Bfloat16_Fp32_t128x8x256u2_s4_et128x8_m128x8x16_dynBatch_sm100f",
         _TENSOR, precision="bf16", weights="int4", gemm=True),
    KernelRule("trtllm-moe-bf16", r"^[Bb]mm_[A-Za-z0-9]+_Bfloat16Bfloat16_\w*dynB",
         "Bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s6_et128x8_m128x8x16_c1x1x1_rM_BN"
         "_transOut_schedS_bN_ldgsts_ldgstsSf_rgTma_clmp_swiGlu_dynB_sm100f", _TENSOR,
         precision="bf16", gemm=True),
    KernelRule("cute-dsl-moe-sum", _CUTE + r"W4A16TopKSum",
         "kernel_cutlass_kernel_b12xmoe_sharedkernelsw4a16kernelW4A16TopKSumKernel_object_at_",
         _CUDA),
    KernelRule("cute-dsl-moe-w4a16", _CUTE + r"W4A16FusedMoe",
         "kernel_cutlass_kernel_b12xmoefusedw4a16kernelW4A16FusedMoeKernel_object_at_", _TENSOR,
         precision="bf16", weights="fp4", gemm=True),
    KernelRule("cute-dsl-moe", _CUTE + r"MoE(?:Dynamic|Static)Kernel",
         "kernel_cutlass_kernel_b12xmoefusedsiluMoEDynamicKernelSilu_object_at_", _TENSOR,
         weights="fp4", gemm=True),
    KernelRule("cute-dsl-moe-other", _CUTE + r"(?:b12xmoe|MoEMicroKernel)",
         "kernel_cutlass_kernel_b12xmoe_sharedkernelsw4a16mixed_trellisW4A16MixedTrellisKernel",
         gemm=True),
    KernelRule("expert-pointers", r"get_group_gemm_starts|computeStridesTmaWarpSpecialized",
         "void __nvfp4_get_group_gemm_starts<cutlass::float_e2m1_t, cutlass::bfloat16_t>(long*)",
         _CUDA),
    KernelRule("expert-sum",
         r"(?:^|::)moe_sum_\w*kernel|^moe_fused_mul_sum_kernel|^_reduce_grouped|finalizeMoeRouting"
         r"|^moe::dev::finalize::|^_fwd_kernel_ep_gather|^_unpermute_activation"
         r"|apply_shuffle_mul_sum|(?:^|_)post_reorder_\w*kernel|^_finalize_lora_kernel",
         "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<"
         "cutlass::bfloat16_t, cutlass::bfloat16_t, 4, true> >(int)", _CUDA),
    KernelRule("expert-activation-and-quantize",
         r"^moe::dev::activation::|doActivationKernel|doGatedActivation",
         "void moe::dev::activation::activationDeepSeekKernel<moe::dev::activation::KernelParams<"
         "cutlass::float_e4m3_t, 4, true> >(int)", _CUDA, fused_conversion="quantize",
         arguments=_NARROW),
    KernelRule("expert-activation", r"^moe::dev::activation::|doActivationKernel|doGatedActivation",
         "void moe::dev::activation::activationDeepSeekKernel<int>(int)", _CUDA),
    KernelRule("expert-permute-and-quantize", r"expandInputRows",
         "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16,"
         " __nv_fp4_e2m1, true>(int)", _CUDA, conversion="permute", fused_conversion="quantize",
         arguments=r"^(?:__nv_bfloat16|__half|half|float), __nv_fp[48]"),
    KernelRule("expert-permute",
         r"expandInputRows|shuffleInputRows|^moe::dev::permute::|^_fwd_kernel_ep_scatter"
         r"|^pre_reorder_\w*kernel",
         "void vllm::shuffleInputRowsKernel<__nv_bfloat16>(__nv_bfloat16 const*)", _CUDA,
         conversion="permute"),
)

# What a conversion shares its launch with other work (norm, activation, cache write) is no
# conversion: its time cannot be split by name.
_CONVERSIONS = _all(_CUDA, "",
    KernelRule("activation-and-quantize",
         r"(?:^|::)_?(?:silu|gelu|relu|swiglu|act)\w*(?:_mul|_squared|_oai)\w*(?:quant|cvt)"
         r"|(?:^|::)(?:batched_)?swiglu_\w*_cast_to_fp8",
         "void vllm::silu_mul_cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int)",
         fused_conversion="quantize"),
    KernelRule("norm-and-quantize", r"(?:rms_?norm|layer_?norm|RMSNorm|LayerNorm)\w*[qQ]uant",
         "void vllm::rms_norm_dynamic_per_token_quant_kernel<c10::BFloat16,"
         " c10::Float8_e4m3fn, false>(int)", component="norm", fused_conversion="quantize"),
    KernelRule("rope-and-quantize",
         r"(?i:rope)\w*(?i:quant(?!ize_?dequant))|indexer_q_rope_mxfp4|QNormRopeKVRopeQuantInsert"
         r"|_finalize_norm_rope_quant_store", "_fused_indexer_q_rope_quant_kernel",
         fused_conversion="quantize"),
    KernelRule("quantize-fp4",
         r"(?:^|::)(?:mxfp4_)?cvt_fp16_to_(?:mx)?fp4|(?:^|::)_?(?:nv|mx)?fp4_(?:experts_)?quant"
         r"(?!_dequant)|^fusedQuantize(?:Nv|Mx)|(?:^|::)quantize_mmq_(?:nv|mx)fp4",
         "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*)",
         conversion="quantize"),
    KernelRule("quantize-block",
         r"(?:^|::)quantize_with_block_size|(?:^|::)_?(?:quantize_mxfp8|mxfp8_(?:experts_)?quant)"
         r"|^_downcast_to_mxfp|(?:^|::)quantize_(?:q8_1|mmq_q8_1)|" + _CUTE + "Quantiz",
         "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::"
         "BlockScaleQuantizationType)2, __nv_bfloat16, 32, true>(flashinfer::QuantizationSFLayout)",
         conversion="quantize"),
    KernelRule("quantize-fp8-int8",
         r"(?:^|::)(?:dynamic_per_token_)?scaled_fp8_quant|(?:^|::)segmented_max_reduction"
         r"|(?:^|::)_?per_token_(?:group_)?quant|(?:^|::)(?:dynamic|static)_scaled_int8\w*_quant"
         r"|per_(?:token|block)_cast_to_fp8|^_quantize_pad_fp8|scale_1x128_kernel"
         r"|dynamicPerTokenScaledQuant|(?:^|::)per_tensor_(?:quant|absmax)|_per_group_scaled_quant"
         r"|^_quantize_dense_|^_?act_quant_kernel|kQuantizeBlockwise",
         "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)",
         conversion="quantize"),
    KernelRule("dequantize",
         r"(?:^|::|_)dequantize_(?:block|weights|nvfp4|kernel)|^awq_dequantize|^_upcast_from_mxfp"
         r"|^_dequantize_nvfp4_kernel|(?:^|::)reconstruct_(?:exllama|gptq)_|kDequantizeBlockwise",
         "void vllm::awq::dequantize_weights(int*, __half*, int*, __half*, int)",
         conversion="dequantize"),
    KernelRule("repack",
         r"marlin_repack|prepack_B_kernel|reorder_tensor_kernel|marlin_int4_fp8_preprocess"
         r"|unified_encode_int4b|gptq::(?:shuffle|make_sequential)_\dbit|rearrange_kn_weight",
         "void marlin::gptq_marlin_repack_kernel<256, 4, false, false>(unsigned int const*)",
         conversion="repack", load_time=True),
    KernelRule("permute-columns", r"permute_cols_kernel",
         "void permute_cols_kernel(int4 const*, int const*, int4*, int, int, int)",
         conversion="permute"),
    KernelRule("permute-tokens",
         r"^_(?:un)?permute_kernel$|(?:^|::)(?:moe_)?(?:un)?permute_(?:topK_)?kernel",
         "_permute_kernel", conversion="permute"),
    KernelRule("scale-swizzle",
         r"block_scale_interleave|scale_swizzle|swizzle_(?:block_?)?(?:scale|mxfp|sf)",
         "void tensorrt_llm::kernels::block_scale_interleave_kernel(int, int, int)",
         conversion="swizzle"),
    KernelRule("scale-transpose", r"(?:^|::)transpose_(?:and_pack_)?fp32",
         "void deep_gemm::transpose_and_pack_fp32_into_ue8m0<512u, 48u, 56u>(float const*)",
         conversion="transpose"),
    KernelRule("quantize-cache", r"(?:^|::)convert_fp8_kernel",
         "void vllm::convert_fp8_kernel<unsigned char, float>(float const*)", conversion="quantize",
         arguments=r"^(?:unsigned char|uint8_t)"),
    KernelRule("dequantize-cache", r"(?:^|::)convert_fp8_kernel",
         "void vllm::convert_fp8_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)0>("
         "unsigned char const*, __nv_bfloat16*, float, long)", conversion="dequantize"),
    KernelRule("transpose-layout",
         r"nchwToNhwcKernel|nhwcToNchwKernel|(?:^|::)(?:batch_)?transpose_kernel",
         "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float, false>(int)",
         conversion="transpose"),
    KernelRule("pad", r"(?:^|::)constant_pad_nd\w*kernel|^_?pad_(?:input|weight|hidden)\w*_kernel$",
         "_pad_input_kernel", conversion="pad"),
    # These read one type and write another; every other direct copy may be a plain copy.
    KernelRule("torch-cast", _ELEMENTWISE,
         "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda("
         "at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)",
         conversion="cast", arguments=r"float(?:16|8)_copy_kernel_cuda"),
    KernelRule("torch-cast-unrolled", r"(?:^|::)unrolled_elementwise_kernel$",
         "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
         "at::TensorIteratorBase&)::{lambda()#3}, at::native::memory::LoadWithCast<1>,"
         " at::native::memory::StoreWithCast<1> >(int)", conversion="cast",
         arguments=r"direct_copy_kernel_cuda.*LoadWithCast"),
    # Since the third lambda PyTorch tells the copy that casts from the one that does not (nocast).
    KernelRule("torch-cast-strided", r"(?:^|::)elementwise_kernel$",
         "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::"
         "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const>(int)",
         conversion="cast",
         arguments=r"gpu_kernel_impl<(?:at::native::)?direct_copy_kernel_cuda\([^)]{0,40}\)::"
         r"[\[{]lambda\(\)(?:#3| \(instance 3\))"),
    KernelRule("inductor-cast", r"^triton_poi_fused__to_copy_\d+$", "triton_poi_fused__to_copy_0",
         conversion="cast"),
    # Beside the pad stands the operator that its output goes into, where that is vLLM's own.
    KernelRule("inductor-pad",
         r"^triton_poi_fused_constant_pad_nd(?:_moe_forward(?:_shared)?)?_\d+$",
         "triton_poi_fused_constant_pad_nd_moe_forward_0", conversion="pad"),
    KernelRule("nnc-cast", r"^fused__autocast_to_+\d+$", "fused__autocast_to__12152488584593855096",
         conversion="cast"),
)

_LAYER_PARTS = (
    KernelRule("cute-dsl-norm", _CUTE + r"(?:RMSNorm|LayerNorm)",
         "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel"
         "_object_at__tensorptrbf16gmem", _CUDA, component="norm"),
    KernelRule("cute-dsl-ssm", _CUTE + r"(?:b12xsequencegdn|[gG]dn_?(?:chunk|decode))",
         "kernel_cutlass_kernel_b12xsequencegdn_decode_cute_kernels_PackedDecode_object_at_",
         component="ssm"),
    KernelRule("qk-norm-rope",
         r"fusedQKNormRope|fused_qk_(?:rms)?norm_rope|QNormRope|fused_norm_rope|fusedDeepseekV4",
         "void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, true>(int)", _CUDA),
    KernelRule("inductor-dot", r"^triton_(?:red|per)_fused\w*_(?:b|add)?mm_",
        "triton_red_fused_mm_0"),
    KernelRule("inductor-embedding-norm", r"^triton_(?:poi|red|per)_fused\w*_embedding\w*norm",
         "triton_red_fused__to_copy_embedding_rms_norm_0", _CUDA),
    KernelRule("inductor-norm", r"^triton_(?:poi|red|per)_fused\w*(?:rms|layer)_norm",
         "triton_red_fused_fused_add_rms_norm_1", _CUDA, component="norm"),
    KernelRule("inductor", r"^triton_(?:poi|red|per|for|spl)_fused", "triton_poi_fused_2", _CUDA),
    KernelRule("qk-norm", r"(?:^|::)fused_qknorm_(?:warp|cta)$",
         "void sglang::fused_qknorm_warp<128, true, __nv_bfloat16>(int)", _CUDA, component="norm"),
    KernelRule("norm",
         r"rms_?norm|RMSNorm|RmsNorm|layer_?norm|LayerNorm|^_gather_norm_kernel|RowwiseMoments"
         r"|GroupNorm|group_norm",
         "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type"
         " vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)", _CUDA,
         component="norm"),
    KernelRule("rope",
         r"rotary_embedding|RotaryPosIds|ApplyRotary|mrope_forward|(?:^|::)fused_rope_kernel"
         r"|^rotary_kernel|^rope_(?:neox|norm|multi)|applyMLARope",
         "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, int)", _CUDA,
         component="rope"),
    # The same kernel serves experts and a dense MLP: the component stays open.
    KernelRule("activation",
         r"act_and_mul_kernel|activation_kernel|swigluoai_and_mul|^_?swiglu|silu_and_mul"
         r"|^unary_gated_op_kernel",
         "void vllm::act_and_mul_kernel<c10::BFloat16, 8, true>(c10::BFloat16*)", _CUDA),
    KernelRule("hadamard-mma", r"(?:^|::)hadamard_transform_kernel$",
         "void hadacore::hadamard_transform_kernel<1l, 1l, 1l, 24l, false, (c10::ScalarType)15>("
         "unsigned short*, unsigned short*, int)", _TENSOR, precision=IN_ARGUMENTS),
    KernelRule("hadamard", r"fast_hadamard_transform_kernel",
         "void (anonymous namespace)::fast_hadamard_transform_kernel<(anonymous namespace)::"
         "FastHadamardKernelTraits<16, 7, __nv_bfloat16> >(HadamardParamsBase)", _CUDA),
    KernelRule("ssm-scan",
         r"selective_scan_fwd|_selective_scan_update|causal_conv1d_(?:\w+_)?(?:fwd|update)"
         r"|_chunk_cumsum_fwd|_state_passing_fwd|fused_recurrent_\w*(?:delta_rule|fwd)"
         r"|sigmoid_gating_delta_rule_update|fused_\w*gdn_gating|^_fused_post_conv_kernel"
         r"|^chunk_local_cumsum_scalar|^l2norm_fwd|^kda_gate_fwd|_linear_attn_decode_\w*kernel"
         r"|^_fwd_kv_reduce$|(?:pre|post)\w*_mamba_\w*kernel|^_fused_sconv_kernel",
         "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1> >("
         "SSMParams)", _CUDA, component="ssm"),
    KernelRule("ssm-chunk",
         r"^_chunk_(?:scan|state)_fwd_kernel|^_bmm_chunk_fwd_kernel|^chunk_gated_delta_rule_fwd"
         r"|^chunk_(?:gla_)?fwd_kernel_o|^recompute_w_u_fwd_kernel|^chunk_scaled_dot_kkt_fwd"
         r"|^_fwd_(?:diag_kernel|kv_parallel|none_diag_kernel)$", "_chunk_scan_fwd_kernel", _TENSOR,
         component="ssm"),
    # A dot product of float, which may be rounded to TF32 or not.
    KernelRule("ssm-dot",
         r"^chunk_local_cumsum_vector|^kda_gate_cumsum|^chunk_kda_\w+|^solve_tril"
         r"|^merge_\d+x\d+_to_\d+x\d+_inverse", "chunk_local_cumsum_vector_kernel",
         component="ssm"),
    KernelRule("embedding-bag", r"^(?:split|dense)_embedding_\w*(?:forward|backward)",
         "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, false>(int)",
         _CUDA, component="embedding"),
    KernelRule("ngram-embedding", r"ngram_embedding::",
         "void vllm::ngram_embedding::ComputeNGramIdsKernel(int, int, int*, int const*, int*)",
         _CUDA, component="embedding"),
    KernelRule("vllm-positions",
         r"^_(?:prepare|post_update|gather_block_tables|expand_idx|combine_sampled|apply_write"
         r"|get_num_sampled|dcp_local_seq|zero_kv_blocks|update_draft|flatten_sampled)\w*$"
         r"|^eagle_\w+_kernel$|^copy_and_expand_\w+_kernel$|^expand_kernel$|^_num_nans_kernel$"
         r"|(?:^|::)compute_position_kernel|^write_req_to_token_pool|^create_flashinfer_kv_indices",
         "_prepare_pos_seq_lens_kernel", _CUDA),
    # What the driver launches for some copies of a CUDA graph.
    KernelRule("copies-of-the-driver", r"^mem(?:cpy|set)\d{1,3}(?:_post)?$", "memcpy128", _CUDA),
    KernelRule("vllm-block-copies",
         r"^(?:_swap_blocks|batch_memcpy|_pack_seq|_unpack_seq_triton)_kernel$",
         "batch_memcpy_kernel", _CUDA),
    KernelRule("lora", r"^_lora_(?:shrink|expand)_kernel|^_fused_moe_lora_(?:one_shot_)?kernel",
         "_lora_shrink_kernel", _TENSOR),
)

_SAMPLER = _all(_CUDA, "sampler",
    KernelRule("sampler",
         r"TopK\w*SamplingFrom|TopP\w*SamplingFrom|(?:^|::)SamplingFrom|MinPSamplingFrom"
         r"|TopKMaskLogits|TopKRenormProb|TopPRenormProb|ChainSpeculativeSampling|RadixTopKKernel"
         r"|apply_repetition_penalties_kernel|^_topk_topp_kernel|^_(?:gumbel|re)_?sample_kernel"
         r"|^_temperature_kernel|^_penalties_kernel|^_bincount_kernel|^_bias_kernel|^_ranks_kernel"
         r"|^_min_p_kernel|^_bad_words_kernel|^_topk_log_softmax_kernel|^_apply_grammar_bitmask"
         r"|rejection_(?:greedy|random)_sample|^sample_recovered_tokens_kernel|^_rejection_kernel"
         r"|^_compute_(?:cumulative_log_p|local_logits_stats|local_residual_mass)_kernel"
         r"|^_(?:prompt_logprobs|fill_logprob)_token_ids_kernel|^_insert_resampled_kernel"
         r"|OnlineSoftmax\w*Kernel|(?:^|::)air_top_?[pk]|apply_token_bitmask_inplace",
         "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024, float, int>(int)"),
    KernelRule("torch-argmax", r"(?:^|::)reduce_kernel$",
         "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
         "ArgMaxOps<float>, unsigned int, long, 4, 4> >(int)", arguments=r"ArgMaxOps"),
    KernelRule("torch-exponential", r"(?:^|::)distribution_elementwise_grid_stride_kernel$",
         "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<"
         "float, 4, at::native::templates::cuda::exponential_kernel<at::CUDAGeneratorImpl*> >(int)",
         arguments=r"exponential_kernel"),
)

# Products on CUDA cores first: several of their names also contain a tensor-core word.
_GEMM = (
    KernelRule("xmma-ffma", r"_xmma_gemm_\w*_ffma_",
         "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4"
         "_alignc4_execute_kernel__5x_cublas", _CUDA, precision="fp32", gemm=True),
    KernelRule("sgemm", r"^(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_sgemm_",
         "volta_sgemm_128x32_nt", _CUDA, precision="fp32", gemm=True),
    KernelRule("dgemm",
         r"^(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_(?:d|c|gc|z)gemm_",
         "volta_dgemm_64x64_nn", _CUDA, gemm=True),
    KernelRule("hgemm", r"^(?:maxwell|pascal|volta|turing|ampere)_hgemm_", "volta_hgemm_128x64_nn",
         _CUDA,
         precision="fp16", gemm=True),
    KernelRule("scudnn",
         r"(?:^|_)(?:maxwell|volta|turing|ampere)_scudnn_|^implicit_convolve_sgemm$",
         "volta_scudnn_128x64_relu_interior_nn_v1", _CUDA, precision="fp32"),
    KernelRule("cublas-gemvx", r"(?:^|::)gemvx::kernel$",
         "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16,"
         " __nv_bfloat16, __nv_bfloat16, float, (bool)0, (bool)1>(T13)", _CUDA,
         precision=IN_ARGUMENTS, gemm=True),
    KernelRule("cublas-gemvx-short", r"^kernel$",
         "enable_if<!T7, void>::type kernel<int, int, __nv_bfloat16, __nv_bfloat16,"
         " cublasGemvParamsEx<int, float>>(T13)", _CUDA, precision=IN_ARGUMENTS, gemm=True,
         arguments=r"cublasGemvParams"),
    KernelRule("cublas-gemv", r"(?:^|::)gem(?:v2?[TN]|vNSP|mk1_|mSN_)\w*",
         "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float,"
         " 128, 16, 4>(float)", _CUDA, precision=IN_ARGUMENTS, gemm=True),
    KernelRule("cublas-small", r"^gemm_kernel\dx\w*_core$",
         "void gemm_kernel2x2_core<float, 0, 1, 1, 0, 5, 1>(float*, float const*, float const*)",
         _CUDA, precision=IN_ARGUMENTS, gemm=True),
    KernelRule("cublas-vectors", r"^(?:scal|axpy|nrm2|asum|rot)_kernel\w*$|^cublasLt::epilogue::",
         "void axpy_kernel_val<float, double>(cublasAxpyParamsVal<float, double, double>)", _CUDA),
    KernelRule("cublas-dot", r"(?:^|::)(?:dot_kernel|reduce_1Block_kernel)$",
         "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const> > >(int)",
         _CUDA),
    KernelRule("split-k-reduce", r"split_?[kK]_?[rR]educe",
         "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(int)", _CUDA,
         finishes_gemm=True),
    KernelRule("gemv-fp4-dsl", _CUTE + r"GemvBf16Fp4",
         "kernel_cutlass_kernel_flashinfergemmkernelsgemv_bf16_fp4_sm12xGemvBf16Fp4Sm12x"
         "_object_at__tensor", _CUDA, weights="fp4", gemm=True),
    KernelRule("gguf-gemv",
         r"(?:^|::)(?:moe_(?:vec_)?|mul_mat_(?:vec_)?)q\d_(?:\d|K)|(?:^|::)mul_mat_vec_q",
         "void mul_mat_vec_q<__nv_bfloat16, 32, 4, block_q4_0, 2>(void const*)", _CUDA,
         precision="int8", weights=IN_ARGUMENTS, gemm=True),
    # On tensor cores since Turing, but the name is the same on older GPUs.
    KernelRule("llama-cpp-gemm", r"^mul_mat_(?:q|f)$",
         "void mul_mat_q<(ggml_type)40, (int)24, (bool)0>(char const*, int const*)", gemm=True),
    KernelRule("llama-cpp-gemv", r"^mul_mat_vec_?f?$",
         "void mul_mat_vec_f<__nv_bfloat16, float, 1, 128>(__nv_bfloat16 const*)", _CUDA,
         gemm=True),
    KernelRule("bitsandbytes-gemv", r"^kgemm_4bit_inference_naive$",
         "void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int)", _CUDA,
         gemm=True),
    KernelRule("gptq-exllama", r"gemm_half_q_half_\w*kernel",
         "void vllm::gptq::gemm_half_q_half_gptq_4bit_kernel<true, 4>(__half const*)", _CUDA,
         precision="fp16", weights=IN_NAME, gemm=True),
    KernelRule("nvjet-bf16", r"^nvjet_(?:sm\d+[a-z]?_)?t[a-z]{2}_",
         "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_bias_TNT", _TENSOR, precision="bf16",
         gemm=True),
    KernelRule("nvjet-fp16", r"^nvjet_(?:sm\d+[a-z]?_)?h[a-z]{2}_",
         "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", _TENSOR, precision="fp16", gemm=True),
    KernelRule("nvjet-fp8", r"^nvjet_(?:sm\d+[a-z]?_)?[qr]{2}[a-z]{3}_",
         "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", _TENSOR, precision="fp8", gemm=True),
    KernelRule("nvjet-fp4", r"^nvjet_(?:sm\d+[a-z]?_)?oo[a-z]{3}_",
         "nvjet_ootst_128x192_256x4_2x1_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT", _TENSOR,
         precision="fp4", gemm=True),
    KernelRule("nvjet-mma", r"^nvjet_sm\d+[a-z]?_[a-z]+_mma",
         "nvjet_sm120_biu_mma_128x128x64_2_64x32x64_tmaAB_bz_TNNN", _TENSOR, gemm=True),
    # The other letters (single and double among them) may emulate or not use tensor cores.
    KernelRule("nvjet-other", r"^nvjet_", "nvjet_sm100_sss_128x128_32x4_1x1_h_bz_TNT", gemm=True),
    KernelRule("xmma-tensor",
         r"_xmma_gemm_(?:bf16bf16|f16f16|f32f32_tf32|tf32|e[45]m[32]|i8\w|s8s8)"
         r"|_xmma_gemm_\w*(?:_tensor\d|_warpgroupsize\d)",
         "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
         "_execute_segment_k_off_kernel__5x_cublas", _TENSOR, precision=IN_NAME, gemm=True),
    KernelRule("xmma-other", r"_xmma_gemm_",
         "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_execute_kernel__5x_cublas",
         gemm=True),
    KernelRule("xmma-convolution",
         r"_xmma_(?:fprop|dgrad|wgrad)_\w*(?:_tensor\d+x\d+x\d+|_warpgroupsize\d)",
         "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32"
         "_stage4_warpsize4x1x1_g1_tensor16x8x16_execute_kernel__5x_cudnn", _TENSOR,
         precision=IN_NAME),
    KernelRule("cudnn-mma", r"^(?:volta|turing|ampere)_\w*(?:884|1688|16816)cudnn",
         "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1", _TENSOR,
         precision=IN_NAME),
    KernelRule("cublas-mma",
         r"^(?:volta|turing|ampere|ada|hopper|blackwell)_\w*(?:884|8816|1688|16816|16832|161616)\w*"
         r"gemm", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", _TENSOR,
         precision=IN_NAME, gemm=True),
    KernelRule("cutlass-simt-named", r"^cutlass\w*_simt_sgemm",
         "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32"
         "_relu",
         _CUDA, precision="fp32", gemm=True),
    KernelRule("cutlass-named", r"^cutlass(?:3x)?_(?:sm)?\d+_(?:\w*_)?(?:bs|sp)?tensorop\w*gemm",
         "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8", _TENSOR,
         precision=IN_NAME, gemm=True),
    KernelRule("cutlass2-convolution", _CUTLASS2,
         "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128"
         "_32x3_nhwc_align8>(T1::Params)", _TENSOR, precision=IN_ARGUMENTS,
         arguments=r"tensorop_\w{0,60}(?:fprop|dgrad|wgrad)|ImplicitGemmConvolution.*MmaTensorOp"),
    KernelRule("cutlass2-split-k", _CUTLASS2,
         "void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<"
         "cutlass_cudnn_train::MatrixShape<4, 128> > >(int)", _CUDA, finishes_gemm=True,
         arguments=r"ReduceSplitK"),
    KernelRule("cutlass2-simt", _CUTLASS2,
         "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(T1::Params)", _CUDA,
         precision="fp32", gemm=True, arguments=r"_simt_sgemm"),
    KernelRule("cutlass2", _CUTLASS2,
         "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn"
         "_align8>(T1::Params)", _TENSOR, precision=IN_ARGUMENTS, gemm=True,
         arguments=r"tensorop_\w{0,60}gemm"),
    KernelRule("qutlass2-rotate-and-quantize", _CUTLASS2,
         "void cutlass::Kernel<cutlass::gemm::kernel::GemmQuantMx<cutlass::gemm::threadblock::"
         "MmaMultistage<cutlass::gemm::GemmShape<128, 128, 32>, cutlass::bfloat16_t> > >(int)",
         _TENSOR, precision=IN_ARGUMENTS, fused_conversion="quantize",
         arguments=r"GemmQuant(?:Mx|Nv)"),
    KernelRule("cutlass2-vllm", _CUTLASS2,
         "void cutlass::Kernel2<vllm::enable_sm89_to_sm90<vllm::cutlass_2x_gemm<"
         "cutlass::arch::Sm89, cutlass::float_e4m3_t> > >(int)", _TENSOR, precision=IN_ARGUMENTS,
         gemm=True, arguments=r"enable_sm\d|OpClassTensorOp|MmaTensorOp"),
    KernelRule("qutlass-rotate-and-quantize", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::bfloat16_t,"
         " cutlass::epilogue::collective::CollectiveEpilogueQutlass<cutlass::float_e2m1_t> > >()",
         _TENSOR, precision=IN_ARGUMENTS, fused_conversion="quantize", arguments=r"Qutlass"),
    KernelRule("deepseek-grouped-fp8", _CUTLASS3,
         "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c_outfmt_head::GemmKernel"
         ">(dpsk::grouped_gemm::cuda::fp8_ptp128c_outfmt_head::GemmKernel::Params)", _TENSOR,
         precision="fp8", gemm=True, arguments=r"dpsk::grouped_gemm::(?:\w+::)?fp8"),
    KernelRule("cutlass3-grouped", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::"
         "GroupProblemShape<cute::tuple<int, int, int> >, cutlass::gemm::collective::CollectiveMma<"
         "cutlass::gemm::MainloopSm120ArrayTmaWarpSpecializedBlockScaled<2>, cute::tuple<cutlass::"
         "float_e2m1_t, cutlass::float_ue4m3_t> > > >(int)", _TENSOR, component="experts",
         precision=IN_ARGUMENTS, weights=IN_ARGUMENTS, gemm=True,
         arguments=r"GroupProblemShape|cutlass_3x_group_gemm|cutlass_w4a8_moe"),
    # Weights, activations and scales may all stand first: the layout begins with the activations.
    KernelRule("machete-fp16", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<machete::Machete"
         "CollectiveMma<cute::tuple<unsigned char, cutlass::half_t, cutlass::half_t>, machete::"
         "PrepackedLayoutBTemplate<cutlass::half_t, unsigned char, cutlass::half_t> > > >(int)",
         _TENSOR, precision="fp16", weights=IN_ARGUMENTS, gemm=True,
         arguments=r"PrepackedLayoutBTemplate[< ](?:cutlass::)?half_t"),
    KernelRule("machete-bf16", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<machete::Machete"
         "CollectiveMma<cute::tuple<cutlass::vllm_biased_integer_subbyte<4, 8, false>, cutlass::"
         "bfloat16_t>, machete::PrepackedLayoutBTemplate<cutlass::bfloat16_t> > > >(int)", _TENSOR,
         precision="bf16", weights=IN_ARGUMENTS, gemm=True,
         arguments=r"PrepackedLayoutBTemplate[< ](?:cutlass::)?bfloat16_t"),
    KernelRule("cutlass3-mixed-input", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::"
         "MainloopSm90TmaGmmaRmemAWarpSpecializedMixedInput<10>, cute::tuple<cutlass::"
         "integer_subbyte<4, true>, cutlass::Array<cutlass::float_e4m3_t, 8, false> > > >(int)",
         _TENSOR, precision=IN_ARGUMENTS, weights=IN_ARGUMENTS, gemm=True,
         arguments=r"machete|MixedInput|cutlass_w4a8"),
    KernelRule("cutlass3", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int,"
         " int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm120Tma"
         "WarpSpecializedBlockScaled<2>, cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>"
         " > > >(int)", _TENSOR, precision=IN_ARGUMENTS, weights=IN_ARGUMENTS, gemm=True,
         arguments=r"MainloopSm(?:9|1)\d"),
    KernelRule("cutlass3-vllm-fp8", _CUTLASS3,
         "void cutlass::device_kernel<vllm::cutlass_3x_gemm_fp8_blockwise<cutlass::bfloat16_t, 1,"
         " 128, 128, cute::tuple<cute::C<128>, cute::C<128>, cute::C<128> > > >(int)", _TENSOR,
         precision="fp8", gemm=True, arguments=r"cutlass_3x_gemm_\w{0,60}fp8"),
    KernelRule("cutlass3-vllm", _CUTLASS3,
         "void cutlass::device_kernel<vllm::cutlass_3x_gemm<signed char, cutlass::bfloat16_t,"
         " vllm::c3x::ScaledEpilogue, cute::tuple<cute::C<128>, cute::C<128> > > >(int)", _TENSOR,
         precision=IN_ARGUMENTS, gemm=True, arguments=r"cutlass_(?:sparse_)?3x_gemm"),
    KernelRule("cutlass3-named", _CUTLASS3,
         "void cutlass::device_kernel<cutlass3x_sm100_tensorop_s128x256x16gemm_bf16_bf16_f32>(int)",
         _TENSOR, precision=IN_ARGUMENTS, gemm=True,
         arguments=r"cutlass3x_sm\d+_(?:bs|sp)?tensorop"),
    KernelRule("cutlass3-trtllm-fp4", _CUTLASS3,
         "void cutlass::device_kernel<flashinfer::gemm::DeviceGemmFp4GemmSm120_bfloat16_128_128_128"
         "_1_1_1_1SM<flashinfer::gemm::_1SM>::GemmKernel>(int)", _TENSOR, precision="fp4",
         gemm=True, arguments=r"DeviceGemmFp4GemmSm\d"),
    KernelRule("cutlass3-torch", _CUTLASS3,
         "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::"
         "kernel::GemmUniversal<int> > >(int)", _TENSOR, gemm=True,
         arguments=r"enable_3x_kernel_for_sm\d"),
    KernelRule("cutlass3-other", _CUTLASS3,
         "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int> >(int)", gemm=True,
         arguments=r"Gemm"),
    KernelRule("marlin", r"(?:^|::)\w*marlin\w*::Marlin(?:_24)?$|^Marlin(?:_24)?$",
         "void marlin::Marlin<1125899906910725l, 562949953487106l, 1125899906910725l, 256, 1, 8,"
         " 8, false, 4, 1, false>(int4 const*)", _TENSOR, precision=IN_ARGUMENTS,
         weights=IN_ARGUMENTS, gemm=True),
    # Of vLLM's Humming the types of activations and weights follow as bits, exponent and mantissa.
    KernelRule("humming-bf16-fp4", r"(?:^|::)humming$",
         "void humming<MmaOpClass, Shape<0u, 768u, 2048u>, Shape<8u, 256u, 128u>, Shape<8u, 64u,"
         " 64u>, Shape<0u, 0u, 0u>, FloatingPointType<16u, 8u, 7u>, FloatingPointType<4u, 2u, 1u>,"
         " FloatingPointType<16u, 8u, 7u>, FloatingPointType<8u, 4u, 3u>, LayerConfig>(int*)",
         _TENSOR, precision="bf16", weights="fp4", gemm=True,
         arguments=r"FloatingPointType<16u?, 8u?, 7u?>, FloatingPointType<4u?, 2u?, 1u?>, "),
    KernelRule("humming-fp8-fp4", r"(?:^|::)humming$",
         "void humming<MmaOpClass, Shape<0u, 512u, 256u>, Shape<16u, 128u, 128u>, Shape<16u, 32u,"
         " 128u>, Shape<0u, 0u, 0u>, FloatingPointType<8u, 4u, 3u>, FloatingPointType<4u, 2u, 1u>,"
         " FloatingPointType<16u, 8u, 7u>, FloatingPointType<8u, 8u, 0u>, LayerConfig>(int*)",
         _TENSOR, precision="fp8", weights="fp4", gemm=True,
         arguments=r"Shape<[^>]*>, FloatingPointType<8u?, 4u?, 3u?>, "
         r"FloatingPointType<4u?, 2u?, 1u?>, "),
    KernelRule("humming", r"(?:^|::)humming$",
         "void humming<MmaOpClass, Shape<0u, 768u, 2048u>, Shape<8u, 256u, 128u>, LayerConfig>"
         "(int*)", _TENSOR, gemm=True),
    KernelRule("allspark", r"allspark::\w*gemm_W8A16\w*(?:mma16816|16816)",
         "void allspark::ampere_hgemm_W8A16_perc_f16_f16_16x64x32_hmma16816_multistage_kernel"
         "<__half>(int)", _TENSOR, precision=IN_ARGUMENTS, weights="int8", gemm=True),
    KernelRule("awq", r"(?:^|::)gemm_forward_4bit_cuda_m16n",
         "void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>(int, int, __half*)", _TENSOR,
         precision="fp16", weights="int4", gemm=True),
    KernelRule("deep-gemm-grouped", _DEEP_GEMM + r"(?:sm\d+_)?fp8_(?:fp4_)?(?:m_grouped_)?gemm_\w+",
         "void deep_gemm::fp8_gemm_kernel<2048u, 7168u, 128u, 128u, 128u, 256u, 5u, 8u,"
         " (deep_gemm::GemmType)1>(__nv_bfloat16*)", _TENSOR, component="experts", precision="fp8",
         gemm=True, arguments=r"GemmType\)[1-9]"),
    KernelRule("deep-gemm-m-grouped",
         _DEEP_GEMM + r"(?:sm\d+_)?(?:fp8_m_grouped|m_grouped_fp8)_gemm",
         "void deep_gemm::sm90_fp8_m_grouped_gemm_masked_1d2d<1024, 7168>(float*)", _TENSOR,
         component="experts", precision="fp8", gemm=True),
    KernelRule("deep-gemm-fp8", _DEEP_GEMM + r"(?:sm\d+_)?fp8_(?:fp4_)?gemm_\w+",
         "void deep_gemm::sm90_fp8_gemm_1d2d_impl<1024, 7168>(float*)", _TENSOR, precision="fp8",
         gemm=True),
    KernelRule("deep-gemm-bf16", _DEEP_GEMM + r"(?:sm\d+_)?bf16_gemm_\w+",
         "void deep_gemm::sm90_bf16_gemm_impl<1024, 7168>(int*)", _TENSOR, precision="bf16",
         gemm=True),
    KernelRule("deep-gemm-tf32", _DEEP_GEMM + r"sm\d+_tf32_\w*gemm_\w+",
         "void deep_gemm::sm90_tf32_hc_prenorm_gemm_impl<24u, 16384u, 64u, 32u, 64u>(unsigned int)",
         _TENSOR, precision="tf32", gemm=True),
    KernelRule("fused-qkv-a", r"(?:^|::)fused_a_gemm_kernel",
         "void fused_a_gemm_kernel<1, 2112, 7168, 16, 1, 256, 8>(__nv_bfloat16*)", _TENSOR,
         component="qkv", precision="bf16", gemm=True),
    KernelRule("trtllm-gemm-fp4", r"^(?:[Bb]m|[Gg]em)m_[A-Za-z0-9]+_(?:Mx)?E2m1(?:Mx)?E2m1_",
         "gemm_Bfloat16_E2m1E2m1_Fp32_t128x8x256u2_s8_et128x8_m128x8x64_cga1x1x1_16dp256b_TN"
         "_transOut_schedS_sm100f", _TENSOR, precision="fp4", gemm=True),
    KernelRule("trtllm-gemm-fp8-fp4", r"^(?:[Bb]m|[Gg]em)m_[A-Za-z0-9]+_(?:Mx)?E2m1(?:Mx)?E4m3_",
         "gemm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x8x256u2_s4_et128x8_m128x8x32_cga1x1x1_sm100f",
         _TENSOR, precision="fp8", weights="fp4", gemm=True),
    KernelRule("trtllm-gemm-fp8", r"^(?:[Bb]m|[Gg]em)m_[A-Za-z0-9]+_(?:Mx)?E4m3(?:Mx)?E4m3_",
         "gemm_Bfloat16_E4m3E4m3_Fp32_t128x8x128u2_s9_et128x8_m128x8x32_cga1x1x1_16dp256b_TN"
         "_transOut_schedS_sm100f", _TENSOR, precision="fp8", gemm=True),
    KernelRule("trtllm-gemm-bf16", r"^(?:[Bb]m|[Gg]em)m_[A-Za-z0-9]+_Bfloat16Bfloat16_",
         "gemm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s9_et128x8_m128x8x16_sm100f", _TENSOR,
         precision="bf16", gemm=True),
    KernelRule("trtllm-gemm-other", r"^(?:[Bb]m|[Gg]em)m_(?:Mx)?(?:Bfloat16|Fp16|E\dm\d|Fp32)_",
         "gemm_Bfloat16_MxE2m1Bfloat16_Fp32_t128x8x256u2_s4_et128x8_m128x8x16_cga1x1x1_sm100f",
         _TENSOR, gemm=True),
    KernelRule("cute-dsl-grouped-gemm", _CUTE + r"[gG]rouped_?[gG]emm",
         "kernel_cutlass_kernel_flashinfergemmkernelsgrouped_gemm_masked_blackwellSm100BlockScaled"
         "PersistentDenseGemmKernel_object_at__TiledMMA_ThrLayoutVMNK11110000", _TENSOR,
         component="experts", gemm=True),
    KernelRule("cute-dsl-sgemm", _CUTE + r"(?:SGemm|Simt\w*Gemm)",
         "kernel_cutlass_kernel___main__SGemm_object_at__TiledMMA", _CUDA, precision="fp32",
         gemm=True),
    KernelRule("cute-dsl-gemm", _CUTE + r"Gemm(?:\w*Kernel|Sm\d)",
         "kernel_cutlass_kernel_b12x_libdense_gemmDenseGemmKernel_object_at__tensorptrf4gmem",
         _TENSOR, gemm=True),
    KernelRule("triton-w4a16", r"^(?:awq_gemm_kernel|triton_w4a16_gemm_kernel)$",
         "triton_w4a16_gemm_kernel", _TENSOR, weights="int4", gemm=True),
    KernelRule("triton-block-int8", r"^_w8a8_block_int8_matmul$", "_w8a8_block_int8_matmul",
         _TENSOR,
         precision="int8", gemm=True),
    KernelRule("triton-gemm", r"^(?:scaled_mm_kernel|_w8a8_triton_block_scaled_mm"
         r"|matmul_kernel(?:_persistent|_descriptor_persistent)?|bmm_kernel"
         r"|_w8a8_block_fp8_matmul\w*|_mxfp8_linear_kernel"
         r"|triton_tem_fused_(?:\w+_)?(?:mm|bmm|addmm)_\w*)$", "_w8a8_triton_block_scaled_mm",
         _TENSOR, gemm=True),
    KernelRule("tinygemm", r"tinygemm_m16n8k16_chunk_kernel",
         "void at::native::tinygemm_m16n8k16_chunk_kernel<at::native::ALayout_RM<1> >(int)",
         _TENSOR, weights="int4", gemm=True),
    KernelRule("amd-gemm", r"^(?:\w+_)?Cijk_A[il][ijkl]k?_B",
         "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x208x64_MI16x16x1_SN_LDSB1_AFC0",
         gemm=True),
    KernelRule("amd-composable-kernel-attention", r"^ck_tile::kentry",
         "void ck_tile::kentry<256, 1, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipeline<int> > >(",
         component="attention", arguments=r"Fmha|UnifiedAttention"),
    KernelRule("amd-composable-kernel-norm", r"^ck_tile::kentry",
         "void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<ck_tile::Rmsnorm2dFwdPipelineOnePass<",
         _CUDA, component="norm", arguments=r"Rmsnorm|Layernorm"),
    KernelRule("amd-composable-kernel-gemm", r"^ck_tile::kentry",
         "void ck_tile::kentry<1, ck_tile::GroupedGemmKernel<ck_tile::GemmSpatiallyLocal",
         gemm=True, arguments=r"Gemm|Flatmm"),
)

# The project's own kernels, by the whole names that spark_prof/kernels/cuda gives them.
_OF_THIS_PACKAGE = (
    KernelRule("own-dense", r"^dense$", "dense", _TENSOR, precision="bf16", gemm=True),
    KernelRule("own-dense-w4a4", r"^dense_w4a4$", "dense_w4a4", _TENSOR, precision="fp4",
         gemm=True),
    KernelRule("own-quantize-fp4", r"^quantize_fp4$", "quantize_fp4", _CUDA,
         conversion="quantize"),
    KernelRule("own-experts", r"^(?:gate_up|down)$", "gate_up", _TENSOR, component="experts",
         precision="bf16", gemm=True),
    KernelRule("own-router", r"^(?:norm_)?route$", "route", _CUDA, component="router"),
    KernelRule("own-attention", r"^attention$", "attention", _TENSOR, component="attention",
         precision="bf16"),
    KernelRule("own-norm", r"^row_norm$", "row_norm", _CUDA, component="norm"),
)

OWN_KERNELS = "|".join(rule.pattern for rule in _OF_THIS_PACKAGE)
"""A regular expression of this package's kernels, by their whole names."""

_GENERIC = _all(_CUDA, "",
    KernelRule("torch-elementwise",
         r"(?:^|::)(?:vectorized_|unrolled_|index_|legacy_|distribution_)?elementwise_kernel"
         r"(?:_\w+)?$|distribution_elementwise_grid_stride_kernel$",
         "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
         "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)"),
    KernelRule("torch-reduce", r"^at::native::(?:split_)?reduce_kernel$|^reduce_kernel$",
         "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<"
         "float, float, float, float>, unsigned int, float, 4> >(int)"),
    KernelRule("torch-data-movement",
         r"(?:^|::)(?:CatArrayBatchedCopy\w*|vectorized_gather_kernel|indexSelect\w+"
         r"|index\w*_kernel"
         r"|_scatter_gather_elementwise_kernel|multi_tensor_apply_kernel|triu_tril_kernel"
         r"|split_with_sizes_copy_out\w*|masked_scatter_\w+|indexFuncSmallIndex|indexFuncLargeIndex"
         r"|tensor_kernel_scan\w*|flip_\w*kernel|roll_\w*kernel)$",
         "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType"
         "<2u>, unsigned int, 4, 64, 64>(int)"),
    KernelRule("torch-softmax",
         r"(?:^|::)(?:cunn_Soft\w+|softmax_warp_\w+|\w*SoftMaxForward\w*|cunn_ClassNLL\w+"
         r"|nll_loss_\w+|soft_max_f32)$",
         "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>()"),
    KernelRule("torch-sort",
         r"^at::native::(?:\w+::)*(?:gatherTopK|bitonicSort\w*|radix\w+|tensor_kernel_scan\w*"
         r"|sortKeyValue\w*|computeBlockwise\w+|computeDigitCumSum|fill_\w+|max_pool_\w+"
         r"|avg_pool\w+|adaptive_\w+|upsample_\w+|batch_norm_\w+)$",
         "void at::native::sbtopk::gatherTopK<float, unsigned int, 1, false>(int)"),
    KernelRule("cub", r"(?:^|::)(?:cub|thrust)::",
         "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<long>,"
         " long const*>(int)"),
    # PyTorch's own kernels that multiply matrices or attend would say so.
    KernelRule("torch-other", r"^at::native::(?!.*(?:_mma?|[gG]emm|ttention))",
         "void at::native::(anonymous namespace)::GammaBetaBackwardSimpleCUDAKernel<float>(int)"),
    KernelRule("fbgemm", r"^fbgemm_gpu::|^(?:bounds_check_indices|linearize_index)_kernel",
         "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*, int const*, int*)"),
    KernelRule("cudnn-batch-norm", r"^cudnn::(?:bn_|ops::)",
         "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(int)"),
    KernelRule("cudnn-offsets", r"^cask\w*::compute\w*OffsetsKernel",
         "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)"),
    KernelRule("cudnn-fp32-convolution",
         r"^cudnn::(?:cnn::wgrad_alg\d_engine|detail::[dw]grad\w*_engine)",
         "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
         precision="fp32", arguments=r"^float\b"),
    KernelRule("cudnn-winograd-transforms", r"^cudnn::(?:winograd(?:_nonfused)?::|cnn::reduce_)",
         "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)"),
)
# fmt: on

RULES: tuple[KernelRule, ...] = (
    *_COPIES,
    *_CPU_OPERATORS,
    *_PRODUCTS_THAT_EXCHANGE,
    *_COLLECTIVES,
    *_CACHE,
    *_ATTENTION,
    *_ROUTER,
    *_EXPERTS,
    *_CONVERSIONS,
    *_LAYER_PARTS,
    *_SAMPLER,
    *_GEMM,
    *_OF_THIS_PACKAGE,
    *_GENERIC,
)
"""All families, in the order in which they are tried."""
