"""NVFP4: E2M1 codes, an E4M3 scale for each 16 of a row, and a global scale over those.

The global scale comes with which way round its checkpoint stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.formats.elements import (
    E2M1_LARGEST,
    E4M3_LARGEST,
    block_amax,
    blocks_of,
    check_fp4,
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
    pack_nibbles,
    quotients,
    unpack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError

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
        if self.convention not in ("divides", "multiplies"):
            raise KernelError(f"a global scale divides or multiplies, not {self.convention}")
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
        """One scale a row, for weights whose shards were quantized apart and then joined.

        Args:
            values: float32, one for each shard: [S], or [E, S] for experts.
            rows: how many rows each shard has, in the order of `values`.
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


_BLOCK = 16


@dataclass(frozen=True, eq=False)
class NvFp4:
    """A matrix or a stack of matrices in NVFP4."""

    packed: torch.Tensor  # uint8 [..., N, K / 2], the even column in the low nibble
    scales: torch.Tensor  # float8_e4m3fn [..., N, K / 16], not swizzled
    global_scale: GlobalScale

    def __post_init__(self) -> None:
        check_fp4("NVFP4", self.packed, self.scales, torch.float8_e4m3fn, _BLOCK)
        _check_broadcast(self.global_scale, (*self.packed.shape[:-1], 1))

    @property
    def shape(self) -> torch.Size:
        """Of what it encodes: [..., N, K]."""
        return torch.Size((*self.packed.shape[:-1], self.packed.shape[-1] * 2))

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values: in float64 exact, but for one rounding where the global scale divides.

        Args:
            dtype: what the float64 result is rounded to.
        """
        codes = e2m1_decode(unpack_nibbles(self.packed)).unflatten(-1, (-1, _BLOCK))
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
    blocks = blocks_of(values, _BLOCK)
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
