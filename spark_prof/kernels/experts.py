"""The weights of a mixture of experts, packed for the kernels of `moe.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import GlobalScale, MxFp4, NvFp4
from spark_prof.kernels.operands import check_operand
from spark_prof.kernels.pack import PackedLinear, pack_rows


@dataclass(frozen=True)
class Activation:
    """What joins gate and up.

    Attributes:
        name: `silu`: gate * sigmoid(gate) * up. `swiglu`, of gpt-oss: gate is at most `limit`, up
            lies within it, and the result is gate * sigmoid(alpha * gate) * (up + 1).
        alpha: of `swiglu`.
        limit: of `swiglu`.
    """

    name: Literal["silu", "swiglu"]
    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True, eq=False)
class PackedExperts:
    """Experts ready for `moe`.

    Attributes:
        gate_up: E matrices of 2I x H; eight rows of gate and eight of up take turns.
        gate_up_bias: bfloat16 [E, 2I] in the order of the packed rows, or None.
        down_bias: bfloat16 [E, H], or None.
    """

    count: int
    hidden: int
    intermediate: int
    activation: Activation
    gate_up: PackedLinear
    down: PackedLinear
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None


def pack_experts(
    gate_up: NvFp4 | MxFp4,
    down: NvFp4 | MxFp4,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: Activation,
) -> PackedExperts:
    """Packs the experts of a layer, on the device that they are on.

    Args:
        gate_up: [E, 2I, H], the rows of gate before those of up; gpt-oss's checkpoints have them
            by turns, see `formats.deinterleave_gate_up`.
        down: [E, H, I], in the same format.
        gate_up_bias: bfloat16 [E, 2I], in the order of `gate_up`.
        down_bias: bfloat16 [E, H].

    Raises:
        KernelError: shapes, formats or devices do not fit, I or H is no multiple of 16.
    """
    if type(gate_up) is not type(down) or len(gate_up.shape) != 3 or len(down.shape) != 3:
        raise KernelError("experts need gate_up [E, 2I, H] and down [E, H, I] in the same format")
    count, rows, hidden = gate_up.shape
    intermediate = rows // 2
    if tuple(down.shape) != (count, hidden, intermediate) or rows % 2:
        raise KernelError(
            f"gate_up {tuple(gate_up.shape)} and down {tuple(down.shape)} do not fit: they must be"
            " [E, 2I, H] and [E, H, I]"
        )
    if activation.name not in ("silu", "swiglu"):
        raise KernelError(f"the activation is silu or swiglu, not {activation.name}")
    device = gate_up.packed.device
    if down.packed.device != device:
        raise KernelError(f"down is on {down.packed.device}, gate_up is on {device}")
    if gate_up_bias is not None:
        check_operand("gate_up_bias", gate_up_bias, (count, rows), device)
        gate_up_bias = _by_turns(gate_up_bias.unsqueeze(-1)).squeeze(-1)
    if down_bias is not None:
        check_operand("down_bias", down_bias, (count, hidden), device)
    return PackedExperts(
        count, hidden, intermediate, activation,
        pack_rows(_turned(gate_up)), pack_rows(down), gate_up_bias, down_bias,
    )  # fmt: skip


def _turned(gate_up: NvFp4 | MxFp4) -> NvFp4 | MxFp4:
    if isinstance(gate_up, MxFp4):
        return MxFp4(_by_turns(gate_up.packed), _by_turns(gate_up.scales))
    scale = gate_up.global_scale
    value = scale.value.expand(*gate_up.packed.shape[:-1], 1)
    scales = _by_turns(gate_up.scales.view(torch.uint8)).view(torch.float8_e4m3fn)
    return NvFp4(_by_turns(gate_up.packed), scales, GlobalScale(_by_turns(value), scale.convention))


def _by_turns(rows: torch.Tensor) -> torch.Tensor:
    """[E, 2I, ...] with gate before up, as eight rows of gate and eight of up by turns."""
    count, both, width = rows.shape
    return rows.reshape(count, 2, both // 16, 8, width).transpose(1, 2).reshape(count, both, width)
