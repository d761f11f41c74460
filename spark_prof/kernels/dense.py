"""Dense layers for up to 16 tokens: BF16 activations, weights of 4 to 16 bits, each read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spark_prof.kernels.candidate import Layer, LinearLayer, Replacement
from spark_prof.kernels.dispatch import DispatchChoice, choose, configured
from spark_prof.kernels.operands import (
    LARGEST_BATCH,
    architecture,
    check_apart,
    check_tokens,
    multiprocessors,
    output_for,
    stacks_at_a_time,
    token_tiles,
)
from spark_prof.kernels.pack import FORMATS, STACK, PackedLinear, kernel_code, pack_linear
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch
from spark_prof.kernels.tuning import TunedShape

LISTED = (
    {
        "names": ("qkv-w4a16", "o-w4a16", "mlp-w4a16", "lm_head-w4a16"),
        "layer": "matrix",
        "does": "y = x W^T + bias",
        "formats": ("nvfp4", "mxfp4"),
        "shapes": "any N; K a multiple of 16 (MXFP4: of 32)",
        "operation": "linear",
        "reference": "linear_oracle",
        "bytes": "N K w + 4 N + 2 M (N + K)",
        "tolerance": "each element within c 2^-8 sum|x||w|, c = 1 + K 2^-15",
        "check": "w4a16",
        "bench": True,
        "tuned_as": "dense",
    },
    {
        "names": ("qkv-fp8", "o-fp8", "mlp-fp8", "lm_head-fp8"),
        "layer": "matrix",
        "does": "y = x W^T + bias, a scale for each row or 128 x 128 block",
        "formats": ("fp8", "fp8_blocks"),
        "shapes": "any N; K a multiple of 16",
        "operation": "linear",
        "reference": "linear_oracle",
        "bytes": "N K w + 4 N + 2 M (N + K)",
        "tolerance": "each element within c 2^-8 sum|x||w|, c = 1 + K 2^-15",
        "check": "fp8",
        "tuned_as": "dense",
    },
    {
        "names": ("qkv-int4", "o-int4", "mlp-int4", "lm_head-int4"),
        "layer": "matrix",
        "does": "y = x W^T + bias, a scale and a zero point for each 128 columns of a row",
        "formats": ("int4",),
        "shapes": "any N; K a multiple of 128",
        "operation": "linear",
        "reference": "linear_oracle",
        "bytes": "N K w + 4 N + 2 M (N + K)",
        "tolerance": "each element within c 2^-8 sum|x||w|, c = 1 + K 2^-15",
        "check": "int4",
        "tuned_as": "dense",
    },
    {
        "names": ("qkv-w16a16", "o-w16a16", "mlp-w16a16", "router-w16a16", "lm_head-w16a16"),
        "layer": "matrix",
        "does": "y = x W^T + bias",
        "formats": ("bf16",),
        "shapes": "N and K multiples of 16",
        "operation": "linear",
        "reference": "linear_oracle",
        "bytes": "N K w + 2 M (N + K)",
        "tolerance": "each element within c 2^-8 sum|x||w|, c = 1 + K 2^-15",
        "check": "w16a16",
        "bench": True,
        "tuned_as": "dense",
    },
)
"""For `registry.py`. A BF16 weight is read where it is; `quantize_at_load` makes FP8 ones."""


@dataclass(frozen=True)
class LinearConfig:
    """How `dense.cu` shares out its work; which is best depends on the shape and the GPU."""

    warps: int
    split: int  # warps that share the columns of the same 16 rows; divides `warps`
    depth: int  # units of 128 columns that a warp has in flight
    # 1 to have their activations in flight too, 2 to have all of x in shared memory, if it fits.
    x_ahead: int
    min_blocks: int  # blocks of a multiprocessor that registers must be left for
    # Blocks for each multiprocessor, which then go through the rows; 0 for as many as there are
    # rows.
    blocks: int = 0


def default_config(
    rows: int,
    columns: int,
    tokens: int,
    # Of the weight: of bf16 fewer units fit in registers, and some have a unit's sums too.
    format: str = "",  # noqa: A002 - the word of the formats
) -> LinearConfig:
    """A configuration that is good for most shapes, where none was measured."""
    several_tiles = token_tiles(tokens) > 1
    units = -(-columns // 128)
    if format == "fp8" and units >= 32 and not several_tiles:
        # The fastest of a dozen for Llama-3.1-8B on an H200 (llama-fp8-layers-h200.json).
        config = LinearConfig(8, 8, 2, 1, 2) if units > 64 else LinearConfig(16, 16, 2, 0, 1, 1)
    elif format == "bf16":
        # A unit is 4 KB: with one or two each, 16 warps have enough in flight for a multiprocessor.
        # The few rows of a router leave nothing but columns to share out.
        depth = 1 if several_tiles else 2
        if rows <= 1024:
            config = LinearConfig(16, 16, depth, 0, 1)
        elif rows < 16384:
            config = LinearConfig(8, 8, depth, 0, 2)
        else:
            config = LinearConfig(4, 1, depth, 0, 4)
    elif rows < 16384:
        config = LinearConfig(8, 8, 2, 0, 2 if several_tiles or format == "fp8_blocks" else 3)
    else:
        few = LinearConfig(4, 4, 2, 0, 5 if format in ("fp8_blocks", "int4") else 6)
        config = LinearConfig(8, 1, 2, 0, 2) if several_tiles else few
    # No more warps to a stack than it has units of 128 columns.
    split = next(split for split in (16, 8, 4, 2, 1) if split <= min(config.split, units))
    return replace(config, split=split)


def config_for(work: TunedShape, _processors: int) -> LinearConfig:
    """The default for a piece of work."""
    return default_config(work.rows, work.columns, work.tokens, work.format)


LAYER_DENSE = "layer-dense"
"""By this name configurations are measured in a chain of layers (benchmarks/chained_configs.py)."""


def choose_linear(
    weight: PackedLinear,
    tokens: int,
    *,
    insist: bool = False,
    chained: bool = False,  # whether the kernels of a layer run before or behind
) -> DispatchChoice[LinearConfig]:
    """Chooses between `linear` and whatever it would replace."""
    rows, columns = weight.rows, weight.columns
    arch = architecture(weight.weights.device)
    choice = choose("dense", weight.format, rows, columns, tokens, arch, insist=insist)
    if chained and choice.config is not None:
        in_layer = choose(LAYER_DENSE, weight.format, rows, columns, tokens, arch)
        choice = choice if in_layer.config is None else in_layer
    return configured(choice, default_config(rows, columns, tokens, weight.format), columns)


def build(layer: Layer) -> Replacement:
    """The kernel for a matrix, as the registry's candidates have it."""
    assert isinstance(layer, LinearLayer)
    packed = pack_linear(layer.weight)

    def run(
        x: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor | None = None,
        config: LinearConfig | None = None,
    ) -> torch.Tensor:
        if config is None:
            config = choose_linear(packed, max(1, len(x)), insist=True).config
        return linear(x, packed, bias, out, config)

    return Replacement(run, LARGEST_BATCH, "kept")


