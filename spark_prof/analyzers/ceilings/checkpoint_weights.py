"""Gathers a checkpoint's tensors by what they are for and in which format."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from spark_prof.analyzers.ceilings.ceiling_rows import FormatWeights, Module, WeightsOfModel
from spark_prof.analyzers.ceilings.config import Config, architecture_of
from spark_prof.analyzers.ceilings.derived import KNOWN_FAMILIES, derived_modules
from spark_prof.analyzers.ceilings.schemes import format_of, schemes_of
from spark_prof.rules.tensor_names import WeightUse, place_of, split_name
from spark_prof.traces.checkpoint import Checkpoint, Tensor

_MAIN = ("weight", "weight_packed", "qweight", "blocks")
_SCALES = ("weight_scale", "weight_scale_inv", "scale", "scales", "scale_inv")
_MATRICES = frozenset(
    {"qkv", "o_proj", "attention", "mlp", "experts", "shared_experts", "router", "ssm", "lm_head"}
)
_NARROWEST = 16
"""Fewer rows or columns make no matrix whose format is worth a choice, such as a convolution."""
_TOKENS = ("embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings", "embeddings")
"""Last names of an embedding that can be lm_head too; others are of positions or of layers."""

_HEAD, _EMBEDDING, _UNPLACED = WeightUse("lm_head"), WeightUse("embedding"), WeightUse("other")
_MOST_UNPLACED = 20

_Placed = tuple[Module, WeightUse]


@dataclass
class _Gathered:
    """What the tensors of one module add up to."""

    bytes: int = 0
    stored: int = 0
    dtype: str = ""
    part: str = ""
    shape: tuple[int, ...] = ()
    copies: int = 0
    scales: Counter[str] = field(default_factory=Counter)


def weights_of(checkpoint: Checkpoint) -> WeightsOfModel:
    """What a checkpoint's weights are for; derived from its configuration where none were seen."""
    read = Config(checkpoint.config)
    architecture = architecture_of(read)
    lost = list(checkpoint.lost)
    schemes = schemes_of(checkpoint.quantization)
    if checkpoint.tensors:
        modules = list(_modules(checkpoint.tensors, schemes.bits))
    else:
        modules = derived_modules(read, schemes)
        lost += [*schemes.lost, *_derived(read, modules)]
    placed = [(module, place_of(module.path, architecture.layers)) for module in modules]
    experts = [module.copies for module, place in placed if place.component == "experts"]
    if not architecture.experts:
        # To be seen, where the configuration does not say it.
        architecture = replace(architecture, experts=max(experts, default=0))
    notes = (
        (experts and not architecture.experts_per_token,
         "how many experts a token takes: all count as read"),
        (not architecture.states, "what the KV cache holds: context is not counted"),
        (not architecture.layers, "how many layers there are: all are taken to decode"),
    )  # fmt: skip
    lost += [f"The configuration does not say {unknown}." for missing, unknown in notes if missing]
    unplaced = [(m.path, int(m.bytes)) for m, place in placed if place == _UNPLACED]
    return WeightsOfModel(
        architecture,
        tuple(_summed(placed, read)),
        seen=bool(checkpoint.tensors),
        unplaced=tuple(sorted(unplaced, key=lambda named: -named[1])[:_MOST_UNPLACED]),
        lost=tuple(lost),
    )


def _modules(tensors: Iterable[Tensor], bits: int) -> Iterable[Module]:
    """The modules whose tensors these are; the experts of a layer are one of them."""
    gathered: dict[str, _Gathered] = defaultdict(_Gathered)
    for tensor in tensors:
        path, part = split_name(tensor.name)
        module = gathered[path]
        module.bytes += tensor.bytes
        elements = math.prod(tensor.shape)
        if part in _MAIN:
            module.stored += elements
            module.dtype, module.part, module.shape = tensor.dtype, part, tensor.shape
            module.copies += 1
        elif part in _SCALES:
            module.scales[tensor.dtype] += elements
        elif part.endswith("absmax"):
            module.scales["absmax"] = elements
    for path, module in gathered.items():
        name, parameters = format_of(module.dtype, module.part, module.stored, module.scales, bits)
        sizes = sorted(module.shape)[-2:]
        # bitsandbytes stores a matrix as one column.
        narrow = name != "nf4" and (len(sizes) < 2 or sizes[0] < _NARROWEST)
        stacked = module.shape[0] if len(module.shape) > 2 else 1
        yield Module(path, parameters, module.bytes, name, not narrow, max(module.copies, stacked))


def _summed(placed: Sequence[_Placed], read: Config) -> list[FormatWeights]:
    """The modules of one component, format and role together, the largest first."""
    tied = _tied_head(placed, read)
    groups: dict[tuple[str, str, str, bool], list[Module]] = defaultdict(list)
    for module, its_own in placed:
        place = _HEAD if module is tied else its_own
        matrix = module.matrix and place.component in _MATRICES
        groups[place.component, module.format, place.role, matrix].append(module)
    sums = [
        FormatWeights(
            component, form, role,
            sum(m.parameters for m in modules), sum(m.bytes for m in modules),
            len(modules), matrix,
        )
        for (component, form, role, matrix), modules in groups.items()
    ]  # fmt: skip
    return sorted(sums, key=lambda weights: -weights.bytes)


def _tied_head(placed: Sequence[_Placed], read: Config) -> Module | None:
    """The embedding that is read as lm_head, where none is stored; a row of it is nothing then."""
    if read.values.get("tie_word_embeddings") is False or any(
        place == _HEAD and module.matrix for module, place in placed
    ):
        return None
    embeddings = (module for module, place in placed if place == _EMBEDDING)
    return next((m for m in embeddings if m.path.rpartition(".")[2] in _TOKENS), None)


def _derived(read: Config, modules: Sequence[Module]) -> list[str]:
    """How far shapes can be believed that nobody has seen."""
    if not modules:
        figures = {"num_hidden_layers": read.layers, "hidden_size": read.hidden}
        names = " and ".join(name for name, value in figures.items() if not value) or "shape"
        return [
            "No tensors were seen, and the configuration does not say enough to derive the shapes "
            f"of the weights: it has no {names}."
        ]
    lost = ["No tensors were seen: shapes and formats are derived from the configuration."]
    lost += [f"The configuration has no {name}: {then}." for name, then in _absent(read)]
    if read.family not in KNOWN_FAMILIES:
        family = read.text("model_type") or "without a model_type"
        lost.append(
            f"The family {family} was not checked: its shapes are taken to be Llama's or Mixtral's."
        )
    return lost


def _absent(read: Config) -> list[tuple[str, str]]:
    widths = ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim")
    attention = read.heads * read.head_dim or read.whole("kv_lora_rank", "mamba_num_heads")
    rows = (
        (attention, "num_attention_heads", "the weights of attention are not counted"),
        (read.whole("vocab_size"), "vocab_size", "embedding and lm_head are not counted"),
        (read.expert_width or not read.experts, "moe_intermediate_size",
         "the weights of the experts are not counted"),
        (read.whole(*widths) or read.experts, "intermediate_size",
         "four times hidden_size is taken for it"),
    )  # fmt: skip
    return [(name, then) for value, name, then in rows if not value]
