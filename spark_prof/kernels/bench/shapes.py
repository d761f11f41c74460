"""The layers that are timed: those of the models that small-batch decode is about.

From each model's config.json on Hugging Face. Weights are [rows, columns] as stored: rows are
outputs, columns inputs; what vLLM multiplies in one product (q, k and v; gate and up; the inputs of
a linear-attention layer) is one weight here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["dense", "moe"]
Slot = Literal["qkv", "o", "mlp", "router", "lm_head"]
WeightFormat = Literal["nvfp4", "mxfp4", "fp8", "bf16"]
FP4: tuple[WeightFormat, ...] = ("nvfp4", "mxfp4")

TOKENS = (1, 2, 4, 8, 16)
"""Rows of the activations."""


@dataclass(frozen=True)
class Layer:
    """A dense layer of a model."""

    model: str
    slot: Slot
    rows: int
    columns: int


@dataclass(frozen=True)
class DenseShape:
    """A weight's shape and the layers that have it."""

    rows: int
    columns: int
    layers: tuple[Layer, ...]

    @property
    def is_lm_head(self) -> bool:
        """Whether it is the last layer's."""
        return all(layer.slot == "lm_head" for layer in self.layers)

    @property
    def is_gate(self) -> bool:
        """Whether a model has it as a router without a bias."""
        return any(
            layer.slot == "router" and layer.model not in BIASED_ROUTERS for layer in self.layers
        )

    @property
    def slots(self) -> frozenset[Slot]:
        """The slots of the layers that have this shape."""
        return frozenset(layer.slot for layer in self.layers)

    @property
    def label(self) -> str:
        """The layers that have this shape: `gpt-oss-20b qkv, gpt-oss-120b qkv`."""
        return ", ".join(f"{layer.model} {layer.slot}" for layer in self.layers)


@dataclass(frozen=True)
class ExpertsShape:
    """The routed experts of a model, in the format that it is published in."""

    model: str
    format: Literal["nvfp4", "mxfp4", "bf16"]
    experts: int
    top_k: int
    hidden: int  # columns of gate and up, rows of down
    intermediate: int  # rows of gate and of up, columns of down
    activation: Literal["silu", "swiglu"]  # silu, or gpt-oss's swiglu with its limit
    bias: bool


Piece = tuple[DenseShape | ExpertsShape, WeightFormat]
"""A piece of work, whatever the number of tokens."""


@dataclass(frozen=True)
class Recorded:
    """What a recorded run ran for a piece of work."""

    kernels: tuple[str, ...]  # in the order of their launches
    us: float  # what they took together, median over steps and layers
    calls: int  # steps times layers
    proven: bool  # whether it is known that they did this work, and not guessed by their order


_LAYERS = {
    "gpt-oss-20b": "qkv 5120x2880 o 2880x4096 lm_head 201088x2880",
    "gpt-oss-120b": "qkv 5120x2880 o 2880x4096 lm_head 201088x2880",
    "Qwen3-30B-A3B": "qkv 5120x2048 o 2048x4096 lm_head 151936x2048",
    # Every fourth layer has attention with a gate, the others are gated delta nets.
    "Qwen3-Next-80B-A3B": "qkv 9216x2048 qkv 12288x2048 o 2048x4096 mlp 1024x2048 mlp 2048x512 "
    "lm_head 151936x2048",
    "Llama-3.1-8B": "qkv 6144x4096 o 4096x4096 mlp 28672x4096 mlp 4096x14336 lm_head 128256x4096",
    "Qwen3-8B": "qkv 6144x4096 o 4096x4096 mlp 24576x4096 mlp 4096x12288 lm_head 151936x4096",
    # Its shared expert, then one routed expert: they have no gate.
    "Nemotron-3-Nano-30B-A3B": "qkv 4608x2688 o 2688x4096 mlp 3712x2688 mlp 2688x3712 "
    "mlp 1856x2688 mlp 2688x1856 lm_head 131072x2688",
    "Qwen3-VL-235B-A22B": "qkv 9216x4096 o 4096x8192 lm_head 151936x4096",
    # Latent attention: q, then keys and values into the latent space. Its first layer has no
    # experts.
    "DeepSeek-V2-Lite": "qkv 3072x2048 qkv 576x2048 o 2048x2048 mlp 21888x2048 mlp 2048x10944 "
    "mlp 5632x2048 mlp 2048x2816 lm_head 102400x2048",
}
BIASED_ROUTERS = frozenset({"gpt-oss-20b", "gpt-oss-120b"})
"""Models whose router adds a bias, for which vLLM has no kernel of its own."""

_ROUTERS = {
    "gpt-oss-20b": "router 32x2880",
    "gpt-oss-120b": "router 128x2880",
    "Qwen3-30B-A3B": "router 128x2048",
    "Qwen3-Next-80B-A3B": "router 512x2048",
    "DeepSeek-V2-Lite": "router 64x2048",
}


def _layers(table: Mapping[str, str]) -> tuple[Layer, ...]:
    """The layers of a table of slots and shapes, rows x columns, by model."""
    return tuple(
        Layer(model, slot, int(rows), int(columns))
        for model, text in table.items()
        for slot, rows, columns in re.findall(r"(\w+) (\d+)x(\d+)", text)
    )


LAYERS = _layers(_LAYERS)
ROUTERS = _layers(_ROUTERS)
"""What the router's logits are made with. No model has them in fewer bits than BF16."""

EXPERTS = (
    ExpertsShape("gpt-oss-20b", "mxfp4", 32, 4, 2880, 2880, "swiglu", True),
    ExpertsShape("gpt-oss-120b", "mxfp4", 128, 4, 2880, 2880, "swiglu", True),
    ExpertsShape("Qwen3-30B-A3B", "nvfp4", 128, 8, 2048, 768, "silu", False),
    ExpertsShape("Qwen3-Next-80B-A3B", "nvfp4", 512, 10, 2048, 512, "silu", False),
    ExpertsShape("DeepSeek-V2-Lite", "bf16", 64, 6, 2048, 1408, "silu", False),
)


def dense_work(
    models: Sequence[str], formats: Iterable[WeightFormat], layers: Iterable[Layer] | None = None
) -> list[tuple[DenseShape, WeightFormat]]:
    """Every shape once in each of these formats, small ones first; routers in BF16 only."""
    layers_by_shape: dict[tuple[WeightFormat, int, int], list[Layer]] = {}
    for form in formats:
        for layer in layers or ((*LAYERS, *ROUTERS) if form == "bf16" else LAYERS):
            if matches(layer.model, models):
                layers_by_shape.setdefault((form, layer.rows, layer.columns), []).append(layer)
    work = [
        (DenseShape(rows, columns, tuple(layers_of_shape)), form)
        for (form, rows, columns), layers_of_shape in layers_by_shape.items()
    ]
    return sorted(work, key=lambda pair: (pair[0].rows * pair[0].columns, pair[0].rows))


def chosen_experts(models: Sequence[str] = ()) -> list[ExpertsShape]:
    """The experts of models whose names hold one of these parts, of all if there is none."""
    return [shape for shape in EXPERTS if matches(shape.model, models)]


def matches(name: str, parts: Sequence[str]) -> bool:
    """Whether a name holds one of these parts, in any case; true if there is none."""
    return not parts or any(part.lower() in name.lower() for part in parts)
