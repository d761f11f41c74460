"""A norm of your own, to begin with: x / sqrt(mean(x^2) + epsilon) * weight.

    spark-prof kernels check THIS_FILE.py:build --slot norm
    spark-prof ab --b norm=THIS_FILE.py:build -- MODEL

`build` is called once for each norm of the model, in every process of the engine. What it returns
is called for each step instead of vLLM's kernel, and while CUDA graphs are captured: it must not
wait for the GPU, keep memory, use another stream or write to its arguments. The check tells.
"""

from __future__ import annotations

from typing import Any

import torch

from spark_prof.swaps.layers import Layer, NormLayer, Replacement, has_triton

try:
    import triton
    import triton.language as tl
except ImportError:  # then plain PyTorch computes
    triton = None


def build(layer: Layer) -> Replacement | None:
    """The kernel for one norm, or None to leave it to vLLM."""
    if not isinstance(layer, NormLayer):
        return None
    # A copy: what else happens to the module's own tensor is vLLM's business.
    weight, epsilon = layer.weight.detach().clone(), layer.epsilon

    def run(x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        # x and residual are contiguous [M, H] in the model's dtype. Without a residual the result
        # is y; with one it is (y, x + residual), both new tensors.
        compute = _by_triton if has_triton(x) else _by_torch
        y, both = compute(x, residual, weight, epsilon)
        return y if residual is None else (y, both)

    # tokens=0: any number of rows. bits="kept": it computes with the weights as they are.
    return Replacement(run, tokens=0, bits="kept", bytes=weight.nbytes, line="my own norm")


def _by_torch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    both = x.float() if residual is None else x.float() + residual.float()
    root = torch.rsqrt(both.square().mean(-1, keepdim=True) + epsilon)
    # vLLM rounds before the weight multiplies; the check allows that and not doing it.
    return ((both * root).to(x.dtype) * weight).to(x.dtype), both.to(x.dtype)


def _by_triton(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    y = torch.empty_like(x)
    both = y if residual is None else torch.empty_like(x)
    _norm[(rows,)](
        x,
        residual,
        weight,
        y,
        both,
        columns,
        epsilon,
        BLOCK=triton.next_power_of_2(columns),
        HAS_RESIDUAL=residual is not None,
        num_warps=4,
    )
    return y, both


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _norm(  # type: ignore[no-untyped-def]
        x,
        residual,
        weight,
        y,
        both,
        columns,
        epsilon,
        BLOCK: tl.constexpr,  # noqa: N803
        HAS_RESIDUAL: tl.constexpr,  # noqa: N803
    ):
        # One program a row, the whole row in registers.
        first = tl.program_id(0).to(tl.int64) * columns
        column = tl.arange(0, BLOCK)
        inside = column < columns
        value = tl.load(x + first + column, mask=inside, other=0.0).to(tl.float32)
        if HAS_RESIDUAL:
            value += tl.load(residual + first + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(both + first + column, value.to(both.dtype.element_ty), mask=inside)
        root = 1.0 / tl.sqrt(tl.sum(value * value) / columns + epsilon)
        scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + first + column, (value * root * scale).to(y.dtype.element_ty), mask=inside)
