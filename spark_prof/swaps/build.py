"""Finds the places of a live vLLM model where a kernel can be swapped, and builds replacements.

They are built while the model's weights still are the checkpoint's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from spark_prof.errors import SparkProfError
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.rules.components import component_of
from spark_prof.swaps.builder_loading import load_builder
from spark_prof.swaps.decoder_layer import FORMS, PARTS, LayerModules, Part, parts_of, read_part
from spark_prof.swaps.guard import GuardedReplacement, logger
from spark_prof.swaps.layers import Layer
from spark_prof.swaps.live_weights import read_layer
from spark_prof.swaps.progress import Progress
from spark_prof.swaps.swap_settings import Swap

SLOT_OF_COMPONENT = {
    "qkv": "qkv",
    "o_proj": "o",
    "mlp": "mlp",
    "shared_experts": "mlp",
    "lm_head": "lm_head",
    "router": "router",
}
"""The slot of a matrix by the component that it works for."""

_SLOT_OF_PART = (
    ("ssm", r"\.in_proj\w*$", "qkv"),
    ("ssm", r"\.out_proj$", "o"),
    ("experts", r"\.fc[12]_latent_proj$", "mlp"),
)
"""The same of a matrix whose component does other things too: by its path."""


def slot_of(name: str, type_name: str) -> str:
    """The slot that a matrix of that path and class fills, empty for none."""
    component = component_of(name, type_name)
    for of, pattern, slot in _SLOT_OF_PART:
        if component == of and re.search(pattern, name):
            return slot
    return "" if ".experts." in name else SLOT_OF_COMPONENT.get(component, "")


_ENCODERS = re.compile(r"(^|\.)(visual|vision|audio|speech|image|mm_|multi_modal)[^.]*\.")
"""Paths of what computes pictures and sounds: never a few tokens at a time."""

Kind = Literal["matrix", "experts", "choice", "norm"] | Part
"""What computes there: a matrix, a mixture of experts, the choice of experts, a norm, or a part of
a decoder layer."""


@dataclass(frozen=True, eq=False)
class SwapPoint:
    """A module and the slot that it fills.

    A mixture of experts fills two: moe, and router by its choice. The router's matrix fills router
    as well.
    """

    slot: str
    name: str
    module: Any
    kind: Kind


def find_points(model: Any) -> Iterator[SwapPoint]:
    """All places of a model's decoder, a torch.nn.Module, in the order of its modules.

    Not the matrix that MLA absorbs into two others: no decode step runs it.
    """
    names = {name for name, _ in model.named_modules()}
    for name, module in model.named_modules():
        around, _, last = name.rpartition(".")
        absorbed = last == "kv_b_proj" and f"{around}.mla_attn" in names
        if absorbed or _ENCODERS.search(name):
            continue
        if LayerModules.of(module) is not None:
            for part, path in parts_of(name, module):
                yield SwapPoint("layer", path, module, part)
        if hasattr(module, "routed_experts") and hasattr(module, "router"):
            # The router first: experts that route by themselves then wrap it, not it them.
            yield SwapPoint("router", name, module, "choice")
            yield SwapPoint("moe", name, module, "experts")
        elif type(module).__name__.endswith("RMSNorm") and hasattr(module, "_forward_method"):
            yield SwapPoint("norm", name, module, "norm")
        elif callable(getattr(getattr(module, "quant_method", None), "apply", None)):
            slot = slot_of(name, type(module).__name__)
            if slot:
                yield SwapPoint(slot, name, module, "matrix")


_MARGIN = 512 << 20  # bytes of a GPU that must stay free beside the second copies
_MOST_UNUSED = 1 << 30  # bytes that torch's allocator may hold back between two layers


@dataclass(frozen=True, eq=False)
class BuiltReplacement:
    """One place of the model and what was built for it."""

    point: SwapPoint
    swaps: dict[str, Swap] = field(default_factory=dict)
    # What each side got; sides that ask for the same kernel share it.
    choices: dict[str, GuardedReplacement] = field(default_factory=dict)
    # Of a part of a decoder layer: what is not built by itself on a side, as the part replaces it.
    inside: list[tuple[str, SwapPoint, Swap]] = field(default_factory=list)


def build_all(model: Any, sides: Mapping[str, tuple[Swap, ...]]) -> list[BuiltReplacement]:
    """Builds what the sides ask for, in every place of a torch.nn.Module that fits.

    Its weights are loaded but not laid out anew. What the slot `layer` replaces on a side is not
    built once more for another of its slots.
    """
    swapped = []
    earlier: set[Swap] = set()
    parts: dict[str, list[BuiltReplacement]] = defaultdict(list)  # by side, of slot `layer`
    for point in find_points(model):
        swaps_here: dict[str, Swap] = {}
        of_slot = (
            (side, s) for side, swaps in sides.items() for s in swaps if s.slot == point.slot
        )
        for side, swap in of_slot:
            around = (part for part in parts[side] if _replaces(part.point, point))
            if part := next(around, None):
                part.inside.append((side, point, swap))
            else:
                swaps_here[side] = swap
        # Where the process ends in a builder, the log's last line says in which.
        for swap in {*swaps_here.values()} - earlier:
            earlier.add(swap)
            logger.info("%s", Progress("building", f"{swap.slot}={swap.kernel}"))
        if swaps_here:
            built = {swap: _built(point, swap) for swap in dict.fromkeys(swaps_here.values())}
            choices = {side: built[swap] for side, swap in swaps_here.items()}
            place = BuiltReplacement(point, swaps_here, choices)
            for side, choice in choices.items():
                if point.slot == "layer" and choice.replacement is not None:
                    parts[side].append(place)
            swapped.append(place)
    return swapped


def _replaces(part: SwapPoint, point: SwapPoint) -> bool:
    """Whether a part of a decoder layer computes what fills a point of another slot."""
    modules = LayerModules.of(part.module)
    if point.slot == "layer" or modules is None:
        return False
    replaced = modules.replaced(part.kind)  # type: ignore[arg-type]
    return any(point.module is inner for module in replaced for inner in module.modules())


def _built(point: SwapPoint, swap: Swap) -> GuardedReplacement:
    name = f"{swap.slot}={swap.kernel}"
    guarded = GuardedReplacement(f"{point.name} ({name})", name, None)
    try:
        _check_memory()
        with torch.no_grad():
            if point.kind in PARTS:
                _check_measured(point, swap)
                layer: Layer = read_part(point.name, point.module, point.kind)
            else:
                _check_called(point)
                layer = read_layer(point.name, point.module, point.slot)
            guarded.replacement = load_builder(swap.kernel)(layer)
    except Exception as error:  # somebody's own builder may raise anything
        prefix = "" if isinstance(error, SparkProfError) else f"{type(error).__name__}: "
        # It may name the layer, and fails for all of them alike.
        guarded.fail(prefix + str(error).replace(point.name, "the layer"), quiet=True)
    else:
        if guarded.replacement is None:
            guarded.fail("it has none for this layer", quiet=True)
        elif guarded.replacement.line:
            logger.info("%s: %s", guarded.label, guarded.replacement.line)
    _release_unused()
    return guarded


def _check_called(point: SwapPoint) -> None:
    """Refuses a layer whose product vLLM computes otherwise than by its `quant_method` alone.

    Since 0.33 `maybe_fused_act_quant` asks the layer behind the activation, always a `down_proj`,
    for the key of its quantized input.
    """
    last = point.name.rpartition(".")[2]
    if last == "down_proj" and getattr(point.module, "_input_quant_key", None) is not None:
        raise KernelError(
            "vLLM quantizes its input in one kernel with the activation before it, and the kernel "
            "takes it unquantized; in a layer without experts slot layer replaces both"
        )
    if any(vars(point.module).get(name) is True for name in _PAST_METHOD):
        raise KernelError("vLLM multiplies with a kernel of its own for routers, which stays")


_PAST_METHOD = (
    "allow_ll_bf16_gemm", "allow_dsv3_router_gemm", "allow_fp32_router_gemm",
    "allow_bf16x3_router_gemm", "allow_cublas_router_gemm",
)  # fmt: skip
"""With which of these a `GateLinear` goes past its `quant_method` on CUDA, of vLLM 0.24 to 0.33."""


def _check_measured(point: SwapPoint, swap: Swap) -> None:
    """Refuses the parts of layers of which no engine's time was measured."""
    modules = LayerModules.of(point.module)
    if swap.kernel != "spark_prof" or modules is None:
        return
    layer_kind = ""
    if modules.attention is None:
        layer_kind = "whose attention is vLLM's own"
    elif not FORMS[type(point.module).__name__].measured:
        layer_kind = "of this class"
    elif modules.gate is None and _type_of(modules.mlp.gate_up_proj) not in _MEASURED_MLPS:
        layer_kind = "without experts whose weights are not FP8"
    if layer_kind:
        raise SparkProfError(
            f"a layer {layer_kind} was not measured to be faster; layer=spark_prof! runs it"
        )


_MEASURED_MLPS = (torch.float8_e4m3fn,)
"""Of Llama-3.1-8B on an H200 under vLLM 0.33: 1.35 x at batch 1, 1.29 x at batch 8 (device)."""


def _type_of(matrix: Any) -> torch.dtype | None:
    """What a matrix is stored in, as the checkpoint has it."""
    weight = getattr(matrix, "weight", None)
    return weight.dtype if isinstance(weight, torch.Tensor) else None


def _release_unused() -> None:
    """Gives the GPU back what packing a layer took, which torch's allocator would hold.

    Of 48 layers with experts that added up to 17 GB, more than the packed weights: beside another
    engine, and where GPU and host share one memory, somebody else needs it.
    """
    if not torch.cuda.is_available():
        return
    if _unused_bytes() > _MOST_UNUSED:
        torch.cuda.empty_cache()


def _unused_bytes() -> int:
    """What torch's allocator holds of the GPU beside its tensors."""
    return int(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def _check_memory() -> None:
    """Refuses to go on when the GPU is about to be full: vLLM needs some of it, too."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        if free + _unused_bytes() < _MARGIN:
            raise SparkProfError(
                f"{free >> 20} MiB of the GPU are free, too little for a second copy of the weights"
            )
