"""The norm of the residual stream and the matrix behind it, in one kernel for a few tokens.

Every block norms all rows for itself and keeps them in shared memory, so there is one block to a
multiprocessor. It is `cuda/dense.cu` with `cuda/rows.cuh` before it. Rows that do not
fit are normed by a kernel of their own, `cuda/norm.cu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from spark_prof.kernels.candidate import Layer, NormedLinearLayer, NormLayer, Replacement
from spark_prof.kernels.dense import (
    LinearConfig,
    Prologue,
    choose_linear,
    default_config,
    dense_code,
    launch_dense,
    room_for_rows,
)
from spark_prof.kernels.dispatch import choose, configured
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import LARGEST_BATCH, architecture, check_operand, check_tokens
from spark_prof.kernels.pack import FORMATS, STACK, PackedLinear, pack_linear
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch

LISTED = (
    {
        "names": ("layer-linear",),
        "layer": "normed matrix",
        "does": "RMS norm of x + residual, and y = its result W^T + bias",
        "formats": ("nvfp4", "mxfp4", "fp8", "bf16"),
        "shapes": "as of dense layers, K up to 8192; two kernels where M K is over about 18,000",
        "operation": "normed_linear",
        "reference": "normed_linear_oracle",
        "bytes": "N K w + 4 N + 4 K + 2 M (N + 3 K)",
        "tolerance": "as of dense layers, the error of the norm carried through",
        "check": "normed",
    },
)
"""For `registry.py`."""

_WIDEST = 8192
_MOST_WARPS = 32
_MOST_ELEMENTS = 32
"""Of a row, that a thread keeps in registers."""


@cache
def normed_config(
    rows: int,
    columns: int,
    tokens: int,
    format: str,  # noqa: A002 - the word of the formats
    processors: int = 0,  # of the GPU, to give each as many rows; 0 to leave that
) -> LinearConfig | None:
    """The configuration for a shape, None where the rows do not fit into shared memory.

    The warps that `default_config` has in the blocks of a multiprocessor are those of one block, as
    far as their sums fit beside the rows, and a row beside units in flight: FP8's are the largest
    that are packed. Weights are asked for before the norm: of packed ones three units a warp, but
    where a unit has sums of its own.
    """
    base = default_config(rows, columns, tokens, format)
    if format not in ("bf16", "fp8_blocks"):
        base = replace(base, depth=min(3, -(-columns // (128 * base.split))))
    few = format in ("fp8", "fp8_blocks", "int4")
    most = min(base.warps * base.min_blocks, 16 if few else _MOST_WARPS)
    for warps in range(most - most % base.split, 0, -base.split):
        config = replace(base, warps=warps, min_blocks=1, blocks=1)
        if fits(columns, tokens, config):
            return _balanced(config, rows, columns, tokens, processors) if processors else config
    return None


def _balanced(
    config: LinearConfig, rows: int, columns: int, tokens: int, processors: int
) -> LinearConfig:
    """The configuration of which a block has the fewest stacks of 16 rows to do, one after another.

    More warps to a stack leave fewer stacks to a round, of which the last is rarely full. Where
    that is the same, they are more: on an H200 gate and up of Llama-3.1-8B took 4 % less so.
    """
    stacks, units = -(-rows // STACK), -(-columns // 128)

    def most(candidate: LinearConfig) -> tuple[int, int]:
        at_once = candidate.warps // candidate.split
        return -(-stacks // (at_once * processors)) * at_once, at_once

    candidates = [config]
    for split in (2, 4, 8, 16):
        warps = config.warps - config.warps % split
        if warps and 2 * split <= units:
            depth = min(config.depth, -(-units // split))
            candidate = replace(config, warps=warps, split=split, depth=depth)
            candidates += [candidate] if fits(columns, tokens, candidate) else []
    return min(candidates, key=most)


def choose_normed(weight: PackedLinear, tokens: int, processors: int = 0) -> LinearConfig | None:
    """The configuration that was measured for a weight or one like it, else `normed_config`'s."""
    rows, columns, form = weight.rows, weight.columns, weight.format
    default = normed_config(rows, columns, tokens, form, processors)
    if default is None:
        return None
    arch = architecture(weight.weights.device)
    choice = choose("normed", form, rows, columns, tokens, arch, insist=True)
    config = configured(choice, default, columns).config
    return config if config is not None and fits(columns, tokens, config) else default


def insisted_config(weight: PackedLinear, tokens: int, chained: bool = True) -> LinearConfig:
    """The configuration of a matrix without its norm, whatever was measured to be faster.

    Args:
        chained: as of `choose_linear`.
    """
    choice = choose_linear(weight, tokens, insist=True, chained=chained)
    return choice.config or default_config(weight.rows, weight.columns, tokens, weight.format)


