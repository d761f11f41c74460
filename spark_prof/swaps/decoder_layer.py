"""A decoder layer as few kernels: norm and qkv; rotation, cache and attention; norm and MLP.

Slot `layer`. How a class of vLLM writes its layer is a row of `FORMS`. Each of the three parts can
be replaced by itself; what is not, what has more tokens than a kernel takes, and what is no
decoding runs as vLLM has it (`layer_parts.py`). A layer whose attention is of another kind, such as
MLA, Mamba or a gated delta net, has but the parts with norms.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from spark_prof.kernels.candidate import (
    AttentionLayer,
    ExpertsLayer,
    LinearLayer,
    NormedExpertsLayer,
    NormedLinearLayer,
    NormedMlpLayer,
)
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.joined_weights import add_shared, joined_matrix
from spark_prof.swaps.live_weights import (
    check_layout,
    read_experts,
    read_linear,
    read_norm,
)


class Form(NamedTuple):
    """Attributes of a decoder layer's modules in which classes differ."""

    # The module of qkv_proj, rotary_emb, attn and o_proj; empty where it is of another kind.
    attention: str
    gate: str = ""  # the router's matrix, of `mlp`; empty where there are no experts
    norm: str = "post_attention_layernorm"  # before `mlp`
    mlp: str = "mlp"  # empty where a layer has none
    first_norm: str = "input_layernorm"
    # Of an attention of another kind: which matrices alone read what the first norm makes, in each
    # way in which the class has them.
    matrices: tuple[tuple[str, ...], ...] = ()
    measured: bool = (
        False  # whether an engine was measured to be faster with all parts of such layers
    )


_MLA = (
    ("self_attn.fused_qkv_a_proj",),
    ("self_attn.kv_a_proj_with_mqa", "self_attn.q_proj"),
)
_DELTA_NET = (
    ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"),
    ("self_attn.qkv_proj",),  # in each fourth layer
)

FORMS: Mapping[str, Form] = {
    "TransformerBlock": Form("attn", "router", measured=True),  # gpt-oss
    "Qwen3MoeDecoderLayer": Form("self_attn", "gate", measured=True),
    "Qwen2MoeDecoderLayer": Form("self_attn", "gate"),
    "MixtralDecoderLayer": Form("self_attn", "gate", mlp="block_sparse_moe"),
    "LlamaDecoderLayer": Form("self_attn", measured=True),
    "MistralDecoderLayer": Form("self_attn"),
    "Qwen2DecoderLayer": Form("self_attn", measured=True),
    "Qwen3DecoderLayer": Form("self_attn", measured=True),
    "DeepseekV2DecoderLayer": Form("", "gate", matrices=_MLA),  # of DeepSeek-V3, too
    "Glm4MoeLiteDecoderLayer": Form("", "gate", matrices=_MLA),
    "Glm4MoeDecoderLayer": Form("", "gate", matrices=(("self_attn.qkv_proj",),)),
    "MiniMaxM2DecoderLayer": Form(
        "", "gate", mlp="block_sparse_moe", matrices=(("self_attn.qkv_proj",),)
    ),
    "Qwen3NextDecoderLayer": Form("", "gate", matrices=_DELTA_NET),
    "Qwen3_5DecoderLayer": Form("", "gate", matrices=_DELTA_NET),
    "NemotronHMoEDecoderLayer": Form("", "gate", "norm", "mixer"),
    "NemotronHMambaDecoderLayer": Form(
        "", mlp="", first_norm="norm", matrices=(("mixer.in_proj",),)
    ),
    "NemotronHMLPDecoderLayer": Form("", mlp="", first_norm="norm", matrices=(("mixer.up_proj",),)),
    "NemotronHAttentionDecoderLayer": Form(
        "", mlp="", first_norm="norm", matrices=(("mixer.qkv_proj",),)
    ),
}
"""By the class of a decoder layer."""

_MORE_STEPS = ("self_attn.do_llama_4_scaling", "ada_rms_norm_t_cond")
"""What a layer with an attention may have between its parts, which then are not all it does."""

_OTHER_READERS = (
    ("self_attn.indexer", "its indexer reads what its norm makes, too"),
    ("self_attn.g_proj", "a gate of its attention reads what its norm makes, too"),
    ("use_sequence_parallel_moe", "its tokens are spread over ranks (sequence parallel)"),
    ("use_attn_reduce_scatter_for_moe", "its tokens are spread over ranks (sequence parallel)"),
)
"""What a layer may have for which a norm and the matrices behind it cannot be one."""

_ARGUMENTS = {"positions", "hidden_states", "residual"}
"""Of a layer's `forward`; a drafter's of the same name may have others."""

