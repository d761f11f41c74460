"""What the swaps, the tap and the clock read of vLLM is there.

Looked at are the sources of the vLLM that is installed, and of those in the folders that the
environment variable VLLM_SOURCES names, with `:` between them: it was in 0.24.0, 0.26.0, 0.27.1,
0.29.0, 0.31.0, 0.32.0 and 0.33.0.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rows import each_row


def sources() -> Iterator[Path]:
    found = importlib.util.find_spec("vllm")
    if found is not None and found.origin is not None:
        yield Path(found.origin).parent
    for folder in filter(None, os.environ.get("VLLM_SOURCES", "").split(":")):
        yield Path(folder)


SOURCES = list(sources())
LAYERS = "model_executor/layers/"
FIRST, SECOND = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"
SCHEDULED = "v1/core/sched/output.py"

READ = (
    (LAYERS + "fused_moe/routed_experts.py", "RoutedExperts", "moe_config quant_method activation"
     " swiglu_limit swiglu_alpha swiglu_beta apply_router_weight_on_input _expert_map"),
    (LAYERS + "fused_moe/config.py", "FusedMoEConfig", "moe_parallel_config hidden_dim"
     " hidden_dim_unpadded intermediate_size intermediate_size_per_partition_unpadded"
     " is_lora_enabled tp_size dp_size pcp_size"),
    (LAYERS + "fused_moe/config.py", "FusedMoEParallelConfig", "use_ep enable_eplb"
     " is_sequence_parallel"),
    (LAYERS + "fused_moe/activation.py", "MoEActivation", "is_gated silu relu2_no_mul swigluoai"
     " swigluoai_uninterleave"),
    (LAYERS + "fused_moe/unquantized_fused_moe_method.py", "UnquantizedFusedMoEMethod",
     "unquantized_backend"),
    (LAYERS + "fused_moe/oracle/unquantized.py", "UnquantizedMoeBackend", "TRITON BATCHED_TRITON"),
    (LAYERS + "fused_moe/runner/moe_runner.py", "MoERunner", "routed_experts router"
     " _fse_fuse_gate"),
    (LAYERS + "fused_moe/router/fused_moe_router.py", "FusedMoERouter", "eplb_state"),
    (LAYERS + "fused_moe/router/base_router.py", "BaseRouter", "top_k global_num_experts"),
    (LAYERS + "fused_moe/router/fused_topk_router.py", "FusedTopKRouter", "renormalize"
     " scoring_func"),
    (LAYERS + "fused_moe/router/fused_topk_bias_router.py", "FusedTopKBiasRouter", "renormalize"
     " scoring_func e_score_correction_bias routed_scaling_factor _hash_indices_table"),
    (LAYERS + "fused_moe/router/grouped_topk_router.py", "GroupedTopKRouter", "renormalize"
     " scoring_func e_score_correction_bias routed_scaling_factor num_expert_group topk_group"
     " num_fused_shared_experts"),
    (LAYERS + "layernorm.py", "RMSNorm", "weight variance_epsilon variance_size_override"),
    (LAYERS + "layernorm.py", "GemmaRMSNorm", "weight variance_epsilon"),
    (LAYERS + "linear.py", "LinearBase", "input_size quant_method tp_size"),
    (LAYERS + "linear.py", "ReplicatedLinear", ""),
    (LAYERS + "vocab_parallel_embedding.py", "VocabParallelEmbedding", "embedding_dim quant_method"
     " tp_size"),
    (LAYERS + "vocab_parallel_embedding.py", "ParallelLMHead", ""),
    ("model_executor/models/gpt_oss.py", "TransformerBlock", "input_layernorm"
     " post_attention_layernorm attn mlp"),
    ("model_executor/models/gpt_oss.py", "MLPBlock", "router experts is_sequence_parallel"),
    ("model_executor/models/gpt_oss.py", "OAIAttention", "qkv_proj o_proj rotary_emb attn q_size"
     " kv_size"),
    ("model_executor/models/qwen3_moe.py", "Qwen3MoeDecoderLayer", "input_layernorm"
     " post_attention_layernorm self_attn mlp"),
    ("model_executor/models/qwen3_moe.py", "Qwen3MoeSparseMoeBlock", "gate experts"
     " is_sequence_parallel"),
    ("model_executor/models/qwen3_moe.py", "Qwen3MoeAttention", "qkv_proj o_proj rotary_emb attn"
     " q_size kv_size q_norm k_norm head_dim"),
    ("v1/attention/backends/flash_attn.py", "FlashAttentionImpl", "num_heads num_kv_heads head_size"
     " scale sliding_window sinks alibi_slopes logits_soft_cap kv_cache_dtype"
     " kv_sharing_target_layer_name"),
    ("v1/attention/backends/flash_attn.py", "FlashAttentionMetadata", "max_query_len seq_lens"
     " block_table causal"),
    (LAYERS + "rotary_embedding/base.py", "RotaryEmbeddingBase", "cos_sin_cache is_neox_style"),
    (LAYERS + "attention/attention.py", "Attention", "layer_name impl kv_cache"),
    ("config/compilation.py", "CompilationConfig", "splitting_ops fast_moe_cold_start"),
    (FIRST, "GPUModelRunner", "execute_model get_model"),
    (SECOND, "GPUModelRunner", "sample sample_tokens get_model"),
    (SECOND, "ExecuteModelState", "input_batch"),
    ("v1/worker/gpu_input_batch.py", "InputBatch", "req_ids"),
    ("v1/worker/gpu/input_batch.py", "InputBatch",
     "req_ids input_ids logits_indices cu_num_logits"),
    (SCHEDULED, "NewRequestData", "req_id prompt_token_ids num_computed_tokens"),
    (SCHEDULED, "CachedRequestData", "req_ids num_computed_tokens is_context_phase"),
    (SCHEDULED, "SchedulerOutput", "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens"
     " total_num_scheduled_tokens"),
    ("config/vllm.py", "VllmConfig", "speculative_config"),
    ("config/parallel.py", "ParallelConfig", "pipeline_parallel_size data_parallel_size"),
)  # fmt: skip
"""Files of vLLM, classes, and what is read of them."""


def words_of(source: Path, file: str, name: str) -> set[str]:
    """All names in a class."""
    tree = ast.parse((source / file).read_text())
    [found] = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    words: set[str] = set()
    for node in ast.walk(found):
        if isinstance(node, ast.Attribute | ast.FunctionDef):
            words.add(node.attr if isinstance(node, ast.Attribute) else node.name)
        elif isinstance(node, ast.Constant | ast.Name):
            words.add(str(node.value) if isinstance(node, ast.Constant) else node.id)
    return words


@each_row("source", SOURCES)
@each_row(("file", "name", "attributes"), READ)
def test_what_is_read_of_a_class_is_there(
    source: Path, file: str, name: str, attributes: str
) -> None:
    assert set(attributes.split()) <= words_of(source, file, name)


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_the_logits_of_a_step_are_the_models_and_the_order_of_the_rows_is_known(
    source: Path,
) -> None:
    for path in (FIRST, SECOND):
        assert re.search(r"\bself\.model\.compute_logits\(", (source / path).read_text())
    # The first model runner's order is that of its batch.
    assert "input_batch" not in words_of(source, FIRST, "ExecuteModelState")
    ranks = (source / "distributed" / "parallel_state.py").read_text()
    assert "def get_tensor_model_parallel_rank(" in ranks
