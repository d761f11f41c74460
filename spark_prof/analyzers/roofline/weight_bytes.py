"""Which weights a step streams: from the live model's own account, else its configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pandas as pd

from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.ceilings.derived import derived_modules
from spark_prof.analyzers.ceilings.schemes import bits_of, schemes_of
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.rules.components import layer_of
from spark_prof.rules.tensor_names import place_of

PRODUCTS = frozenset(
    {"qkv", "o_proj", "router", "experts", "shared_experts", "mlp", "ssm", "lm_head"}
)
"""Components whose weights are multiplied with; those of others are added or scaled by."""

_MOST_MODULES = 50_000
LARGEST = 1 << 48
"""Elements that no tensor of a real model has."""
_DIGITS = len(str(LARGEST))

LOOKED_UP = "embedding"
"""Of this table a step reads a row a token."""

_NO_FACTOR = re.compile(
    r"scale|bias|zero|zp|alpha|g_idx|perm|sinks|workspace|global|_inv$|A_log|dt_|conv|^D$"
)
"""Tensors of a module that are not the factor of its product."""

_SECOND = re.compile(r"(^|\.)(w2|down_proj|fc2|c_proj|out_proj|dense_4h_to_h)")
_LAST = re.compile(r"(_gate$)")
OF_EXPERTS = re.compile(r"(?:^|\.)(w13|w1|w2|w3|gate_up_proj|down_proj)(?=_|\.|$)")
_ELEMENT_BITS = {
    "float32": 32, "int32": 32, "bfloat16": 16, "float16": 16, "int16": 16, "int64": 64,
    "float64": 64,
}  # fmt: skip
"""Of a type with other than eight bits."""
_FOUR_BITS = re.compile(r"(?i)fp4|int4|w4a|awq|gptq|marlin")
_EIGHT_BITS = re.compile(r"(?i)fp8|int8|w8a")


@dataclass(frozen=True)
class Weights:
    """Weights that one module, or one of the two products of a mixture of experts, has."""

    component: str  # whose they are
    layer: int  # its decoder layer, -1 for none
    what: str  # the module's last name, or w13 or w2
    bytes: int  # of all its tensors on this rank, scales and biases included
    elements: int  # numbers in the factor of its product, 0 where it is no product
    among_experts: bool  # whether a step needs only those of the experts that its tokens hit
    dtype: str  # storage type of the largest tensor
    quantized: bool  # whether an element takes fewer bits than in BF16
    order: int = 0  # place among the products of its layer and component: 0, 1 or 2
    path: str = ""  # of its module; empty where it stands for several
    tensor: int = -1  # its row of the `tensors` table, -1 where there is none


def weights_of(layers: pd.DataFrame, tied: bool) -> list[Weights]:
    """The weights that decode and prefill steps stream, in the model's order.

    Left out are the embedding, of which a step reads some rows, and vision, audio and draft parts.

    Args:
        tied: whether lm_head is the embedding's tensor and has no row.
    """
    columns = ["path", "layer", "component", "quant_method", "kernel", "weight_dtype", "bytes"]
    rows = layers[[*columns, "parameters"]].head(_MOST_MODULES).itertuples(index=False, name=None)
    found: list[Weights] = []
    embedding: tuple[int, str, str] | None = None
    has_head = False
    for path, layer, component, method, kernel, dtype, size, parameters in rows:
        if size <= 0 or not component or place_of(path, 0).role != "decoder":
            continue
        if component == LOOKED_UP:
            embedding = embedding or (size, dtype, parameters)
            continue
        has_head |= component == "lm_head"
        how = f"{method} {kernel}"
        bits = 4 if _FOUR_BITS.search(how) and not _EIGHT_BITS.search(how) else 8
        found += _parts(component, layer, path, int(size), str(dtype), parameters, bits)
    if embedding and not has_head and tied:
        size, dtype, parameters = embedding
        found += _parts("lm_head", -1, "embedding, tied", int(size), str(dtype), parameters, 8)
    return found


def derived_weights(config: Mapping[str, Any], ranks: int) -> list[Weights]:
    """The same from a model's configuration, where nobody looked into the live model.

    Args:
        config: the model's configuration as Hugging Face writes it.
        ranks: how many ranks share the weights out.
    """
    read = Config(config)
    found: dict[tuple[str, int, int], Weights] = {}
    for module in derived_modules(read, schemes_of(mapping_in(config, "quantization_config"))):
        component = place_of(module.path, 0).component
        if component == LOOKED_UP and read.flag("tie_word_embeddings"):
            component = "lm_head"
        if component not in PRODUCTS:
            continue
        leaf = module.path.rpartition(".")[2]
        order = order_of(leaf, leaf)
        share = 1 if component == "router" else max(ranks, 1)
        key = (component, layer_of(module.path), order)
        quantized = module.format not in ("bf16", "fp16", "fp32")
        # vLLM runs what reads the same input as one product.
        before = found.get(key) or Weights(
            component, key[1], leaf, 0, 0, component == "experts", "", quantized, order
        )
        found[key] = replace(
            before,
            bytes=before.bytes + round(module.bytes / share),
            elements=before.elements + module.parameters // share,
            dtype=module.format,
            quantized=quantized,
        )
    return list(found.values())


def order_of(what: str, leaf: str) -> int:
    """Place of a weight among the products of its layer and component: 0, 1 or 2."""
    return 2 if _LAST.search(leaf) else int(bool(_SECOND.search(what)))


def _multiplies(component: str, leaf: str) -> bool:
    return component in PRODUCTS and "norm" not in leaf and "conv" not in leaf


def _parts(
    component: str, layer: int, path: str, size: int, dtype: str, parameters: str, bits: int
) -> Iterator[Weights]:
    """One entry a module, two where it holds both products of a mixture of experts."""
    leaf = path.rpartition(".")[2]
    tensors = [t for text in parameters.split() if (t := _tensor(text, bits))]
    product = _multiplies(component, leaf)
    experts = component == "experts"
    quantized = dtype not in ("bfloat16", "float16", "float32", "float64", "")
    groups: dict[str, list[tuple[str, int, int]]] = {}
    for tensor in tensors:
        match = OF_EXPERTS.search(tensor[0]) if experts else None
        groups.setdefault(match[1] if match else "", []).append(tensor)
    if "" in groups or len(groups) < 2:
        groups = {"": tensors}
    for what, members in groups.items():
        taken = sum(taken for _, taken, _ in members) if what else size
        elements = sum(elements for _, _, elements in members)
        if not tensors:
            # Nothing says how many numbers: as many as the bytes hold.
            elements = size * 8 // (bits if quantized else _ELEMENT_BITS.get(dtype, 16))
        yield Weights(
            component, layer, what or leaf, taken, elements if product else 0, experts, dtype,
            quantized, order_of(what, "") if what else order_of(leaf, leaf), path,
        )  # fmt: skip


def _tensor(text: str, bits: int) -> tuple[str, int, int] | None:
    """Name, bytes and factor's elements of one `name:dtype:shape`; None where it says nothing."""
    rest, _, sides = text.rpartition(":")
    name, _, dtype = rest.rpartition(":")
    count = _count(sides) if sides else 1
    if not name or not count:
        return None
    size = count * _ELEMENT_BITS.get(dtype, 8) // 8
    if not _is_factor(name, sides):
        return name, size, 0
    if dtype in ("int32", "uint8", "int64") or dtype.startswith("float4"):
        # Several narrow numbers packed into each.
        return name, size, size * 8 // (4 if dtype.startswith("float4") else bits)
    return name, size, count


