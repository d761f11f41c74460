"""The number formats of FP4 and FP8 weights in plain PyTorch: what every kernel is checked against.

Written to be read and to be right, not to be fast: every table and rule names its source, and what
is decoded to float64 is exact.

- E2M1 is the 4-bit float of NVFP4 and MXFP4: sign, two bits of exponent, one of mantissa. E4M3 is
  the 8-bit float of FP8 rows and NVFP4's scales, PyTorch's `float8_e4m3fn`.
- MXFP4: E2M1 elements with an E8M0 scale, a power of two, for each 32 of a row. gpt-oss checkpoints
  store the MXFP4 weights of their experts as `*_blocks`, uint8 [E, N, K / 32, 16], and `*_scales`,
  uint8 [E, N, K / 32]. Of `gate_up_proj`, rows 0, 2, 4 ... are the gate and rows 1, 3, 5 ... are up
  (openai/gpt-oss, `gpt_oss/torch/weights.py` and `model.py`).
- NVFP4: E2M1 codes, an E4M3 scale for each 16 of a row, and a global scale over those, which comes
  with which way round its checkpoint stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from spark_prof.kernels.kernel_error import KernelError

_QUANTIZABLE = (torch.bfloat16, torch.float16, torch.float32)


def blocks_of(values: torch.Tensor, block: int) -> torch.Tensor:
    """The values as float32 in blocks: [..., K] becomes [..., K / block, block]."""
    if values.dtype not in _QUANTIZABLE:
        raise KernelError(f"cannot quantize {values.dtype}; give bfloat16, float16 or float32")
    if values.ndim < 2 or not values.numel() or values.shape[-1] % block:
        raise KernelError(
            f"cannot quantize shape {tuple(values.shape)}: give rows of blocks of {block}"
        )
    return values.to(torch.float32).unflatten(-1, (-1, block))


def block_amax(blocks: torch.Tensor) -> torch.Tensor:
    """The largest magnitude along the last dimension, as `max` of PTX sees it.

    NaN does not count, so that one does not take its neighbours along; a block of nothing but NaN
    gives NaN.
    """
    largest = torch.where(blocks.isnan(), -1.0, blocks.abs()).amax(-1)
    return torch.where(largest < 0, torch.nan, largest)


def quotients(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """The values divided by a number, rounded once; on a GPU `/` would take its reciprocal."""
    return values / torch.full_like(values, divisor)


def check_fp4(
    kind: str, packed: torch.Tensor, scales: torch.Tensor, scale_type: torch.dtype, block: int
) -> None:
    """Refuses packed codes [..., K / 2] and scales [..., K / block] that do not belong together."""
    for name, tensor, dtype in (("values", packed, torch.uint8), ("scales", scales, scale_type)):
        if tensor.dtype != dtype:
            raise KernelError(f"{kind} {name} are {tensor.dtype}; they must be {dtype}")
    columns = 2 * packed.shape[-1] if packed.ndim else 0
    expected = (*packed.shape[:-1], columns // block)
    if packed.ndim < 2 or columns % block or tuple(scales.shape) != expected:
        raise KernelError(
            f"{kind} values of shape {tuple(packed.shape)} do not go with scales of shape"
            f" {tuple(scales.shape)}: one scale is for {block} elements of a row"
        )
    if packed.device != scales.device:
        raise KernelError(f"{kind} values are on {packed.device}, scales on {scales.device}")


E4M3_LARGEST = 448.0


def e4m3_decode(values: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The values as a wider float type, exactly."""
    return values.to(torch.float32).to(dtype)


