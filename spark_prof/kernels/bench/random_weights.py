"""Random weights that BF16 holds exactly: all competitors multiply by the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from spark_prof.kernels.bench.shapes import ExpertsShape, WeightFormat
from spark_prof.kernels.candidate import Activation, ExpertsLayer, RouterLayer
from spark_prof.kernels.check.inputs import Weight, decode, part_of
from spark_prof.kernels.formats import Fp8Blocks, Fp8Rows, GlobalScale, MxFp4, NvFp4, TwoStacks

_SLICE_ELEMENTS = 1 << 26
"""Decoded at once: in float64 that takes a dozen times the memory."""

_BF16_SCALE = 2.0**-5

_GLOBAL_SCALE = 2.0**-14
"""A power of two: a code times an E4M3 scale has six significant bits, of which BF16 loses none."""


def random_weight(
    format: WeightFormat,  # noqa: A002 - the word of the formats
    shape: tuple[int, int],  # of the decoded weights, [N, K]
    device: torch.device,
    seed: int = 0,
) -> Weight:
    """A matrix of weights of about 0.04, any code as likely as any other, the scales random too."""
    if format == "nvfp4" or format == "mxfp4":
        return random_fp4(format, shape, device, seed)
    dice = torch.Generator(device).manual_seed(seed)
    if format == "bf16":
        values = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=dice)
        return values.mul_(_BF16_SCALE)
    # Every E4M3 but NaN; each row another power of two, 2^-13 to 2^-11.
    values = _integers(0, 0x7F, shape, dice) | _integers(0, 2, shape, dice) << 7
    powers = _integers(114, 117, shape[:1], dice).to(torch.int32) << 23
    return Fp8Rows(values.view(torch.float8_e4m3fn), powers.view(torch.float32))


def random_fp4(
    format: Literal["nvfp4", "mxfp4"],  # noqa: A002
    shape: tuple[int, ...],
    device: torch.device,
    seed: int = 0,
) -> NvFp4 | MxFp4:
    """As `random_weight`, also of experts [E, N, K]: NVFP4 then has a global scale for each."""
    dice = torch.Generator(device).manual_seed(seed)
    *outer, columns = shape
    packed = _integers(0, 256, (*outer, columns // 2), dice)
    if format == "mxfp4":
        # 2^-8 to 2^-5
        return MxFp4(packed, _integers(119, 123, (*outer, columns // 32), dice))
    # 26 to 448, as E4M3
    scales = _integers(0x5D, 0x7F, (*outer, columns // 16), dice).view(torch.float8_e4m3fn)
    rows = (*outer[:-1], 1, 1) if len(shape) > 2 else ()
    value = torch.full(rows, _GLOBAL_SCALE, dtype=torch.float32, device=device)
    return NvFp4(packed, scales, GlobalScale(value, "multiplies"))


def decoded(weight: Weight) -> torch.Tensor:
    """A matrix [N, K] in BF16, exactly; one that is BF16 is not copied."""
    if isinstance(weight, torch.Tensor):
        return weight
    return torch.cat([decode(part, torch.bfloat16) for part in row_slices(weight)])


def row_slices(weight: Weight) -> Iterator[Weight]:
    """A matrix in pieces that can be decoded one after another; its global scale is one number."""
    rows, columns = weight.shape
    step = max(1, _SLICE_ELEMENTS // columns)
    for begin in range(0, rows, step):
        yield part_of(weight, slice(begin, begin + step))


def stored_bytes(weight: Weight) -> int:
    """Bytes of a weight's codes and scales."""
    if isinstance(weight, torch.Tensor):
        return int(weight.nbytes)
    if isinstance(weight, TwoStacks):
        return int(weight.first.nbytes + weight.second.nbytes)
    codes = weight.values if isinstance(weight, Fp8Rows | Fp8Blocks) else weight.packed
    return int(codes.nbytes + weight.scales.nbytes)


def _integers(low: int, high: int, size: tuple[int, ...], dice: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high, size, dtype=torch.uint8, device=dice.device, generator=dice)


def bytes_of_expert(layer: ExpertsLayer) -> int:
    """Bytes of one expert's codes, scales and biases."""
    size = stored_bytes(layer.gate_up) + stored_bytes(layer.down)
    size += sum(b.nbytes for b in (layer.gate_up_bias, layer.down_bias) if b is not None)
    return int(size // layer.router.experts)


def random_experts(shape: ExpertsShape, device: torch.device) -> ExpertsLayer:
    """Experts as `random_weight` makes matrices, with biases of about 0.1."""
    count, hidden, inner = shape.experts, shape.hidden, shape.intermediate
    dice = torch.Generator(device).manual_seed(2)

    def bias(rows: int) -> torch.Tensor | None:
        if not shape.bias:
            return None
        values = torch.randn((count, rows), device=device, generator=dice)
        return (values * 0.1).to(torch.bfloat16)

    def weight(rows: int, columns: int, seed: int) -> Weight:
        if shape.format != "bf16":
            return random_fp4(shape.format, (count, rows, columns), device, seed)
        matrix = random_weight("bf16", (count * rows, columns), device, seed)
        assert isinstance(matrix, torch.Tensor)
        return matrix.view(count, rows, columns)

    return ExpertsLayer(
        name="",
        gate_up=weight(2 * inner, hidden, seed=0),
        down=weight(hidden, inner, seed=1),
        gate_up_bias=bias(2 * inner),
        down_bias=bias(hidden),
        activation=Activation(shape.activation),
        router=RouterLayer("", count, shape.top_k, True, "softmax", None, 1.0),
    )
