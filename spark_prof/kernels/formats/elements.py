"""The elements E2M1 and E4M3, blocks of them, and E4M3 rows with one float32 scale each.

E2M1 is the 4-bit float of NVFP4 and MXFP4: sign, two bits of exponent, one of mantissa. E4M3 is
the 8-bit float of FP8 rows and NVFP4's scales, PyTorch's `float8_e4m3fn`.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    Args:
        values: float32 of any shape, or narrower floats.
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
    """The values of codes 0 to 15, which every float type holds exactly.

    Args:
        codes: uint8 of any shape; only the low four bits count.
    """
    table = torch.tensor(E2M1_VALUES, dtype=dtype, device=codes.device)
    return table[(codes & 0xF).to(torch.int64)]


def e2m1_encode(values: torch.Tensor) -> torch.Tensor:
    """The codes nearest to values, as `cvt.rn.satfinite.e2m1x2.f32` finds them (PTX ISA, cvt).

    Ties go to the even code. What is larger than 6, infinity too, becomes 6 with its sign; -0 stays
    -0; NaN of either sign becomes +6.

    Args:
        values: floats of any shape and any float type of 16 bits or more.

    Returns:
        uint8 codes 0 to 15 of the same shape.
    """
    magnitude = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for code, midpoint in enumerate(_MIDPOINTS):
        codes += magnitude >= midpoint if code % 2 else magnitude > midpoint
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return torch.where(values.isnan(), 7, codes)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the even one in the low nibble: [..., K] becomes [..., K / 2]."""
    if codes.dtype != torch.uint8 or codes.ndim == 0 or codes.shape[-1] % 2:
        raise KernelError(
            f"codes are {codes.dtype} of shape {tuple(codes.shape)}; give uint8 with an even last"
            " dimension"
        )
    return (codes[..., 0::2] & 0xF) | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The codes of packed bytes, low nibble first: [..., K / 2] becomes [..., K]."""
    if packed.dtype != torch.uint8 or packed.ndim == 0:
        raise KernelError(f"packed codes are {packed.dtype}; give uint8 of one dimension or more")
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


@dataclass(frozen=True, eq=False)
class Fp8Rows:
    """A matrix in E4M3 with a scale for each row."""

    values: torch.Tensor  # float8_e4m3fn [N, K]
    scales: torch.Tensor  # float32 [N]; value = element * scale

    def __post_init__(self) -> None:
        if (self.values.dtype, self.scales.dtype) != (torch.float8_e4m3fn, torch.float32):
            raise KernelError(
                f"FP8 rows are {self.values.dtype} with scales of {self.scales.dtype}; they must be"
                " float8_e4m3fn and float32"
            )
        if self.values.ndim != 2 or self.scales.shape != self.values.shape[:1]:
            raise KernelError(
                f"FP8 rows of shape {tuple(self.values.shape)} do not go with scales of shape"
                f" {tuple(self.scales.shape)}: one scale is for one row"
            )
        if self.values.device != self.scales.device:
            raise KernelError(
                f"FP8 rows are on {self.values.device}, their scales on {self.scales.device}"
            )

    @property
    def shape(self) -> torch.Size:
        """Of what it encodes: [N, K]."""
        return self.values.shape

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64.

        Args:
            dtype: what the float64 result is rounded to.
        """
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
