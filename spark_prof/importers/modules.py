"""Turns the scopes of a foreign trace into modules with path, layer and component.

A range names a module by its path (``model.layers.3.mlp``) or, as PyTorch's profiler does, by its
class and a running number (``nn.Module: RMSNorm_5``); then its component is that of its class and
of the class around it, and a class that no row knows counts to what is around it. One rule table,
first match wins; each row carries examples that are its test.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.rules.components import (
    component_of,
    component_of_class,
    is_layer_class,
    layer_of,
)
from spark_prof.rules.source_files import component_of_source
from spark_prof.traces.foreign import Foreign, ForeignProcess
from spark_prof.traces.scopes import NO_SCOPE, Scopes


@dataclass(frozen=True)
class ModuleName:
    """What a range's name says about a module."""

    path: str = ""  # its path in the model, empty where only the class is known
    type: str = ""
    number: int = -1  # the class's running number, -1 without one
    component: str = ""  # where a source file tells it


@dataclass(frozen=True)
class NameRule:
    """Names that match name a module: groups `path`, `layer`, `source`, or `type` and `number`."""

    writer: str
    pattern: str
    examples: tuple[tuple[str, ModuleName], ...]


_PATH = r"[A-Za-z_]\w*(?:\.\w+)*"
_LAYER_PATH = (
    r"(?:\w+\.)*(?:layers|h|blocks|block|layer|decoder_layers)\.\d{1,5}(?:\.\w+)*"
    r"|(?:model|transformer|language_model|backbone)\.\w+(?:\.\w+)*"
)

RULES: tuple[NameRule, ...] = (
    NameRule("PyTorch's profiler, with_stack and with_modules",
        r"nn\.Module: (?P<type>[A-Za-z_]\w*?)_(?P<number>\d{1,9})",
        (("nn.Module: QKVParallelLinear_12", ModuleName("", "QKVParallelLinear", 12)),
        ("nn.Module: Owlv2EncoderLayer_3", ModuleName("", "Owlv2EncoderLayer", 3)))),
    NameRule("record_function around each module", rf"(?:mod|module):\s?(?P<path>{_PATH})",
        (("mod:model.layers.0.attn.qkv_proj", ModuleName("model.layers.0.attn.qkv_proj")),
        ("mod:logits_processor", ModuleName("logits_processor")))),
    # vLLM's and SGLang's layer-wise NVTX ranges are the text of a Python dictionary.
    NameRule("layer-wise NVTX", rf"\{{'Module': '(?:top\.)?(?P<path>{_PATH})'.*",
        (("{'Module': 'top.model.layers.3.mlp', 'TrainableParams': {}}",
        ModuleName("model.layers.3.mlp")),)),
    NameRule("the operators that vLLM hides from its compiler",
        r"(?P<type>vllm::(?:unified_\w*(?:attention|kv_cache)\w*|mla_\w+|moe_forward\w*|mamba_mixer2?|"
        r"\w*(?:gdn|kda|linear)_attention\w*|short_conv|plamo2_mamba_mixer))",
        (("vllm::unified_attention_with_output",
        ModuleName("", "vllm::unified_attention_with_output")),
        ("vllm::unified_kv_cache_update", ModuleName("", "vllm::unified_kv_cache_update")),
        ("vllm::moe_forward_shared", ModuleName("", "vllm::moe_forward_shared")),
        ("vllm::mamba_mixer2", ModuleName("", "vllm::mamba_mixer2")))),
    NameRule("a range around a layer, or a part of one, as scripts set them",
        r"(?i:(?:decoder|encoder|transformer)?[_ ]?(?:layer|block))[_ .:#]?(?P<layer>\d{1,4})"
        r"(?:[_ .:-](?P<part>[A-Za-z]\w*))?", (("layer_0", ModuleName("layers.0")),
        ("Decoder layer 12", ModuleName("layers.12")), ("block.3", ModuleName("layers.3")),
        ("layer_7_computation", ModuleName("layers.7.computation")),
        ("layer_2_mlp", ModuleName("layers.2.mlp")))),
    NameRule("Megatron's and others' NVTX ranges by path",
        rf"(?P<path>{_LAYER_PATH})(?:\.forward)?", (("model.layers.3.self_attn.qkv_proj",
        ModuleName("model.layers.3.self_attn.qkv_proj")),
        ("transformer.h.11.mlp", ModuleName("transformer.h.11.mlp")),
        ("model.embed_tokens", ModuleName("model.embed_tokens")))),
    NameRule("Python frames in vLLM's layers: PyTorch's stacks of graph nodes, Proton's frames",
        r".{0,512}/vllm/(?P<source>[\w/]{1,256}\.py):\d{1,7}[:@][\w<>]{1,128}",
        (("/x/site-packages/vllm/model_executor/layers/layernorm.py:60:forward_cuda",
        ModuleName("vllm/model_executor/layers/layernorm.py", component="norm")),
        ("/x/vllm/v1/attention/backends/flash_attn.py:712@forward",
        ModuleName("vllm/v1/attention/backends/flash_attn.py", component="attention")))),
)  # fmt: skip

