"""The kernels' work in plain PyTorch, in float32, to try the gate on: right, or wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spark_prof.kernels.check.dense_cases import Linear
from spark_prof.kernels.check.weights import Weight

__all__ = ["plain_linear"]


def plain_linear(
    change: Callable[[torch.Tensor], torch.Tensor] = lambda decoded: decoded,
    after: Callable[[torch.Tensor], torch.Tensor] = lambda result: result,
    biased: bool = True,
) -> Linear:
    """A linear layer; `change` is done to the decoded weight, `after` to the float32 result."""

    def pack(weight: Weight) -> Callable[..., object]:
        decoded = change(weight.decode())

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            # In float64, as float32 cannot hold all that a tensor core's exact products are.
            sums = (x.double() @ decoded.T).float()
            if bias is not None and biased:
                sums = sums + bias.float()
            return out.copy_(after(sums).to(torch.bfloat16))

        return compute

    return pack