_MLPS = ("LlamaMLP", "Qwen2MLP", "Qwen3MoeMLP")
"""vLLM's classes of gate_up_proj, SiLU and down_proj."""

Part = Literal["normed matrix", "attention", "normed experts", "normed mlp"]

PARTS: tuple[Part, ...] = ("normed matrix", "attention", "normed experts", "normed mlp")
"""The parts of layers, in the order in which they run; a layer has one of the last two."""

_ROTATIONS = ("RotaryEmbedding", "YaRNScalingRotaryEmbedding", "Llama3RotaryEmbedding")
"""vLLM's classes that rotate by the position alone and a table of cosines and sines."""


@dataclass(frozen=True, eq=False)
class LayerModules:
    """The modules of a decoder layer that its parts are made of."""

    first_norm: Any  # None where only the experts are a part
    matrices: tuple[Any, ...]  # that read what it makes, none where only the experts are a part
    attention: Any  # None where it is of another kind
    second_norm: Any  # None without `mlp`
    mlp: Any  # None where it is no part
    gate: Any  # None where there are no experts

    @classmethod
    def of(cls, layer: Any) -> LayerModules | None:
        """Those of a layer of a class in `FORMS` that has a part, else None.

        A layer whose attention is a part has experts or a known MLP as well.
        """
        form = FORMS.get(type(layer).__name__)
        if form is None or (form.attention and not _is_plain(layer)):
            return None
        mlp = _module_of(layer, form.mlp)
        has_experts = hasattr(getattr(mlp, "experts", None), "routed_experts")
        if not has_experts and (type(mlp).__name__ not in _MLPS or not form.attention):
            mlp = None
        paths = matrix_paths(layer)
        needed = all if form.attention else any
        if not needed((paths, mlp is not None)):
            return None
        return cls(
            _module_of(layer, form.first_norm) if paths else None,
            tuple(_module_of(layer, path) for path in paths),
            _module_of(layer, form.attention),
            None if mlp is None else _module_of(layer, form.norm),
            mlp,
            _module_of(mlp, form.gate) if has_experts else None,
        )

    @property
    def owners(self) -> Mapping[Part, Any]:
        """The layer's parts in their order, each with the module that its kernels count to."""
        owners: dict[Part, Any] = {}
        if self.matrices:
            owners["normed matrix"] = self.matrices[0]
        if self.attention is not None:
            owners["attention"] = self.attention.attn
        if self.gate is not None:
            owners["normed experts"] = self.mlp.experts
        elif self.mlp is not None:
            owners["normed mlp"] = self.mlp
        return owners

    def replaced(self, part: Part) -> tuple[Any, ...]:
        """The modules of matrices and experts that a part computes, each with those in it."""
        if part == "normed matrix":
            return self.matrices
        return (self.attention.attn,) if part == "attention" else (self.mlp,)

    @property
    def shared(self) -> bool:
        """Whether its experts or its MLP are spread over ranks, which add their shares up.

        vLLM's own do so in their `forward`, as o_proj does.
        """
        if self.gate is None:
            return int(self.mlp.down_proj.tp_size) > 1
        return int(self.mlp.experts.moe_config.tp_size) > 1


def _is_plain(layer: Any) -> bool:
    """Whether a layer is made of the parts that are known, and called with what they need."""
    has_steps_between = any(_module_of(layer, path) for path in _MORE_STEPS)
    return not has_steps_between and _ARGUMENTS.issubset(arguments_of(layer))


def arguments_of(layer: Any) -> list[str]:
    """The names of what a module's `forward` takes, in order."""
    return list(inspect.signature(type(layer).forward).parameters)[1:]


def matrix_paths(layer: Any) -> tuple[str, ...]:
    """The paths of the matrices that read what a layer's first norm makes, empty for none known."""
    form = FORMS[type(layer).__name__]
    ways = ((f"{form.attention}.qkv_proj",),) if form.attention else form.matrices
    present = (way for way in ways if all(_module_of(layer, path) is not None for path in way))
    return next(present, ())


def _module_of(layer: Any, path: str) -> Any:
    """The module at a path of names, None where one is missing or the path is empty."""
    for name in path.split("."):
        layer = getattr(layer, name, None) if name else None
    return layer


def parts_of(name: str, layer: Any) -> Iterator[tuple[Part, str]]:
    """Each part of a decoder layer, and the path of the module that its kernels count to."""
    modules = LayerModules.of(layer)
    assert modules is not None
    form = FORMS[type(layer).__name__]
    paths: dict[Part, str] = {
        "normed matrix": next(iter(matrix_paths(layer)), ""),
        "attention": f"{form.attention}.attn",
        "normed experts": f"{form.mlp}.experts",
        "normed mlp": form.mlp,
    }
    for part in modules.owners:
        yield part, f"{name}.{paths[part]}"