def e4m3_encode(values: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3, as `cvt.rn.satfinite.e4m3x2.f32` finds it (PTX ISA, cvt).

    Ties go to even. What is larger than 448, infinity too, becomes 448 with its sign; -0 stays -0;
    NaN of either sign becomes the positive one, 0x7F.
    """
    nearest = values.to(torch.float32).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
    positive_nan = torch.where(values.isnan(), 0x7F, nearest.view(torch.uint8))
    return positive_nan.view(torch.float8_e4m3fn)


_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

E2M1_VALUES = (*_MAGNITUDES, *(-value for value in _MAGNITUDES))
"""The value of each code, with -0 at code 8 (OCP Microscaling Formats 1.0, table 5)."""

E2M1_LARGEST = 6.0

# Between code i and code i + 1. The value itself goes to the even code: up if i is odd.
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def e2m1_decode(codes: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The values of uint8 codes, which every float type holds exactly: of the low four bits."""
    table = torch.tensor(E2M1_VALUES, dtype=dtype, device=codes.device)
    return table[(codes & 0xF).to(torch.int64)]


def e2m1_encode(values: torch.Tensor) -> torch.Tensor:
    """The codes, as uint8, nearest to floats of 16 bits or more.

    They are those of `cvt.rn.satfinite.e2m1x2.f32` (PTX ISA, cvt).
    Ties go to the even code. What is larger than 6, infinity too, becomes 6 with its sign; -0 stays
    -0; NaN of either sign becomes +6.
    """
    magnitude = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for code, midpoint in enumerate(_MIDPOINTS):
        codes += magnitude >= midpoint if code % 2 else magnitude > midpoint
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return torch.where(values.isnan(), 7, codes)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the even one in the low nibble: [..., K] becomes [..., K / 2]."""
    return (codes[..., 0::2] & 0xF) | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The codes of packed bytes, low nibble first: [..., K / 2] becomes [..., K]."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


@dataclass(frozen=True, eq=False)
class _E4m3:
    """Values in E4M3 with scales in float32."""

    values: torch.Tensor  # float8_e4m3fn [..., N, K]
    scales: torch.Tensor  # float32

    @property
    def shape(self) -> torch.Size:
        """Shape of the matrix that it encodes: [..., N, K]."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """The device that its tensors are on."""
        return self.values.device

    def _check_dtypes(self, name: str) -> None:
        if (self.values.dtype, self.scales.dtype) != (torch.float8_e4m3fn, torch.float32):
            raise KernelError(
                f"{name} are {self.values.dtype} with scales of {self.scales.dtype}; they must be"
                " float8_e4m3fn and float32"
            )

    def _check_devices(self, name: str) -> None:
        if self.values.device != self.scales.device:
            raise KernelError(
                f"{name} are on {self.values.device}, their scales on {self.scales.device}"
            )


@dataclass(frozen=True, eq=False)
class Fp8Rows(_E4m3):
    """A matrix or a stack of matrices in E4M3 with a scale for each row."""

    values: torch.Tensor  # float8_e4m3fn [..., N, K]
    scales: torch.Tensor  # float32 [..., N]; value = element * scale

    def __post_init__(self) -> None:
        self._check_dtypes("FP8 rows")
        if self.values.ndim < 2 or self.scales.shape != self.values.shape[:-1]:
            raise KernelError(
                f"FP8 rows of shape {tuple(self.values.shape)} do not go with scales of shape"
                f" {tuple(self.scales.shape)}: one scale is for one row"
            )
        self._check_devices("FP8 rows")

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64, which is then rounded to the type."""
        return (e4m3_decode(self.values) * self.scales.to(torch.float64).unsqueeze(-1)).to(dtype)


def quantize_fp8_rows(values: torch.Tensor) -> Fp8Rows:
    """Quantizes each row by itself: scale = amax / 448, element = E4M3(value / scale), in float32.

    A row of zeros gets the scale 1.

    Args:
        values: bfloat16, float16 or float32 [N, K], all finite.
    """
    if values.ndim != 2 or not values.shape[-1]:
        raise KernelError(f"FP8 rows need a matrix, not shape {tuple(values.shape)}")
    rows = blocks_of(values, values.shape[-1]).squeeze(-2)
    if not rows.isfinite().all():
        raise KernelError("cannot quantize weights that are NaN or infinite")
    scales = quotients(block_amax(rows), E4M3_LARGEST)
    scales = torch.where(scales == 0, 1.0, scales)
    return Fp8Rows(e4m3_encode(rows / scales.unsqueeze(-1)), scales)


FP8_BLOCK = 128
"""Rows and columns that share a scale, in DeepSeek's checkpoints and those after them."""


@dataclass(frozen=True, eq=False)
class Fp8Blocks(_E4m3):
    """A matrix or a stack of matrices in E4M3 with a scale for each block of rows and columns."""

    values: torch.Tensor  # float8_e4m3fn [..., N, K]
    # float32 [..., N / rows, K / 128], both rounded up; value = element * scale
    scales: torch.Tensor
    rows: int = FP8_BLOCK  # that share a scale

    def __post_init__(self) -> None:
        self._check_dtypes("FP8 blocks")
        *matrices, rows, columns = self.values.shape if self.values.ndim > 1 else (0, 0)
        expected = (*matrices, -(-rows // self.rows), -(-columns // FP8_BLOCK))
        if self.values.ndim < 2 or tuple(self.scales.shape) != expected:
            raise KernelError(
                f"FP8 values of shape {tuple(self.values.shape)} do not go with scales of shape"
                f" {tuple(self.scales.shape)}: one scale is for {self.rows} x {FP8_BLOCK} elements"
            )
        self._check_devices("FP8 values")

    def scales_of(self, rows: int) -> torch.Tensor:
        """The scales with so few rows to each, a divisor of those that share one."""
        scales = self.scales.repeat_interleave(self.rows // rows, -2)
        return scales[..., : -(-self.shape[-2] // rows), :]

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64, which is then rounded to the type."""
        scales = self.scales_of(1).repeat_interleave(FP8_BLOCK, -1)[..., : self.shape[-1]]
        return (e4m3_decode(self.values) * scales.to(torch.float64)).to(dtype)


_MX_BLOCK = 32
_BIAS = 127
_NAN = 255
_LARGEST = 254
_INFINITE = 128
_E2M1_POWER = 3  # 6 is 0.75 * 2^3


def e8m0_decode(scales: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """2^(e - 127) of each byte e, and NaN of 255 (OCP Microscaling Formats 1.0, section 5.4.1).

    Byte 0 is 2^-127, which float32 holds only as a subnormal number.
    """
    powers = torch.ldexp(
        torch.ones_like(scales, dtype=torch.float64), scales.to(torch.int32) - _BIAS
    )
    return torch.where(scales == _NAN, torch.nan, powers).to(dtype)


def mxfp4_scales(amax: torch.Tensor) -> torch.Tensor:
    """The scale of blocks, uint8, from their largest magnitudes, float32.

    It is the magnitude's power of two, the next one from 1.75 of it on, over E2M1's 4: as vLLM's
    `downcast_to_mxfp` and compressed-tensors round. A magnitude between 1.5 and 1.75 of its power
    of two saturates. Zeros get the smallest scale, infinity the largest (254), NaN NaN (255).
    """
    # As mantissa in [0.5, 1) times a power of two, so that no logarithm rounds.
    mantissa, power = torch.frexp(amax)
    power = power + (mantissa >= 0.875)
    # vLLM rounds up as a float32, which may become infinity.
    infinite = amax.isinf() | (power > _INFINITE)
    scales = (power - _E2M1_POWER + _BIAS).clamp(0, _LARGEST)
    scales = torch.where(amax == 0, 0, torch.where(infinite, _LARGEST, scales))
    return torch.where(amax.isnan(), _NAN, scales).to(torch.uint8)


@dataclass(frozen=True, eq=False)
class _FourBit:
    """Two codes of four bits a byte."""

    packed: torch.Tensor  # uint8 [..., N, K / 2], the even column in the low nibble

    @property
    def shape(self) -> torch.Size:
        """Shape of the matrix that it encodes: [..., N, K]."""
        return torch.Size((*self.packed.shape[:-1], self.packed.shape[-1] * 2))

    @property
    def device(self) -> torch.device:
        """The device that its tensors are on."""
        return self.packed.device


@dataclass(frozen=True, eq=False)
class MxFp4(_FourBit):
    """A matrix or a stack of matrices in MXFP4."""

    packed: torch.Tensor  # uint8 [..., N, K / 2], the even column in the low nibble
    scales: torch.Tensor  # uint8 [..., N, K / 32], E8M0, not swizzled

    def __post_init__(self) -> None:
        check_fp4("MXFP4", self.packed, self.scales, torch.uint8, _MX_BLOCK)

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64 and float32; rounded to the type."""
        elements = e2m1_decode(unpack_nibbles(self.packed)).unflatten(-1, (-1, _MX_BLOCK))
        return (elements * e8m0_decode(self.scales).unsqueeze(-1)).flatten(-2).to(dtype)


def quantize_mxfp4(values: torch.Tensor) -> MxFp4:
    """Quantizes to MXFP4.

    NaN becomes +6 and does not count in its block's maximum; infinity becomes 6 with its sign.

    Args:
        values: bfloat16, float16 or float32 [..., N, K], K a multiple of 32.
    """
    blocks = blocks_of(values, _MX_BLOCK)
    scales = mxfp4_scales(block_amax(blocks))
    # In float64, where dividing by a power of two never rounds.
    elements = blocks.to(torch.float64) / e8m0_decode(scales).unsqueeze(-1)
    return MxFp4(pack_nibbles(e2m1_encode(elements.flatten(-2))), scales)


def deinterleave_rows(rows: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The even entries of a dimension, then the odd ones: gate, then up. For biases too."""
    dim %= rows.ndim
    return torch.cat(rows.unflatten(dim, (-1, 2)).unbind(dim + 1), dim)


def interleave_rows(rows: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The halves of a dimension in turns: undoes `deinterleave_rows`."""
    dim %= rows.ndim
    return torch.stack(rows.chunk(2, dim), dim + 1).flatten(dim, dim + 1)


def deinterleave_gate_up(weight: MxFp4) -> MxFp4:
    """Weights [..., 2 I, H] with all rows of the gate before those of up."""
    return MxFp4(deinterleave_rows(weight.packed, -2), deinterleave_rows(weight.scales, -2))


def interleave_gate_up(weight: MxFp4) -> MxFp4:
    """Weights [..., 2 I, H] in the order of the checkpoint: undoes `deinterleave_gate_up`."""
    return MxFp4(interleave_rows(weight.packed, -2), interleave_rows(weight.scales, -2))


Convention = Literal["divides", "multiplies"]

_RANGE = E2M1_LARGEST * E4M3_LARGEST
_FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True, eq=False)
class GlobalScale:
    """A scale over the block scales, and what is done with it to get values back."""

    # Float32: of no dimension, of one element, or with a last dimension of 1 that broadcasts
    # against the rows, as [N, 1] for one a row or [E, 1, 1] for one an expert.
    value: torch.Tensor
    # `divides` if value = code * block scale / global scale, as compressed-tensors stores it
    # (`weight_global_scale`, 2688 / amax); `multiplies` if value = code * block scale * global
    # scale, as ModelOpt does (`weight_scale_2`, amax / 2688).
    convention: Convention

    def __post_init__(self) -> None:
        if self.value.dtype != torch.float32:
            raise KernelError(f"a global scale is float32, not {self.value.dtype}")
        if self.value.ndim and self.value.shape[-1] != 1:
            raise KernelError(
                f"a global scale of shape {tuple(self.value.shape)} does not say what each is for:"
                " give one, [N, 1] for rows or [E, 1, 1] for experts"
            )

    @classmethod
    def of_amax(cls, amax: torch.Tensor, convention: Convention = "divides") -> GlobalScale:
        """The scale with which the largest magnitude of a tensor just fits: 448 * 6 / amax.

        The quotient is a product with the reciprocal, as in vLLM and compressed-tensors. Zeros get
        1. What float32 cannot hold becomes its largest or smallest normal number.
        """
        amax = amax.to(torch.float32)
        value = amax.reciprocal() * _RANGE if convention == "divides" else quotients(amax, _RANGE)
        value = value.clamp(_FLOAT32.tiny, _FLOAT32.max)
        return cls(torch.where(amax == 0, 1.0, value), convention)

    @classmethod
    def of_shards(
        cls, values: torch.Tensor, rows: Sequence[int], convention: Convention
    ) -> GlobalScale:
        """One scale a row, for weights whose shards of so many rows were quantized apart.

        The values are float32, one for each shard: [S], or [E, S] for experts.
        """
        if values.ndim == 0 or values.shape[-1] != len(rows):
            raise KernelError(
                f"global scales of shape {tuple(values.shape)} are not one for each of {len(rows)}"
                " shards"
            )
        repeats = torch.tensor(rows, device=values.device)
        return cls(values.repeat_interleave(repeats, dim=-1).unsqueeze(-1), convention)

    def multiplier(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """What code * block scale is multiplied with, rounded once to the type."""
        value = self.value.to(dtype)
        return 1 / value if self.convention == "divides" else value

    def apply(self, scaled: torch.Tensor) -> torch.Tensor:
        """The values of code * block scale, with one rounding to the type of `scaled`."""
        value = self.value.to(scaled.device, scaled.dtype)
        return scaled / value if self.convention == "divides" else scaled * value


_NV_BLOCK = 16


@dataclass(frozen=True, eq=False)
class NvFp4(_FourBit):
    """A matrix or a stack of matrices in NVFP4."""

    packed: torch.Tensor  # uint8 [..., N, K / 2], the even column in the low nibble
    scales: torch.Tensor  # float8_e4m3fn [..., N, K / 16], not swizzled
    global_scale: GlobalScale

    def __post_init__(self) -> None:
        check_fp4("NVFP4", self.packed, self.scales, torch.float8_e4m3fn, _NV_BLOCK)
        _check_broadcast(self.global_scale, (*self.packed.shape[:-1], 1))

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values: in float64 exact, but for one rounding where the global scale divides."""
        codes = e2m1_decode(unpack_nibbles(self.packed)).unflatten(-1, (-1, _NV_BLOCK))
        scaled = codes * e4m3_decode(self.scales).unsqueeze(-1)
        return self.global_scale.apply(scaled.flatten(-2)).to(dtype)


def quantize_nvfp4(values: torch.Tensor, global_scale: GlobalScale | None = None) -> NvFp4:
    """Quantizes to NVFP4 by correctly rounded quotients in float32, as compressed-tensors does.

    A block's scale is E4M3(amax / 6 * 448 * 6 / global amax), a code E2M1(value / scales). A block
    whose scale rounds to zero gets zeros with their signs. NaN becomes +6 and does not count in
    its block's maximum; infinity makes its block's scale 448.

    Args:
        values: bfloat16, float16 or float32 [..., N, K], K a multiple of 16.
        global_scale: by default that of the tensor's own maximum, which divides.
    """
    blocks = blocks_of(values, _NV_BLOCK)
    amax = block_amax(blocks)
    if global_scale is None:
        global_scale = GlobalScale.of_amax(amax.nan_to_num(0.0, posinf=0.0).amax())
    _check_broadcast(global_scale, (*values.shape[:-1], 1))
    value = global_scale.value.to(amax.device)
    largest = quotients(amax, E2M1_LARGEST)
    divides = global_scale.convention == "divides"
    scales = e4m3_encode(value * largest if divides else largest / value)
    steps = global_scale.apply(e4m3_decode(scales, torch.float32)).unsqueeze(-1)
    elements = torch.where(steps == 0, blocks * 0, blocks / steps)
    return NvFp4(pack_nibbles(e2m1_encode(elements).flatten(-2)), scales, global_scale)


def _check_broadcast(global_scale: GlobalScale, rows: tuple[int, ...]) -> None:
    try:
        fits = torch.broadcast_shapes(global_scale.value.shape, rows) == rows
    except RuntimeError:
        fits = False
    if not fits:
        raise KernelError(
            f"a global scale of shape {tuple(global_scale.value.shape)} does not fit NVFP4 rows of"
            f" shape {rows[:-1]}"
        )


@dataclass(frozen=True, eq=False)
class Int4Groups(_FourBit):
    """A matrix of four-bit integers with a scale and a zero point for each group of a row."""

    packed: torch.Tensor  # uint8 [N, K / 2], the even column in the low nibble
    scales: torch.Tensor  # bfloat16 [N, groups]; value = (integer - zero) * scale
    zeros: torch.Tensor  # uint8 [N, groups], 0 to 15
    group: int = 128  # columns of a group, of the last one fewer where they do not fill it

    def __post_init__(self) -> None:
        kinds = (self.packed.dtype, self.scales.dtype, self.zeros.dtype)
        if kinds != (torch.uint8, torch.bfloat16, torch.uint8):
            raise KernelError(
                f"INT4 groups are of {kinds}; they must be uint8, bfloat16 scales and uint8 zeros"
            )
        shape, groups = tuple(self.packed.shape), tuple(self.scales.shape)
        expected = (shape[0], -(-2 * shape[1] // self.group)) if len(shape) == 2 else ()
        if not expected or groups != expected or tuple(self.zeros.shape) != groups:
            raise KernelError(
                f"INT4 codes of shape {shape} do not go with scales of shape {groups} and zeros of"
                f" shape {tuple(self.zeros.shape)}: one of each is for {self.group} columns"
            )

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64, which is then rounded to the type."""
        codes = unpack_nibbles(self.packed).to(torch.float64)
        zeros, scales = (
            values.to(torch.float64).repeat_interleave(self.group, 1)[:, : codes.shape[1]]
            for values in (self.zeros, self.scales)
        )
        return ((codes - zeros) * scales).to(dtype)


@dataclass(frozen=True, eq=False)
class TwoStacks:
    """Matrices in bfloat16 in two places, those of `second` numbered behind those of `first`."""

    first: torch.Tensor  # [E, N, K]
    second: torch.Tensor  # [S, N, K]

    def __post_init__(self) -> None:
        if self.first.shape[1:] != self.second.shape[1:] or self.first.ndim != 3:
            raise KernelError(
                f"stacks of {tuple(self.first.shape)} and {tuple(self.second.shape)} do not go "
                "together: their matrices have one shape"
            )
        if self.first.device != self.second.device:
            raise KernelError(f"stacks on {self.first.device} and on {self.second.device}")

    @property
    def shape(self) -> torch.Size:
        """Shape of both stacks as one: [E + S, N, K]."""
        count, rows, columns = self.first.shape
        return torch.Size((count + len(self.second), rows, columns))

    @property
    def device(self) -> torch.device:
        """The device that both stacks are on."""
        return self.first.device

    def matrix(self, number: int) -> torch.Tensor:
        """One matrix of the two stacks, by its number."""
        count = len(self.first)
        return self.first[number] if number < count else self.second[number - count]

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values of all, one behind the other."""
        return torch.cat([self.first, self.second]).to(dtype)


QuantizedWeight: TypeAlias = NvFp4 | MxFp4 | Fp8Rows | Fp8Blocks | Int4Groups
"""A matrix [N, K] or, but for INT4, a stack of matrices [E, N, K]."""
