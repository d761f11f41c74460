"""A mixture of experts for up to 16 tokens in three launches: route, gate and up, down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.experts import PackedExperts
from spark_prof.kernels.operands import (
    LARGEST_BATCH,
    check_operand,
    check_tokens,
    multiprocessors,
    stacks_at_a_time,
    token_tiles,
)
from spark_prof.kernels.pack import FORMATS
from spark_prof.kernels.routing import Routing, route
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch


@dataclass(frozen=True)
class MoeConfig:
    """How `gate_up.cu` and `down.cu` share out their work; see `dense.LinearConfig`.

    Attributes:
        split: warps that share the columns of the same 16 rows.
        depth: units of 128 columns that a warp has in flight.
        min_blocks: blocks of a multiprocessor that registers must be left for.
        down_warps: of a block of down, which makes 16 rows.
        down_depth: as `depth`.
        down_min_blocks: as `min_blocks`.
    """

    warps: int
    split: int
    depth: int
    min_blocks: int
    down_warps: int
    down_depth: int
    down_min_blocks: int


def default_config(hidden: int, tokens: int, multiprocessors: int = 132) -> MoeConfig:
    """A configuration that is good for most shapes, where none was measured.

    Args:
        multiprocessors: of the GPU: with more stacks of 16 rows of `down` than that, two blocks
            share one.
    """
    units = -(-hidden // 128)
    split = next(split for split in (4, 2, 1) if split <= units)
    few = token_tiles(tokens) == 1
    gate_up = (4, split, 2, 5) if few else (4, 1, 2, 4)
    down = (16, 2, 1) if hidden <= 16 * multiprocessors else (12, 1, 2) if few else (8, 2, 2)
    return MoeConfig(*gate_up, *down)


def moe(
    x: torch.Tensor,
    logits: torch.Tensor,
    experts: PackedExperts,
    top_k: int,
    renormalize: bool = True,
    out: torch.Tensor | None = None,
    config: MoeConfig | None = None,
) -> torch.Tensor:
    """What a mixture of experts makes of tokens, from the router's logits on.

    Args:
        x: bfloat16 [M, H], M from 1 to 16, rows at multiples of 16 bytes.
        logits: bfloat16 or float32 [M, E].
        experts: what `pack_experts` made.
        renormalize: as in `route`.
        out: bfloat16 [M, H], contiguous, to write to.
        config: by default `default_config`'s.

    Raises:
        KernelError: a dtype, shape, stride or device does not fit.
    """
    device = experts.gate_up.weights.device
    check_tokens(x, experts.hidden, device)
    # All of it before anything runs: routing alone would run wherever the logits are.
    if out is not None:
        check_operand("out", out, (x.shape[0], experts.hidden), device)
    if logits.device != device:
        raise KernelError(f"logits are on {logits.device}, the weights are on {device}")
    if tuple(logits.shape) != (x.shape[0], experts.count):
        raise KernelError(
            f"logits have the shape {tuple(logits.shape)}; they must have"
            f" {(x.shape[0], experts.count)}"
        )
    return run_experts(x, route(logits, top_k, renormalize), experts, out, config)


def run_experts(
    x: torch.Tensor,
    routing: Routing,
    experts: PackedExperts,
    out: torch.Tensor | None = None,
    config: MoeConfig | None = None,
) -> torch.Tensor:
    """The two launches after routing; arguments as in `moe`."""
    device = experts.gate_up.weights.device
    tokens = check_tokens(x, experts.hidden, device)
    if routing.experts.shape[0] != tokens or routing.experts.device != device:
        raise KernelError(
            f"{tokens} tokens on {device} were routed as {routing.experts.shape[0]} on"
            f" {routing.experts.device}"
        )
    if routing.among != experts.count:
        raise KernelError(
            f"tokens were routed among {routing.among} experts; the layer has {experts.count}"
        )
    if out is None:
        out = x.new_empty((tokens, experts.hidden))
    else:
        check_operand("out", out, (tokens, experts.hidden), device)
    config = config or default_config(experts.hidden, tokens, multiprocessors(device))
    choices = routing.experts.shape[1]
    between = x.new_empty((tokens * choices, experts.intermediate))
    stacks = experts.intermediate // 8
    activation = experts.activation
    swiglu = activation.name == "swiglu"
    groups = -(-stacks // stacks_at_a_time(config.warps, config.split))
    most = min(tokens * choices, experts.count) * groups
    launch(
        gate_up_code(experts.gate_up.format, experts.hidden, swiglu, tokens, config),
        (min(most, config.min_blocks * multiprocessors(device)), 1, 1),
        config.warps * 32,
        (
            x,
            *experts.gate_up.tensors,
            experts.gate_up_bias,
            routing.plan,
            between,
            tokens,
            choices,
            stacks,
            x.stride(0) if tokens > 1 else 0,
            float(activation.alpha),
            float(activation.limit),
        ),
        dependent=True,
    )
    launch(
        down_code(experts.down.format, experts.intermediate, tokens, config),
        (experts.hidden // 16, 1, 1),
        config.down_warps * 32,
        (
            between,
            *experts.down.tensors,
            experts.down_bias,
            routing.plan,
            routing.weights,
            out,
            tokens,
            choices,
            experts.hidden // 16,
        ),
        dependent=True,
    )
    return out


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical models: both formats and activations, few and many tokens."""
    found = []
    for name, hidden, intermediate, swiglu in (
        ("mxfp4", 2880, 2880, True),
        ("nvfp4", 2048, 768, False),
        ("nvfp4", 2048, 512, False),
    ):
        for tokens in (8, LARGEST_BATCH):
            config = default_config(hidden, tokens)
            found.append(gate_up_code(name, hidden, swiglu, tokens, config))
            found.append(down_code(name, intermediate, tokens, config))
    return found


def gate_up_code(
    name: str, columns: int, swiglu: bool, tokens: int, config: MoeConfig
) -> KernelCode:
    """What is compiled for gate and up of that format and as many columns, in a configuration."""
    defines = (
        ("FORMAT", FORMATS[name]),
        ("COLUMNS", columns),
        ("TOKEN_TILES", token_tiles(tokens)),
        ("SWIGLU", int(swiglu)),
        ("WARPS", config.warps),
        ("SPLIT", config.split),
        ("DEPTH", config.depth),
        ("MIN_BLOCKS", config.min_blocks),
    )
    return KernelCode("gate_up.cu", "gate_up", defines)


def down_code(name: str, columns: int, tokens: int, config: MoeConfig) -> KernelCode:
    """What is compiled for down of that format and as many columns, in a configuration."""
    defines = (
        ("FORMAT", FORMATS[name]),
        ("COLUMNS", columns),
        ("TOKEN_TILES", token_tiles(tokens)),
        ("WARPS", config.down_warps),
        ("DEPTH", config.down_depth),
        ("MIN_BLOCKS", config.down_min_blocks),
    )
    return KernelCode("down.cu", "down", defines)
