"""Dense layers in W4A4: weights and activations in NVFP4, for up to 32 tokens.

The tensor cores multiply codes with their block scales by an instruction that GPUs of compute
capability 12.x alone have. No GPU has run it yet. It is for checkpoints whose recipe quantizes
activations, which have a scale for them (`LinearLayer.input_scale`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import Layer, LinearLayer, Replacement
from spark_prof.kernels.formats import GlobalScale, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import (
    architecture,
    check_tokens,
    output_for,
    stacks_at_a_time,
)
from spark_prof.kernels.pack import FORMATS, STACK, in_stacks, in_units, unsigned_nvfp4
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.compiler import FP4_PRODUCTS, check_target
from spark_prof.kernels.runtime.launch import launch

LISTED = (
    {
        "names": ("qkv-w4a4", "o-w4a4", "mlp-w4a4"),
        "layer": "quantized matrix",
        "does": "y = x W^T + bias, x rounded to NVFP4 by the checkpoint's input scale",
        "formats": ("nvfp4",),
        "shapes": "any N; K a multiple of 16",
        "operation": "linear_w4a4",
        "reference": "w4a4_cases:w4a4_oracle",
        "bytes": "N K w + 4 N + 2 M (N + K)",
        "tolerance": "each element within c 2^-8 sum|x||w| of x as rounded, c = 1 + K 2^-15",
        "check": "w4a4",
        "bench": True,
        "tokens": (1, 32),
        "targets": ("sm_120f", "sm_121a"),
    },
)
"""For `registry.py`."""

MOST_TOKENS = 32
_TILE = 8  # tokens that one instruction multiplies
_THREADS = 128  # of a block that quantizes; each has eight features


@dataclass(frozen=True)
class W4a4Config:
    """How `dense_w4a4.cu` shares out its work, as `dense.LinearConfig`."""

    warps: int
    split: int  # warps that share the columns of the same 16 rows; divides `warps`
    depth: int  # units of 128 columns that a warp has in flight
    min_blocks: int  # blocks of a multiprocessor that registers must be left for


def default_config(columns: int) -> W4a4Config:
    """The configuration of W4A16 layers with as many columns; none was timed on any GPU."""
    units = -(-columns // 128)
    return W4a4Config(8, next(split for split in (8, 4, 2, 1) if split <= units), 3, 2)


@dataclass(frozen=True, eq=False)
class PackedW4a4:
    """A weight matrix ready for `linear_w4a4`."""

    rows: int  # N
    columns: int  # K
    weights: torch.Tensor  # uint8, the codes
    scales: torch.Tensor  # uint8, the block scales, E4M3
    row_scale: torch.Tensor  # float32 [N], what both global scales come to
    # What block scales of activations are multiplied with, as in compressed-tensors.
    input_scale: float

    @property
    def bytes(self) -> int:
        """Bytes that one pass over the whole matrix reads."""
        return sum(t.nbytes for t in (self.weights, self.scales, self.row_scale))


def activation_scale(scale: GlobalScale) -> GlobalScale:
    """The one dividing scale that vLLM makes of those of shards, in float32."""
    if scale.convention == "multiplies":
        return GlobalScale(scale.value.max().reciprocal(), "divides")
    return GlobalScale(scale.value.max(), "divides")


def pack_w4a4(weight: NvFp4, input_scale: GlobalScale) -> PackedW4a4:
    """Packs a matrix [N, K] for `linear_w4a4`, on its device; nothing is rounded but row scales.

    Args:
        weight: K is a multiple of 16.
        input_scale: of the activations, from the checkpoint.

    Raises:
        KernelError: it is no matrix, or a global scale is no finite number above zero.
    """
    if len(weight.shape) != 2 or not weight.packed.numel():
        raise KernelError(f"a weight of shape {tuple(weight.shape)} is no matrix of [N, K]")
    rows, columns = weight.shape
    joined = activation_scale(input_scale)
    above = float(joined.value)
    if not 0 < above < float("inf"):
        raise KernelError(f"an input scale of {above:g} is not above zero and finite")
    codes, scales, multiplier = unsigned_nvfp4(weight)
    row_scale = (multiplier / above).to(torch.float32)
    if (multiplier.isfinite() & row_scale.isinf()).any():
        raise KernelError("its global scales multiply by more than float32 holds")
    return PackedW4a4(
        rows,
        columns,
        in_stacks(codes, 2, _operands),
        in_units(scales, (2, 4)).permute(0, 3, 2, 4, 1, 5).flatten().contiguous(),
        row_scale,
        above,
    )


def _operands(codes: torch.Tensor) -> torch.Tensor:
    """Bytes [S, 2, 8, K / 2] to [S, tile, group, member, half, row, 4]: a lane's four registers."""
    # A tile's 32 bytes of a row: half (2), member (4), and four of eight columns.
    return codes.unflatten(-1, (-1, 2, 4, 4)).permute(0, 3, 2, 5, 4, 1, 6)


