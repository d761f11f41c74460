"""Writes the config.json of a model; with random weights that is all that vLLM needs.

usage: python -m demo.models NAME FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "use_cache": True,
    "dtype": "bfloat16",
}

MODELS: dict[str, dict[str, Any]] = {
    "tiny-moe": _QWEN3_MOE
    | {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "rope_theta": 10000.0,
        "vocab_size": 8192,
    },
    "tiny-dense": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "max_position_embeddings": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "vocab_size": 8192,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "output_router_logits": False,
        "pad_token_id": 199999,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 201088,
    },
    "qwen3-30b-a3b-nvfp4": _QWEN3_MOE
    | {
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rope_theta": 1000000.0,
        "vocab_size": 151936,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": 16,
            "ignore": ["lm_head", *(f"model.layers.{i}.mlp.gate" for i in range(48))],
        },
    },
}
"""config.json by name: two small ones for a CPU, and the shapes of two models people run."""


def write_model(name: str, folder: Path) -> Path:
    """Writes the model's config.json into the folder and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name], indent=1), encoding="utf-8")
    return folder


if __name__ == "__main__":
    write_model(sys.argv[1], Path(sys.argv[2]))
