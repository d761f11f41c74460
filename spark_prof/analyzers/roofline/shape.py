"""The few numbers of a model that say what its layers move, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_prof.analyzers.ceilings.config import Config, architecture_of, layer_kinds
from spark_prof.analyzers.lookup import mapping_in

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2}
_MOST_RANKS = 1 << 16


@dataclass(frozen=True)
class Shape:
    """Numbers of a model as one rank has it; 0 where the configuration does not tell."""

    hidden: int = 0  # width of the residual stream
    heads: int = 0  # query heads of this rank
    kv_heads: int = 0  # key and value heads of this rank; each rank has at least one
    head_dim: int = 0  # elements of a head
    latent: int = 0  # elements that multi-head latent attention keeps a token, in place of heads
    state_bytes: float = 0.0  # of the recurrent state of a sequence in one layer, on this rank
    experts: int = 0  # routed experts of all ranks
    chosen: int = 0  # how many of them each token is sent to
    # Ranks among which whole experts are dealt out; 1 where each has a part of all.
    expert_ranks: int = 1
    windows: tuple[int, ...] = ()  # by layer, the tokens that its attention looks back; 0 for all
    activation_bytes: int = 2  # of one element between two kernels
    kv_bytes: int = 2  # of one element of the KV cache
    tied: bool = False  # whether lm_head is the embedding

    @property
    def kv_elements(self) -> int:
        """What one layer keeps of one token on this rank, in elements."""
        return self.latent or 2 * self.kv_heads * self.head_dim

    def window(self, layer: int) -> int:
        """Tokens that the attention of that layer looks back, 0 for all."""
        return self.windows[layer] if 0 <= layer < len(self.windows) else 0

    @property
    def experts_here(self) -> int:
        """Routed experts that each rank has at least."""
        return max(self.experts // self.expert_ranks, 1)

    @property
    def surely_chosen(self) -> int:
        """Experts of this rank that a token is sent to, whatever the router chooses."""
        return max(self.chosen - (self.experts - self.experts_here), 0)


def shape_of(facts: Mapping[str, Any]) -> Shape:
    """Reads the shape of a recorded model.

    Args:
        facts: of a rank: model_config as Hugging Face writes it, engine_config, dtype, parallel.
    """
    config = mapping_in(facts, "model_config")
    read = Config.of(config)
    ranks = _ranks(facts, "tensor")
    engine = mapping_in(mapping_in(facts, "engine_config"), "parallel_config")
    dealt_out = engine.get("enable_expert_parallel") is True
    dtype = str(facts.get("dtype") or read.text("dtype", "torch_dtype"))
    activation = _BYTES.get(dtype.removeprefix("torch."), 2)
    rank = read.whole("kv_lora_rank")
    recurrent = [s for s in architecture_of(config).states if s.kind == "recurrent"]
    return Shape(
        hidden=read.hidden,
        heads=max(read.heads // ranks, min(read.heads, 1)),
        kv_heads=max(read.kv_heads // ranks, min(read.kv_heads, 1)),
        head_dim=read.head_dim,
        latent=rank + read.whole("qk_rope_head_dim") if rank else 0,
        state_bytes=max(
            (s.elements * (s.bytes_per_element or activation) / ranks for s in recurrent),
            default=0.0,
        ),
        experts=read.experts,
        chosen=read.experts_per_token,
        expert_ranks=ranks * _ranks(facts, "data") if dealt_out else 1,
        windows=tuple(read.window if kind == "window" else 0 for kind in layer_kinds(read)),
        activation_bytes=activation,
        kv_bytes=_kv_bytes(facts, activation),
        tied=read.flag("tie_word_embeddings"),
    )


def _ranks(facts: Mapping[str, Any], kind: str) -> int:
    ranks = mapping_in(facts, "parallel").get(kind)
    return ranks if isinstance(ranks, int) and 0 < ranks < _MOST_RANKS else 1


def _kv_bytes(facts: Mapping[str, Any], activation: int) -> int:
    dtype = str(
        mapping_in(mapping_in(facts, "engine_config"), "cache_config").get("cache_dtype") or ""
    )
    if dtype.startswith(("fp8", "int8")):
        return 1
    return _BYTES.get(dtype, activation)
