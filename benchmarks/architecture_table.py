"""The architectures of vLLM that benchmarks/architectures.py records: a config.json each.

Sizes are those of the public model that the row names; cut are the number of layers (two of each
kind), the vocabulary (32,000 rows: only lm_head and the embedding read it), and what `cut` says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """One architecture: what goes into its config.json and how its engine is started.

    Attributes:
        name: the row's name on the command line and in the results.
        model: the public model whose sizes these are.
        kind: `model_type` of the config.
        model_class: class in vLLM's registry.
        layers: decoder layers; two of each kind.
        config: the fields of config.json that differ from `BASE`.
        engine: further arguments of vllm.LLM.
        on_gpu: those that only an engine on a GPU takes.
        cut: what is cut besides layers and vocabulary, empty for nothing.
        whole: the config is a model's own, with all its layers and its vocabulary.
    """

    name: str
    model: str
    kind: str
    model_class: str
    layers: int
    config: Config
    engine: Config = field(default_factory=dict)
    on_gpu: Config = field(default_factory=dict)
    cut: str = ""
    whole: bool = False


BASE: Config = {
    "dtype": "bfloat16",
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}

SMALL: Config = {
    "vocab_size": 4096,
    "intermediate_size": 1024,
    "intermediate_size_mlp": 1024,
    "block_ff_dim": 1024,
    "moe_intermediate_size": 256,
    "moe_shared_expert_intermediate_size": 256,
    "shared_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "num_experts": 16,
    "num_local_experts": 16,
    "n_routed_experts": 16,
    "moe_num_experts": 16,
}
"""The most that a field is with `--small`: what no other field has to fit, so that heads, ranks
and states stay as they are."""


def sizes(hidden: int, intermediate: int, heads: int, kv_heads: int, **more: Any) -> Config:
    """The fields that nearly every decoder has."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        **more,
    }


def config_of(row: Architecture, *, small: bool = False) -> Config:
    """The whole config.json.

    Args:
        row: the architecture.
        small: shrink what `SMALL` lists and leave quantization out, for an engine on a CPU.

    Example:
        >>> config_of(ARCHITECTURES[0])["num_hidden_layers"]
        2
    """
    if row.whole:
        return row.config
    about = {"architectures": [row.model_class], "model_type": row.kind}
    config = BASE | {"num_hidden_layers": row.layers} | row.config | about
    if not small:
        return config
    return {n: _at_most(n, value) for n, value in config.items() if n != "quantization_config"}


