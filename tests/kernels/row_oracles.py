"""What the passes that end in quantized rows have to give, bit for bit, in plain PyTorch.

Each is vLLM's kernels one after the other: rounded to BF16 wherever one of them writes BF16. Where
those use an approximate instruction, the oracle takes its result from the same device: reciprocals
through `conversions.cu`, square roots and exp through torch, whose CUDA kernels call the same
functions. On the CPU all three are rounded correctly.
"""

from __future__ import annotations

from pathlib import Path

import torch

from spark_prof.kernels.formats import (
    GlobalScale,
    MxFp8,
    NvFp4,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
    pack_nibbles,
    quantize_mxfp8,
)
from spark_prof.kernels.formats.elements import block_amax, blocks_of
from spark_prof.kernels.quantized_rows import RowFormat
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch

_VECTOR = 8
"""Values that a thread loads at once."""
_WARP = 32
_SOURCE = str(Path(__file__).with_name("conversions.cu"))


def quantized_rows(
    x: torch.Tensor, row_format: RowFormat, global_scale: GlobalScale | None = None
) -> NvFp4 | MxFp8:
    """The rows as vLLM's `scaled_fp4_quant` and `mxfp8_e4m3_quantize` quantize them.

    Args:
        x: bfloat16 [M, K].
        row_format: what to.
        global_scale: NVFP4 only; one that divides, for all rows or for each.
    """
    if row_format == "mxfp8" or global_scale is None:
        return quantize_mxfp8(x)
    blocks = blocks_of(x, 16)
    amax, factor = block_amax(blocks), global_scale.value
    sixth = _reciprocals(torch.tensor([6.0], device=x.device))
    scales = e4m3_encode(factor * (amax * sixth))
    steps = e4m3_decode(scales, torch.float32)
    into_steps = _reciprocals(steps * _reciprocals(factor))
    scaled = blocks * torch.where(steps == 0, 0.0, into_steps).unsqueeze(-1)
    return NvFp4(pack_nibbles(e2m1_encode(scaled.flatten(-2))), scales, global_scale)


def normed_rows(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm as vLLM's `rms_norm` or `fused_add_rms_norm`, which add squares in different orders.

    Returns:
        The normed rows, and what was normed: x, or x + residual.
    """
    kept = x if residual is None else (x.float() + residual.float()).to(torch.bfloat16)
    mean = mean_of_squares(kept, by_pairs=residual is not None)
    inverse = _inverse_root(mean + epsilon).unsqueeze(-1)
    return (kept.float() * inverse * weight.float()).to(torch.bfloat16), kept


def mean_of_squares(x: torch.Tensor, by_pairs: bool) -> torch.Tensor:
    """Of each row in float32, added up in the order of one of vLLM's kernels.

    Args:
        x: bfloat16 [M, K].
        by_pairs: whether a thread adds squares by pairs, as with a residual, or one by one.
    """
    squares = x.float().square().unflatten(-1, (-1, _VECTOR))
    threads = min(squares.shape[1], 1024 if len(x) < 256 else 256)
    turns = -(-squares.shape[1] // threads)
    squares = torch.nn.functional.pad(squares, (0, 0, 0, turns * threads - squares.shape[1]))
    sums = torch.zeros(len(x), threads, device=x.device)
    for vectors in squares.unflatten(1, (turns, threads)).unbind(1):
        if by_pairs:
            own = torch.zeros_like(sums)
            for pair in (vectors[..., 0::2] + vectors[..., 1::2]).unbind(-1):
                own = own + pair
            sums = sums + own
        else:
            for value in vectors.unbind(-1):
                sums = sums + value
    # A division by a number is a product with its reciprocal in torch, one by a tensor is not.
    return _block_sum(sums) / torch.tensor(float(x.shape[1]), device=x.device)


def activated_rows(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU(gate) * up as vLLM's `silu_and_mul`, which rounds SiLU to BF16 and adds 0 to up."""
    gate, up = gate_up.chunk(2, dim=-1)
    if gate.is_cuda:
        silu = torch.nn.functional.silu(gate)
    else:
        silu = (gate.float() / (1.0 + torch.exp(-gate.double()).float())).to(torch.bfloat16)
    return (silu.float() * (up.float() + 0.0)).to(torch.bfloat16)


def _block_sum(sums: torch.Tensor) -> torch.Tensor:
    """CUB's block reduction of one number a thread: lanes pairwise, then warps one by one."""
    lanes = torch.nn.functional.pad(sums, (0, -sums.shape[-1] % _WARP)).unflatten(-1, (-1, _WARP))
    while lanes.shape[-1] > 1:
        lanes = lanes[..., 0::2] + lanes[..., 1::2]
    total, *others = lanes.squeeze(-1).unbind(-1)
    for warp in others:
        total = total + warp
    return total


def _inverse_root(values: torch.Tensor) -> torch.Tensor:
    return values.rsqrt() if values.is_cuda else values.double().sqrt().reciprocal().float()


def _reciprocals(values: torch.Tensor) -> torch.Tensor:
    values = values.contiguous()
    results = torch.empty_like(values)
    blocks = -(-values.numel() // 256)
    code = KernelCode(_SOURCE, "reciprocals")
    launch(code, (blocks, 1, 1), 256, [values, results, values.numel()])
    return results
