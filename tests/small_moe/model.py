"""The small model of tests/data/small-moe in plain torch, with the arithmetic of Qwen3-MoE.

A token is a byte. Weights have Hugging Face's names in the checkpoint; here those of a layer's
experts are stacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

FOLDER = Path(__file__).resolve().parents[1] / "data" / "small-moe"
HELD_OUT = FOLDER / "held-out.txt"
WINDOW = 512
"""Bytes of a window of the held-out text; each byte but a window's first is predicted."""

LAYERS = 4
HIDDEN = 256
EXPERTS = 8
TOP_K = 2
INNER = 256
HEAD = 64
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "dtype": "bfloat16",
    "head_dim": HEAD,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": 1024,
    "mlp_only_layers": [],
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 256,
}


@dataclass
class Layer:
    """The weights of one layer."""

    input_norm: torch.Tensor  # [H]
    q: torch.Tensor  # [heads * head, H]
    k: torch.Tensor  # [KV heads * head, H]
    v: torch.Tensor  # as k
    o: torch.Tensor  # [H, heads * head]
    q_norm: torch.Tensor  # [head]
    k_norm: torch.Tensor  # [head]
    post_norm: torch.Tensor  # [H]
    router: torch.Tensor  # [E, H]
    gate_up: torch.Tensor  # [E, 2 I, H], gates first
    down: torch.Tensor  # [E, H, I]


_NAMES = {
    "input_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "post_norm": "post_attention_layernorm",
    "router": "mlp.gate",
}


Block = Callable[[Layer, torch.Tensor, torch.Tensor], torch.Tensor]
"""A layer's experts on [B, T, H] by their weights [B, T, E], which are 0 where not chosen."""


@dataclass
class Model:
    """All weights; `logits` computes in their type."""

    embedding: torch.Tensor  # [256, H]
    layers: list[Layer]
    norm: torch.Tensor  # [H]
    head: torch.Tensor  # [256, H]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every weight."""
        yield from (self.embedding, self.norm, self.head)
        for layer in self.layers:
            yield from (getattr(layer, field.name) for field in fields(layer))

    def to(self, dtype: torch.dtype) -> Model:
        """With weights, and so with activations, of another type."""
        layers = [
            Layer(**{field.name: getattr(layer, field.name).to(dtype) for field in fields(layer)})
            for layer in self.layers
        ]
        return Model(self.embedding.to(dtype), layers, self.norm.to(dtype), self.head.to(dtype))

    @torch.no_grad()
    def logits(self, tokens: torch.Tensor, block: Block | None = None) -> torch.Tensor:
        """Of each position of int64 [B, T]: [B, T, 256]."""
        return self.trained(tokens, 0.0, block or chosen_experts)[0]

    def trained(
        self, tokens: torch.Tensor, dropout: float, block: Block | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and how unevenly the experts are used: 1 a layer where all are alike.

        By default every expert computes every token, which is quicker than to sort eight of them.
        """
        turn = _rotation(tokens.shape[1], tokens.device)
        uneven = torch.zeros((), device=tokens.device)
        x = functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            found = attention(layer, norm(x, layer.input_norm), turn)
            x = x + functional.dropout(found, dropout, training=dropout > 0)
            inner = norm(x, layer.post_norm)
            shares, of_expert = route(layer, inner)
            found = (block or all_experts)(layer, inner, of_expert)
            x = x + functional.dropout(found, dropout, training=dropout > 0)
            used = (of_expert > 0).float().mean((0, 1)) / TOP_K
            uneven = uneven + EXPERTS * (used * shares.mean((0, 1))).sum()
        return functional.linear(norm(x, self.norm), self.head), uneven


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), CONFIG["rms_norm_eps"])


def attention(
    layer: Layer, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Of [B, T, H], each position on those before it."""

    def heads(weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weight).unflatten(-1, (-1, HEAD)).transpose(1, 2)

    v = heads(layer.v)
    q = _turned(norm(heads(layer.q), layer.q_norm), turn).to(v.dtype)
    k = _turned(norm(heads(layer.k), layer.k_norm), turn).to(v.dtype)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return functional.linear(mixed.transpose(1, 2).flatten(2), layer.o)


def _rotation(length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of rotary positions, [T, head / 2] each."""
    speeds = CONFIG["rope_theta"] ** (-torch.arange(0, HEAD, 2, device=device) / HEAD)
    angles = torch.arange(length, device=device)[:, None] * speeds
    return angles.cos(), angles.sin()


def _turned(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cosine, sine = turn
    left, right = x.chunk(2, -1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)


def route(layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each expert's share of [B, T, H], and the weights of the chosen ones, [B, T, E] both."""
    shares = functional.linear(x, layer.router).float().softmax(-1)
    weights, chosen = shares.topk(TOP_K)
    weights = weights / weights.sum(-1, keepdim=True)
    return shares, torch.zeros_like(shares).scatter(-1, chosen, weights)


def all_experts(layer: Layer, x: torch.Tensor, of_expert: torch.Tensor) -> torch.Tensor:
    """The block of experts, every one on every token."""
    both = functional.linear(x, layer.gate_up.flatten(0, 1)).unflatten(-1, (EXPERTS, 2, INNER))
    gate, up = both.unbind(-2)
    inner = functional.silu(gate) * up * of_expert[..., None].to(gate.dtype)
    return functional.linear(inner.flatten(-2), layer.down.transpose(0, 1).flatten(1))


def chosen_experts(layer: Layer, x: torch.Tensor, of_expert: torch.Tensor) -> torch.Tensor:
    """The block of experts, each on the tokens that chose it."""
    total = torch.zeros_like(x, dtype=torch.float32)
    for number in range(EXPERTS):
        weights = of_expert[..., number]
        rows = weights > 0
        gate, up = functional.linear(x[rows], layer.gate_up[number]).chunk(2, -1)
        found = functional.linear(functional.silu(gate) * up, layer.down[number])
        total[rows] += weights[rows][:, None] * found
    return total.to(x.dtype)


def new_model(seed: int, device: torch.device) -> Model:
    """Random weights to train, float32."""
    random = torch.Generator(device).manual_seed(seed)

    def matrix(*shape: int, spread: float = 1.0) -> torch.Tensor:
        values = torch.randn(*shape, generator=random, device=device)
        return values * spread / math.sqrt(shape[-1])

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, device=device)

    late = 1 / math.sqrt(2 * LAYERS)
    queries, keys = (CONFIG[f"num_{kind}_heads"] * HEAD for kind in ("attention", "key_value"))
    layers = [
        Layer(
            input_norm=ones(HIDDEN),
            q=matrix(queries, HIDDEN),
            k=matrix(keys, HIDDEN),
            v=matrix(keys, HIDDEN),
            o=matrix(HIDDEN, queries, spread=late),
            q_norm=ones(HEAD),
            k_norm=ones(HEAD),
            post_norm=ones(HIDDEN),
            router=matrix(EXPERTS, HIDDEN, spread=0.3),
            gate_up=matrix(EXPERTS, 2 * INNER, HIDDEN),
            down=matrix(EXPERTS, HIDDEN, INNER, spread=late),
        )
        for _ in range(LAYERS)
    ]
    size = CONFIG["vocab_size"]
    return Model(matrix(size, HIDDEN), layers, ones(HIDDEN), matrix(size, HIDDEN, spread=0.3))


def save(model: Model, path: Path) -> None:
    """Writes the weights in BF16, as Hugging Face names them."""
    named = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm,
        "lm_head.weight": model.head,
    }
    for number, layer in enumerate(model.layers):
        prefix = f"model.layers.{number}."
        for name, stored in _NAMES.items():
            named[f"{prefix}{stored}.weight"] = getattr(layer, name)
        for expert in range(EXPERTS):
            gate, up = layer.gate_up[expert].chunk(2)
            for name, value in (("gate", gate), ("up", up), ("down", layer.down[expert])):
                named[f"{prefix}mlp.experts.{expert}.{name}_proj.weight"] = value
    save_file(
        {
            name: value.detach().to("cpu", torch.bfloat16).contiguous()
            for name, value in named.items()
        },
        path,
        {"format": "pt"},
    )