def linear(
    x: torch.Tensor,
    weight: PackedLinear,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    config: LinearConfig | None = None,
    dependent: bool = False,
) -> torch.Tensor:
    """X W^T + bias, summed in float32 in an order that depends on the configuration alone.

    Args:
        x: bfloat16 [M, K], M from 1 to 16, rows at multiples of 16 bytes.
        bias: bfloat16 [N].
        out: bfloat16 [M, N], contiguous, to write to; apart from x.
        config: by default `default_config`'s.
        dependent: start while the kernel before still runs; see `runtime.launch` for when that is
            safe, which the caller alone knows. The weights must not be what kernels before write.

    Raises:
        KernelError: a dtype, shape, stride or device does not fit.
    """
    device = weight.weights.device
    tokens = check_tokens(x, weight.columns, device)
    output = output_for(x, tokens, weight.rows, bias, out)
    if out is not None:
        check_apart(out, x)
    config = config or default_config(weight.rows, weight.columns, tokens, weight.format)
    launch_dense(x, weight, bias, output, config, dependent=dependent)
    return output


@dataclass(frozen=True)
class Prologue:
    """What makes the activations of x in the kernel itself; as in `normed_linear.py`."""

    residual: torch.Tensor | None = None
    weight: torch.Tensor | None = None  # float32 [K]; None without a norm
    stream: torch.Tensor | None = None  # gets x + residual
    epsilon: float = 0.0


