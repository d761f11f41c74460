"""The global scale of NVFP4, together with which way round its checkpoint stores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats.blocks import quotients
from spark_prof.kernels.formats.e2m1 import E2M1_LARGEST
from spark_prof.kernels.formats.e4m3 import E4M3_LARGEST

Convention = Literal["divides", "multiplies"]

_RANGE = E2M1_LARGEST * E4M3_LARGEST
_FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True, eq=False)
class GlobalScale:
    """A scale over the block scales, and what is done with it to get values back.

    Attributes:
        value: float32: of no dimension, of one element, or with a last dimension of 1 that
            broadcasts against the rows, as [N, 1] for one a row or [E, 1, 1] for one an expert.
        convention: `divides` if value = code * block scale / global scale, as compressed-tensors
            stores it (`weight_global_scale`, 2688 / amax); `multiplies` if value = code * block
            scale * global scale, as ModelOpt does (`weight_scale_2`, amax / 2688).
    """

    value: torch.Tensor
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
            convention: which way round `values` are.
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