def fits(columns: int, tokens: int, config: LinearConfig) -> bool:
    """Whether shared memory and registers suffice for what rows.cuh keeps there."""
    room = room_for_rows(columns, tokens, config)
    return room > 0 and columns <= _MOST_ELEMENTS * 32 * (config.warps // room)


def build(layer: Layer) -> Replacement:
    """The kernel for a norm and a matrix, as the registry's candidates have it."""
    assert isinstance(layer, NormedLinearLayer)
    packed = pack_linear(layer.linear.weight)
    norm = replace(layer.norm, weight=layer.norm.weight.detach().to(torch.float32, copy=True))

    def run(
        x: torch.Tensor, residual: torch.Tensor | None, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return normed_linear(x, residual, norm, packed, bias)

    return Replacement(run, LARGEST_BATCH, "kept", norm.weight.nbytes)


def normed_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormLayer,
    weight: PackedLinear,
    bias: torch.Tensor | None = None,
    config: LinearConfig | None = None,
    dependent: bool = False,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Y = norm(x + residual) W^T + bias, and x + residual, which is x where there is no residual.

    The sum is normed in float32, as vLLM compiles it, and rounded to bfloat16 twice: as the sum
    that is returned, and as the activations of the matrix.

    Args:
        x: bfloat16 [M, K], M from 1 to 16, K up to 8192, rows at multiples of 16 bytes.
        residual: bfloat16 [M, K], contiguous.
        norm: its weight is float32 [K], contiguous.
        bias: bfloat16 [N].
        config: by default `normed_config`'s, and where that has none `default_config`'s.
        dependent: as in `dense.linear`.
        gated: the rows are eight of gate and eight of up by turns, and Y is silu(gate) up.

    Raises:
        KernelError: a dtype, shape, stride or device does not fit.
    """
    device = weight.weights.device
    tokens, columns = check_tokens(x, weight.columns, device), weight.columns
    if residual is not None:
        check_operand("residual", residual, (tokens, columns), device)
        if residual.data_ptr() % 16:
            raise KernelError("residual does not begin at a multiple of 16 bytes")
    if bias is not None:
        check_operand("bias", bias, (weight.rows,), device)
    scale = norm.weight
    layout = scale.dtype, tuple(scale.shape), scale.device
    if layout != (torch.float32, (columns,), device) or not scale.is_contiguous():
        raise KernelError(
            f"the norm's weight is {layout[0]} {layout[1]} on {layout[2]}; it must be contiguous"
            f" float32 {(columns,)} on {device}"
        )
    if columns > _WIDEST:
        raise KernelError(f"this kernel norms rows of up to {_WIDEST} features, not {columns}")
    stream = x.new_empty((tokens, columns))
    fused = normed_config(weight.rows, columns, tokens, weight.format)
    out = x.new_empty((tokens, weight.rows // 2 if gated else weight.rows))
    if fused is None:
        normed = torch.empty_like(stream)
        stride = x.stride(0) if tokens > 1 else 0
        launch(
            norm_code(columns),
            (tokens, 1, 1),
            -(-columns // 256) * 32,
            (x, residual, scale, stream, normed, stride, float(norm.epsilon)),
            dependent,
        )
        config = config or default_config(weight.rows, columns, tokens, weight.format)
        launch_dense(normed, weight, bias, out, config, dependent=True, gated=gated)
        return out, stream
    config = config or fused
    if not fits(columns, tokens, config):
        raise KernelError(f"{tokens} rows of {columns} do not fit into a block's shared memory")
    prologue = Prologue(residual, scale, stream, norm.epsilon)
    launch_dense(x, weight, bias, out, config, prologue, dependent, gated)
    return out, stream


def norm_code(columns: int) -> KernelCode:
    """What is compiled for rows of as many features that are normed by themselves."""
    return KernelCode("norm.cu", "row_norm", (("COLUMNS", columns),))


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical layers, of one token and of as many as fit."""
    kernel_codes = [norm_code(columns) for columns in (2880, _WIDEST)]
    for name in FORMATS:
        for rows, columns in ((5120, 2880), (6144, 4096), (5120, 2048), (201088, 2880)):
            fitting = [n for n in (1, 4, 8) if normed_config(rows, columns, n, name)]
            for tokens in {fitting[0], fitting[-1]}:
                config = normed_config(rows, columns, tokens, name)
                assert config is not None
                kernel_codes.append(dense_code(name, columns, tokens, config, norm=True))
    return kernel_codes
