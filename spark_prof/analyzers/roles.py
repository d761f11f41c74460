"""The words by which kernel engineers know the parts of a layer, whatever a model calls them.

One table, first match wins; each row carries examples that are its tests. `components.role_of`
keeps the model's own path; here `transformer.h.0.attn.c_attn` and
`model.layers.0.self_attn.qkv_proj` are both `qkv`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["ROLES", "RoleRule", "standard_role"]


@dataclass(frozen=True)
class RoleRule:
    """Modules whose path matches, and whose tensor does where one is asked for, have the role.

    Examples are pairs of a module's path and a tensor's name, which may be empty.
    """

    role: str
    pattern: str
    examples: tuple[tuple[str, str], ...]
    tensor: str = ""


_MIXER = r"\.(linear_attn|mamba|mixer|ssm|gdn|delta_net|short_conv)"

ROLES: tuple[RoleRule, ...] = (
    RoleRule(
        "absorb_k",
        r"attn$",
        (("model.layers.0.self_attn.mla_attn.mla_attn", "W_UK_T"), ("layers.1.self_attn", "W_UK")),
        r"^W_(UK|K)(?!\w*scale)",
    ),
    RoleRule(
        "absorb_v",
        r"attn$",
        (("model.layers.0.self_attn.mla_attn.mla_attn", "W_UV"),),
        r"^W_(UV|V)(?!\w*scale)",
    ),
    RoleRule(
        "indexer.norm",
        r"\.indexer\.k_norm$",
        (("model.layers.0.self_attn.indexer.k_norm", "weight"),),
    ),
    RoleRule(
        "indexer.q_b", r"\.indexer\.wq_b$", (("model.layers.0.self_attn.indexer.wq_b", "weight"),)
    ),
    RoleRule("indexer.k", r"\.indexer\.wk$", (("model.layers.0.self_attn.indexer.wk", ""),)),
    RoleRule(
        "indexer.weights",
        r"\.indexer\.weights_proj$",
        (("model.layers.0.self_attn.indexer.weights_proj", ""),),
    ),
    RoleRule(
        "indexer.k_weights",
        r"\.indexer\.wk_weights_proj$",
        (("model.layers.0.self_attn.indexer.wk_weights_proj", "weight"),),
    ),
    RoleRule(
        "indexer", r"\.indexer(\.|$)", (("model.layers.0.self_attn.indexer.k_cache", "kv_cache"),)
    ),
    RoleRule(
        "qkv_a", r"\.fused_qkv_a_proj$", (("model.layers.0.self_attn.fused_qkv_a_proj", "weight"),)
    ),
    RoleRule("q_a", r"\.q_a_proj$", (("model.layers.0.self_attn.q_a_proj", "weight"),)),
    RoleRule("q_b", r"\.q_b_proj$", (("model.layers.0.self_attn.q_b_proj", "weight"),)),
    RoleRule(
        "kv_a",
        r"\.kv_a_proj(_with_mqa)?$",
        (("model.layers.0.self_attn.kv_a_proj_with_mqa", "weight"),),
    ),
    RoleRule("kv_b", r"\.kv_b_proj$", (("model.layers.0.self_attn.kv_b_proj", "weight"),)),
    RoleRule(
        "in_proj",
        _MIXER + r"\.in_proj\w*$",
        (
            ("backbone.layers.0.mixer.in_proj", "weight"),
            ("model.layers.0.linear_attn.in_proj_qkvz", "weight"),
        ),
    ),
    RoleRule(
        "conv",
        _MIXER + r"\.(conv|conv1d)$",
        (
            ("model.layers.0.mamba.mamba.conv1d", "weight"),
            ("model.layers.0.short_conv.conv", "weight"),
        ),
    ),
    RoleRule("conv", _MIXER + r"$", (("backbone.layers.0.mixer", "conv_state"),), r"^conv_state$"),
    RoleRule(
        "out_proj",
        _MIXER + r"\.out_proj$",
        (("model.layers.0.linear_attn.out_proj", "weight"),),
    ),
    RoleRule(
        "scan",
        _MIXER + r"$",
        (("backbone.layers.0.mixer", "A"), ("model.layers.0.linear_attn", "ssm_state")),
        r"^(A|A_log|D|dt_bias|ssm_state|state(\.\d+)?)$",
    ),
    RoleRule(
        "scan",
        r"\.(chunk_gated_delta_rule|x_proj|dt_proj)$",
        (("model.layers.0.linear_attn.chunk_gated_delta_rule", ""),),
    ),
    RoleRule(
        "ssm.norm",
        _MIXER + r"\.\w*norm$",
        (("backbone.layers.0.mixer.norm", "weight"), ("model.layers.0.mamba.dt_layernorm", "")),
    ),
    RoleRule(
        "shared_expert_gate",
        r"\.shared_experts?_gate$",
        (("model.layers.0.mlp.shared_expert_gate", "weight"),),
    ),
    RoleRule(
        "shared_experts.gate_up",
        r"\.(shared_experts?|shared_mlp)\.(gate_up_proj|up_proj|input_linear)$",
        (("model.layers.0.mlp.shared_experts.gate_up_proj", "weight"),),
    ),
    RoleRule(
        "shared_experts.down",
        r"\.(shared_experts?|shared_mlp)\.(down_proj|output_linear)$",
        (("model.layers.0.shared_mlp.output_linear", "weight"),),
    ),
    RoleRule(
        "shared_experts",
        r"\.(_?shared_experts?|shared_mlp)(\.|$)",
        (("model.layers.0.mlp.experts._shared_experts", ""),),
    ),
    RoleRule(
        "router",
        r"\.(gate|router|router_gate|gate_linear)(\.wg)?$|\.select_experts$",
        (("model.layers.0.mlp.gate", "weight"), ("model.layers.0.mlp.router", "bias")),
    ),
    RoleRule(
        "experts.w13",
        r"\.(experts|routed_experts)$",
        (("model.layers.0.mlp.experts.routed_experts", "w13_weight"),),
        r"^(w13|w1|w3)_",
    ),
    RoleRule(
        "experts.w2",
        r"\.(experts|routed_experts)$",
        (("model.layers.0.mlp.experts.routed_experts", "w2_weight_scale"),),
        r"^w2_",
    ),
    RoleRule("experts", r"\.experts(\.|$)", (("model.layers.0.mlp.experts", ""),)),
    RoleRule(
        "qkv",
        r"\.(qkv|qkv_proj|Wqkv|query_key_value|c_attn)$",
        (("model.layers.0.self_attn.qkv_proj", "weight"), ("transformer.h.0.attn.c_attn", "")),
    ),
    RoleRule("q", r"\.q_proj$", (("model.layers.0.self_attn.q_proj", "weight"),)),
    RoleRule("k", r"\.k_proj$", (("model.layers.0.self_attn.k_proj", "weight"),)),
    RoleRule("v", r"\.v_proj$", (("model.layers.0.self_attn.v_proj", "weight"),)),
    RoleRule(
        "o_proj",
        r"(attn|attention|mixer)\.(o_proj|out_proj|dense|c_proj|wo)$|\.\d+\.o_proj$",
        (("model.layers.0.self_attn.o_proj", "weight"), ("model.layers.1.o_proj", "weight")),
    ),
    RoleRule(
        "gate_up",
        r"\.(gate_up_proj|up_proj|gate_proj|w13|c_fc|dense_h_to_4h|fc1)$",
        (("model.layers.0.mlp.gate_up_proj", "weight"), ("transformer.h.0.mlp.c_fc", "weight")),
    ),
    RoleRule(
        "down",
        r"\.(down_proj|w2|dense_4h_to_h|fc2)$|\.mlp\.c_proj$",
        (("model.layers.0.mlp.down_proj", "weight"), ("transformer.h.0.mlp.c_proj", "weight")),
    ),
    RoleRule("lm_head", r"(^|\.)(lm_head|embed_out|shared_head\.head)$", (("lm_head", "weight"),)),
)
"""Parts of MLA, of Mamba and linear attention, of experts, indexers and drafters, and the rest."""

_COMPILED = tuple((rule.role, re.compile(rule.pattern), re.compile(rule.tensor)) for rule in ROLES)


@lru_cache(maxsize=65536)
def standard_role(path: str, tensor: str = "") -> str:
    """The standard word for what a module does, or for what one of its tensors is there for.

    Args:
        path: of the module.
        tensor: its name in the module, as the `tensors` table has it; two of MLA's products, the
            two products of experts, and the state of a scan are told apart by it alone.

    Returns:
        A role of `ROLES`, after `drafter.` where the module is a drafter's; empty for others.

    Example:
        `standard_role("model.layers.0.self_attn.mla_attn.mla_attn", "W_UV")` is `absorb_v`.
    """
    for role, pattern, of_tensor in _COMPILED:
        if pattern.search(path) and of_tensor.search(tensor):
            return f"drafter.{role}" if path.startswith("drafter.") else role
    return ""
