"""A small transformer with bfloat16 rounding wherever vLLM rounds, whose sums have an order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

VOCABULARY = 2048
HIDDEN = 128
HEADS = 4
INNER = 128
TOP_K = 4

Layer = dict[str, torch.Tensor]
Change = Callable[[Layer], Layer]


def rounded(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).to(torch.float32)


@dataclass(frozen=True)
class Order:
    """In which order a sum's parts are added: how many parts, of columns in which order."""

    parts: int = 1
    seed: int | None = None

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        columns = weight.shape[1]
        order = torch.arange(columns)
        if self.seed is not None:
            order = torch.randperm(columns, generator=torch.Generator().manual_seed(self.seed))
        return sum(
            (x[:, some] @ weight[:, some].T for some in order.chunk(self.parts)),
            torch.zeros(len(x), len(weight)),
        )


STOCK = Order()
OTHER = Order(parts=4, seed=3)


@dataclass(frozen=True)
class Model:
    """Random weights; activations keep their size."""

    embedding: torch.Tensor  # [V, H]
    head: torch.Tensor  # [V, H]
    layers: tuple[Layer, ...]  # matrices; those of experts have one dimension more

    def changed(self, change: Change, only: int | None = None) -> Model:
        """The model with something wrong, in all layers or one of them."""
        layers = [
            change(dict(layer)) if only in (None, number) else layer
            for number, layer in enumerate(self.layers)
        ]
        return replace(self, layers=tuple(layers))

    def disturbed(self) -> Model:
        """With embeddings as `swaps.disturb` leaves them."""
        table = self.embedding.to(torch.bfloat16)
        table.view(torch.int16).view(-1)[::17].bitwise_xor_(1)
        return replace(self, embedding=table.to(torch.float32))

    def logits(self, tokens: torch.Tensor, order: Order = STOCK) -> torch.Tensor:
        """Of each position, [T, V]."""
        x = self.embedding[tokens]
        for layer in self.layers:
            x = rounded(x + attention(layer, norm(x), order))
            x = rounded(x + block(layer, norm(x), order))
        return rounded(order.product(norm(x), self.head))


def make_model(layers: int, experts: int = 0, seed: int = 0) -> Model:
    random = torch.Generator().manual_seed(seed)

    def matrix(*shape: int, spread: float = 1.0) -> torch.Tensor:
        values = torch.randn(*shape, generator=random)
        return rounded(values * spread / math.sqrt(shape[-1]))

    def layer() -> Layer:
        found = {
            "qkv": matrix(3 * HIDDEN, HIDDEN),
            "o": matrix(HIDDEN, HIDDEN),
            "o_bias": rounded(0.3 * torch.randn(HIDDEN, generator=random)),
        }
        outer = (experts,) if experts else ()
        found["gate_up"] = matrix(*outer, 2 * INNER, HIDDEN)
        found["down"] = matrix(*outer, HIDDEN, INNER, spread=2.0)
        if experts:
            found["router"] = matrix(experts, HIDDEN)
        return found

    embedding = rounded(torch.randn(VOCABULARY, HIDDEN, generator=random))
    head = matrix(VOCABULARY, HIDDEN)
    return Model(embedding, head, tuple(layer() for _ in range(layers)))


def norm(x: torch.Tensor) -> torch.Tensor:
    return rounded(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))


def attention(layer: Layer, x: torch.Tensor, order: Order) -> torch.Tensor:
    tokens = len(x)
    qkv = rounded(order.product(x, layer["qkv"])).view(tokens, 3, HEADS, -1)
    q, k, v = qkv.permute(1, 2, 0, 3)
    mask = torch.full((tokens, tokens), -math.inf).triu(1)
    shares = rounded(torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + mask, -1))
    mixed = rounded(shares @ v).permute(1, 0, 2).reshape(tokens, -1)
    return rounded(order.product(mixed, layer["o"]) + layer["o_bias"])


def block(layer: Layer, x: torch.Tensor, order: Order) -> torch.Tensor:
    """The mlp, or the experts."""
    if "router" not in layer:
        return feed(layer["gate_up"], layer["down"], x, order)
    scores = torch.softmax(rounded(order.product(x, layer["router"])), -1)
    weights, chosen = scores.topk(TOP_K)
    weights = weights / weights.sum(-1, keepdim=True)
    total = torch.zeros_like(x)
    for expert in range(len(layer["router"])):
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        if len(rows):
            found = feed(layer["gate_up"][expert], layer["down"][expert], x[rows], order)
            total[rows] += weights[rows, place, None] * found
    return rounded(total)


def feed(gate_up: torch.Tensor, down: torch.Tensor, x: torch.Tensor, order: Order) -> torch.Tensor:
    gate, up = rounded(order.product(x, gate_up)).chunk(2, -1)
    return rounded(order.product(rounded(torch.nn.functional.silu(gate) * up), down))


def doubled_scale(layer: Layer) -> Layer:
    return {**layer, "down": 2 * layer["down"]}


def doubled_output(layer: Layer) -> Layer:
    return {**layer, "o": 2 * layer["o"]}


def dropped_bias(layer: Layer) -> Layer:
    return {**layer, "o_bias": torch.zeros_like(layer["o_bias"])}


def swapped_experts(layer: Layer) -> Layer:
    """Two experts have changed places."""
    places = torch.arange(len(layer["down"]))
    places[[0, 1]] = places[[1, 0]]
    return {**layer, "gate_up": layer["gate_up"][places], "down": layer["down"][places]}
