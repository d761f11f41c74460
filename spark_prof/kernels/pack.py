"""Lays quantized weights out as the tensor cores take them: 16 rows and 128 columns at a time.

The layout is that of `cuda/weights.cuh`. Nothing is rounded: codes keep their values, scales change
their encoding only, and what all scales of a row have in common moves to one float32 a row.

A lane of a kernel makes a scale a BF16 factor by one multiplication and one addition, so a scale is
stored as five bits of exponent and three of mantissa (NVFP4), or as an exponent (MXFP4). Codes are
2^-126 times their value there; the factors make up for it as far as BF16 reaches, the row for the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from spark_prof.kernels.formats import (
    Fp8Blocks,
    Fp8Rows,
    Int4Groups,
    MxFp4,
    NvFp4,
    QuantizedWeight,
    TwoStacks,
)
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import token_tiles
from spark_prof.kernels.runtime.code import KernelCode

_NVFP4_ROW = 2.0**20
"""weights.cuh makes 2^-20 of an NVFP4 scale of 1: exponent 10, plus 96, minus 126."""

_MXFP4_TOP = 253
"""The exponent byte of a row's largest MXFP4 scale, which is a factor of 1."""

_MXFP4_SPREAD = 125
"""Binary orders of magnitude over which all products of a row stay normal numbers in BF16."""