def read_part(
    name: str, layer: Any, part: Part
) -> NormedLinearLayer | AttentionLayer | NormedExpertsLayer | NormedMlpLayer:
    """Reads a part of a decoder layer, as `live_weights.read_layer` does."""
    modules = LayerModules.of(layer)
    assert modules is not None
    if _takes_adapters(modules):
        raise KernelError("its engine takes LoRA adapters")
    _check_ranks()
    check_layout()
    if part == "attention":
        return _read_attention(name, modules.attention)
    if part == "normed matrix":
        return _read_matrices(name, layer, modules)
    if part == "normed mlp":
        return _read_mlp(name, modules)
    runner = modules.mlp.experts
    if getattr(modules.mlp, "is_sequence_parallel", False):
        raise KernelError("its tokens are spread over ranks (sequence parallel)")
    if getattr(runner.moe_config, "skip_final_all_reduce", False):
        raise KernelError("its model adds up itself what ranks return")
    if getattr(modules.mlp, "use_latent_moe", False):
        raise KernelError("its experts work on fewer features than its residual stream has")
    experts, shared_gate = _read_experts(name, modules.mlp)
    bias = modules.gate.bias
    stored = read_linear(name, modules.gate, "router")
    gate = _in_bfloat16(stored)
    return NormedExpertsLayer(
        name,
        read_norm(name, modules.second_norm),
        gate,
        None if bias is None else bias.detach(),
        experts,
        shared_gate,
        getattr(modules.gate, "out_dtype", None) == torch.float32,
        gate is not stored,
    )


def _read_matrices(name: str, layer: Any, modules: LayerModules) -> NormedLinearLayer:
    for path, reason in _OTHER_READERS:
        if _module_of(layer, path):
            raise KernelError(reason)
    around = _module_of(layer, matrix_paths(layer)[0].rpartition(".")[0])
    if "output" in arguments_of(around):  # Qwen3-Next's until vLLM 0.25
        raise KernelError("its attention writes to memory that is as large as what its norm makes")
    norm, matrices = read_norm(name, modules.first_norm), modules.matrices
    several = len(matrices) > 1
    for matrix in matrices:
        if getattr(matrix, "gather_output", False):
            raise KernelError("ranks collect the product of its matrix")
        if several and getattr(matrix, "bias", None) is not None:
            raise KernelError("one of several matrices behind its norm has a bias")
    return NormedLinearLayer(name, norm, joined_matrix(name, matrices, "qkv"), several)


def _in_bfloat16(gate: LinearLayer) -> LinearLayer:
    """A router's matrix in bfloat16 where that keeps its values, as of a checkpoint in bfloat16.

    vLLM holds some in float32 to multiply in float32, which the kernel does of either.
    """
    weight = gate.weight
    if isinstance(weight, torch.Tensor) and weight.dtype == torch.float32:
        rounded = weight.bfloat16()
        if bool(torch.equal(rounded.float(), weight)):
            return replace(gate, weight=rounded)
    return gate


def _read_experts(name: str, mlp: Any) -> tuple[ExpertsLayer, torch.Tensor | None]:
    """The experts with those that every token takes behind them, and what weighs these."""
    runner = mlp.experts
    experts = read_experts(name, runner)
    # Routed experts only are scaled, in the slot moe by what calls them.
    scale = experts.router.scale * float(getattr(runner, "routed_scaling_factor", 1.0))
    experts = replace(experts, router=replace(experts.router, scale=scale))
    shared = getattr(mlp, "shared_experts", None) or getattr(mlp, "shared_expert", None)
    if shared is None:
        return experts, None
    if shared.down_proj.reduce_results or shared.down_proj.tp_size != runner.moe_config.tp_size:
        raise KernelError("ranks do not share its shared expert as they do the others")
    gate = getattr(shared, "expert_gate", None)
    weight = None
    if gate is not None:
        matrix = read_linear(name, gate, "router").weight
        if not isinstance(matrix, torch.Tensor) or getattr(gate, "bias", None) is not None:
            raise KernelError("the gate of its shared expert is quantized, or has a bias")
        weight = matrix.detach()[0]
    return add_shared(experts, shared), weight


def _takes_adapters(modules: LayerModules) -> bool:
    if modules.gate is not None:
        return bool(modules.mlp.experts.moe_config.is_lora_enabled)
    return getattr(_engine_config(), "lora_config", None) is not None