_COMPILED = tuple(re.compile(rule.pattern, re.DOTALL) for rule in RULES)
_LONGEST = 4096


def names_module(name: str) -> bool:
    """Whether a range of that name is a call of a module."""
    return module_name(name) is not None


@lru_cache(maxsize=1 << 16)
def module_name(name: str) -> ModuleName | None:
    """What the name says about a module, up to the 4,096th letter; None where it names none."""
    for pattern in _COMPILED:
        match = pattern.fullmatch(name[:_LONGEST])
        if match:
            groups = match.groupdict()
            if source := groups.get("source"):
                component = component_of_source(source)
                return ModuleName(f"vllm/{source}", component=component) if component else None
            number = int(groups["number"]) if groups.get("number") else -1
            layer = f"layers.{int(groups['layer'])}" if groups.get("layer") else ""
            layer += f".{groups['part']}" if groups.get("part") else ""
            return ModuleName(groups.get("path") or layer, groups.get("type") or "", number)
    return None


_FEWEST_LAYERS = 2
_LONGEST_PATH = 4096
"""Letters; as every path holds those around it, a path without bound takes memory without bound."""

_TOWER = re.compile(r"Vision|Visual|Text(?!Generation)|Audio|Speech|Encoder|Clip|CLIP|Siglip")
_DIFFUSION = re.compile(r"Transformer[23]D|DiT\w*Model|U[Nn]et|Diffusion")
"""In the classes around layers that are no decoder's: beside a decoder, and anywhere."""


def model_of(types: Iterable[str]) -> str:
    """The class of the model among those of its modules, empty where none is one.

    A pipeline has several; what draws the picture is the model, not what encodes its prompt.
    """
    models = [name for name in types if "For" in name or name.endswith("Model")]
    return next(filter(_DIFFUSION.search, models), models[0] if models else "")


_CORE = frozenset({"attention", "experts", "mlp", "ssm"})  # what a decoder layer is made of


@dataclass(frozen=True)
class Modules:
    """The modules of one process."""

    frame: pd.DataFrame
    of_scope: Int64s  # the module of each scope; the last entry stands for no scope
    layer_of_scope: Int64s  # the decoder layer that each scope lies in, -1 for none; as `of_scope`


@dataclass(frozen=True)
class _Scope:
    """A scope with what is known about it."""

    name: ModuleName
    parent: int
    path: str
    component: str
    layer: int


def modules_of(scopes: Scopes) -> Modules:
    """The modules that the scopes name, those of one path once."""
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


