"""Which weights a step streams: from the live model's own account, else its configuration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.ceilings.derived import derived_modules
from spark_prof.analyzers.ceilings.schemes import bits_of, schemes_of
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.rules.components import DRAFTER, layer_of, part_of
from spark_prof.rules.tensor_names import place_of

PRODUCTS = frozenset(
    {"qkv", "o_proj", "router", "experts", "shared_experts", "mlp", "ssm", "lm_head"}
)
"""Components whose weights are multiplied with; those of others are added or scaled by."""

LOOKED_UP = "embedding"  # of this table a step reads a row a token

_NO_FACTOR = re.compile(
    r"scale|bias|zero|zp|alpha|g_idx|perm|sinks|workspace|global|_inv$|A_log|dt_|conv|^D$"
)
"""Tensors of a module that are not the factor of its product."""
_SHAPE = re.compile(r"\d{1,9}(x\d{1,9}){0,7}", re.ASCII)

_SECOND = re.compile(r"(^|\.)(w2|down_proj|fc2|c_proj|out_proj|dense_4h_to_h)")
_LAST = re.compile(r"(_gate$)")
OF_EXPERTS = re.compile(r"(?:^|\.)(w13|w1|w2|w3|gate_up_proj|down_proj)(?=_|\.|$)")
_ELEMENT_BITS = {
    "float32": 32, "int32": 32, "bfloat16": 16, "float16": 16, "int16": 16, "int64": 64,
    "float64": 64,
}  # fmt: skip
"""Of a type with other than eight bits."""
_WIDE = frozenset({"bfloat16", "float16", "float32", "float64", "bf16", "fp16", "fp32", ""})
_FOUR_BITS = re.compile(r"(?i)fp4|int4|w4a|awq|gptq|marlin")
_EIGHT_BITS = re.compile(r"(?i)fp8|int8|w8a")


@dataclass(frozen=True)
class Weights:
    """Weights that one module, or one of the two products of a mixture of experts, has."""

    component: str  # whose they are
    layer: int  # its decoder layer, -1 for none
    name: str  # the module's last name, or w13 or w2
    bytes: int  # of all its tensors on this rank, scales and biases included
    elements: int  # numbers in the factor of its product, 0 where it is no product
    dtype: str  # storage type or format of the largest tensor
    path: str = ""  # of its module; empty where it stands for several
    tensor: int = -1  # its row of the `tensors` table, -1 where there is none

    @property
    def among_experts(self) -> bool:
        """Whether a step needs only those of the experts that its tokens hit."""
        return self.component == "experts"

    @property
    def quantized(self) -> bool:
        """Whether an element takes fewer bits than in BF16."""
        return self.dtype not in _WIDE

    @property
    def order(self) -> int:
        """Place among the products of its layer and component: 0, 1 or 2."""
        leaf = self.path.rpartition(".")[2] or self.name
        return 2 if _LAST.search(leaf) else int(bool(_SECOND.search(self.name)))


def weights_of(layers: pd.DataFrame, tied: bool, config: Mapping[str, Any]) -> list[Weights]:
    """The weights that decode and prefill steps stream, in the model's order.

    Left out are the embedding, of which a step reads some rows, and vision, audio and draft parts.

    Args:
        tied: whether lm_head is the embedding's tensor.
        config: the model's, which says formats where the table has a type that numbers are packed
            into, such as int32.
    """
    schemes = schemes_of(mapping_in(config, "quantization_config"))
    columns = ["path", "layer", "component", "quant_method", "kernel", "weight_dtype", "bytes"]
    rows = layers[[*columns, "parameters"]].itertuples(index=False, name=None)
    tied &= not (layers["component"] == "lm_head").any()
    weights: list[Weights] = []
    for path, layer, component, method, kernel, dtype, size, parameters in rows:
        if size > 0 and (owner := _owner(component, path, tied)):
            tied &= component != LOOKED_UP
            how = f"{method} {kernel}"
            bits = 4 if _FOUR_BITS.search(how) and not _EIGHT_BITS.search(how) else 8
            for part in _parts(owner, layer, path, int(size), str(dtype), parameters, bits):
                form = schemes.of_engine(path)[0] if part.quantized else ""
                weights.append(replace(part, dtype=form) if (bits_of(form) or 16) < 16 else part)
    return weights


def _owner(component: str, path: str, tied: bool, *, drafter: bool = False) -> str:
    """The component that streams a module's weights; empty where no decode step streams them."""
    if (part_of(path) == DRAFTER) != drafter:
        return ""
    if not drafter and place_of(path, 0).role != "decoder":
        return ""
    return component if component != LOOKED_UP else "lm_head" if tied else ""


