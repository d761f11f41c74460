"""Turns the scopes of a foreign trace into modules with path, layer and component."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.importers.module_names import ModuleName, module_name
from spark_prof.rules.components import (
    component_of,
    component_of_class,
    is_layer_class,
    layer_of,
)
from spark_prof.traces.scopes import NO_SCOPE, Scopes

Int64s = npt.NDArray[np.int64]

_FEWEST_LAYERS = 2
_LONGEST_PATH = 4096
"""Letters; as every path holds those around it, a path without bound takes memory without bound."""

_TOWER = re.compile(r"Vision|Visual|Text(?!Generation)|Audio|Speech|Encoder|Clip|CLIP|Siglip")
_DIFFUSION = re.compile(r"Transformer[23]D|DiT\w*Model|U[Nn]et|Diffusion")
"""In the classes around layers that are no decoder's: beside a decoder, and anywhere."""

_CORE = frozenset({"attention", "experts", "mlp", "ssm"})
"""What a decoder layer is made of."""


@dataclass(frozen=True)
class Modules:
    """The modules of one process."""

    frame: pd.DataFrame
    of_scope: Int64s  # the module of each scope; the last entry stands for no scope
    layer_of_scope: Int64s  # the decoder layer that each scope lies in, -1 for none; as `of_scope`


@dataclass(frozen=True)
class _Node:
    """A scope with what is known about it."""

    name: ModuleName
    parent: int
    path: str
    component: str
    layer: int


def modules_of(scopes: Scopes) -> Modules:
    """The modules that the scopes name, those of one path once.

    Raises:
        CommandError: they lie in each other without bound.
    """
    nodes = _named(scopes)
    nodes = _with_layers(nodes)
    nodes = _linears_of_attention(nodes)
    numbers: dict[tuple[str, str], int] = {}
    rows: list[tuple[str, str, int, str]] = []
    of_scope = np.full(len(nodes) + 1, NO_SCOPE, np.int64)
    layers = np.full(len(nodes) + 1, -1, np.int64)
    for scope, node in enumerate(nodes):
        key = node.path, node.component
        if key not in numbers:
            numbers[key] = len(rows)
            rows.append((node.path, node.name.type, node.layer, node.component))
        elif rows[numbers[key]][2] != node.layer:
            rows[numbers[key]] = (node.path, node.name.type, -1, node.component)
        of_scope[scope], layers[scope] = numbers[key], node.layer
    frame = pd.DataFrame(rows, columns=["path", "type", "layer", "component"])
    return Modules(frame.rename_axis("module").reset_index(), of_scope, layers)


def _named(scopes: Scopes) -> list[_Node]:
    """Path and component of each scope; its layer only where the path itself says it."""
    names = [module_name(name) or ModuleName() for name in scopes.names]
    mixtures = {n.path.rpartition(".experts")[0] for n in names if ".experts" in n.path}
    nodes: list[_Node] = []
    for name, parent in zip(names, scopes.parents, strict=True):
        around = nodes[parent] if parent != NO_SCOPE else None
        if name.path:
            # The class is not in the name: a block that holds experts is told by its paths.
            kind = "MoE" if name.path in mixtures else ""
            path, layer = name.path, layer_of(name.path)
            component = component_of(path, kind)
        else:
            own = name.type if name.number < 0 else f"{name.type}_{name.number}"
            path, layer = f"{around.path}.{own}" if around else own, -1
            if len(path) > _LONGEST_PATH:
                raise CommandError(
                    "the trace's modules lie so deep in each other that the path of one is longer "
                    f"than {_LONGEST_PATH:,} letters; no model's are: record again"
                )
            component = component_of_class(name.type, around.name.type if around else "")
        if around:
            component = component or around.component
            # A module that all layers share has the path of the first: its caller knows better.
            layer = around.layer if around.layer >= 0 else layer
        nodes.append(_Node(name, parent, path, component, layer))
    return nodes


def _with_layers(nodes: list[_Node]) -> list[_Node]:
    """The nodes, those inside a decoder layer that only classes name with its number.

    The layers of a model are siblings that hold attention, experts or the like; those of one class
    are in the order of their running numbers, those of several in that of their first calls. Layers
    inside layers do not count anew. Of several stacks the longest is the decoder, but for the
    towers that read pictures, sounds and prompts.
    """
    siblings: dict[tuple[int, str], list[int]] = defaultdict(list)
    holds_core = _holding_core(nodes)
    for scope, node in enumerate(nodes):
        if node.name.type and not component_of_class(node.name.type, ""):
            siblings[node.parent, node.name.type].append(scope)
    stacks: dict[int, list[list[int]]] = defaultdict(list)
    for (parent, kind), scopes in siblings.items():
        layers = [scope for scope in scopes if holds_core[scope]]
        if len(layers) >= _FEWEST_LAYERS or (layers and is_layer_class(kind)):
            stacks[parent].append(sorted(layers, key=lambda scope: nodes[scope].name.number))
    inside = set(chain(*chain(*stacks.values())))
    for scope, node in enumerate(nodes):
        if node.parent in inside:
            inside.add(scope)
            stacks.pop(scope, None)
    paths = {parent: nodes[parent].path if parent != NO_SCOPE else "" for parent in stacks}
    several = len({path.rpartition(".")[2] for path in paths.values()}) > 1
    decoders: dict[str, list[list[int]]] = defaultdict(list)
    for parent, path in paths.items():
        if not _DIFFUSION.search(path) and not (several and _TOWER.search(path)):
            first, *others = stacks[parent]
            stack = sorted(chain(first, *others)) if others else first
            decoders[path.rpartition(".")[2]].append(stack)
    longest = sorted((max(map(len, found)), name) for name, found in decoders.items())[-2:]
    layer_at: dict[int, int] = {}
    if longest and (len(longest) == 1 or longest[0][0] < longest[1][0]):
        for stack in decoders[longest[-1][1]]:
            layer_at.update({scope: number for number, scope in enumerate(stack)})
    placed: list[_Node] = []
    for scope, node in enumerate(nodes):
        outer = placed[node.parent].layer if node.parent != NO_SCOPE else -1
        layer = node.layer
        if layer < 0:
            layer = outer if outer >= 0 else layer_at.get(scope, -1)
        placed.append(replace(node, layer=layer))
    return placed


def _holding_core(nodes: list[_Node]) -> list[bool]:
    """Whether something inside each node is what layers are made of."""
    holds = [False] * len(nodes)
    for scope in reversed(range(len(nodes))):
        parent = nodes[scope].parent
        if parent != NO_SCOPE:
            holds[parent] |= holds[scope] or nodes[scope].component in _CORE
    return holds


def _linears_of_attention(nodes: list[_Node]) -> list[_Node]:
    """The plain linear modules of Hugging Face's attention: the last is o_proj, the rest qkv."""
    inside: dict[int, list[int]] = defaultdict(list)
    for scope, node in enumerate(nodes):
        if node.name.type == "Linear" and node.parent != NO_SCOPE:
            around = nodes[node.parent]
            if around.component == "attention" and around.name.type:
                inside[node.parent].append(scope)
    found = list(nodes)
    for scopes in inside.values():
        ordered = sorted(scopes, key=lambda scope: nodes[scope].name.number)
        for scope in ordered:
            last = scope == ordered[-1] and len(ordered) > 1
            found[scope] = replace(nodes[scope], component="o_proj" if last else "qkv")
    return found
