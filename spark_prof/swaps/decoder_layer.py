"""A decoder layer as few kernels: norm and qkv; rotation, cache and attention; norm and MLP.

Slot `layer`. How a class of vLLM writes its layer is a row of `FORMS`. Each of the three parts can
be replaced by itself; what is not, what has more tokens than a kernel takes, and what is no
decoding runs as vLLM has it. A compiled model sees each part as one opaque operator, so that side a
would lose what torch.compile fuses there: such sides are compared with two engines.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from spark_prof.kernels.candidate import (
    AttentionLayer,
    NormedExpertsLayer,
    NormedLinearLayer,
    NormedMlpLayer,
)
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.guard import NOT_TAKEN, GuardedReplacement
from spark_prof.swaps.live_weights import check_layout, read_experts, read_linear, read_norm
from spark_prof.swaps.swap_settings import SIDES, plain_side
from spark_prof.swaps.tensor_parallel import all_reduced

Choices = Mapping[str, GuardedReplacement]


class Form(NamedTuple):
    """Attributes of a decoder layer's modules in which classes differ."""

    attention: str  # the module of qkv_proj, rotary_emb, attn and o_proj
    gate: str = ""  # the router's matrix, of `mlp`; empty where there are no experts


FORMS: Mapping[str, Form] = {
    "TransformerBlock": Form("attn", "router"),  # gpt-oss
    "Qwen3MoeDecoderLayer": Form("self_attn", "gate"),
    "LlamaDecoderLayer": Form("self_attn"),
    "Qwen2DecoderLayer": Form("self_attn"),
    "Qwen3DecoderLayer": Form("self_attn"),
}
"""By the class of a decoder layer, with input_layernorm, post_attention_layernorm and mlp, too."""

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

    first_norm: Any
    attention: Any
    second_norm: Any
    mlp: Any
    gate: Any  # None where there are no experts

    @classmethod
    def of(cls, layer: Any) -> LayerModules | None:
        """Those of a layer of a class in `FORMS` that has experts or a known MLP, else None."""
        form = FORMS.get(type(layer).__name__)
        if form is None or not _ARGUMENTS.issuperset(_arguments_of(layer)):
            return None
        mlp = getattr(layer, "mlp", None)
        has_experts = hasattr(getattr(mlp, "experts", None), "routed_experts")
        if not has_experts and type(mlp).__name__ not in _MLPS:
            return None
        return cls(
            layer.input_layernorm,
            getattr(layer, form.attention),
            layer.post_attention_layernorm,
            mlp,
            getattr(mlp, form.gate) if has_experts else None,
        )

    @property
    def owners(self) -> Mapping[Part, Any]:
        """The layer's parts in their order, each with the module that its kernels count to."""
        attention, mlp = self.attention, self.mlp
        last: dict[Part, Any] = (
            {"normed mlp": mlp} if self.gate is None else {"normed experts": mlp.experts}
        )
        return {"normed matrix": attention.qkv_proj, "attention": attention.attn, **last}

    @property
    def shared(self) -> bool:
        """Whether its experts or its MLP are spread over ranks, which add their shares up.

        vLLM's own do so in their `forward`, as o_proj does.
        """
        if self.gate is None:
            return int(self.mlp.down_proj.tp_size) > 1
        return int(self.mlp.experts.moe_config.tp_size) > 1


def _arguments_of(layer: Any) -> list[str]:
    """The names of what a layer's `forward` takes, in order."""
    return list(inspect.signature(type(layer).forward).parameters)[1:]


def parts_of(name: str, layer: Any) -> Iterator[tuple[Part, str]]:
    """Each part of a decoder layer, and the path of the module that its kernels count to."""
    modules = LayerModules.of(layer)
    assert modules is not None
    form = FORMS[type(layer).__name__]
    last = "mlp" if modules.gate is None else "mlp.experts"
    paths = (f"{form.attention}.qkv_proj", f"{form.attention}.attn", last)
    yield from zip(modules.owners, (f"{name}.{path}" for path in paths), strict=True)


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
        norm = read_norm(name, modules.first_norm)
        return NormedLinearLayer(name, norm, read_linear(name, modules.attention.qkv_proj, "qkv"))
    if part == "normed mlp":
        return _read_mlp(name, modules)
    runner = modules.mlp.experts
    if getattr(modules.mlp, "is_sequence_parallel", False):
        raise KernelError("its tokens are spread over ranks (sequence parallel)")
    if getattr(runner.moe_config, "skip_final_all_reduce", False):
        raise KernelError("its model adds up itself what ranks return")
    if getattr(modules.mlp, "shared_expert", None) is not None:
        raise KernelError("it has a shared expert")
    bias = modules.gate.bias
    return NormedExpertsLayer(
        name,
        read_norm(name, modules.second_norm),
        read_linear(name, modules.gate, "router"),
        None if bias is None else bias.detach(),
        read_experts(name, runner),
    )


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


