"""The norm of the residual stream and a dense MLP, in two or three launches for a few tokens.

Norm, gate, up and SiLU are `cuda/dense.cu` with its rows by turns, behind the norm of
`normed_linear.py`; down is a matrix of `dense.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from spark_prof.kernels.candidate import Layer, NormedMlpLayer, NormLayer, Replacement
from spark_prof.kernels.dense import (
    LinearConfig,
    default_config,
    dense_code,
    linear,
)
from spark_prof.kernels.formats import Int4Groups, QuantizedWeight
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import gate_and_up_by_turns
from spark_prof.kernels.normed_linear import (
    choose_normed,
    insisted_config,
    norm_code,
    normed_config,
    normed_linear,
)
from spark_prof.kernels.operands import LARGEST_BATCH, multiprocessors
from spark_prof.kernels.pack import STACK, PackedLinear, pack_linear, pack_rows
from spark_prof.kernels.runtime.code import KernelCode

LISTED = (
    {
        "names": ("layer-mlp",),
        "layer": "normed mlp",
        "does": "RMS norm of x + residual, gate and up, SiLU, and down",
        "formats": ("nvfp4", "mxfp4", "fp8", "fp8_blocks", "bf16"),
        "shapes": "H up to 8192, I a multiple of 16 (MXFP4: of 32); else as of dense layers",
        "operation": "normed_mlp",
        "reference": "normed_mlp_oracle",
        "bytes": "3 H I w + 4 (3 H + 2 I) + 2 M (4 H + 2 I)",
        "tolerance": "as of dense layers, the errors of norm and activation carried through",
        "check": "normed-mlp",
    },
)
"""For `registry.py`."""


@dataclass(frozen=True, eq=False)
class PackedMlp:
    """An MLP ready for `normed_mlp`."""

    norm: NormLayer  # its weight is float32 [H], contiguous
    gate_up: PackedLinear  # 2I x H, eight rows of gate and eight of up by turns
    down: PackedLinear


@dataclass(frozen=True)
class MlpConfig:
    """How both launches share out their work."""

    gate_up: LinearConfig
    fused: bool  # whether the first makes the norm, which else has a launch of its own
    down: LinearConfig


def pack_mlp(layer: NormedMlpLayer) -> PackedMlp:
    """Packs an MLP, on the device that it is on; weights in bfloat16 are read where they are.

    Raises:
        KernelError: the matrices do not fit each other, or no kernel takes their format.
    """
    gate_up, down = layer.gate_up.weight, layer.down.weight
    shape, hidden = tuple(gate_up.shape), layer.norm.weight.shape[-1]
    if len(shape) != 2 or shape[1] != hidden or tuple(down.shape) != (hidden, shape[0] // 2):
        raise KernelError(
            f"gate and up are {shape}, down is {tuple(down.shape)} and the norm of {hidden}"
            " features: they must be [2I, H], [H, I] and H"
        )
    if shape[0] % (2 * STACK):
        raise KernelError(f"an MLP of {shape[0] // 2} features within; give a multiple of {STACK}")
    if isinstance(gate_up, Int4Groups):
        raise KernelError("gate and up of INT4 are not taken together with their activation")
    norm = replace(layer.norm, weight=layer.norm.weight.detach().to(torch.float32, copy=True))
    return PackedMlp(norm, pack_rows(gate_and_up_by_turns(_alone(gate_up))), pack_linear(down))


def _alone(weight: QuantizedWeight | torch.Tensor) -> QuantizedWeight | torch.Tensor:
    """A matrix as a stack of one."""
    if isinstance(weight, torch.Tensor):
        return weight
    tensors = {
        name: value.unsqueeze(0)
        for name, value in vars(weight).items()
        if isinstance(value, torch.Tensor)
    }
    stacked: Any = replace(weight, **tensors)
    return stacked


def mlp_config(mlp: PackedMlp, tokens: int) -> MlpConfig:
    """How both launches share out their work: as measured for such matrices, else by default."""
    fused = choose_normed(mlp.gate_up, tokens, multiprocessors(mlp.gate_up.weights.device))
    gate_up = fused or insisted_config(mlp.gate_up, tokens)
    return MlpConfig(gate_up, fused is not None, insisted_config(mlp.down, tokens))


def build(layer: Layer) -> Replacement:
    """The kernels for a norm and an MLP, as the registry's candidates have it."""
    assert isinstance(layer, NormedMlpLayer)
    mlp = pack_mlp(layer)

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        return normed_mlp(x, residual, mlp, mlp_config(mlp, max(1, len(x))))

    return Replacement(run, LARGEST_BATCH, "kept", mlp.norm.weight.nbytes)


def normed_mlp(
    x: torch.Tensor,  # bfloat16 [M, H], M from 1 to 16, rows at multiples of 16 bytes
    residual: torch.Tensor | None,  # bfloat16 [M, H], contiguous
    mlp: PackedMlp,
    config: MlpConfig,
    dependent: bool = False,  # as in `dense.linear`
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the MLP makes of the norm of x + residual, and that sum, both bfloat16 [M, H]."""
    between, stream = normed_linear(
        x, residual, mlp.norm, mlp.gate_up, None, config.gate_up, dependent, gated=True
    )
    return linear(between, mlp.down, None, None, config.down, dependent=True), stream


def codes_of(mlp: PackedMlp, configs: Mapping[int, MlpConfig]) -> list[KernelCode]:
    """What is compiled for an MLP and these configurations by number of tokens."""
    up, down = mlp.gate_up, mlp.down
    return [
        norm_code(up.columns),
        *(
            code
            for count, config in configs.items()
            for code in (
                dense_code(up.format, up.columns, count, config.gate_up, config.fused, gated=True),
                dense_code(down.format, down.columns, count, config.down),
            )
        ),
    ]


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical models: of down what `dense.py` has."""
    kernel_codes = []
    for name in ("nvfp4", "mxfp4", "fp8", "fp8_blocks", "bf16"):
        for rows, columns in ((28672, 4096), (24576, 4096), (12288, 2048)):
            for tokens in (1, 4, 8, LARGEST_BATCH):
                fused = normed_config(rows, columns, tokens, name, 132)
                config = fused or default_config(rows, columns, tokens, name)
                norm = fused is not None
                kernel_codes.append(dense_code(name, columns, tokens, config, norm, gated=True))
    return list(dict.fromkeys(kernel_codes))