def _named(scopes: Scopes) -> list[_Scope]:
    """Path and component of each scope; its layer only where the path itself says it."""
    names = [module_name(name) or ModuleName() for name in scopes.names]
    mixtures = {n.path.rpartition(".experts")[0] for n in names if ".experts" in n.path}
    nodes: list[_Scope] = []
    for name, parent in zip(names, scopes.parents, strict=True):
        around = nodes[parent] if parent != NO_SCOPE else None
        if name.path:
            # The class is not in the name: a block that holds experts is told by its paths.
            kind = "MoE" if name.path in mixtures else ""
            path, layer = name.path, layer_of(name.path)
            component = name.component or component_of(path, kind)
        else:
            segment = name.type if name.number < 0 else f"{name.type}_{name.number}"
            path, layer = f"{around.path}.{segment}" if around else segment, -1
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
        nodes.append(_Scope(name, parent, path, component, layer))
    return nodes


def _with_layers(nodes: list[_Scope]) -> list[_Scope]:
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
            first, *further = stacks[parent]
            stack = sorted(chain(first, *further)) if further else first
            decoders[path.rpartition(".")[2]].append(stack)
    longest = sorted(
        (max(map(len, stacks_of_name)), name) for name, stacks_of_name in decoders.items()
    )[-2:]
    layer_at: dict[int, int] = {}
    if longest and (len(longest) == 1 or longest[0][0] < longest[1][0]):
        for stack in decoders[longest[-1][1]]:
            layer_at.update({scope: number for number, scope in enumerate(stack)})
    placed: list[_Scope] = []
    for scope, node in enumerate(nodes):
        outer = placed[node.parent].layer if node.parent != NO_SCOPE else -1
        layer = node.layer
        if layer < 0:
            layer = outer if outer >= 0 else layer_at.get(scope, -1)
        placed.append(replace(node, layer=layer))
    return placed


def _holding_core(nodes: list[_Scope]) -> list[bool]:
    """Whether something inside each node is what layers are made of."""
    holds = [False] * len(nodes)
    for scope in reversed(range(len(nodes))):
        parent = nodes[scope].parent
        if parent != NO_SCOPE:
            holds[parent] |= holds[scope] or nodes[scope].component in _CORE
    return holds


def _linears_of_attention(nodes: list[_Scope]) -> list[_Scope]:
    """The plain linear modules of Hugging Face's attention: the last is o_proj, the rest qkv."""
    inside: dict[int, list[int]] = defaultdict(list)
    for scope, node in enumerate(nodes):
        if node.name.type == "Linear" and node.parent != NO_SCOPE:
            around = nodes[node.parent]
            if around.component == "attention" and around.name.type:
                inside[node.parent].append(scope)
    labelled = list(nodes)
    for scopes in inside.values():
        ordered = sorted(scopes, key=lambda scope: nodes[scope].name.number)
        for scope in ordered:
            last = scope == ordered[-1] and len(ordered) > 1
            labelled[scope] = replace(nodes[scope], component="o_proj" if last else "qkv")
    return labelled


Stacks = Mapping[int, Sequence[str]]
"""The frames of each node, the innermost first."""


def with_stacks(foreign: Foreign, stacks: Mapping[int | None, Stacks]) -> Foreign:
    """The trace, with what the stacks of its ranks say of nodes that nothing else places.

    Args:
        stacks: by rank; the entry None serves all ranks.
    """
    processes = [
        _placed(process, mine) if (mine := stacks.get(process.rank, stacks.get(None))) else process
        for process in foreign.processes
    ]
    return replace(foreign, processes=processes)


def _placed(process: ForeignProcess, stacks: Stacks) -> ForeignProcess:
    nodes = set(process.nodes["node"].tolist())
    rows = [
        (node, node, node >> 32, 0, process.scopes.child(NO_SCOPE, frame))
        for node, frames in stacks.items()
        if node not in nodes and (frame := next(filter(names_module, frames), None))
    ]
    added = pd.DataFrame(rows, columns=process.nodes.columns, dtype=np.int64)
    return replace(process, nodes=pd.concat([process.nodes, added], ignore_index=True))