class SwappablePart(ABC):
    """One part of a layer: the replacement of the active side, or what vLLM has."""

    def __init__(self, modules: LayerModules, choices: Choices, opaque: bool = True) -> None:
        self.modules = modules
        self.choices = choices
        self.opaque = opaque  # whether a compiler sees nothing of what it does

    @abstractmethod
    def stock(self, *arguments: Any) -> Any:
        """What vLLM's modules make of the arguments, none of which is written to."""

    def arguments(self, *inputs: Any) -> tuple[Any, ...] | None:
        """What the replacement gets; None where vLLM's own has to run."""
        return inputs

    def call(self, x: torch.Tensor, *further: Any) -> Any:
        """The part's result on the active side."""
        guarded = self.choices.get(plain_side(SIDES.active))
        if guarded is not None and x.ndim == 2 and guarded.takes(len(x)):
            arguments = self.arguments(x.contiguous(), *further)
            if arguments is not None:
                result = self.run(guarded, *arguments)
                if result is not NOT_TAKEN:
                    return self.completed(result)
        return self.stock(x, *further)

    def completed(self, result: Any) -> Any:
        """The part's result, of what the replacement has computed on this rank."""
        return result

    def run(self, guarded: GuardedReplacement, *arguments: Any) -> Any:
        """The replacement's result; a method, so that the recorder can mark its calls."""
        return guarded.run(SIDES.active, *arguments)