def unsigned_nvfp4(weight: NvFp4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The codes [rows, K / 2], the scales' bytes [rows, K / 16], and what rows are multiplied with.

    A negative scale turns its codes round, a zero makes them zero; a row with a scale that is NaN
    has a multiplier that is. Multipliers are float64.
    """
    scales = weight.scales.view(torch.uint8).reshape(-1, weight.scales.shape[-1])
    codes = weight.packed.reshape(-1, weight.packed.shape[-1])
    magnitude = scales & 0x7F
    if (scales == 0x80).any() or (magnitude == 0).any() or (scales > 0x80).any():
        blocks = codes.unflatten(-1, (-1, 8))
        flips = torch.where(scales > 0x80, 0x88, 0).to(torch.uint8).unsqueeze(-1)
        blocks = torch.where((magnitude == 0).unsqueeze(-1), 0, blocks ^ flips)
        codes = blocks.flatten(-2)
    multiplier = weight.global_scale.multiplier().to(codes.device)
    multiplier = multiplier.expand(*weight.packed.shape[:-1], 1).flatten()
    return codes, magnitude, torch.where((magnitude == 0x7F).any(-1), torch.nan, multiplier)


def packed_nvfp4_scales(weight: NvFp4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The codes [rows, K / 2], the scales in the kernels' order, and the float64 scale of each row.

    Codes and rows are as `unsigned_nvfp4` has them.
    """
    codes, magnitude, multiplier = unsigned_nvfp4(weight)
    # E4M3 to an exponent that is 10 at a scale of 1, and a mantissa without a hidden zero.
    mantissa, exponent = torch.frexp(
        (magnitude.view(torch.float8_e4m3fn)).to(torch.float32).nan_to_num(1.0)
    )
    encoded = ((exponent + 9) << 3 | ((mantissa * 16).to(torch.int32) & 7)).to(torch.uint8)
    ordered = in_units(encoded, (4, 2)).permute(0, 3, 2, 5, 4, 1)
    row_scale = multiplier * _NVFP4_ROW
    if (multiplier.isfinite() & row_scale.to(torch.float32).isinf()).any():
        largest = float(multiplier.nan_to_num().abs().max())
        raise KernelError(
            f"a global scale multiplies NVFP4 weights by {largest:.3g}: the"
            " kernels go up to 2^108, keep vLLM's kernel for this layer"
        )
    return codes, ordered.contiguous().flatten(), row_scale


def packed_mxfp4_scales(weight: MxFp4) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales in the kernels' order, and the float64 scale of each row."""
    scales = weight.scales.reshape(-1, weight.scales.shape[-1])
    used = ((weight.packed.reshape(*scales.shape, 16) & 0x77) != 0).any(-1)
    exponents = scales.to(torch.int32)
    counted = used & (exponents != 255)
    largest = torch.where(counted, exponents, -1).amax(-1)
    largest = torch.where(largest < 0, 127, largest)
    moved = exponents - largest.unsqueeze(-1) + _MXFP4_TOP
    if (counted & (moved < _MXFP4_TOP - _MXFP4_SPREAD)).any():
        raise KernelError(
            f"the MXFP4 scales of a row lie more than 2^{_MXFP4_SPREAD} apart: BF16 does not reach"
            " that far, keep vLLM's kernel for this layer"
        )
    encoded = torch.where(counted, moved, 1).to(torch.uint8)
    ordered = in_units(encoded, (4,)).permute(0, 3, 2, 4, 1)
    row_scale = torch.ldexp(torch.ones_like(largest, dtype=torch.float64), largest - 127)
    row_scale = torch.where((exponents == 255).any(-1), torch.nan, row_scale)
    return ordered.contiguous().flatten(), row_scale


def in_units(scales: torch.Tensor, blocks: tuple[int, ...]) -> torch.Tensor:
    """Bytes [rows, K / block] as [stack, 2, 8, unit, *blocks], padded to whole ones."""
    rows, width = scales.shape
    unit = 8 if len(blocks) == 2 else 4
    padded = torch.nn.functional.pad(scales, (0, -width % unit, 0, -rows % 16), value=8)
    return padded.reshape(-1, 2, 8, padded.shape[1] // unit, *blocks)


FORMATS = {"nvfp4": 0, "mxfp4": 1, "fp8": 2, "bf16": 3, "fp8_blocks": 4, "int4": 5}
"""The names of the formats and what FORMAT is in the kernels."""

STACK = 16
"""Rows that are packed together."""

_CHUNK = 1 << 23  # bytes of codes that are packed at a time


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A weight matrix ready for `linear`, or several of the same shape one behind the other."""

    format: str
    rows: int  # N, the features that come out, of one matrix
    columns: int
    weights: torch.Tensor  # uint8, the codes
    # uint8, the block scales; of bf16 the matrices that lie apart, or empty.
    scales: torch.Tensor
    row_scale: torch.Tensor  # float32 [matrices * N rounded up to 16]; empty for bf16

    @property
    def bytes(self) -> int:
        """Bytes that one pass over the whole matrix reads."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All that it holds, in the order of the kernels' parameters."""
        return self.weights, self.scales, self.row_scale


def kernel_code(
    entry: str, form: str, columns: int, tokens: int, constants: Mapping[str, int]
) -> KernelCode:
    """What is compiled for a packed weight of that format and as many columns."""
    defines = [
        ("FORMAT", FORMATS[form]),
        ("COLUMNS", columns),
        ("TOKEN_TILES", token_tiles(tokens)),
    ]
    defines += [(name.upper(), value) for name, value in constants.items()]
    return KernelCode(f"{entry}.cu", entry, tuple(defines))


def pack_linear(weight: QuantizedWeight | torch.Tensor) -> PackedLinear:
    """Packs a weight matrix [N, K], on the device that it is on.

    Args:
        weight: K is a multiple of 16, with MXFP4 of 32. A bfloat16 tensor is not copied: the
            kernel reads it where it is.
    """
    if len(weight.shape) != 2:
        raise KernelError(f"a weight of shape {tuple(weight.shape)} is no matrix of [N, K]")
    return pack_rows(weight)


def _in_place(weight: torch.Tensor) -> PackedLinear:
    """Bfloat16 matrices as they are, row after row."""
    if weight.dtype != torch.bfloat16 or not weight.is_contiguous():
        raise KernelError(
            f"a weight of {weight.dtype}, shape {tuple(weight.shape)}, is no contiguous bfloat16 "
            "matrix"
        )
    rows, columns = weight.shape[-2:]
    if not weight.numel() or columns % 16 or rows % STACK:
        raise KernelError(
            f"cannot take a bfloat16 matrix of {rows} x {columns}: N and K must be multiples of 16"
        )
    if weight.data_ptr() % 16:
        raise KernelError(
            f"a bfloat16 matrix at address {weight.data_ptr():#x} cannot be read in place: it must"
            " begin at a multiple of 16 bytes"
        )
    codes = weight.detach().view(torch.uint8).flatten()
    return PackedLinear(
        "bf16", rows, columns, codes, codes[:0], torch.empty(0, device=codes.device)
    )


def pack_rows(weight: QuantizedWeight | torch.Tensor | TwoStacks) -> PackedLinear:
    """Packs matrices [..., N, K] one behind the other; N may be padded only where there is one."""
    if isinstance(weight, torch.Tensor):
        return _in_place(weight)
    if isinstance(weight, TwoStacks):
        return replace(_in_place(weight.first), scales=_in_place(weight.second).weights)
    *matrices, rows, columns = weight.shape
    if columns % 16 or not columns or not rows:
        raise KernelError(f"cannot pack weights of {rows} x {columns}: K must be a multiple of 16")
    if matrices and rows % STACK:
        raise KernelError(f"cannot pack matrices of {rows} rows: N must be a multiple of {STACK}")
    if isinstance(weight, Fp8Rows | Fp8Blocks):
        raw = weight.values.view(torch.uint8).reshape(-1, columns)
        of_rows = weight.scales.reshape(-1) if isinstance(weight, Fp8Rows) else 1.0
        row_scale = torch.where(((raw & 0x7F) == 0x7F).any(-1), torch.nan, of_rows)
        packed = in_stacks(raw, 1, partial(_fp8_words, _tables(raw.device)[1]))
        scales, name = raw.new_empty(0), "fp8"
        if isinstance(weight, Fp8Blocks):
            scales, name = _block_scales(weight), "fp8_blocks"
    else:
        flat = weight.packed.reshape(-1, columns // 2)
        if isinstance(weight, NvFp4):
            flat, scales, row_scale = packed_nvfp4_scales(weight)
            name = "nvfp4"
        elif isinstance(weight, Int4Groups):
            scales, row_scale, name = _group_scales(weight), torch.ones(rows), "int4"
        else:
            scales, row_scale = packed_mxfp4_scales(weight)
            name = "mxfp4"
        table = _int4_table if name == "int4" else lambda device: _tables(device)[0]
        packed = in_stacks(flat, 2, partial(_fp4_words, table(flat.device)))
    padding = -row_scale.numel() % STACK
    row_scale = row_scale.to(packed.device, torch.float32)
    row_scale = torch.nn.functional.pad(row_scale, (0, padding))
    return PackedLinear(name, rows, columns, packed, scales, row_scale)


def _block_scales(weight: Fp8Blocks) -> torch.Tensor:
    """Bytes of float32 [stack, unit, 2], those of eight rows and of the eight after them."""
    eights = weight.scales_of(8).flatten(0, -2)
    padded = torch.nn.functional.pad(eights, (0, 0, 0, len(eights) % 2))
    return padded.unflatten(0, (-1, 2)).transpose(1, 2).contiguous().view(torch.uint8).flatten()


_INT4_UNIT = 128
"""Columns of a unit, of which a row has one scale."""


def _group_scales(weight: Int4Groups) -> torch.Tensor:
    """Bytes of int32 [stack, unit, 8, 2]: a scale, and below it what is added to codes."""
    units = -(-weight.shape[1] // _INT4_UNIT)
    alone = weight.scales.shape[1] == 1
    if weight.group % _INT4_UNIT and not alone:
        raise KernelError(
            f"its groups are of {weight.group} columns; the kernels take multiples of {_INT4_UNIT}"
        )
    # Codes are 128 more than they stand for, as bfloat16 has no bits beside their four then.
    zeros = (weight.zeros.to(torch.int32) | 0xC300) & 0xFFFF
    words = weight.scales.view(torch.int16).to(torch.int32) << 16 | zeros
    words = words.repeat_interleave(units if alone else weight.group // _INT4_UNIT, 1)[:, :units]
    padded = torch.nn.functional.pad(words, (0, 0, 0, -len(words) % STACK))
    ordered = padded.reshape(-1, 2, 8, units).permute(0, 3, 2, 1)
    return ordered.contiguous().view(torch.uint8).flatten()


def _int4_table(device: torch.device) -> torch.Tensor:
    """As of E2M1 in `_tables`: each of the four pairs has bits of its own in both halves."""
    byte = torch.arange(256, dtype=torch.int32)
    shifts = 4 * torch.arange(4, dtype=torch.int32)[:, None]
    return ((byte & 15) << shifts | (byte >> 4) << (16 + shifts)).to(device)


def in_stacks(
    codes: torch.Tensor, per_byte: int, words: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Packs [rows, K / per_byte] bytes stack by stack, in chunks that bound the memory."""
    rows, width = codes.shape
    padded = -(-width * per_byte // 64) * 64 // per_byte
    out = codes.new_empty((-(-rows // STACK), padded * STACK))
    at_once = max(1, _CHUNK // (padded * STACK))
    for first in range(0, out.shape[0], at_once):
        part = codes[first * STACK : (first + at_once) * STACK]
        part = torch.nn.functional.pad(part, (0, padded - width, 0, -part.shape[0] % STACK))
        packed = words(part.reshape(-1, 2, 8, padded))
        out[first : first + at_once] = packed.contiguous().view(torch.uint8).flatten(1)
    return out.flatten()


def _fp4_words(table: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Bytes [S, 2, 8, K / 2] to words [S, tile, group, member, part, half]."""
    # A tile's 32 bytes of a row: part (2), member (4), half (2), pair (2).
    split = codes.reshape(codes.shape[0], 2, 8, -1, 2, 4, 2, 2).long()
    pairs = [table[2 * pair + row][split[:, row, ..., pair]]
             for pair in (0, 1) for row in (0, 1)]  # fmt: skip
    word = pairs[0] | pairs[1] | pairs[2] | pairs[3]
    return word.permute(0, 2, 1, 4, 3, 5)


def _fp8_words(table: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Bytes [S, 2, 8, K] to words [S, tile, part, group, member, half, row]."""
    # A tile's 64 bytes of a row: part (2), member (4), half (2), pair (2), element (2).
    split = codes.reshape(codes.shape[0], 2, 8, -1, 2, 4, 2, 2, 2).long()
    word = torch.zeros(split.shape[:-2], dtype=torch.int32, device=codes.device)
    for pair in (0, 1):
        for element in (0, 1):
            word |= table[pair][split[..., pair, element]] << (16 * element)
    return word.permute(0, 3, 4, 2, 5, 6, 1)


def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the bits of a code go in a word, so that `expand_*` of weights.cuh finds them.

    Of E2M1 int32 [4, 256], a pair of codes for each of the four pairs of a word; of E4M3 int32
    [2, 256], one code in the low half for each of the two pairs of a word.
    """
    code = torch.arange(16, dtype=torch.int32)
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    # What is rotated left by 28 or 10 may come from the other half of the word: it is the same bit
    # of the other code of the pair.
    same = torch.stack([
        sign << 15 | exponent << 7 | mantissa << 6,
        exponent << 11 | mantissa << 10,
        sign << 9 | exponent << 1 | mantissa,
        sign << 5 | mantissa << 4,
    ])  # fmt: skip
    other = torch.stack([code * 0, sign << 3, code * 0, exponent << 13])
    byte = torch.arange(256)
    low, high = byte & 15, byte >> 4
    e2m1 = same[:, low] | other[:, high] | (same[:, high] | other[:, low]) << 16
    sign8, rest = (byte >> 7).int(), (byte & 127).int()
    e4m3 = torch.stack([sign8 << 15 | rest << 4, sign8 << 11 | rest & 15 | (rest >> 4) << 12])
    return e2m1.to(device), e4m3.to(device)