def of_folder(folder: Path) -> Architecture:
    """The row of a whole model.

    Args:
        folder: has the model's config.json; its name becomes the row's.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Architecture(
        name=folder.name,
        model=folder.name,
        kind=str(config.get("model_type", "")),
        model_class=str((config.get("architectures") or [""])[0]),
        layers=int(config["num_hidden_layers"]),
        config=config,
        whole=True,
    )


def _at_most(name: str, value: Any) -> Any:
    limit = SMALL.get(name)
    if limit is None or value is None:
        return value
    return [min(one, limit) for one in value] if isinstance(value, list) else min(value, limit)


LLAMA = sizes(4096, 14336, 32, 8, head_dim=128, rope_theta=500000.0)
QWEN3_MOE = sizes(
    2048,
    6144,
    32,
    4,
    head_dim=128,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    attention_bias=False,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
DEEPSEEK: Config = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "first_k_dense_replace": 2,
    "moe_layer_freq": 1,
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
}
DEEPSEEK_V3 = (
    sizes(7168, 18432, 128, 128, rope_theta=10000.0)
    | DEEPSEEK
    | {
        "q_lora_rank": 1536,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
    }
)
FP8_DYNAMIC: Config = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "strategy": "channel",
                "symmetric": True,
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head"],
}


def nvfp4(*ignore: str) -> Config:
    """The `quantization_config` of a ModelOpt checkpoint in NVFP4."""
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        "ignore": ["lm_head", *ignore],
    }


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("llama", "Llama-3.1-8B", "llama", "LlamaForCausalLM", 2, LLAMA),
    Architecture(
        "llama-fp8",
        "Llama-3.1-8B-Instruct-FP8-dynamic",
        "llama",
        "LlamaForCausalLM",
        2,
        LLAMA | {"quantization_config": FP8_DYNAMIC},
    ),
    Architecture(
        "llama-nvfp4",
        "Llama-3.1-8B-Instruct-NVFP4",
        "llama",
        "LlamaForCausalLM",
        2,
        LLAMA | {"quantization_config": nvfp4()},
    ),
    Architecture(
        "qwen2",
        "Qwen2.5-7B",
        "qwen2",
        "Qwen2ForCausalLM",
        2,
        sizes(3584, 18944, 28, 4, rope_theta=1e6, rms_norm_eps=1e-6),
    ),
    Architecture(
        "qwen3",
        "Qwen3-8B",
        "qwen3",
        "Qwen3ForCausalLM",
        2,
        sizes(4096, 12288, 32, 8, head_dim=128, rope_theta=1e6, rms_norm_eps=1e-6),
    ),
    Architecture(
        "qwen2-moe",
        "Qwen1.5-MoE-A2.7B",
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        2,
        sizes(
            2048,
            5632,
            16,
            16,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
    ),
    Architecture("qwen3-moe", "Qwen3-30B-A3B", "qwen3_moe", "Qwen3MoeForCausalLM", 2, QWEN3_MOE),
    Architecture(
        "qwen3-moe-nvfp4",
        "Qwen3-30B-A3B-NVFP4",
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        2,
        QWEN3_MOE
        | {"quantization_config": nvfp4("model.layers.0.mlp.gate", "model.layers.1.mlp.gate")},
    ),
    Architecture(
        "qwen3-next",
        "Qwen3-Next-80B-A3B-Instruct",
        "qwen3_next",
        "Qwen3NextForCausalLM",
        4,
        sizes(
            2048,
            5120,
            16,
            2,
            head_dim=256,
            rope_theta=1e7,
            rms_norm_eps=1e-6,
            partial_rotary_factor=0.25,
            layer_types=["linear_attention", "full_attention"] * 2,
            full_attention_interval=2,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
            num_experts=512,
            num_experts_per_tok=10,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        on_gpu={"additional_config": {"gdn_prefill_backend": "triton"}},
        cut="prompts by Triton's gated delta rule, since FlashInfer is not there",
    ),
    Architecture(
        "mixtral",
        "Mixtral-8x7B-v0.1",
        "mixtral",
        "MixtralForCausalLM",
        2,
        sizes(4096, 14336, 32, 8, rope_theta=1e6, num_local_experts=8, num_experts_per_tok=2),
    ),
    Architecture(
        "gpt-oss",
        "gpt-oss-20b",
        "gpt_oss",
        "GptOssForCausalLM",
        4,
        sizes(
            2880,
            2880,
            64,
            8,
            head_dim=64,
            attention_bias=True,
            layer_types=["sliding_attention", "full_attention"] * 2,
            sliding_window=128,
            swiglu_limit=7.0,
            num_local_experts=32,
            num_experts_per_tok=4,
            experts_per_token=4,
            initial_context_length=4096,
            rope_theta=150000,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 4096,
                "truncate": False,
            },
            max_position_embeddings=131072,
            quantization_config={
                "quant_method": "mxfp4",
                "modules_to_not_convert": [
                    "model.layers.*.self_attn",
                    "model.layers.*.mlp.router",
                    "model.embed_tokens",
                    "lm_head",
                ],
            },
        ),
    ),
    Architecture(
        "gemma2",
        "gemma-2-9b",
        "gemma2",
        "Gemma2ForCausalLM",
        4,
        sizes(
            3584,
            14336,
            16,
            8,
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh",
            rms_norm_eps=1e-6,
            query_pre_attn_scalar=256,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            sliding_window=512,
            layer_types=["sliding_attention", "full_attention"] * 2,
            tie_word_embeddings=True,
        ),
        cut="sliding window of 512 instead of 4,096, so that it is one at 1,024 tokens",
    ),
    Architecture(
        "gemma3",
        "gemma-3-1b-it",
        "gemma3_text",
        "Gemma3ForCausalLM",
        4,
        sizes(
            1152,
            6912,
            4,
            1,
            head_dim=256,
            hidden_activation="gelu_pytorch_tanh",
            rms_norm_eps=1e-6,
            query_pre_attn_scalar=256,
            rope_theta=1e6,
            rope_local_base_freq=10000.0,
            sliding_window=512,
            layer_types=["sliding_attention", "full_attention"] * 2,
            tie_word_embeddings=True,
        ),
    ),
    Architecture(
        "phi3", "phi-4", "phi3", "Phi3ForCausalLM", 2, sizes(5120, 17920, 40, 10, rope_theta=250000)
    ),
    Architecture(
        "phimoe",
        "Phi-3.5-MoE-instruct",
        "phimoe",
        "PhiMoEForCausalLM",
        2,
        sizes(
            4096,
            6400,
            32,
            8,
            rope_theta=10000.0,
            attention_bias=True,
            lm_head_bias=True,
            num_local_experts=16,
            num_experts_per_tok=2,
            router_jitter_noise=0.01,
        ),
    ),
    Architecture(
        "glm4",
        "GLM-4-9B-0414",
        "glm4",
        "Glm4ForCausalLM",
        2,
        sizes(
            4096,
            13696,
            32,
            2,
            head_dim=128,
            attention_bias=True,
            partial_rotary_factor=0.5,
            rope_theta=10000.0,
        ),
    ),
    Architecture(
        "glm4-moe",
        "GLM-4.5-Air",
        "glm4_moe",
        "Glm4MoeForCausalLM",
        4,
        sizes(
            4096,
            10944,
            96,
            8,
            head_dim=128,
            attention_bias=True,
            partial_rotary_factor=0.5,
            rope_theta=1e6,
            use_qk_norm=False,
            moe_intermediate_size=1408,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=8,
            first_k_dense_replace=2,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
        ),
    ),
    Architecture(
        "deepseek-v2",
        "DeepSeek-V2-Lite",
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        4,
        sizes(2048, 10944, 16, 16, rope_theta=10000.0)
        | DEEPSEEK
        | {
            "q_lora_rank": None,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
        },
    ),
    Architecture(
        "deepseek-v3",
        "DeepSeek-V3",
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        4,
        DEEPSEEK_V3,
        cut="64 of 256 experts",
    ),
    Architecture(
        "deepseek-v3-mtp",
        "DeepSeek-V3 with its MTP layer as drafter",
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        4,
        DEEPSEEK_V3,
        engine={"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
        cut="64 of 256 experts",
    ),
    Architecture(
        "granite",
        "granite-3.3-8b-instruct",
        "granite",
        "GraniteForCausalLM",
        2,
        sizes(
            4096,
            12800,
            32,
            8,
            rope_theta=1e7,
            embedding_multiplier=12.0,
            attention_multiplier=0.0078125,
            residual_multiplier=0.22,
            logits_scaling=16.0,
            tie_word_embeddings=True,
        ),
    ),
    Architecture(
        "granite-hybrid",
        "granite-4.0-h-tiny",
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        4,
        sizes(
            1536,
            512,
            12,
            4,
            layer_types=["mamba", "attention"] * 2,
            shared_intermediate_size=1024,
            num_local_experts=64,
            num_experts_per_tok=6,
            mamba_n_heads=48,
            mamba_d_head=64,
            mamba_n_groups=1,
            mamba_d_state=128,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_chunk_size=256,
            mamba_conv_bias=True,
            mamba_proj_bias=False,
            position_embedding_type="nope",
            embedding_multiplier=12.0,
            attention_multiplier=0.0078125,
            residual_multiplier=0.22,
            logits_scaling=6.0,
            tie_word_embeddings=True,
        ),
    ),
    Architecture(
        "nemotron-h",
        "NVIDIA-Nemotron-3-Nano-30B-A3B",
        "nemotron_h",
        "NemotronHForCausalLM",
        6,
        sizes(
            2688,
            1856,
            32,
            2,
            head_dim=128,
            hybrid_override_pattern="ME*ME*",
            layer_norm_epsilon=1e-5,
            chunk_size=128,
            conv_kernel=4,
            expand=2,
            mamba_head_dim=64,
            mamba_num_heads=64,
            mamba_hidden_act="silu",
            mamba_proj_bias=False,
            mamba_ssm_cache_dtype="float32",
            n_groups=8,
            ssm_state_size=128,
            use_bias=False,
            use_conv_bias=True,
            mlp_bias=False,
            mlp_hidden_act="relu2",
            attention_bias=False,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=6,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            residual_in_fp32=False,
            rope_theta=10000,
        ),
    ),
    Architecture(
        "falcon-h1",
        "Falcon-H1-7B-Base",
        "falcon_h1",
        "FalconH1ForCausalLM",
        2,
        sizes(
            3072,
            12288,
            12,
            2,
            head_dim=128,
            rope_theta=1e11,
            mamba_d_ssm=3072,
            mamba_n_heads=24,
            mamba_d_head=128,
            mamba_n_groups=1,
            mamba_d_state=256,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_chunk_size=256,
            mamba_conv_bias=True,
            mamba_proj_bias=False,
            mamba_norm_before_gate=False,
            mamba_rms_norm=False,
            projectors_bias=False,
            attention_bias=False,
            mlp_bias=False,
            embedding_multiplier=5.656854249492381,
            lm_head_multiplier=0.009765625,
            attention_in_multiplier=1.0,
            attention_out_multiplier=0.0859375,
            key_multiplier=0.14,
            ssm_in_multiplier=0.7071,
            ssm_out_multiplier=0.1179,
            ssm_multipliers=[0.3536, 0.25, 0.1768, 0.5, 0.3536],
            mlp_multipliers=[0.8838, 0.2210],
        ),
    ),
    Architecture(
        "jamba",
        "AI21-Jamba-Mini-1.6",
        "jamba",
        "JambaForCausalLM",
        7,
        sizes(
            4096,
            14336,
            32,
            8,
            rms_norm_eps=1e-6,
            attn_layer_period=4,
            attn_layer_offset=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=8,
            num_experts_per_tok=2,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=256,
            mamba_conv_bias=True,
            mamba_proj_bias=False,
            use_mamba_kernels=True,
        ),
        cut="8 of 16 experts; attention in every 4th layer instead of every 8th",
    ),
    Architecture(
        "mamba2",
        "Mamba-Codestral-7B-v0.1",
        "mamba2",
        "Mamba2ForCausalLM",
        2,
        {
            "hidden_size": 4096,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "state_size": 128,
            "conv_kernel": 4,
            "expand": 2,
            "chunk_size": 256,
            "hidden_act": "silu",
            "layer_norm_epsilon": 1e-5,
            "norm_before_gate": True,
            "residual_in_fp32": True,
            "rms_norm": True,
            "use_bias": False,
            "use_conv_bias": True,
        },
    ),
    Architecture(
        "falcon-mamba",
        "falcon-mamba-7b",
        "falcon_mamba",
        "FalconMambaForCausalLM",
        2,
        {
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "state_size": 16,
            "conv_kernel": 4,
            "expand": 2,
            "time_step_rank": 256,
            "hidden_act": "silu",
            "layer_norm_epsilon": 1e-5,
            "mixer_rms_eps": 1e-6,
            "residual_in_fp32": True,
            "use_bias": False,
            "use_conv_bias": True,
        },
    ),
    Architecture(
        "olmoe",
        "OLMoE-1B-7B-0924",
        "olmoe",
        "OlmoeForCausalLM",
        2,
        sizes(2048, 1024, 16, 16, num_experts=64, num_experts_per_tok=8, norm_topk_prob=False),
    ),
    Architecture(
        "cohere",
        "aya-expanse-8b",
        "cohere",
        "CohereForCausalLM",
        2,
        sizes(
            4096,
            14336,
            32,
            8,
            layer_norm_eps=1e-5,
            logit_scale=0.125,
            use_qk_norm=False,
            tie_word_embeddings=True,
        ),
    ),
    Architecture(
        "starcoder2",
        "starcoder2-7b",
        "starcoder2",
        "Starcoder2ForCausalLM",
        2,
        sizes(
            4608,
            18432,
            36,
            4,
            hidden_act="gelu_pytorch_tanh",
            mlp_type="default",
            norm_type="layer_norm",
            norm_epsilon=1e-5,
            use_bias=True,
            rope_theta=1e6,
            tie_word_embeddings=True,
        ),
    ),
    Architecture(
        "gpt-neox",
        "pythia-6.9b",
        "gpt_neox",
        "GPTNeoXForCausalLM",
        2,
        {
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_attention_heads": 32,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "rotary_pct": 0.25,
            "rotary_emb_base": 10000,
            "use_parallel_residual": True,
            "max_position_embeddings": 2048,
        },
    ),
    Architecture(
        "minicpm3",
        "MiniCPM3-4B",
        "minicpm3",
        "MiniCPM3ForCausalLM",
        2,
        sizes(
            2560,
            6400,
            40,
            40,
            rope_theta=10000.0,
            q_lora_rank=768,
            kv_lora_rank=256,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
            v_head_dim=64,
            dim_model_base=256,
            scale_emb=12,
            scale_depth=1.4,
            attention_bias=False,
        ),
    ),
    Architecture(
        "ernie-moe",
        "ERNIE-4.5-21B-A3B-PT",
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        4,
        sizes(
            2560,
            12288,
            20,
            4,
            head_dim=128,
            rope_theta=500000.0,
            use_bias=False,
            moe_num_experts=64,
            moe_k=6,
            moe_num_shared_experts=2,
            moe_intermediate_size=1536,
            moe_layer_start_index=2,
            moe_layer_end_index=3,
            moe_layer_interval=1,
            moe_use_aux_free=True,
            tie_word_embeddings=True,
        ),
    ),
    Architecture(
        "hunyuan",
        "Hunyuan-A13B-Instruct",
        "hunyuan_v1_moe",
        "HunYuanMoEV1ForCausalLM",
        2,
        sizes(
            4096,
            3072,
            32,
            8,
            head_dim=128,
            rope_theta=10000.0,
            attention_bias=False,
            mlp_bias=False,
            use_qk_norm=True,
            use_mixed_mlp_moe=True,
            use_cla=False,
            num_experts=32,
            moe_topk=[8, 8],
            num_shared_expert=[1, 1],
            moe_intermediate_size=[3072, 3072],
            tie_word_embeddings=True,
        ),
        cut="32 of 64 experts",
    ),
    Architecture(
        "llama4",
        "Llama-4-Scout-17B-16E (text)",
        "llama4_text",
        "Llama4ForCausalLM",
        4,
        sizes(
            5120,
            8192,
            40,
            8,
            head_dim=128,
            intermediate_size_mlp=16384,
            rope_theta=500000.0,
            attention_bias=False,
            num_local_experts=8,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            no_rope_layers=[1, 0, 1, 0],
            layer_types=["chunked_attention", "full_attention"] * 2,
            attention_chunk_size=512,
            use_qk_norm=True,
            attn_temperature_tuning=True,
            floor_scale=8192,
            attn_scale=0.1,
        ),
        cut="8 of 16 experts; chunks of 512 instead of 8,192 tokens; every 2nd layer without rope",
    ),
    Architecture(
        "lfm2",
        "LFM2-1.2B",
        "lfm2",
        "Lfm2ForCausalLM",
        4,
        sizes(
            2048,
            12288,
            32,
            8,
            norm_eps=1e-5,
            rope_theta=1e6,
            layer_types=["conv", "full_attention"] * 2,
            conv_L_cache=3,
            conv_dim=2048,
            conv_bias=False,
            block_dim=2048,
            block_ff_dim=12288,
            block_auto_adjust_ff_dim=True,
            block_multiple_of=256,
            block_ffn_dim_multiplier=1.0,
            block_mlp_init_scale=1.0,
            block_norm_eps=1e-5,
            block_out_init_scale=1.0,
            block_use_swiglu=True,
            block_use_xavier_init=True,
            tie_word_embeddings=True,
        ),
    ),
)
"""The rows; order of the table in benchmarks/results/architectures/README.md."""