def launch_dense(
    x: torch.Tensor,
    weight: PackedLinear,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    config: LinearConfig,
    prologue: Prologue = Prologue(),
    dependent: bool = False,
    gated: bool = False,  # rows of gate and up by turns, whose SiLU product is written
) -> None:
    """Launches `dense.cu` on operands that were checked."""
    tokens = len(x)
    work = -(-weight.rows // (STACK * stacks_at_a_time(config.warps, config.split)))
    grid = work
    if config.blocks:
        grid = min(work, config.blocks * multiprocessors(weight.weights.device))
    normed = prologue.residual, prologue.weight, prologue.stream, prologue.epsilon
    stride = x.stride(0) if tokens > 1 else 0
    launch(
        dense_code(
            weight.format, weight.columns, tokens, config, prologue.weight is not None, gated
        ),
        (grid, 1, 1),
        config.warps * 32,
        (x, *weight.tensors, bias, out, tokens, weight.rows, stride, *normed),
        dependent,
    )


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical layers: every format, few and many tokens; BF16 has a router.

    And one with activations in shared memory.
    """
    layers = ((5120, 2880), (2880, 4096), (2048, 1856), (201088, 2880))
    router = ((128, 2048),)
    dense_codes = [
        dense_code(name, columns, tokens, default_config(rows, columns, tokens, name))
        for name in FORMATS
        for rows, columns in (*layers, *(router if name == "bf16" else ()))
        for tokens in (8, 16)
    ]
    shared = LinearConfig(warps=8, split=8, depth=3, x_ahead=2, min_blocks=2)
    return dense_codes + [dense_code(name, 2880, 1, shared) for name in FORMATS]


def dense_code(
    name: str,
    columns: int,
    tokens: int,
    config: LinearConfig,
    norm: bool = False,  # of x, as in `normed_linear.py`
    gated: bool = False,  # as of `launch_dense`
) -> KernelCode:
    """What is compiled for a weight of that format and as many columns, in a configuration."""
    constants = {field: value for field, value in vars(config).items() if field != "blocks"}
    if gated:
        constants["gated"] = 1
    if norm or config.x_ahead == 2:
        constants["x_ahead"] = 0
        if room := room_for_rows(columns, tokens, config):
            constants |= {"room": room, "norm": 1} if norm else {"room": room}
    return kernel_code("dense", name, columns, tokens, constants)


MOST_SHARED_ROWS = 8
_SHARED_BYTES = 48 * 1024
"""Of a block's shared memory, on all GPUs, where nobody asks for more."""


def room_for_rows(columns: int, tokens: int, config: LinearConfig) -> int:
    """Rows of x that a block has room for in shared memory beside its sums; 0 if for too few.

    It is a power of two, so that not each number of tokens is compiled for.
    """
    room = 1 << (tokens - 1).bit_length()
    rows = 2 * room * (columns + (96 - columns % 64) % 64)  # as in rows.cuh
    sums = 4 * 8 * 16 * config.warps if config.split > 1 else 0  # as in split.cuh
    fits = room <= MOST_SHARED_ROWS and rows + sums + 4 * config.warps <= _SHARED_BYTES
    return room if fits else 0