def _normed(
    norm: Any, x: torch.Tensor, residual: torch.Tensor | None, opaque: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What vLLM's norm makes of copies, which it may write to: the normed rows, and the sum.

    Where no compiler sees it by a kernel that is written by hand: in a compiled model vLLM leaves
    what a norm runs to the compiler since 0.26, and else that is a kernel for each operation.
    """
    if not (opaque and norm.weight.is_cuda and type(norm).__name__ == "RMSNorm"):
        if residual is None:
            return norm(x.clone()), x.clone()
        y, total = norm(x.clone(), residual.clone())
        return y, total
    from vllm import _custom_ops as vllm_kernels

    weight, epsilon = norm.weight, norm.variance_epsilon
    if residual is None:
        y = torch.empty_like(x)
        vllm_kernels.rms_norm(y, x, weight, epsilon)
        return y, x.clone()
    y, total = x.clone(), residual.clone()
    vllm_kernels.fused_add_rms_norm(y, total, weight, epsilon)
    return y, total


class NormedMatrix(SwappablePart):
    """The norm of the residual stream, and qkv."""

    def stock(self, x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        """As vLLM has it."""
        y, total = _normed(self.modules.first_norm, x, residual, self.opaque)
        return product_of(self.modules.attention.qkv_proj(y)), total

    def arguments(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[Any, ...]:
        """With the matrix's bias, which may be none."""
        bias = getattr(self.modules.attention.qkv_proj, "bias", None)
        return x, None if residual is None else residual.contiguous(), bias


class AttentionPart(SwappablePart):
    """From qkv on: norms of heads, rotation, KV cache, attention."""

    def stock(self, qkv: torch.Tensor, positions: torch.Tensor) -> Any:
        """As vLLM has it."""
        module = self.modules.attention
        widths = (module.q_size, module.kv_size, module.kv_size)
        q, k, v = (part.contiguous() for part in qkv.split(widths, dim=-1))
        for which in ("q_norm", "k_norm"):
            norm = getattr(module, which, None)
            if norm is not None:
                rows = q if which == "q_norm" else k
                heads = rows.view(-1, module.head_dim)
                normed = _normed(norm, heads, None, self.opaque)[0].view(rows.shape)
                q, k = (normed, k) if which == "q_norm" else (q, normed)
        q, k = module.rotary_emb(positions, q, k)
        return module.attn(q, k, v)

    def arguments(self, qkv: torch.Tensor, positions: torch.Tensor) -> tuple[Any, ...] | None:
        """With the KV cache and where it is read and written, where all requests are alike.

        That is a step that decodes, or one that verifies as many drafts of each.
        """
        from vllm.distributed.kv_transfer.kv_transfer_state import has_kv_transfer_group
        from vllm.model_executor.layers.attention.attention import get_attention_context

        if has_kv_transfer_group():  # which waits for each layer's cache, and sends it, there
            return None
        name = self.modules.attention.attn.layer_name
        metadata, _, cache, slots = get_attention_context(name)
        tokens = len(qkv)
        if metadata is None or slots is None or positions.ndim != 1 or cache.dim() != 4:
            return None
        width = int(metadata.max_query_len)
        if metadata.causal is not True or not self._takes(width, tokens, metadata):
            return None
        if getattr(metadata, "use_cascade", False):  # until 0.31
            return None
        blocks, lengths = metadata.block_table, metadata.seq_lens
        requests = tokens // width
        if min(len(blocks), len(lengths)) < requests or len(slots) < tokens:
            return None
        keys, values = cache.transpose(1, 2).chunk(2, dim=-1)
        return (
            *(qkv, positions[:tokens], keys, values),
            *(blocks[:requests], lengths[:requests], slots[:tokens]),
        )

    def _takes(self, width: int, tokens: int, metadata: Any) -> bool:
        """Whether the kernel is for steps of that many new tokens a request, and all have as many.

        They do where as many requests as there are lengths have no more, and together all tokens.
        """
        if width == 1:
            return True
        guarded = self.choices.get(plain_side(SIDES.active))
        if guarded is None or guarded.replacement is None or width > guarded.replacement.width:
            return False
        same = tokens == getattr(metadata, "num_actual_tokens", 0) == width * len(metadata.seq_lens)
        return same and width > 0


class NormedMlp(SwappablePart):
    """The norm of the residual stream, and router and experts or a dense MLP."""

    def stock(self, x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        """As vLLM has it."""
        y, total = _normed(self.modules.second_norm, x, residual, self.opaque)
        return self.modules.mlp(y), total

    def arguments(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[Any, ...]:
        """Both contiguous."""
        return x, None if residual is None else residual.contiguous()

    def completed(self, result: Any) -> Any:
        """With the shares of the other ranks, as vLLM's own `forward` returns it."""
        if not self.modules.shared:
            return result
        share, total = result
        return all_reduced(share), total


_KINDS: Mapping[Part, type[SwappablePart]] = dict(
    zip(PARTS, (NormedMatrix, AttentionPart, NormedMlp, NormedMlp), strict=True)
)


def part_body(layer: Any, part: Part, choices: Choices) -> SwappablePart:
    """What computes a part of a decoder layer."""
    modules = LayerModules.of(layer)
    assert modules is not None
    return _KINDS[part](modules, choices)


def swap_layer(layer: Any, bodies: Mapping[Part, SwappablePart], compiled: bool) -> None:
    """Lets the parts of a decoder layer choose."""
    modules = LayerModules.of(layer)
    assert modules is not None
    calls: dict[Part, Callable[..., Any]] = {}
    for part, owner in modules.owners.items():
        body = bodies.get(part)
        if body is None:
            calls[part] = _KINDS[part](modules, {}, opaque=False).stock
            continue
        owner.spark_prof_body = body  # for the recorder
        calls[part] = _operator(layer, part, body) if compiled else body.call
    matrix, attention, mlp = calls.values()
    o_proj = modules.attention.o_proj
    names = _arguments_of(layer)

    def forward(*arguments: Any, **named: Any) -> Any:
        inputs = dict(zip(names, arguments, strict=False)) | named
        qkv, residual = matrix(inputs["hidden_states"], inputs["residual"])
        attended = attention(qkv, inputs["positions"])
        return mlp(product_of(o_proj(attended)), residual)

    layer.forward, layer.spark_prof_parts = forward, calls


_BODIES: dict[int, SwappablePart] = {}


def _operator(layer: Any, part: Part, body: SwappablePart) -> Callable[..., Any]:
    """A part as a compiled model calls it: by a tensor of the layer's own, see `layer_dispatch`."""
    device = next(layer.parameters()).device
    key = torch.zeros(16, dtype=torch.uint8, device=device)
    buffer = f"spark_prof_{part.replace(' ', '_')}"
    layer.register_buffer(buffer, key, persistent=False)
    _BODIES[key.data_ptr()] = body
    operators = torch.ops.spark_prof
    attention = body.modules.attention
    if part == "normed matrix":
        rows = int(attention.q_size + 2 * attention.kv_size)
        return lambda x, residual: operators.normed_matrix(
            x, residual, getattr(layer, buffer), rows
        )
    if part == "attention":
        width = int(attention.q_size)
        return lambda qkv, positions: operators.attention(
            qkv, positions, getattr(layer, buffer), width
        )
    return lambda x, residual: operators.normed_mlp(x, residual, getattr(layer, buffer))


SPLITTING = "spark_prof::attention"
"""What vLLM has to keep out of the CUDA graphs of parts of a model, as its own attention."""

OPERATORS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    (
        "normed_matrix(Tensor x, Tensor? residual, Tensor key, int rows) -> (Tensor, Tensor)",
        lambda x, residual, key, _: _BODIES[key.data_ptr()].call(x, residual),
        lambda x, _residual, _key, rows: (x.new_empty((x.shape[0], rows)), torch.empty_like(x)),
    ),
    (
        "attention(Tensor qkv, Tensor positions, Tensor key, int width) -> Tensor",
        lambda qkv, positions, key, _: _BODIES[key.data_ptr()].call(qkv, positions),
        lambda qkv, _positions, _key, width: qkv.new_empty((qkv.shape[0], width)),
    ),
    (
        "normed_mlp(Tensor x, Tensor? residual, Tensor key) -> (Tensor, Tensor)",
        lambda x, residual, key: _BODIES[key.data_ptr()].call(x, residual),
        lambda x, _residual, _key: (torch.empty_like(x), torch.empty_like(x)),
    ),
)
"""Schemas, bodies, and what tracing sees; `layer_dispatch.register_ops` registers them."""


def product_of(result: Any) -> Any:
    """A linear layer's product: some return it with their bias."""
    return result[0] if isinstance(result, tuple) else result