def _check_ranks() -> None:
    """Refuses torch.compile's sequence parallelism: it rewrites sums next to norms that it sees.

    Where some of them are in our operators it would rewrite the others only.
    """
    compilation = getattr(_engine_config(), "compilation_config", None)
    if getattr(getattr(compilation, "pass_config", None), "enable_sp", False):
        raise KernelError("the compiler spreads its tokens over ranks (enable_sp)")


def _engine_config() -> Any:
    """That of the engine whose model is being loaded, else None."""
    try:
        from vllm.config import get_current_vllm_config

        return get_current_vllm_config()
    except (ImportError, AssertionError):
        return None


def _read_mlp(name: str, modules: LayerModules) -> NormedMlpLayer:
    mlp = modules.mlp
    if modules.shared and not mlp.down_proj.reduce_results:
        raise KernelError("its model adds up itself what ranks return")
    if type(mlp.act_fn).__name__ != "SiluAndMul":
        raise KernelError(f"{type(mlp.act_fn).__name__} is an activation that is not known")
    if getattr(mlp, "expert_gate", None) is not None:
        raise KernelError("it is a shared expert with a gate")
    if any(getattr(proj, "bias", None) is not None for proj in (mlp.gate_up_proj, mlp.down_proj)):
        raise KernelError("its MLP has a bias")
    return NormedMlpLayer(
        name,
        read_norm(name, modules.second_norm),
        read_linear(name, mlp.gate_up_proj, "mlp"),
        read_linear(name, mlp.down_proj, "mlp"),
    )


_PLAIN_ATTENTION = (
    ("alibi_slopes", "it has ALiBi"),
    ("logits_soft_cap", "it caps its logits"),
    ("kv_sharing_target_layer_name", "it reads another layer's KV cache"),
)
"""What vLLM's attention may do that the kernel does not."""


def _read_attention(name: str, module: Any) -> AttentionLayer:
    attention, rotary = module.attn, module.rotary_emb
    inner = attention.impl
    if type(inner).__name__ != "FlashAttentionImpl":
        raise KernelError(f"{type(inner).__name__} lays its KV cache out in a way that is not read")
    for attribute, reason in _PLAIN_ATTENTION:
        value = getattr(inner, attribute, None)
        if isinstance(value, torch.Tensor) or value:
            raise KernelError(reason)
    if getattr(inner, "dcp_world_size", 1) > 1:
        raise KernelError("its context is spread over ranks")
    if type(rotary).__name__ not in _ROTATIONS:
        raise KernelError(f"{type(rotary).__name__} is a rotation that is not known")
    norms = (getattr(module, which, None) for which in ("q_norm", "k_norm"))
    q_norm, k_norm = (None if norm is None else read_norm(name, norm) for norm in norms)
    before = int(inner.sliding_window[0])
    return AttentionLayer(
        name,
        int(inner.num_heads),
        int(inner.num_kv_heads),
        int(inner.head_size),
        float(inner.scale),
        0 if before < 0 else before + 1,
        None if inner.sinks is None else inner.sinks.detach(),
        _cos_sin(rotary),
        bool(rotary.is_neox_style),
        q_norm,
        k_norm,
        _cache_scales(attention),
    )


def _cache_scales(attention: Any) -> tuple[float, float] | None:
    """Those of keys and values in an E4M3 cache, None for a bfloat16 one.

    While a checkpoint's are parameters, what vLLM will make of them: -1 is one that it lacks.
    """
    kind = str(attention.impl.kv_cache_dtype)
    if kind in ("auto", "bfloat16"):
        return None
    if kind not in ("fp8", "fp8_e4m3"):
        raise KernelError(f"its KV cache is {kind}, neither bfloat16 nor E4M3")
    if getattr(attention, "calculate_kv_scales", False):  # until 0.27
        raise KernelError("the first step computes the scales of its KV cache")
    read = hasattr(attention, "k_scale")
    scales = [getattr(attention, f"{'' if read else '_'}{which}_scale") for which in "kv"]
    if any(scale.numel() != 1 for scale in scales):
        raise KernelError("its KV cache has a scale for each head")
    k, v = (float(scale) for scale in scales)
    if read and min(k, v) < 0:
        k = v = max(k, v) if max(k, v) > 0 else 1.0
    if not (0 < k < math.inf and 0 < v < math.inf):
        raise KernelError(f"the scales of its KV cache are {k:g} and {v:g}")
    return k, v


def _cos_sin(rotary: Any) -> torch.Tensor:
    """Its table in float32, rounded to bfloat16 as vLLM does; layers that share one share it."""
    table: torch.Tensor | None = getattr(rotary, "spark_prof_cos_sin", None)
    if table is None:
        table = rotary.spark_prof_cos_sin = rotary.cos_sin_cache.bfloat16().float()
    return table
