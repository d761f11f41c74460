"""The cases of a matrix whose weights and activations are NVFP4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from spark_prof.kernels.candidate import KernelCandidate, LinearLayer
from spark_prof.kernels.check.cases import SMALL, DenseCase, Posed
from spark_prof.kernels.check.inputs import decode
from spark_prof.kernels.check.oracles import Expected, linear_oracle
from spark_prof.kernels.dense_w4a4 import MOST_TOKENS, activation_scale
from spark_prof.kernels.formats import Convention, GlobalScale, NvFp4, quantize_nvfp4

_LARGEST = 4.0
"""Of activations that the input scale is for; larger ones are cut off."""


def w4a4_oracle(
    x: torch.Tensor, weight: NvFp4, input_scale: GlobalScale, bias: torch.Tensor | None
) -> Expected:
    """What x [M, K], rounded to NVFP4, times the transposed weight [N, K] gives in float32."""
    rounded = quantize_nvfp4(x, activation_scale(input_scale))
    return linear_oracle(rounded.decode(), decode(weight), bias)


@dataclass(frozen=True)
class W4a4Case:
    """A matrix, and how the checkpoint stores the scale of its activations."""

    matrix: DenseCase
    convention: Convention = "divides"
    shards: int = 1  # each with an input scale of its own

    @property
    def label(self) -> str:
        """For messages: `nvfp4, 3 tokens, 48 x 448, 3 input scales`."""
        words = [self.matrix.label, *[f"{self.shards} input scales"] * (self.shards > 1)]
        return ", ".join(
            [*words, *["an input scale that multiplies"] * (self.convention != "divides")]
        )

    @property
    def may_refuse(self) -> bool:
        """Whether a kernel may refuse it."""
        return self.matrix.may_refuse

    def pose(self, candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device."""
        posed = self.matrix.pose(candidate, device)
        layer, (x, bias) = posed.layer, posed.arguments
        assert isinstance(layer, LinearLayer)
        assert isinstance(layer.weight, NvFp4)
        assert x is not None
        amax = torch.tensor(_LARGEST, device=device) / (
            1 + torch.arange(self.shards, device=device)
        )
        scale = GlobalScale.of_amax(amax[:, None] if self.shards > 1 else amax[0], self.convention)
        expected = w4a4_oracle(x, layer.weight, scale, bias)
        return replace(
            posed,
            layer=replace(layer, input_scale=scale),
            judge=lambda results, judged: judged(results[0], expected),
        )


def w4a4_cases(_candidate: KernelCandidate, device: str) -> Iterator[W4a4Case]:
    """Each number of tokens, edge of the format, and width."""

    def case(
        shape: tuple[int, int],
        tokens: int,
        convention: Convention = "divides",
        shards: int = 1,
        **fields: object,
    ) -> W4a4Case:
        return W4a4Case(DenseCase("nvfp4", shape, tokens, **fields), convention, shards)  # type: ignore[arg-type]

    for tokens in range(1, MOST_TOKENS + 1):
        yield case(SMALL, tokens, bias=tokens % 3 == 1)
    yield case((16, 64), 1)
    yield case((7, 80), 11, bias=True)
    yield case((40, 16), 32)
    yield case((208, 192), 2, recipe="one element a row")
    yield case((208, 1344), 17, recipe="one element a row")
    yield case(SMALL, 3, recipe="zero blocks", bias=True)
    yield case(SMALL, 25, recipe="scales apart by row")
    yield case(SMALL, 4, recipe="scales apart in a row")
    yield case(SMALL, 3, recipe="NaN scales")
    yield case(SMALL, 3, recipe="negative scales")
    yield case(SMALL, 3, recipe="a global scale for each shard", bias=True)
    yield case(SMALL, 3, recipe="a global scale that multiplies")
    yield case(SMALL, 19, "multiplies")
    yield case(SMALL, 9, shards=3)
    yield case(SMALL, 9, "multiplies", shards=3)
    for x in ("NaN and infinity", "apart", "zeros", "with a common offset"):
        yield case(SMALL, 18, x=x)
    for layout in ("rows apart", "columns apart", "transposed"):
        yield case(SMALL, 5, layout=layout, may_refuse=True)
    shapes = ((32, 2880), (40, 1856)) if device == "cpu" else ((5120, 2048), (2048, 4096))
    for shape in shapes:
        yield case(shape, 8)
        yield case(shape, 29, bias=True)