def _is_factor(name: str, sides: str) -> bool:
    return "x" in sides and not _NO_FACTOR.search(name)


def weights_of_tensors(tensors: pd.DataFrame, tied: bool) -> list[Weights]:
    """The weights that steps stream, one a tensor; left out is what `weights_of` leaves out.

    Memory that several modules hold counts for the first, and a view as what it holds.

    Args:
        tied: whether lm_head is the embedding's tensor.
    """
    own = tensors[(tensors["kind"] == "weight").to_numpy() & (tensors["bytes"] > 0).to_numpy()]
    own = own.assign(stored=_stored(own))
    names = ["module", "name", "component", "layer", "stored", "shape", "dtype", "format"]
    names += ["address", "bytes"]
    rows: list[tuple[Any, ...]] = list(own[names].itertuples(name=None))
    stored = stored_as(own)
    tied &= not (own["component"] == "lm_head").any()
    found = []
    seen: set[tuple[int, int]] = set()
    for number, module, name, whose, layer, size, sides, dtype, form, *where in rows:
        component = "lm_head" if tied and whose == LOOKED_UP else str(whose)
        if component in ("", LOOKED_UP) or place_of(module, 0).role != "decoder":
            continue
        if tuple(where) in seen:
            continue
        seen.add((where[0], where[1]))
        leaf, experts = module.rpartition(".")[2], component == "experts"
        part = OF_EXPERTS.search(name) if experts else None
        what, kept = part[1] if part else leaf, stored.get(module, dtype)
        factor = form != "scale" and _is_factor(name, sides) and _count(sides) > 0
        factor = factor and _multiplies(component, leaf)
        # Of a type of integers nothing tells how many numbers are packed into each.
        bits = bits_of(form) or (8 if "int" in dtype else _ELEMENT_BITS.get(dtype, 8))
        weights = Weights(
            component, int(layer), what, int(size), int(size) * 8 // bits if factor else 0, experts,
            kept, (bits_of(kept) or 16) < 16, order_of(what, leaf), module, int(number),
        )  # fmt: skip
        found.append(weights)
    return found


def stored_as(tensors: pd.DataFrame) -> dict[str, str]:
    """The format of each module's largest weight, scales left out; its type where none is known."""
    own = tensors[(tensors["kind"] == "weight").to_numpy() & (tensors["format"] != "scale")]
    own = own.sort_values("bytes", ascending=False, kind="stable").drop_duplicates("module")
    return {
        str(module): str(form or dtype)
        for module, form, dtype in zip(own["module"], own["format"], own["dtype"], strict=True)
    }


def _stored(tensors: pd.DataFrame) -> list[int]:
    """Bytes of each tensor without what lies between its rows."""
    columns = (tensors[name] for name in ("bytes", "shape", "dtype"))
    return [
        min(size, (_count(shape) * _ELEMENT_BITS.get(dtype, 0) // 8) or size)
        for size, shape, dtype in zip(*columns, strict=True)
    ]


def _count(shape: str) -> int:
    """Numbers of a tensor of that shape; 0 for what no real tensor has."""
    sides = shape.split("x")
    if not all(side.isascii() and side.isdigit() and len(side) < _DIGITS for side in sides):
        return 0
    count = prod(map(int, sides))
    return count if count < LARGEST else 0
