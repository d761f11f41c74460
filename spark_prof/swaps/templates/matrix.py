"""A matrix of your own, to begin with: x W^T + bias with weights of 4 bits.

    spark-prof kernels check THIS_FILE.py:build --slot qkv
    spark-prof kernels bench THIS_FILE.py:build --slot qkv
    spark-prof ab --b qkv=THIS_FILE.py:build -- MODEL

The slots qkv, o, mlp and lm_head have such layers. `build` is called once for each of them, in
every process of the engine, with the weight as the checkpoint has it. What it returns is called for
each step instead of vLLM's kernel, and while CUDA graphs are captured: it must not wait for the
GPU, keep memory, use another stream or write to its arguments. The check tells.

This kernel is right and short. It is not fast: each token reads the whole weight again.
"""

from __future__ import annotations

import torch

from spark_prof.kernels.formats import MxFp4, NvFp4, e8m0_decode
from spark_prof.swaps.layers import Layer, LinearLayer, Replacement, has_triton

try:
    import triton
    import triton.language as tl
except ImportError:  # then plain PyTorch computes
    triton = None

MOST_TOKENS = 16


def build(layer: Layer) -> Replacement | None:
    """The kernel for one matrix, or None to leave it to vLLM."""
    if not isinstance(layer, LinearLayer) or not isinstance(layer.weight, NvFp4 | MxFp4):
        return None
    weight = layer.weight
    if not has_triton(weight.packed):
        decoded = weight.decode().float()

        def plain(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            product = x.float() @ decoded.T
            return (product if bias is None else product + bias).to(x.dtype)

        return Replacement(plain, MOST_TOKENS, bits="kept", bytes=decoded.nbytes)

    # Everything slow belongs here: this layout is read as it is by every later call. The tensors of
    # the layer are vLLM's, which lays them out anew afterwards: what is kept has to be a copy.
    codes = weight.packed.clone()
    scales = _block_scales(weight)
    row_scales = _row_scales(weight)
    rows, columns = weight.shape

    def run(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        # x is contiguous [M, K] in the model's dtype, the result a new [M, N].
        y = x.new_empty((len(x), rows))
        _matrix[(len(x), triton.cdiv(rows, 32))](
            x,
            codes,
            scales,
            row_scales,
            bias,
            y,
            rows,
            COLUMNS=columns,
            GROUP=columns // scales.shape[-1],
            HAS_BIAS=bias is not None,
            BLOCK_ROWS=32,
            BLOCK_BYTES=64,
            num_warps=4,
        )
        return y

    memory = codes.nbytes + scales.nbytes + row_scales.nbytes
    # Beyond MOST_TOKENS vLLM's own kernel runs.
    return Replacement(run, MOST_TOKENS, bits="kept", bytes=memory, line="my own matrix")


def _block_scales(weight: NvFp4 | MxFp4) -> torch.Tensor:
    """One bfloat16 for each block of a row, which holds both formats' scales exactly."""
    if isinstance(weight, MxFp4):
        return e8m0_decode(weight.scales).bfloat16()
    return weight.scales.float().bfloat16()


def _row_scales(weight: NvFp4 | MxFp4) -> torch.Tensor:
    """One float32 a row: the global scale of NVFP4, whichever way round it is stored."""
    ones = torch.ones((*weight.packed.shape[:-1], 1), device=weight.packed.device)
    scale = ones if isinstance(weight, MxFp4) else weight.global_scale.apply(ones)
    return scale.float().contiguous()


if triton is not None:

    @triton.jit
    def _value(code):  # type: ignore[no-untyped-def]
        # E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the sign.
        exponent, mantissa = (code >> 1) & 3, code & 1
        size = tl.where(exponent == 0, mantissa * 0.5, (2 + mantissa) * (1 << exponent) * 0.25)
        return tl.where(code & 8 != 0, -size, size)

    @triton.jit  # type: ignore[untyped-decorator]
    def _matrix(  # type: ignore[no-untyped-def]
        x,
        codes,
        scales,
        row_scales,
        bias,
        y,
        rows,
        COLUMNS: tl.constexpr,  # noqa: N803
        GROUP: tl.constexpr,  # noqa: N803
        HAS_BIAS: tl.constexpr,  # noqa: N803
        BLOCK_ROWS: tl.constexpr,  # noqa: N803
        BLOCK_BYTES: tl.constexpr,  # noqa: N803
    ):
        # One program a token and BLOCK_ROWS rows. A byte holds two columns, the even one low.
        token = tl.program_id(0)
        row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        is_row = row < rows
        start = row.to(tl.int64)[:, None]
        total = tl.zeros((BLOCK_ROWS,), tl.float32)
        for first in range(0, COLUMNS // 2, BLOCK_BYTES):
            byte = first + tl.arange(0, BLOCK_BYTES)
            is_byte = byte < COLUMNS // 2
            even = tl.load(x + token * COLUMNS + 2 * byte, mask=is_byte, other=0.0)
            odd = tl.load(x + token * COLUMNS + 2 * byte + 1, mask=is_byte, other=0.0)
            both = is_row[:, None] & is_byte[None, :]
            code = tl.load(codes + start * (COLUMNS // 2) + byte[None, :], mask=both, other=0)
            code = code.to(tl.int32)
            place = start * (COLUMNS // GROUP) + (2 * byte // GROUP)[None, :]
            scale = tl.load(scales + place, mask=both, other=0.0).to(tl.float32)
            product = _value(code & 15) * even.to(tl.float32)[None, :]
            product += _value(code >> 4) * odd.to(tl.float32)[None, :]
            total += tl.sum(product * scale, 1)
        total *= tl.load(row_scales + row, mask=is_row, other=0.0)
        if HAS_BIAS:
            total += tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)
        tl.store(y + token * rows + row, total.to(y.dtype.element_ty), mask=is_row)