def load(path: Path) -> Model:
    """Reads what `save` wrote, as float32."""
    return from_tensors({name: value.float() for name, value in load_file(path).items()})


def from_tensors(named: dict[str, torch.Tensor]) -> Model:
    """The model of a checkpoint's tensors."""

    def layer(number: int) -> Layer:
        prefix = f"model.layers.{number}."

        def stacked(*names: str) -> torch.Tensor:
            return torch.stack(
                [
                    torch.cat([named[f"{prefix}mlp.experts.{e}.{n}_proj.weight"] for n in names])
                    for e in range(EXPERTS)
                ]
            )

        own = {name: named[f"{prefix}{stored}.weight"] for name, stored in _NAMES.items()}
        return Layer(**own, gate_up=stacked("gate", "up"), down=stacked("down"))

    return Model(
        named["model.embed_tokens.weight"],
        [layer(number) for number in range(LAYERS)],
        named["model.norm.weight"],
        named["lm_head.weight"],
    )


def windows(text: bytes) -> torch.Tensor:
    """The windows of a text, int64 [N, WINDOW]; what is left at its end is dropped."""
    count = len(text) // WINDOW
    return (
        torch.frombuffer(bytearray(text), dtype=torch.uint8)[: count * WINDOW]
        .view(count, -1)
        .long()
    )


def bits_per_byte(model: Model, texts: torch.Tensor) -> float:
    """The mean loss on windows [N, WINDOW], in bits."""
    total = 0.0
    for some in texts.split(16):
        logits = model.logits(some[:, :-1]).float()
        total += functional.cross_entropy(
            logits.flatten(0, 1), some[:, 1:].flatten(), reduction="sum"
        ).item()
    return total / texts[:, 1:].numel() / math.log(2)
