"""What one piece of work has to move and to calculate, for a step of a given size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_prof.analyzers.ceilings.ceiling_rows import SequenceState
from spark_prof.analyzers.ceilings.config import Config, architecture_of, layer_kinds
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.roofline.weight_bytes import Weights

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2}


@dataclass(frozen=True)
class ModelShape:
    """Numbers of a model as one rank has it; 0 where the configuration does not tell."""

    hidden: int = 0  # width of the residual stream
    heads: int = 0  # query heads of this rank
    kv_heads: int = 0  # key and value heads of this rank; each rank has at least one
    head_dim: int = 0  # elements of a head
    kv_elements: int = 0  # what one layer keeps of one token on this rank
    pair_operations: float = 0.0  # of one layer on this rank, for a token and one that it sees
    state_bytes: float = 0.0  # of the recurrent state of a sequence in one layer, on this rank
    experts: int = 0  # routed experts of all ranks
    chosen: int = 0  # how many of them each token is sent to
    expert_ranks: int = 1  # among which whole experts are dealt out; 1 if each has a part of all
    windows: tuple[int, ...] = ()  # by layer, the tokens that its attention looks back; 0 for all
    activation_bytes: int = 2  # of one element between two kernels
    kv_bytes: int = 2  # of one element of the KV cache
    tied: bool = False  # whether lm_head is the embedding

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


def shape_of(facts: Mapping[str, Any]) -> ModelShape:
    """The shape of a recorded model, from the facts of a rank."""
    read = Config(mapping_in(facts, "model_config"))
    ranks = ranks_of(facts, "tensor")
    engine = mapping_in(facts, "engine_config")
    dealt_out = mapping_in(engine, "parallel_config").get("enable_expert_parallel") is True
    cache = str(mapping_in(engine, "cache_config").get("cache_dtype") or "")
    dtype = str(facts.get("dtype") or read.text("dtype", "torch_dtype"))
    activation = _BYTES.get(dtype.removeprefix("torch."), 2)
    states = architecture_of(read).states
    recurrent = [s for s in states if s.kind == "recurrent"]
    cached = next((s for s in states if s.kind != "recurrent"), SequenceState(0, "kv", 0))
    sparse = cached.window if cached.kind == "latent" else 0
    heads = max(read.heads // ranks, min(read.heads, 1))
    kv_heads = max(read.kv_heads // ranks, min(read.kv_heads, 1))
    return ModelShape(
        hidden=read.hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=read.head_dim,
        kv_elements=cached.elements * kv_heads // cached.heads if cached.heads else cached.elements,
        pair_operations=cached.operations * heads / max(read.heads, 1),
        state_bytes=max(
            (s.elements * (s.bytes_per_element or activation) / ranks for s in recurrent),
            default=0.0,
        ),
        experts=read.experts,
        chosen=read.experts_per_token,
        expert_ranks=ranks * ranks_of(facts, "data") if dealt_out else 1,
        windows=tuple(read.window if kind == "window" else sparse for kind in layer_kinds(read)),
        activation_bytes=activation,
        kv_bytes=1 if cache.startswith(("fp8", "int8")) else _BYTES.get(cache, activation),
        tied=read.flag("tie_word_embeddings"),
    )


def ranks_of(facts: Mapping[str, Any], kind: str) -> int:
    """How many ranks share a model out in that way: tensor or data."""
    return int(mapping_in(facts, "parallel").get(kind) or 1)


_LOGIT_BYTES = 4  # vLLM samples from logits in float32


@dataclass(frozen=True)
class StepLoad:
    """What a step works on; means where several steps are alike."""

    tokens: float  # tokens that go through the layers, drafts included
    requests: float  # sequences that they belong to
    sampled: float  # tokens whose logits are computed
    context: float  # tokens in the KV cache before the step, of one request


@dataclass(frozen=True)
class Need:
    """What a piece of work moves and calculates in one step at the least."""

    streamed: float  # bytes of weights and KV cache that it reads
    other: float  # bytes of activations, and what it writes
    operations: float  # a multiply-add counts as two
    part: str = ""  # which of the weights, such as "4 of 32 experts"; empty for all
    expected: bool = False  # whether it may be more, as nobody recorded what the router chose


@dataclass(frozen=True)
class LayerWork:
    """One piece of work in one layer of a step."""

    component: str  # of the kernels that do it
    layer: int  # its decoder layer, -1 for none
    # Product, attention, kv_write, state (recurrent, read and written), small (weights that are no
    # factor) or elementwise (activations).
    kind: str
    name: str  # in a report
    need: Need
    weights: Weights | None = None  # what it reads of the model, None for nothing


def reading(weights: Weights, load: StepLoad, shape: ModelShape) -> LayerWork:
    """The work that reads those weights."""
    component, layer = weights.component, weights.layer
    rows = load.sampled if component == "lm_head" else load.tokens
    share, part, expected = _part(weights, rows, shape)
    size, elements = weights.bytes * share, float(weights.elements)
    if not elements:
        name = weights.name if weights.among_experts else "small weights"
        return LayerWork(component, layer, "small", name, Need(size, 0, 0, part, expected), weights)
    if part:
        # Each token is multiplied with its own experts, however many others there are.
        elements /= shape.experts_here
        rows *= shape.surely_chosen
    # A factor has the hidden size on one side: whichever it is, the other is the rest.
    other = elements / shape.hidden if shape.hidden else 0.0
    moved = rows * (shape.hidden + other) * shape.activation_bytes
    if component == "lm_head":
        moved = rows * (shape.hidden * shape.activation_bytes + other * _LOGIT_BYTES)
    need = Need(size, moved, 2.0 * rows * elements, part, expected)
    return LayerWork(component, layer, "product", weights.name, need, weights)


def _part(weights: Weights, tokens: float, shape: ModelShape) -> tuple[float, str, bool]:
    """Which share of the weights so many tokens surely need, in words, and whether it may be more.

    Each token takes different experts, but all tokens may take the same.
    """
    if not (weights.among_experts and shape.experts and shape.chosen):
        return 1.0, "", False
    may_be_more = tokens != 1 or shape.experts_here < shape.experts
    some = f"{shape.surely_chosen} of {shape.experts_here} experts"
    share = shape.surely_chosen / shape.experts_here
    return share, f"at least {some}" if may_be_more else some, may_be_more


def attention(layer: int, load: StepLoad, shape: ModelShape) -> tuple[LayerWork, LayerWork]:
    """Attention in that layer, and the KV cache's write before it."""
    window = shape.window(layer)
    name = f"KV cache, {window} tokens at most" if window else "KV cache"
    requests = max(load.requests, 1e-9)
    new = load.tokens / requests
    # A window counts the token itself.
    before = min(load.context, window - 1) if window else load.context
    read = requests * (before + new) * shape.kv_elements * shape.kv_bytes
    # A token sees what was there, and of the new ones itself and those before it.
    pairs = load.tokens * (before + (min(new, window) if window else new) / 2 + 0.5)
    queries = 2 * load.tokens * shape.heads * shape.head_dim * shape.activation_bytes
    # Read once as keys and values, written once in the cache's format.
    write_bytes = load.tokens * shape.kv_elements * (shape.activation_bytes + shape.kv_bytes)
    need = Need(read, queries, pairs * shape.pair_operations)
    return (
        LayerWork("attention", layer, "attention", name, need),
        LayerWork("kv_write", layer, "kv_write", "KV cache, written", Need(0, write_bytes, 0)),
    )


def state(layer: int, load: StepLoad, shape: ModelShape) -> LayerWork:
    """The recurrent state of a layer that keeps one in place of a KV cache."""
    moved = load.requests * shape.state_bytes
    return LayerWork("ssm", layer, "state", "recurrent state", Need(moved, moved, 0))


def elementwise(
    component: str, layer: int, load: StepLoad, shape: ModelShape, norms: int = 1
) -> LayerWork | None:
    """The small kernels of a component in that layer, -1 for none, with so many norms in it."""
    widths = {
        # A sum with the residual stream, which is read and written as well.
        "norm": 2 * norms * shape.hidden,
        "rope": (shape.heads + shape.kv_heads) * shape.head_dim,
        "embedding": shape.hidden,
    }
    moved = 2 * load.tokens * widths.get(component, 0) * shape.activation_bytes
    need = Need(0, moved, 0)
    return LayerWork(component, layer, "elementwise", "activations", need) if moved else None
