"""The one table that says from a kernel's name what it is: a row a family, first match wins.

A row's pattern is searched in the base name (see names.py), never in the template arguments;
only wrappers, whose base name says nothing, also ask for something in their arguments. A row
says only what holds for every kernel it matches, and leaves the rest open: engine "unknown",
precision, component or conversion None. Its example is its test.

Patterns are kept simple enough to be searched in linear time: names are untrusted.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """One family of kernels (or of CPU operators), by name."""

    family: str
    pattern: str
    """Regular expression, searched in the base name."""
    example: str
    """A name of the family, as a profiler writes it."""
    engine: str
    precision: str | None = None
    component: str | None = None
    conversion: str | None = None
    """Set only where changing a format is all that the kernel does."""
    fused_conversion: str | None = None
    """The format change that the kernel does beside its other work."""
    load_time: bool = False
    """Runs when weights are loaded, not for each token."""
    gemm: bool = False
    """A matrix product, not counting convolutions and attention."""
    finishes_gemm: bool = False
    """Adds up the parts of the product before it."""
    arguments: str = ""
    """Regular expression that the template arguments must contain as well."""
    precision_from_arguments: bool = False
    """The precision is the type that the template arguments mention first."""
    precision_from_name: bool = False
    """The precision is the type that the base name mentions first."""


_TENSOR = "tensor-core"
_CUDA = "cuda-core"
_COPY = "copy"
_UNKNOWN = "unknown"

# CUTLASS wrappers: what they wrap is their first template argument.
_DEVICE_KERNEL = r"^(?:cutlass::)?device_kernel$"
_CUTLASS2_KERNEL = r"^(?:cutlass\w*::)?Kernel2?$"

_COPIES = (
    Rule(
        "memcpy",
        r"^(?:CUDA )?[Mm]emcpy\b",
        "Memcpy HtoD (Pinned -> Device)",
        _COPY,
        component="memcpy",
    ),
    Rule("memset", r"^(?:CUDA )?[Mm]emset\b", "Memset (Device)", _COPY, component="memcpy"),
)

_CPU_OPERATORS = (
    Rule(
        "cpu-matmul",
        r"^aten::(?:mm|addmm|linear|matmul|bmm|baddbmm|addbmm|mv|addmv|_addmm_activation"
        r"|_scaled_mm|_int_mm|_weight_int\w*_mm\w*|mkldnn_linear|_mkl_linear)$",
        "aten::mm",
        _UNKNOWN,
        gemm=True,
    ),
    Rule(
        "cpu-onednn",
        r"^(?:_C\w*|mkldnn|onednn|mkl|quantized)::(?:onednn_(?:scaled_)?mm"
        r"|_?linear\w*|_mkl_linear|qlinear\w*|weight_packed_linear|cpu_gemm_wna16"
        r"|(?:int8|fp8|int4)_scaled_mm\w*)$",
        "_C::onednn_mm",
        _UNKNOWN,
        gemm=True,
    ),
    Rule(
        "cpu-experts",
        r"^\w+::(?:cpu_fused_moe|fused_experts(?:_cpu)?|dynamic_4bit_int_moe"
        r"|(?:transformers_)?moe_forward(?:_shared)?|outplace_fused_experts|inplace_fused_experts)$",
        "_C::cpu_fused_moe",
        _UNKNOWN,
        component="experts",
    ),
    Rule(
        "cpu-router",
        r"^(?:_C\w*|_moe_C|vllm)::(?:topk_softmax|topk_sigmoid|biased_topk_cpu|hash_topk_cpu"
        r"|grouped_topk\w*|moe_align_block_size)$",
        "_moe_C::topk_softmax",
        _UNKNOWN,
        component="router",
    ),
    Rule(
        "cpu-kv-write",
        r"^_C\w*::(?:cpu_attn_reshape_and_cache|reshape_and_cache\w*|concat_and_cache_mla\w*"
        r"|compute_slot_mapping\w*)$|^vllm::unified_(?:mla_)?kv_cache_update$",
        "_C::cpu_attn_reshape_and_cache",
        _UNKNOWN,
        component="kv_write",
    ),
    Rule(
        "cpu-attention",
        r"^(?:_C\w*|vllm)::(?:cpu_attention\w*|unified_(?:mla_)?attention\w*"
        r"|mla_decode_kvcache\w*|decode_attention_cpu|extend_attention_cpu)$"
        r"|^aten::_?scaled_dot_product_\w*attention\w*$",
        "vllm::unified_attention_with_output",
        _UNKNOWN,
        component="attention",
    ),
    Rule(
        "cpu-ssm",
        r"^_C\w*::(?:mamba_\w+|selective_(?:scan|state_update)\w*|causal_conv1d_\w+"
        r"|chunk_gated_delta_rule\w*|fused_sigmoid_gating_delta_rule\w*|fused_gdn_gating\w*)$"
        r"|^vllm::(?:mamba_mixer2?|(?:qwen_|cpu_)?gdn_attention_core)$",
        "_C::causal_conv1d_update_cpu_vec",
        _UNKNOWN,
        component="ssm",
    ),
    Rule(
        "cpu-norm",
        r"^(?:_C\w*|vllm|aten)::_?(?:fused_)?(?:add_)?(?:rms_norm|native_layer_norm|layer_norm)$",
        "_C::fused_add_rms_norm",
        _UNKNOWN,
        component="norm",
    ),
    Rule(
        "cpu-rope",
        r"^_C\w*::\w*rotary_embedding$|^vllm::(?:flashinfer_)?rotary_embedding$",
        "_C::rotary_embedding",
        _UNKNOWN,
        component="rope",
    ),
    Rule("cpu-embedding", r"^aten::embedding$", "aten::embedding", _UNKNOWN, component="embedding"),
    Rule(
        "cpu-sampler",
        r"^aten::(?:argmax|multinomial|exponential_)$"
        r"|^_C\w*::(?:greedy_argmax|fused_gumbel_argmax|rejection_\w*sample\w*"
        r"|sample_recovered_tokens\w*)$",
        "_C::greedy_argmax",
        _UNKNOWN,
        component="sampler",
    ),
    Rule(
        "cpu-collective",
        r"^vllm::(?:all_reduce|all_gather|reduce_scatter)$|^_C\w*::shm_\w+$"
        r"|^(?:c10d|_c10d_functional)::_?all\w+$",
        "_C::shm_allreduce",
        _UNKNOWN,
        component="collective",
    ),
    Rule(
        "cpu-quantize",
        r"^(?:_C\w*|vllm)::(?:(?:dynamic|static)_scaled_\w*quant|\w*scaled_fp8_quant"
        r"|(?:xpu_)?mx\w+_quantize|quantize_fp8e4m3_vec)$|^aten::quantize_per_\w+$",
        "_C::dynamic_scaled_int8_quant",
        _UNKNOWN,
        conversion="quantize",
    ),
    Rule(
        "cpu-dequantize",
        r"^aten::dequantize$|^vllm::dequant_mxfp\d$",
        "aten::dequantize",
        _UNKNOWN,
        conversion="dequantize",
    ),
    Rule("cpu-cast", r"^aten::_to_copy$", "aten::_to_copy", _UNKNOWN, conversion="cast"),
    Rule("cpu-copy", r"^aten::copy_$", "aten::copy_", _UNKNOWN, component="memcpy"),
    Rule(
        "cpu-pad",
        r"^aten::(?:constant_pad_nd|pad)$",
        "aten::constant_pad_nd",
        _UNKNOWN,
        conversion="pad",
    ),
)

_COLLECTIVES = (
    Rule(
        "nccl",
        r"^nccl(?:Dev|Symk?Dev)?Kernel",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        _CUDA,
        component="collective",
    ),
    Rule(
        "custom-all-reduce",
        r"(?:^|::)(?:cross_device_reduce_\d|multimem_\w+_kernel|(?:one|two)_?shot_all_?reduce\w*"
        r"|all_?reduce_(?:one|two)_?shot\w*|quickreduce\w*|allreduce_prototype\w*"
        r"|allreduce_fusion_kernel\w*|moereduce_allreduce\w*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)",
        _CUDA,
        component="collective",
    ),
)

_CACHE = (
    Rule(
        "kv-write",
        r"reshape_and_cache|reshape_cache_|concat_and_cache_mla|indexer_k_quant_and_cache"
        r"|(?:^|_)compute_slot_mappings?_kernel|AppendPagedKV\w*Kernel|set_mla_kv_buffer",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char,"
        " (vllm::Fp8KVCacheDataType)1>(__nv_bfloat16 const*)",
        _CUDA,
        component="kv_write",
    ),
    Rule(
        "kv-gather",
        r"gather_and_maybe_dequant_cache|cp_gather_(?:cache|and_upconvert)",
        "void vllm::gather_and_maybe_dequant_cache<unsigned short, unsigned char, 512>(int)",
        _CUDA,
        component="attention",
    ),
)

# The helpers of an attention go before the attention itself: their names contain its name.
_ATTENTION = (
    Rule(
        "flash-combine",
        r"flash_fwd_splitkv_combine",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128>,"
        " 4, 3, true>(flash::Flash_fwd_params)",
        _CUDA,
        component="attention",
    ),
    Rule(
        "flash3-combine",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<16>,"
        " cute::C<64> >, 5, 256, 1> >(int)",
        _CUDA,
        component="attention",
        arguments=r"FlashAttnFwdCombine",
    ),
    Rule(
        "flash3",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
        "flash::CollectiveMainloopFwdSm90<2, 64, cutlass::bfloat16_t, float> > > >(int)",
        _TENSOR,
        component="attention",
        arguments=r"FlashAttnFwdSm\d",
        precision_from_arguments=True,
    ),
    Rule(
        "cutlass-fmha",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTma"
        "Warpspecialized<cute::tuple<int> > >(int)",
        _TENSOR,
        component="attention",
        arguments=r"Sm100(?:FmhaFwd|FmhaMla|Mla)Kernel\w*Warp[sS]pecialized",
    ),
    Rule(
        "flash-metadata",
        r"(?:^|::)prepare_varlen_num_blocks_kernel",
        "void flash::prepare_varlen_num_blocks_kernel<1, false>(int, int, int)",
        _CUDA,
        component="attention",
    ),
    Rule(
        "flashmla-combine",
        r"(?:^|::)(?:flash_fwd_mla_combine|get_mla_metadata)_kernel",
        "void get_mla_metadata_kernel(Mla_metadata_params)",
        _CUDA,
        component="attention",
    ),
    Rule(
        "flashmla",
        r"(?:^|::)flash_fwd_\w*mla_kernel",
        "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, cutlass::bfloat16_t>"
        " >(Flash_fwd_mla_params)",
        _TENSOR,
        component="attention",
        precision_from_arguments=True,
    ),
    Rule(
        "flash2",
        r"(?:^|::)flash_fwd_\w*kernel",
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64,"
        " cutlass::bfloat16_t>, (bool)0>(flash::Flash_fwd_params)",
        _TENSOR,
        component="attention",
        precision_from_arguments=True,
    ),
    Rule(
        "flash4-combine",
        r"^kernel_cutlass_kernel_flash_attn\w*ForwardCombine",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_combineFlashAttentionForwardCombine"
        "_object_at__tensor",
        _CUDA,
        component="attention",
    ),
    Rule(
        "flash4",
        r"^kernel_cutlass_kernel_\w*(?:FlashAttentionForward|AttnForwardSm\d"
        r"|FusedMultiHeadAttention)",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100"
        "_object_at__tensor",
        _TENSOR,
        component="attention",
    ),
    Rule(
        "trtllm-fmha-reduction",
        r"fmhaReduction",
        "void fmhaReductionKernel<128, 512, true>(KernelParams)",
        _CUDA,
        component="attention",
    ),
    Rule(
        "trtllm-fmha-fp8",
        r"^fmhaSm\d+\w*Kernel_QkvE4m3",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        _TENSOR,
        "fp8",
        "attention",
    ),
    Rule(
        "trtllm-fmha-bf16",
        r"^fmhaSm\d+\w*Kernel_QkvBfloat16",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvDenseP16VarSeqQ8Kv128StaticSwapsAbForGen",
        _TENSOR,
        "bf16",
        "attention",
    ),
    Rule(
        "trtllm-fmha-fp16",
        r"^fmhaSm\d+\w*Kernel_QkvFp16",
        "fmhaSm100aKernel_QkvFp16OFp16H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext",
        _TENSOR,
        "fp16",
        "attention",
    ),
    Rule(
        "trtllm-fmha",
        r"^fmhaSm\d",
        "fmhaSm100aKernel_QBfloat16KvE4m3OBfloat16H128PagedKvCausalP16VarSeqQ128Kv128Context",
        _TENSOR,
        component="attention",
    ),
    Rule(
        "memory-efficient-attention",
        r"^fmha_cutlass[FB]_(?:bf16|f16)_",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(AttentionKernel<bfloat16_t>::Params)",
        _TENSOR,
        component="attention",
        precision_from_name=True,
    ),
    Rule(
        "memory-efficient-attention-fp32",
        r"^fmha_cutlass[FB]_f32_",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float>::Params)",
        _UNKNOWN,
        component="attention",
    ),
    Rule(
        "flashinfer-prefill",
        r"(?:Batch|Single)Prefill\w*Kernel|BatchMLAPagedAttentionKernel|BatchPOD\w*Kernel",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<"
        "__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float> >(int)",
        _TENSOR,
        component="attention",
        precision_from_arguments=True,
    ),
    Rule(
        "flashinfer-decode",
        r"(?:Batch|Single)DecodeWith\w*KVCacheKernel$",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<1, 2, 8, 16, 8, 4>(int)",
        _CUDA,
        component="attention",
    ),
    Rule(
        "attention-merge",
        r"merge_attn_states|MergeStates?\w*Kernel|MergeStateInPlaceKernel|reduce_segments"
        r"|_fwd_kernel_stage2$|_copy_page_indices_kernel|_segmented_attention_reduce"
        r"|correct_attn_cp_out_kernel",
        "void vllm::merge_attn_states_kernel<__nv_bfloat16, 128>(__nv_bfloat16*)",
        _CUDA,
        component="attention",
    ),
    Rule(
        "triton-attention",
        r"^kernel_(?:tq_)?unified_attention|^kernel_paged_attention_2d|^_fwd_grouped_kernel_stage1"
        r"|^_segmented_attention_stage|^_attn_fwd\b",
        "kernel_unified_attention_2d",
        _TENSOR,
        component="attention",
    ),
    # This one multiplies and sums without a dot product.
    Rule(
        "triton-decode-attention",
        r"^_fwd_kernel_stage1$",
        "_fwd_kernel_stage1",
        _CUDA,
        component="attention",
    ),
    Rule(
        "paged-attention",
        r"(?:^|::)paged_attention_v[12]_(?:reduce_)?kernel",
        "void vllm::paged_attention_v1_kernel<__nv_bfloat16, 128, 16, 128>(__nv_bfloat16*)",
        _CUDA,
        component="attention",
    ),
    Rule(
        "sparse-attention-topk",
        r"topKPerRow(?:Decode|Prefill)",
        "void vllm::topKPerRowDecode<512, true>(float const*)",
        _CUDA,
        component="attention",
    ),
)

_ROUTER = (
    Rule(
        "router-gemm",
        r"(?:^|::)router_gemm_kernel_(?:bf16|float)_output",
        "void router_gemm_kernel_float_output<__nv_bfloat16, 128, 8, 1, 256, 7168>(float*)",
        _CUDA,
        "fp32",
        "router",
        gemm=True,
    ),
    Rule(
        "router-gemm-other",
        r"router_gemm",
        "void fp32_router_gemm_kernel<float, 4>(float*)",
        _UNKNOWN,
        component="router",
        gemm=True,
    ),
    Rule(
        "router-topk",
        r"topkGating|topk_gating|grouped_topk_(?:fused|kernel)|group_idx_and_topk_idx|topk_with_k2"
        r"|^_topk_forward|^_(?:vllm_)?topk_softmax|^_gemma4_routing_kernel|deepseek_v3_topk_kernel",
        "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16>(float const*)",
        _CUDA,
        component="router",
    ),
    Rule(
        "router-bookkeeping",
        r"moe_align_block_size|count_and_sort_expert_tokens|batched_moe_align"
        r"|^_combined_routing|^_sum_bitmatrix|^_routing_|^_expt_data|^_compute_writeback_idx"
        r"|^pack_bitmatrix$|^_masked_topk_sum_kernel|routing(?:Indices|Main|Init)\w*Kernel"
        r"|computeExpertFirstTokenOffset|preprocessTopkId|(?:fused|block|global)BuildExpertMaps"
        r"|^_count_expert_num_tokens",
        "_combined_routing_compute_pow2",
        _CUDA,
        component="router",
    ),
)

_EXPERTS = (
    # FP4 and integer weights are decoded to the type of the activations, which comes first.
    Rule(
        "marlin-moe",
        r"^marlin_moe_wna16::(?:Marlin|MarlinDefault)$|^MarlinMoE",
        "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l,"
        " 256, 1, 8, 8, false, 4>(int4 const*)",
        _TENSOR,
        component="experts",
        gemm=True,
        precision_from_arguments=True,
    ),
    Rule(
        "moe-wna16",
        r"(?:^|::)moe_wna16_gemm_kernel",
        "void moe_wna16_gemm_kernel<__nv_bfloat16, 4, 1>(__nv_bfloat16 const*)",
        _CUDA,
        component="experts",
        gemm=True,
        precision_from_arguments=True,
    ),
    Rule(
        "triton-matmul-ogs-bf16",
        r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+xbf16x",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu",
        _TENSOR,
        "bf16",
        "experts",
        gemm=True,
    ),
    Rule(
        "triton-matmul-ogs-fp16",
        r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+xfp16x",
        "_p_matmul_ogs_NNT_fp16xfp16xmxfp4_128x256x128x1",
        _TENSOR,
        "fp16",
        "experts",
        gemm=True,
    ),
    Rule(
        "triton-matmul-ogs",
        r"^_(?:p_)?matmul_ogs|^_p_matmul|^_matmul_[NT]{3}_",
        "_p_matmul_ogs_NNT_bf16xmxfp8xmxfp4_128x256x128x1_swiglu",
        _TENSOR,
        component="experts",
        gemm=True,
    ),
    Rule(
        "triton-moe",
        r"^fused_moe_kernel|^fused_moe_nvfp4_emulation_kernel$|^batched_triton_kernel$"
        r"|^_mxfp8_grouped_gemm_kernel$",
        "fused_moe_kernel",
        _TENSOR,
        component="experts",
        gemm=True,
    ),
    Rule(
        "trtllm-moe-fp4",
        r"^bmm_[A-Za-z0-9]+_(?:Mx)?E2m1(?:Mx)?E2m1_\w*dynBatch",
        "bmm_Bfloat16_E2m1E2m1_Fp32_t128x16x512u2_s4_et128x16_m128x16x64_cga1x1x1_16dp256b_rM"
        "_TN_transOut_schedP_bN_dynBatch_sm100f",
        _TENSOR,
        "fp4",
        "experts",
        gemm=True,
    ),
    Rule(
        "trtllm-moe-fp8",
        r"^bmm_[A-Za-z0-9]+_(?:Mx)?(?:E2m1|E4m3)(?:Mx)?E4m3_\w*dynBatch",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b"
        "_rM_TN_transOut_schedP2x1x2x3_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f",
        _TENSOR,
        "fp8",
        "experts",
        gemm=True,
    ),
    Rule(
        "trtllm-moe-bf16",
        r"^bmm_[A-Za-z0-9]+_(?:MxE2m1|E2m1|MxInt4|Bfloat16)Bfloat16_\w*dynBatch",
        "bmm_Bfloat16_MxE2m1Bfloat16_Fp32_t128x8x256u2_s4_et128x8_m128x8x16_cga1x1x1_16dp256b"
        "_rM_TN_transOut_schedS_biasM_bN_clmp_swiGlu_dynBatch_sm100f",
        _TENSOR,
        "bf16",
        "experts",
        gemm=True,
    ),
    Rule(
        "expert-sum",
        r"(?:^|::)moe_sum_kernel|^moe_fused_mul_sum_kernel|^_reduce_grouped|finalizeMoeRouting"
        r"|^moe::dev::finalize::|^_fwd_kernel_ep_gather|^_unpermute_activation",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<"
        "cutlass::bfloat16_t, cutlass::bfloat16_t, 4, true> >(int)",
        _CUDA,
        component="experts",
    ),
    Rule(
        "expert-activation",
        r"^moe::dev::activation::|doActivationKernel|doGatedActivation",
        "void moe::dev::activation::activationDeepSeekKernel<int>(int)",
        _CUDA,
        component="experts",
    ),
    Rule(
        "expert-permute",
        r"expandInputRows|shuffleInputRows|^moe::dev::permute::|^_fwd_kernel_ep_scatter",
        "void vllm::shuffleInputRowsKernel<__nv_bfloat16>(__nv_bfloat16 const*)",
        _CUDA,
        component="experts",
        conversion="permute",
    ),
)

# What a conversion shares its launch with other work (norm, activation, cache write) is no
# conversion: its time cannot be split by name.
_CONVERSIONS = (
    Rule(
        "activation-and-quantize",
        r"(?:^|::)_?(?:silu|gelu|relu|swiglu|act)\w*_(?:mul|squared)\w*(?:quant|cvt)",
        "void vllm::silu_mul_cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int)",
        _CUDA,
        fused_conversion="quantize",
    ),
    Rule(
        "norm-and-quantize",
        r"(?:rms_?norm|layer_?norm|RMSNorm)\w*[qQ]uant",
        "void vllm::rms_norm_dynamic_per_token_quant_kernel<c10::BFloat16,"
        " c10::Float8_e4m3fn, false>(int)",
        _CUDA,
        component="norm",
        fused_conversion="quantize",
    ),
    Rule(
        "quantize-fp4",
        r"(?:^|::)(?:mxfp4_)?cvt_fp16_to_fp4|(?:^|::)_?(?:nv|mx)fp4_quant(?!_dequant)",
        "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*)",
        _CUDA,
        conversion="quantize",
    ),
    Rule(
        "quantize-block",
        r"(?:^|::)quantize_with_block_size|(?:^|::)_?(?:quantize_mxfp8|mxfp8_(?:experts_)?quant)"
        r"|^_downcast_to_mxfp|^kernel_cutlass_kernel_flashinferquantization\w*Quantize",
        "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::"
        "BlockScaleQuantizationType)2, __nv_bfloat16, 32, true>(flashinfer::QuantizationSFLayout)",
        _CUDA,
        conversion="quantize",
    ),
    Rule(
        "quantize-fp8-int8",
        r"(?:^|::)(?:dynamic_per_token_)?scaled_fp8_quant|(?:^|::)segmented_max_reduction"
        r"|(?:^|::)_?per_token_(?:group_)?quant|(?:^|::)(?:dynamic|static)_scaled_int8\w*_quant"
        r"|per_(?:token|block)_cast_to_fp8|^_quantize_pad_fp8|scale_1x128_kernel"
        r"|dynamicPerTokenScaledQuant",
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)",
        _CUDA,
        conversion="quantize",
    ),
    Rule(
        "dequantize",
        r"(?:^|::|_)dequantize_(?:block|weights|nvfp4|kernel)|^awq_dequantize|^_upcast_from_mxfp"
        r"|^_dequantize_nvfp4_kernel",
        "void vllm::awq::dequantize_weights(int*, __half*, int*, __half*, int)",
        _CUDA,
        conversion="dequantize",
    ),
    Rule(
        "repack",
        r"marlin_repack|prepack_B_kernel|reorder_tensor_kernel|marlin_int4_fp8_preprocess",
        "void marlin::gptq_marlin_repack_kernel<256, 4, false, false>(unsigned int const*)",
        _CUDA,
        conversion="repack",
        load_time=True,
    ),
    Rule(
        "permute-columns",
        r"permute_cols_kernel",
        "void permute_cols_kernel(int4 const*, int const*, int4*, int, int, int)",
        _CUDA,
        conversion="permute",
    ),
    Rule(
        "scale-swizzle",
        r"block_scale_interleave|scale_swizzle|swizzle_(?:scale|mxfp|sf)\w*",
        "void tensorrt_llm::kernels::block_scale_interleave_kernel(int, int, int)",
        _CUDA,
        conversion="swizzle",
    ),
    Rule(
        "fp8-cast",
        r"(?:^|::)convert_fp8_kernel",
        "void vllm::convert_fp8_kernel<unsigned char, float>(float const*)",
        _CUDA,
        conversion="cast",
    ),
    Rule(
        "transpose-layout",
        r"nchwToNhwcKernel|nhwcToNchwKernel|(?:^|::)(?:batch_)?transpose_kernel",
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float, false>(int)",
        _CUDA,
        conversion="transpose",
    ),
    # These two read one type and write another; every other direct copy may be a plain copy.
    Rule(
        "torch-cast",
        r"(?:^|::)\w*elementwise_kernel$",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)",
        _CUDA,
        conversion="cast",
        arguments=r"b?float16_copy_kernel_cuda",
    ),
    Rule(
        "torch-cast-unrolled",
        r"(?:^|::)unrolled_elementwise_kernel$",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#3}, at::native::memory::LoadWithCast<1>,"
        " at::native::memory::StoreWithCast<1> >(int)",
        _CUDA,
        conversion="cast",
        arguments=r"direct_copy_kernel_cuda.*LoadWithCast",
    ),
    Rule(
        "inductor-cast",
        r"^triton_poi_fused__to_copy_\d+$",
        "triton_poi_fused__to_copy_0",
        _CUDA,
        conversion="cast",
    ),
)

# Products on CUDA cores first: several of their names also contain a tensor-core word.
_GEMM = (
    Rule(
        "xmma-ffma",
        r"_xmma_gemm_\w*_ffma_",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4"
        "_alignc4_execute_kernel__5x_cublas",
        _CUDA,
        "fp32",
        gemm=True,
    ),
    Rule(
        "sgemm",
        r"^(?:maxwell|volta|turing|ampere|hopper|blackwell)_sgemm_",
        "volta_sgemm_128x32_nt",
        _CUDA,
        "fp32",
        gemm=True,
    ),
    Rule(
        "hgemm",
        r"^(?:maxwell|volta|turing|ampere)_hgemm_",
        "volta_hgemm_128x64_nn",
        _CUDA,
        "fp16",
        gemm=True,
    ),
    Rule(
        "scudnn",
        r"^(?:\w*_)?(?:maxwell|volta|turing|ampere)_scudnn_|^implicit_convolve_sgemm$",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        _CUDA,
        "fp32",
    ),
    Rule(
        "cublas-gemvx",
        r"(?:^|::)gemvx::kernel$",
        "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16,"
        " __nv_bfloat16, __nv_bfloat16, float, (bool)0, (bool)1>(T13)",
        _CUDA,
        gemm=True,
    ),
    Rule(
        "cublas-gemvx-short",
        r"^kernel$",
        "enable_if<!T7, void>::type kernel<int, int, __nv_bfloat16, __nv_bfloat16,"
        " cublasGemvParamsEx<int, float>>(T13)",
        _CUDA,
        gemm=True,
        arguments=r"cublasGemvParams",
    ),
    Rule(
        "cublas-gemv",
        r"(?:^|::)gem(?:v2?[TN]|vNSP|mk1_|mSN_)\w*",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float,"
        " 128, 16, 4>(float)",
        _CUDA,
        gemm=True,
    ),
    Rule(
        "cublas-dot",
        r"(?:^|::)(?:dot_kernel|reduce_1Block_kernel)$",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const> > >(int)",
        _CUDA,
    ),
    Rule(
        "split-k-reduce",
        r"split_?[kK]_?[rR]educe",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(int)",
        _CUDA,
        finishes_gemm=True,
    ),
    Rule(
        "gemv-fp4-dsl",
        r"^kernel_cutlass_kernel_\w*GemvBf16Fp4",
        "kernel_cutlass_kernel_flashinfergemmkernelsgemv_bf16_fp4_sm12xGemvBf16Fp4Sm12x"
        "_object_at__tensor",
        _CUDA,
        gemm=True,
    ),
    Rule(
        "gguf-gemv",
        r"(?:^|::)(?:moe_)?mul_mat_vec_q",
        "void mul_mat_vec_q<__nv_bfloat16, 32, 4, block_q4_0, 2>(void const*)",
        _CUDA,
        "int8",
        gemm=True,
    ),
    Rule(
        "gptq-exllama",
        r"gemm_half_q_half_\w*kernel",
        "void vllm::gptq::gemm_half_q_half_gptq_4bit_kernel<true, 4>(__half const*)",
        _CUDA,
        "fp16",
        gemm=True,
    ),
    Rule(
        "nvjet-bf16",
        r"^nvjet_(?:sm\d+[a-z]?_)?t[a-z]{2}_",
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_bias_TNT",
        _TENSOR,
        "bf16",
        gemm=True,
    ),
    Rule(
        "nvjet-fp16",
        r"^nvjet_(?:sm\d+[a-z]?_)?h[a-z]{2}_",
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT",
        _TENSOR,
        "fp16",
        gemm=True,
    ),
    Rule(
        "nvjet-fp8",
        r"^nvjet_(?:sm\d+[a-z]?_)?qq[a-z]{3}_",
        "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT",
        _TENSOR,
        "fp8",
        gemm=True,
    ),
    Rule(
        "nvjet-fp4",
        r"^nvjet_(?:sm\d+[a-z]?_)?oo[a-z]{3}_",
        "nvjet_ootst_128x192_256x4_2x1_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT",
        _TENSOR,
        "fp4",
        gemm=True,
    ),
    # The other letters (single and double among them) may emulate or not use tensor cores.
    Rule(
        "nvjet-other", r"^nvjet_", "nvjet_sm100_sss_128x128_32x4_1x1_h_bz_TNT", _UNKNOWN, gemm=True
    ),
    Rule(
        "xmma-tensor",
        r"_xmma_gemm_(?:bf16bf16|f16f16|tf32|e[45]m[32]|i8i8|s8s8)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
        "_segment_k_off_kernel__5x_cublas",
        _TENSOR,
        gemm=True,
        precision_from_name=True,
    ),
    Rule(
        "xmma-other",
        r"_xmma_gemm_",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_execute_kernel__5x_cublas",
        _UNKNOWN,
        gemm=True,
    ),
    Rule(
        "xmma-convolution",
        r"_xmma_(?:fprop|dgrad|wgrad)_\w*_tensor\d+x\d+x\d+",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32"
        "_stage4_warpsize4x1x1_g1_tensor16x8x16_execute_kernel__5x_cudnn",
        _TENSOR,
        precision_from_name=True,
    ),
    Rule(
        "cublas-mma",
        r"^(?:volta|turing|ampere|hopper)_\w*(?:884|1688|16816|16832|161616)gemm",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn",
        _TENSOR,
        gemm=True,
        precision_from_name=True,
    ),
    Rule(
        "cutlass2-convolution",
        _CUTLASS2_KERNEL,
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128"
        "_32x3_nhwc_align8>(T1::Params)",
        _TENSOR,
        arguments=r"tensorop_\w*(?:fprop|dgrad|wgrad)|ImplicitGemmConvolution.*MmaTensorOp",
        precision_from_arguments=True,
    ),
    Rule(
        "cutlass2-simt",
        _CUTLASS2_KERNEL,
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(T1::Params)",
        _CUDA,
        "fp32",
        gemm=True,
        arguments=r"_simt_sgemm",
    ),
    Rule(
        "cutlass2",
        _CUTLASS2_KERNEL,
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn"
        "_align8>(T1::Params)",
        _TENSOR,
        gemm=True,
        arguments=r"tensorop_\w*gemm",
        precision_from_arguments=True,
    ),
    Rule(
        "cutlass2-vllm",
        r"^(?:cutlass::)?Kernel2$",
        "void cutlass::Kernel2<vllm::enable_sm89_to_sm90<vllm::cutlass_2x_gemm<cutlass::arch::Sm89,"
        " cutlass::float_e4m3_t> > >(int)",
        _TENSOR,
        gemm=True,
        arguments=r"vllm::enable_sm\d",
    ),
    Rule(
        "cutlass3-mixed-input",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<machete::MacheteKernelTemplate<cutlass::bfloat16_t, cutlass::"
        "vllm_uint4b8_t> >(int)",
        _TENSOR,
        gemm=True,
        arguments=r"machete|MixedInput|cutlass_w4a8",
    ),
    Rule(
        "cutlass3-grouped",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::"
        "GroupProblemShape<cute::tuple<int, int, int> >, cutlass::gemm::collective::CollectiveMma<"
        "cutlass::gemm::MainloopSm120ArrayTmaWarpSpecializedBlockScaled<2>, cute::tuple<cutlass::"
        "float_e2m1_t, cutlass::float_ue4m3_t> > > >(int)",
        _TENSOR,
        component="experts",
        gemm=True,
        arguments=r"GroupProblemShape.*MainloopSm(?:9|1)",
        precision_from_arguments=True,
    ),
    Rule(
        "cutlass3",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int,"
        " int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm120Tma"
        "WarpSpecializedBlockScaled<2>, cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>"
        " > > >(int)",
        _TENSOR,
        gemm=True,
        arguments=r"MainloopSm(?:9|1)\d",
        precision_from_arguments=True,
    ),
    Rule(
        "cutlass3-named",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<cutlass3x_sm100_tensorop_s128x256x16gemm_bf16_bf16_f32>(int)",
        _TENSOR,
        gemm=True,
        arguments=r"cutlass3x_sm\d+_(?:bs|sp)?tensorop",
    ),
    Rule(
        "cutlass3-trtllm-fp4",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<flashinfer::gemm::DeviceGemmFp4GemmSm120_bfloat16_128_128_128"
        "_1_1_1_1SM<flashinfer::gemm::_1SM>::GemmKernel>(int)",
        _TENSOR,
        "fp4",
        gemm=True,
        arguments=r"DeviceGemmFp4GemmSm\d",
    ),
    Rule(
        "cutlass3-other",
        _DEVICE_KERNEL,
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<GemmUniversal"
        "<int> > >(int)",
        _UNKNOWN,
        gemm=True,
        arguments=r"Gemm",
    ),
    Rule(
        "marlin",
        r"^marlin(?:_\w+)?::(?:Marlin|Marlin_24)$|^Marlin(?:_24)?$",
        "void marlin::Marlin<1125899906910725l, 562949953487106l, 1125899906910725l, 256, 1, 8,"
        " 8, false, 4, 1, false>(int4 const*)",
        _TENSOR,
        gemm=True,
        precision_from_arguments=True,
    ),
    Rule(
        "allspark",
        r"allspark::\w*gemm\w*(?:mma16816|16816)",
        "void allspark::ampere_hgemm_W8A16_perc_f16_f16_16x64x32_hmma16816_multistage_kernel"
        "<__half>(int)",
        _TENSOR,
        gemm=True,
    ),
    Rule(
        "awq",
        r"(?:^|::)gemm_forward_4bit_cuda_m16n",
        "void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>(int, int, __half*)",
        _TENSOR,
        "fp16",
        gemm=True,
    ),
    Rule(
        "deep-gemm-fp8",
        r"^(?:deep_gemm::)?(?:sm\d+_)?fp8_(?:m_grouped_)?gemm_\w+",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<1024, 7168>(float*)",
        _TENSOR,
        "fp8",
        gemm=True,
    ),
    Rule(
        "deep-gemm-bf16",
        r"^(?:deep_gemm::)?(?:sm\d+_)?bf16_gemm_\w+",
        "void deep_gemm::sm90_bf16_gemm_impl<1024, 7168>(int*)",
        _TENSOR,
        "bf16",
        gemm=True,
    ),
    Rule(
        "fused-qkv-a",
        r"(?:^|::)fused_a_gemm_kernel",
        "void fused_a_gemm_kernel<1, 2112, 7168, 16, 1, 256, 8>(__nv_bfloat16*)",
        _TENSOR,
        "bf16",
        "qkv",
        gemm=True,
    ),
    Rule(
        "trtllm-gemm-fp4",
        r"^(?:b|ge)mm_[A-Za-z0-9]+_(?:Mx)?E2m1(?:Mx)?E2m1_",
        "gemm_Bfloat16_E2m1E2m1_Fp32_t128x8x256u2_s8_et128x8_m128x8x64_cga1x1x1_16dp256b_TN"
        "_transOut_schedS_sm100f",
        _TENSOR,
        "fp4",
        gemm=True,
    ),
    Rule(
        "trtllm-gemm-fp8",
        r"^(?:b|ge)mm_[A-Za-z0-9]+_(?:Mx)?(?:E2m1|E4m3)(?:Mx)?E4m3_",
        "gemm_Bfloat16_E4m3E4m3_Fp32_t128x8x128u2_s9_et128x8_m128x8x32_cga1x1x1_16dp256b_TN"
        "_transOut_schedS_sm100f",
        _TENSOR,
        "fp8",
        gemm=True,
    ),
    Rule(
        "trtllm-gemm-other",
        r"^(?:b|ge)mm_(?:Mx)?(?:Bfloat16|Fp16|E\dm\d|Fp32)_",
        "gemm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s9_et128x8_m128x8x16_sm100f",
        _TENSOR,
        gemm=True,
    ),
    Rule(
        "cute-dsl-gemm",
        r"^kernel_cutlass_kernel_\w*BlockScaled\w*Gemm",
        "kernel_cutlass_kernel_flashinfergemmkernelsgrouped_gemm_masked_blackwellSm100BlockScaled"
        "PersistentDenseGemmKernel_object_at__TiledMMA_ThrLayoutVMNK11110000",
        _TENSOR,
        gemm=True,
    ),
    Rule(
        "triton-gemm",
        r"^(?:awq_gemm_kernel|triton_w4a16_gemm_kernel|scaled_mm_kernel|_w8a8_triton_block_scaled_mm"
        r"|matmul_kernel(?:_persistent|_descriptor_persistent)?|bmm_kernel"
        r"|_w8a8_block_fp8_matmul|triton_tem_fused_(?:add)?(?:mm|bmm)_\w*)$",
        "_w8a8_triton_block_scaled_mm",
        _TENSOR,
        gemm=True,
    ),
    Rule(
        "tinygemm",
        r"tinygemm_m16n8k16_chunk_kernel",
        "void at::native::tinygemm_m16n8k16_chunk_kernel<at::native::ALayout_RM<1> >(int)",
        _TENSOR,
        gemm=True,
    ),
)

_LAYER_PARTS = (
    Rule(
        "cute-dsl-norm",
        r"^kernel_cutlass_kernel_\w*RMSNorm",
        "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel"
        "_object_at__tensorptrbf16gmem",
        _CUDA,
        component="norm",
    ),
    Rule(
        "qk-norm-rope",
        r"fusedQKNormRope|fused_qk_(?:rms)?norm_rope",
        "void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, true>(int)",
        _CUDA,
    ),
    Rule(
        "inductor-dot",
        r"^triton_(?:red|per)_fused\w*_(?:b|add)?mm_",
        "triton_red_fused_mm_0",
        _UNKNOWN,
    ),
    Rule(
        "inductor-embedding-norm",
        r"^triton_(?:poi|red|per)_fused\w*_embedding\w*norm",
        "triton_red_fused__to_copy_embedding_rms_norm_0",
        _CUDA,
    ),
    Rule(
        "inductor-norm",
        r"^triton_(?:poi|red|per)_fused\w*(?:rms|layer)_norm",
        "triton_red_fused_fused_add_rms_norm_1",
        _CUDA,
        component="norm",
    ),
    Rule("inductor", r"^triton_(?:poi|red|per|for)_fused", "triton_poi_fused_2", _CUDA),
    Rule(
        "norm",
        r"rms_norm|rmsnorm|RMSNorm|RmsNorm|layer_norm|LayerNorm|layernorm",
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type"
        " vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
        _CUDA,
        component="norm",
    ),
    Rule(
        "rope",
        r"rotary_embedding|RotaryPosIds|ApplyRotary|mrope_forward",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, int)",
        _CUDA,
        component="rope",
    ),
    # The same kernel serves experts and a dense MLP: the component stays open.
    Rule(
        "activation",
        r"act_and_mul_kernel|activation_kernel|swigluoai_and_mul|^_swiglu",
        "void vllm::act_and_mul_kernel<c10::BFloat16, 8, true>(c10::BFloat16*)",
        _CUDA,
    ),
    Rule(
        "ssm-scan",
        r"selective_scan_fwd|_selective_scan_update|causal_conv1d_(?:fwd|update)"
        r"|_chunk_cumsum_fwd|_state_passing_fwd|fused_recurrent_\w*(?:delta_rule|fwd)"
        r"|sigmoid_gating_delta_rule_update|fused_gdn_gating",
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1> >(SSMParams)",
        _CUDA,
        component="ssm",
    ),
    Rule(
        "ssm-chunk",
        r"^_chunk_(?:scan|state)_fwd_kernel|^_bmm_chunk_fwd_kernel|^chunk_gated_delta_rule_fwd"
        r"|^chunk_fwd_kernel_o|^recompute_w_u_fwd_kernel|^chunk_scaled_dot_kkt_fwd",
        "_chunk_scan_fwd_kernel",
        _TENSOR,
        component="ssm",
    ),
)

_SAMPLER = (
    Rule(
        "sampler",
        r"TopK\w*SamplingFrom|TopP\w*SamplingFrom|(?:^|::)SamplingFrom|MinPSamplingFrom|TopKMaskLogits"
        r"|TopKRenormProb|TopPRenormProb|ChainSpeculativeSampling|apply_repetition_penalties_kernel"
        r"|^_topk_topp_kernel|^_gumbel_sample_kernel|^_temperature_kernel|^_penalties_kernel"
        r"|^_min_p_kernel|^_bad_words_kernel|^_topk_log_softmax_kernel|^_apply_grammar_bitmask"
        r"|rejection_(?:greedy|random)_sample|^sample_recovered_tokens_kernel|^_rejection_kernel",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024, float, int>(float*)",
        _CUDA,
        component="sampler",
    ),
    Rule(
        "torch-argmax",
        r"(?:^|::)reduce_kernel$",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
        "ArgMaxOps<float>, unsigned int, long, 4, 4> >(int)",
        _CUDA,
        component="sampler",
        arguments=r"ArgMaxOps",
    ),
    Rule(
        "torch-exponential",
        r"(?:^|::)distribution_elementwise_grid_stride_kernel$",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float,"
        " 4, at::native::templates::cuda::exponential_kernel<at::CUDAGeneratorImpl*> >(int)",
        _CUDA,
        component="sampler",
        arguments=r"exponential_kernel",
    ),
)

_GENERIC = (
    Rule(
        "torch-elementwise",
        r"(?:^|::)(?:vectorized_|unrolled_|index_|legacy_|distribution_)?elementwise_kernel"
        r"(?:_\w+)?$|distribution_elementwise_grid_stride_kernel$",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
        "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)",
        _CUDA,
    ),
    Rule(
        "torch-reduce",
        r"^at::native::(?:split_)?reduce_kernel$|^reduce_kernel$",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<"
        "float, float, float, float>, unsigned int, float, 4> >(int)",
        _CUDA,
    ),
    Rule(
        "torch-data-movement",
        r"(?:^|::)(?:CatArrayBatchedCopy\w*|vectorized_gather_kernel|indexSelect\w+|index\w*_kernel"
        r"|_scatter_gather_elementwise_kernel|multi_tensor_apply_kernel|triu_tril_kernel)$",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>,"
        " unsigned int, 4, 64, 64>(int)",
        _CUDA,
    ),
    Rule(
        "torch-softmax",
        r"(?:^|::)(?:cunn_Soft\w+|softmax_warp_\w+|\w*SoftMaxForward\w*)$",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(int)",
        _CUDA,
    ),
    Rule(
        "torch-sort",
        r"^at::native::(?:\w+::)?(?:gatherTopK|bitonicSort\w*|radix\w+|radixFind\w*|tensor_kernel_scan"
        r"\w*|sortKeyValue\w*|computeBlockwise\w+|computeDigitCumSum|fill_\w+|max_pool_\w+|upsample_\w+"
        r"|batch_norm_\w+)$",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 1, false>(int)",
        _CUDA,
    ),
    Rule(
        "cub",
        r"(?:^|::)(?:cub|thrust)::",
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<long>,"
        " long const*>(int)",
        _CUDA,
    ),
    Rule(
        "cudnn-batch-norm",
        r"^cudnn::(?:bn_|ops::)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(int)",
        _CUDA,
    ),
)

RULES: tuple[Rule, ...] = (
    *_COPIES,
    *_CPU_OPERATORS,
    *_COLLECTIVES,
    *_CACHE,
    *_ATTENTION,
    *_ROUTER,
    *_EXPERTS,
    *_CONVERSIONS,
    *_LAYER_PARTS,
    *_SAMPLER,
    *_GEMM,
    *_GENERIC,
)
"""All families, in the order in which they are tried."""