def build(layer: Layer) -> Replacement:
    """The kernel for a matrix, as the registry's candidates have it.

    Raises:
        KernelError: the checkpoint's recipe is not NVFP4 for weights and activations.
        MissingInstructionError: the GPU lacks the instruction.
    """
    assert isinstance(layer, LinearLayer)
    if not isinstance(layer.weight, NvFp4) or layer.input_scale is None:
        raise KernelError(
            "the checkpoint has no NVFP4 weight with an input scale for this layer: its recipe is"
            " not W4A4, which would change the model"
        )
    _check_gpu(layer.weight.device)
    packed = pack_w4a4(layer.weight, layer.input_scale)

    def run(
        x: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor | None = None,
        config: W4a4Config | None = None,
    ) -> torch.Tensor:
        return linear_w4a4(x, packed, bias, out, config)

    return Replacement(run, MOST_TOKENS, "kept", packed.bytes)


def linear_w4a4(
    x: torch.Tensor,
    weight: PackedW4a4,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    config: W4a4Config | None = None,
    dependent: bool = False,
) -> torch.Tensor:
    """X W^T + bias of x rounded to NVFP4, summed in float32; two launches.

    Args:
        x: bfloat16 [M, K], M from 1 to 32, rows at multiples of 16 bytes.
        bias: bfloat16 [N].
        out: bfloat16 [M, N], contiguous, to write to.
        config: by default `default_config`'s.
        dependent: as of `dense.linear`.

    Raises:
        KernelError: a dtype, shape, stride or device does not fit.
        MissingInstructionError: the GPU lacks the instruction.
    """
    device = weight.weights.device
    _check_gpu(device)
    tokens = check_tokens(x, weight.columns, device, MOST_TOKENS)
    out = output_for(x, tokens, weight.rows, bias, out)
    config = config or default_config(weight.columns)
    units, padded = -(-weight.columns // 128), -(-tokens // _TILE) * _TILE
    codes = x.new_empty((padded, units * 64), dtype=torch.uint8)
    scales = x.new_empty((padded, units * 8), dtype=torch.uint8)
    stacks = stacks_at_a_time(config.warps, config.split)
    launch(
        quantize_code(weight.columns),
        (-(-16 * units // _THREADS), padded, 1),
        _THREADS,
        (x, codes, scales, tokens, x.stride(0) if tokens > 1 else 0, weight.input_scale),
        dependent,
    )
    launch(
        w4a4_code(weight.columns, tokens, config),
        (-(-weight.rows // (STACK * stacks)), 1, 1),
        config.warps * 32,
        (codes, scales, weight.weights, weight.scales, weight.row_scale, bias, out, tokens,
         weight.rows),
        dependent=True,
    )  # fmt: skip
    return out


def _check_gpu(device: torch.device) -> None:
    check_target("W4A4", FP4_PRODUCTS, architecture(device))


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical layers: each number of tiles of tokens."""
    columns = (1856, 2048, 4096, 14336)
    return [
        *(quantize_code(width) for width in columns),
        *(
            w4a4_code(width, tokens, default_config(width))
            for width in columns
            for tokens in range(_TILE, MOST_TOKENS + 1, _TILE)
        ),
    ]


def quantize_code(columns: int) -> KernelCode:
    """What is compiled to quantize activations of as many columns."""
    return KernelCode(
        "quantize_fp4.cu", "quantize_fp4", (("COLUMNS", columns), ("THREADS", _THREADS))
    )


def w4a4_code(columns: int, tokens: int, config: W4a4Config) -> KernelCode:
    """What is compiled for a packed weight of as many columns, in a configuration."""
    defines = [
        ("FORMAT", FORMATS["nvfp4"]),
        ("COLUMNS", columns),
        ("TOKEN_TILES", -(-tokens // _TILE)),
        *((name.upper(), value) for name, value in vars(config).items()),
    ]
    return KernelCode("dense_w4a4.cu", "dense_w4a4", tuple(defines))
