"""Random experts of a mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from spark_prof.kernels.bench.shapes import ExpertsShape
from spark_prof.kernels.bench.weights import random_fp4, stored_bytes
from spark_prof.kernels.check.oracles import ExactExperts
from spark_prof.kernels.formats import GlobalScale, MxFp4, NvFp4

_ALPHA, _LIMIT, _SHIFT = 1.702, 7.0, 1.0
"""gpt-oss: gate sigmoid(1.702 gate) (up + 1), gate at most 7, up between -7 and 7."""


@dataclass(frozen=True)
class ExpertWeights:
    """All experts of a layer.

    Attributes:
        gate_up: [E, 2 I, H], all rows of the gate before those of up.
        down: [E, H, I].
        gate_up_bias: BF16 [E, 2 I] or None.
        down_bias: BF16 [E, H] or None.
    """

    shape: ExpertsShape
    gate_up: NvFp4 | MxFp4
    down: NvFp4 | MxFp4
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None

    @property
    def alpha(self) -> float:
        """Of the activation."""
        return _ALPHA if self.shape.activation == "swiglu" else 1.0

    @property
    def limit(self) -> float:
        """Of the activation."""
        return _LIMIT if self.shape.activation == "swiglu" else math.inf

    @property
    def bytes_each(self) -> int:
        """Of one expert's codes, scales and biases."""
        size = stored_bytes(self.gate_up) + stored_bytes(self.down)
        size += sum(b.nbytes for b in (self.gate_up_bias, self.down_bias) if b is not None)
        return int(size // self.shape.experts)

    def exact(self) -> ExactExperts:
        """As the oracle takes them."""
        return ExactExperts(
            gate_up=lambda expert: _one(self.gate_up, expert).decode(),
            down=lambda expert: _one(self.down, expert).decode(),
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            alpha=self.alpha,
            limit=self.limit,
            shift=_SHIFT if self.shape.activation == "swiglu" else 0.0,
        )


def random_experts(shape: ExpertsShape, device: torch.device) -> ExpertWeights:
    """Experts as `random_fp4` makes matrices, with biases of about 0.1."""
    count, hidden, inner = shape.experts, shape.hidden, shape.intermediate
    dice = torch.Generator(device).manual_seed(2)

    def bias(rows: int) -> torch.Tensor | None:
        if not shape.bias:
            return None
        values = torch.randn((count, rows), device=device, generator=dice)
        return (values * 0.1).to(torch.bfloat16)

    return ExpertWeights(
        shape=shape,
        gate_up=random_fp4(shape.format, (count, 2 * inner, hidden), device, seed=0),
        down=random_fp4(shape.format, (count, hidden, inner), device, seed=1),
        gate_up_bias=bias(2 * inner),
        down_bias=bias(hidden),
    )


def _one(weight: NvFp4 | MxFp4, expert: int) -> NvFp4 | MxFp4:
    packed, scales = weight.packed[expert], weight.scales[expert]
    if isinstance(weight, NvFp4):
        its = weight.global_scale
        return NvFp4(packed, scales, GlobalScale(its.value[expert], its.convention))
    return MxFp4(packed, scales)