def derived_weights(config: Mapping[str, Any], ranks: int) -> list[Weights]:
    """The same from a model's configuration, shared out by so many ranks."""
    read = Config(config)
    weights: dict[tuple[str, int, int], Weights] = {}
    for module in derived_modules(read, schemes_of(mapping_in(config, "quantization_config"))):
        path, tied = module.path, read.flag("tie_word_embeddings")
        component = _owner(place_of(path, 0).component, path, tied)
        if component not in PRODUCTS:
            continue
        share = 1 if component == "router" else ranks
        # vLLM runs what reads the same input as one product.
        new = Weights(component, layer_of(path), path.rpartition(".")[2], 0, 0, module.format)
        key = (component, new.layer, new.order)
        before = weights.get(key, new)
        weights[key] = replace(
            before,
            bytes=before.bytes + round(module.bytes / share),
            elements=before.elements + module.parameters // share,
            dtype=module.format,
        )
    return list(weights.values())


def _multiplies(component: str, leaf: str) -> bool:
    return component in PRODUCTS and "norm" not in leaf and "conv" not in leaf


def _parts(
    component: str, layer: int, path: str, size: int, dtype: str, parameters: str, bits: int
) -> Iterator[Weights]:
    """One entry a module, two where it holds both products of a mixture of experts."""
    leaf = path.rpartition(".")[2]
    tensors = [t for text in parameters.split() if (t := _tensor(text, bits))]
    groups: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for tensor in tensors:
        match = OF_EXPERTS.search(tensor[0]) if component == "experts" else None
        groups[match[1] if match else leaf].append(tensor)
    if leaf in groups or len(groups) < 2:
        groups = {leaf: tensors}
    for group, members in groups.items():
        part_bytes = sum(part_bytes for _, part_bytes, _ in members) if group != leaf else size
        elements = sum(elements for _, _, elements in members)
        if not tensors:
            # Nothing says how many numbers: as many as the bytes hold.
            elements = size * 8 // (_ELEMENT_BITS.get(dtype, 16) if dtype in _WIDE else bits)
        elements = elements if _multiplies(component, leaf) else 0
        yield Weights(component, layer, group, part_bytes, elements, dtype, path)


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


def weights_of_tensors(
    tensors: pd.DataFrame, tied: bool, *, drafter: bool = False
) -> list[Weights]:
    """The weights that steps stream, one a tensor; left out is what `weights_of` leaves out.

    Memory that several modules hold counts for the first, and a view as what it holds.

    Args:
        drafter: those that a drafter has for itself instead.
    """
    if drafter:  # what it shares with the model is the model's
        parts = np.array([part_of(str(path)) == DRAFTER for path in tensors["module"]], bool)
        shared = tensors["address"].isin(tensors.loc[~parts, "address"])
        tensors = tensors[parts & ~shared.to_numpy()]
    streamed = tensors[(tensors["kind"] == "weight").to_numpy() & (tensors["bytes"] > 0).to_numpy()]
    stored = stored_as(streamed)
    tied &= not (streamed["component"] == "lm_head").any()
    owners = [
        _owner(*of, tied, drafter=drafter)
        for of in zip(streamed["component"], streamed["module"], strict=True)
    ]
    streamed = streamed.assign(owner=owners)
    streamed = streamed[streamed["owner"] != ""].drop_duplicates(["address", "bytes"])
    names = ["owner", "module", "name", "layer", "bytes", "shape", "dtype", "format"]
    rows: Iterator[tuple[Any, ...]] = streamed[names].itertuples(name=None)
    weights = []
    for number, component, module, name, layer, size, sides, dtype, form in rows:
        leaf, weight_format = module.rpartition(".")[2], stored.get(module, dtype)
        part = OF_EXPERTS.search(name) if component == "experts" else None
        # What lies between the rows of a view is not its own.
        count = _count(sides)
        size = min(size, count * _ELEMENT_BITS.get(dtype, 0) // 8 or size)
        factor = form != "scale" and count and _is_factor(name, sides)
        factor = factor and _multiplies(component, leaf)
        # Of a type of integers nothing tells how many numbers are packed into each.
        bits = bits_of(form) or (8 if "int" in dtype else _ELEMENT_BITS.get(dtype, 8))
        elements = int(size) * 8 // bits if factor else 0
        product = part[1] if part else leaf
        weights.append(
            Weights(
                component,
                int(layer),
                product,
                int(size),
                elements,
                weight_format,
                module,
                int(number),
            )
        )
    return weights


def stored_as(tensors: pd.DataFrame) -> dict[str, str]:
    """The format of each module's largest weight, scales left out; its type where none is known."""
    weights = tensors[(tensors["kind"] == "weight").to_numpy() & (tensors["format"] != "scale")]
    weights = weights.sort_values("bytes", ascending=False, kind="stable").drop_duplicates("module")
    return {
        str(module): str(form or dtype)
        for module, form, dtype in zip(
            weights["module"], weights["format"], weights["dtype"], strict=True
        )
    }


def _count(shape: str) -> int:
    """Numbers of a tensor of that shape; 0 for what is none."""
    return prod(map(int, shape.split("x"))) if _SHAPE.fullmatch(shape) else 0
