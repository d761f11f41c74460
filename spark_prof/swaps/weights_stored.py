"""How each of vLLM's quantization methods stores a layer, before it is laid out for a kernel.

Each row is a class of vLLM and the parameters that its `create_weights` registers. A method that
hands its work on is written with what it hands it to: `CompressedTensorsLinearMethod` to the
layer's `scheme`, `ModelOptLinearMethod` to its own `wkey`. Read in vLLM 0.24 to 0.33; a class that
has another name there has a row for each name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import Convention

Format = Literal["plain", "nvfp4", "mxfp4", "fp8"]
"""`plain` is not quantized."""


@dataclass(frozen=True)
class StoredAs:
    """The parameters of a layer. Those of experts have `w13_` or `w2_` before their names.

    Attributes:
        method: the class that registers them, behind a `/` that it hands its work to.
        scale: the scales of its blocks, rows or shards.
        global_scale: those of its shards, above the scales of its blocks.
        convention: which way round `global_scale` is.
        input_scale: of activations; weights that are multiplied with BF16 have no use for it.
    """

    method: str
    format: Format
    weight: str = "weight"
    scale: str = "weight_scale"
    global_scale: str = ""
    convention: Convention = "multiplies"
    input_scale: str = ""


_COMPRESSED = "CompressedTensorsLinearMethod/CompressedTensors"
_MODELOPT = "ModelOptLinearMethod/K"  # since 0.31

LINEAR = (
    StoredAs("UnquantizedLinearMethod", "plain"),
    StoredAs("UnquantizedEmbeddingMethod", "plain"),
    StoredAs(
        "ModelOptNvFp4LinearMethod", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        "ModelOptNvFp4W4A16LinearMethod", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        _MODELOPT + "Nvfp4Static", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        _COMPRESSED + "W4A4Fp4", "nvfp4", "weight_packed",
        global_scale="weight_global_scale", convention="divides", input_scale="input_global_scale",
    ),
    StoredAs(_COMPRESSED + "W4A4Mxfp4", "mxfp4", "weight_packed"),
    StoredAs(_COMPRESSED + "W8A8Fp8", "fp8", input_scale="input_scale"),
    StoredAs(_COMPRESSED + "W8A16Fp8", "fp8", input_scale="input_scale"),
    StoredAs("ModelOptFp8LinearMethod", "fp8", input_scale="input_scale"),
    StoredAs("ModelOptFp8PcPtLinearMethod", "fp8"),
    StoredAs(_MODELOPT + "Fp8StaticTensor", "fp8", input_scale="input_scale"),
    StoredAs(_MODELOPT + "Fp8StaticChannel", "fp8"),
    StoredAs("Fp8LinearMethod", "fp8", input_scale="input_scale"),
    StoredAs("FBGEMMFp8LinearMethod", "fp8"),
)  # fmt: skip
"""Of matrices and embeddings."""

EXPERTS = (
    StoredAs("UnquantizedFusedMoEMethod", "plain"),
    StoredAs("GptOssMxfp4MoEMethod", "mxfp4"),
    StoredAs("Mxfp4MoEMethod", "mxfp4"),
    StoredAs("CompressedTensorsW4A4Mxfp4MoEMethod", "mxfp4", "weight_packed"),
    StoredAs(
        "ModelOptNvFp4FusedMoE", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        "CompressedTensorsW4A4Nvfp4MoEMethod", "nvfp4", "weight_packed",
        global_scale="weight_global_scale", convention="divides", input_scale="input_global_scale",
    ),
)  # fmt: skip
"""Of a mixture of experts."""


def method_of(module: Any) -> str:
    """How the row of a module's quantization method is called, whether there is one or not."""
    method = getattr(module, "quant_method", None)
    name = type(method).__name__
    behind = getattr(method, "wkey", None)
    if behind is None and not name.startswith("Unquantized"):
        behind = getattr(module, "scheme", None)
    return name if behind is None else f"{name}/{type(behind).__name__}"


def stored_as(module: Any, rows: tuple[StoredAs, ...]) -> StoredAs:
    """The row of a module, a torch.nn.Module with a quantization method.

    Raises:
        KernelError: there is none.
    """
    method = method_of(module)
    found = next((row for row in rows if row.method == method), None)
    if found is None:
        known = ", ".join(sorted({row.format for row in rows} - {"plain"}))
        raise KernelError(f"{method} is not read; {known} of vLLM's own classes are")
    return found


def parameter(module: Any, name: str) -> torch.Tensor:
    """A parameter of a module, which it is not a copy of.

    Raises:
        KernelError: it has none of that name.
    """
    value = getattr(module, name, None)
    if not isinstance(value, torch.Tensor):
        raise KernelError(
            f"{method_of(module)} has no {name} in this layer: the weights are not laid out as"
            " they are read"
        )
    return value.detach()
