"""A mixture of experts for up to 16 tokens in three launches: route, gate and up, down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from spark_prof.kernels.candidate import (
    Activation,
    ActivationName,
    ExpertsLayer,
    Layer,
    Replacement,
    RouterLayer,
)
from spark_prof.kernels.dispatch import DispatchChoice, choose, configured
from spark_prof.kernels.formats import (
    Fp8Blocks,
    Fp8Rows,
    GlobalScale,
    MxFp4,
    NvFp4,
    QuantizedWeight,
    TwoStacks,
)
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import (
    LARGEST_BATCH,
    architecture,
    check_operand,
    check_tokens,
    multiprocessors,
    stacks_at_a_time,
    token_tiles,
)
from spark_prof.kernels.pack import STACK, PackedLinear, kernel_code, pack_rows
from spark_prof.kernels.routing import Routing, routed
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch
from spark_prof.kernels.tuning import TunedShape

LISTED = (
    {
        "names": ("moe-w4a16",),
        "layer": "experts",
        "does": "gate and up, SiLU, SwiGLU or relu2, down and the weighted sum, from the router's "
        "logits",
        "formats": ("nvfp4", "mxfp4"),
        "shapes": "H and I multiples of 16 (MXFP4: of 32)",
        "operation": "moe",
        "reference": "moe_oracle",
        "bytes": "D (3 H I w + 4 (2 I + H)) + 4 M k I + 2 M (2 H + E)",
        "tolerance": "as of dense layers, the error of what lies between carried through",
        "check": "moe",
        "bench": True,
        "tuned_as": "moe",
    },
    {
        "names": ("moe-w8a16",),
        "layer": "experts",
        "does": "the same of weights in E4M3",
        "formats": ("fp8", "fp8_blocks"),
        "shapes": "H and I multiples of 16",
        "operation": "moe",
        "reference": "moe_oracle",
        "bytes": "D (3 H I w + 4 (2 I + H)) + 4 M k I + 2 M (2 H + E)",
        "tolerance": "as of dense layers, the error of what lies between carried through",
        "check": "moe-fp8",
        "tuned_as": "moe",
    },
    {
        "names": ("moe-w16a16",),
        "layer": "experts",
        "does": "the same of weights in BF16, read where the model has them",
        "formats": ("bf16",),
        "shapes": "H and I multiples of 16",
        "operation": "moe",
        "reference": "moe_oracle",
        "bytes": "D 3 H I w + 4 M k I + 2 M (2 H + E)",
        "tolerance": "as of dense layers, the error of what lies between carried through",
        "check": "moe-w16a16",
        "tuned_as": "moe",
    },
)
"""For `registry.py`. Routing is part of this kernel too, which begins with it."""


@dataclass(frozen=True, eq=False)
class PackedExperts:
    """Experts ready for `moe`."""

    count: int
    hidden: int
    intermediate: int
    activation: Activation
    # E matrices of 2I x H, eight rows of gate and eight of up by turns; of I x H without a gate.
    gate_up: PackedLinear
    down: PackedLinear
    apart: int  # the first of the experts that do not lie behind the others, or E
    gate_up_bias: torch.Tensor | None  # bfloat16 in the order of the packed rows, or None
    down_bias: torch.Tensor | None  # bfloat16 [E, H], or None


def pack_experts(
    # [E, 2I, H], the rows of gate before those of up; gpt-oss's checkpoints have them by
    # turns, see `formats.deinterleave_gate_up`. [E, I, H] where the activation has no gate.
    gate_up: QuantizedWeight | torch.Tensor | TwoStacks,
    down: QuantizedWeight | torch.Tensor | TwoStacks,  # [E, H, I], in the same format
    gate_up_bias: torch.Tensor | None,  # bfloat16, in the order of `gate_up`
    down_bias: torch.Tensor | None,  # bfloat16 [E, H]
    activation: Activation,
) -> PackedExperts:
    """Packs the experts of a layer, on the device that they are on.

    Those in bfloat16 are not copied: the kernel reads them where they are.
    """
    if type(gate_up) is not type(down) or len(gate_up.shape) != 3 or len(down.shape) != 3:
        raise KernelError("experts need gate_up [E, 2I, H] and down [E, H, I] in the same format")
    count, rows, hidden = gate_up.shape
    gated = activation.halves == 2
    intermediate = rows // activation.halves
    if tuple(down.shape) != (count, hidden, intermediate) or rows % activation.halves:
        raise KernelError(
            f"gate_up {tuple(gate_up.shape)} and down {tuple(down.shape)} do not fit: they must be"
            f" [E, {'2I' if gated else 'I'}, H] and [E, H, I]"
        )
    device = gate_up.device
    if gate_up_bias is not None:
        check_operand("gate_up_bias", gate_up_bias, (count, rows), device)
        if gated:
            gate_up_bias = _by_turns(gate_up_bias.unsqueeze(-1)).squeeze(-1)
    if down_bias is not None:
        check_operand("down_bias", down_bias, (count, hidden), device)
    apart, of_down = (
        len(part.first) if isinstance(part, TwoStacks) else count for part in (gate_up, down)
    )
    if apart != of_down:
        raise KernelError("of gate_up and down others lie apart")
    by_turns = gate_and_up_by_turns(gate_up) if gated else gate_up
    return PackedExperts(
        count, hidden, intermediate, activation,
        pack_rows(by_turns), pack_rows(down), apart, gate_up_bias, down_bias,
    )  # fmt: skip


def gate_and_up_by_turns(
    gate_up: QuantizedWeight | torch.Tensor | TwoStacks,
) -> QuantizedWeight | torch.Tensor | TwoStacks:
    """[E, 2I, H] with gate before up, eight rows of each by turns; bfloat16 ones as they are."""
    if isinstance(gate_up, torch.Tensor | TwoStacks):
        return gate_up
    if isinstance(gate_up, MxFp4):
        return MxFp4(_by_turns(gate_up.packed), _by_turns(gate_up.scales))
    if isinstance(gate_up, Fp8Rows):
        scales = _by_turns(gate_up.scales.unsqueeze(-1)).squeeze(-1)
        return Fp8Rows(_bytes_by_turns(gate_up.values), scales)
    if isinstance(gate_up, Fp8Blocks):
        eights = gate_up.scales_of(8)
        scales = eights.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return Fp8Blocks(_bytes_by_turns(gate_up.values), scales, rows=8)
    assert isinstance(gate_up, NvFp4)  # of INT4 there are no stacks
    scale = gate_up.global_scale
    value = scale.value.expand(*gate_up.packed.shape[:-1], 1)
    scales = _bytes_by_turns(gate_up.scales)
    return NvFp4(_by_turns(gate_up.packed), scales, GlobalScale(_by_turns(value), scale.convention))


def _bytes_by_turns(rows: torch.Tensor) -> torch.Tensor:
    return _by_turns(rows.view(torch.uint8)).view(rows.dtype)


def _by_turns(rows: torch.Tensor) -> torch.Tensor:
    """[E, 2I, ...] with gate before up, as eight rows of gate and eight of up by turns."""
    count, both, width = rows.shape
    return rows.reshape(count, 2, both // 16, 8, width).transpose(1, 2).reshape(count, both, width)


@dataclass(frozen=True)
class MoeConfig:
    """How `gate_up.cu` and `down.cu` share out their work; see `dense.LinearConfig`."""

    warps: int
    split: int  # warps that share the columns of the same 16 rows
    depth: int  # units of 128 columns that a warp has in flight
    min_blocks: int  # blocks of a multiprocessor that registers must be left for
    down_warps: int  # of a block of down, which makes 16 rows
    down_depth: int
    down_min_blocks: int


def default_config(
    hidden: int,
    tokens: int,
    multiprocessors: int = 132,
    # Of the weights: of bf16 fewer units fit in registers, and fp8_blocks has a unit's sums too.
    format: str = "",  # noqa: A002 - the word of the formats
) -> MoeConfig:
    """A configuration that is good for most shapes, where none was measured.

    With more stacks of 16 rows of `down` than the GPU has multiprocessors, two blocks share one.
    """
    units = -(-hidden // 128)
    split = next(split for split in (4, 2, 1) if split <= units)
    few = token_tiles(tokens) == 1
    alone = hidden <= 16 * multiprocessors
    gate_up = (4, split, 2, 5) if few else (4, 1, 2, 4)
    down = (16, 2, 1) if alone else (12, 1, 2) if few else (8, 2, 2)
    if format == "bf16":
        gate_up = (4, split if few else 1, 1, 4)
        down = (16, 1, 1) if alone else (8, 1, 2)
    elif format == "fp8_blocks":
        gate_up = (4, split, 2, 4) if few else (4, 1, 1, 4)
        down = down if few else (16, 1, 1) if alone else (8, 1, 2)
    return MoeConfig(*gate_up, *down)


def config_for(work: TunedShape, processors: int) -> MoeConfig:
    """The default for a piece of work."""
    return default_config(work.columns, work.tokens, processors, work.format)


LAYER_EXPERTS = "layer-experts"
"""By this name configurations are measured in a chain of layers (benchmarks/chained_configs.py)."""


def choose_moe(
    experts: PackedExperts,
    top_k: int,
    tokens: int,
    *,
    always: int = 0,
    insist: bool = False,
    chained: bool = False,  # whether the kernels of a layer run before and behind
) -> DispatchChoice[MoeConfig]:
    """Chooses between `moe` and whatever it would replace, as if no experts were taken always."""
    hidden, rows, form = experts.hidden, experts.gate_up.rows, experts.gate_up.format
    device = experts.gate_up.weights.device
    chosen = partial(
        choose, format=form, rows=rows, columns=hidden, tokens=tokens,
        architecture=architecture(device), experts=experts.count - always, top_k=top_k,
    )  # fmt: skip
    choice = chosen("moe", insist=insist)
    if chained and choice.config is not None:
        in_layer = chosen(LAYER_EXPERTS)
        choice = choice if in_layer.config is None else in_layer
    default = default_config(hidden, tokens, multiprocessors(device), form)
    return configured(choice, default, hidden)


def build(layer: Layer) -> Replacement:
    """The kernel for experts, as the registry's candidates have it."""
    assert isinstance(layer, ExpertsLayer)
    biases = layer.gate_up_bias, layer.down_bias
    packed = pack_experts(layer.gate_up, layer.down, *biases, layer.activation)
    router = layer.router

    def run(
        x: torch.Tensor,
        logits: torch.Tensor,
        out: torch.Tensor | None = None,
        config: MoeConfig | None = None,
    ) -> torch.Tensor:
        if config is None:
            config = choose_moe(packed, router.top_k, max(1, len(x)), insist=True).config
        return moe(x, logits, packed, router, out, config)

    return Replacement(run, LARGEST_BATCH, "kept")


def moe(
    x: torch.Tensor,  # bfloat16 [M, H], M from 1 to 16, rows at multiples of 16 bytes
    logits: torch.Tensor,  # bfloat16 or float32 [M, E]
    experts: PackedExperts,
    router: RouterLayer,
    out: torch.Tensor | None = None,  # bfloat16 [M, H], contiguous, to write to
    config: MoeConfig | None = None,  # by default `default_config`'s
) -> torch.Tensor:
    """What a mixture of experts makes of tokens, from the router's logits on."""
    device = experts.gate_up.weights.device
    tokens = check_tokens(x, experts.hidden, device)
    # All of it before anything runs: routing alone would run wherever the logits are.
    if logits.device != device:
        raise KernelError(f"logits are on {logits.device}, the weights are on {device}")
    if tuple(logits.shape) != (tokens, experts.count):
        raise KernelError(
            f"logits have the shape {tuple(logits.shape)}; they must have {(tokens, experts.count)}"
        )
    if out is None:
        out = x.new_empty((tokens, experts.hidden))
    else:
        check_operand("out", out, (tokens, experts.hidden), device)
    form = experts.gate_up.format
    config = config or default_config(experts.hidden, tokens, multiprocessors(device), form)
    return after_routing(x, routed(logits, router), experts, out, config)


def after_routing(
    x: torch.Tensor,
    routing: Routing,
    experts: PackedExperts,
    out: torch.Tensor,  # as `moe`'s, and nothing is checked here
    config: MoeConfig,
) -> torch.Tensor:
    """What the experts make of tokens whose choice is being made by the kernel before."""
    device, (tokens, choices) = x.device, routing.experts.shape
    form = experts.gate_up.format
    between = x.new_empty((tokens * choices, experts.intermediate))
    stacks = experts.gate_up.rows // STACK
    activation = experts.activation
    groups = -(-stacks // stacks_at_a_time(config.warps, config.split))
    most = min(tokens * choices, experts.count) * groups
    launch(
        gate_up_code(form, experts.hidden, activation.name, tokens, config),
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
            experts.apart,
        ),
        dependent=True,
    )
    launch(
        down_code(form, experts.intermediate, tokens, config),
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
            experts.apart,
        ),
        dependent=True,
    )
    return out


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical models: every format and activation, few and many tokens."""
    kernel_codes = []
    models: tuple[tuple[str, int, int, ActivationName], ...] = (
        ("mxfp4", 2880, 2880, "swiglu"),
        ("nvfp4", 2048, 768, "silu"),
        ("nvfp4", 2048, 512, "silu"),
        ("nvfp4", 2688, 1856, "relu2"),
        ("fp8", 2048, 768, "silu"),
        ("fp8_blocks", 2048, 768, "silu"),
        ("fp8_blocks", 7168, 2048, "silu"),
        ("bf16", 2048, 1408, "silu"),
        ("bf16", 2688, 1856, "relu2"),
    )
    for name, hidden, intermediate, activation in models:
        for tokens in (8, LARGEST_BATCH):
            config = default_config(hidden, tokens, format=name)
            kernel_codes.append(gate_up_code(name, hidden, activation, tokens, config))
            kernel_codes.append(down_code(name, intermediate, tokens, config))
    return kernel_codes


_ACTIVATIONS: tuple[ActivationName, ...] = ("silu", "swiglu", "relu2")
"""By what ACTIVATION is in gate_up.cu."""


def gate_up_code(
    name: str, columns: int, activation: ActivationName, tokens: int, config: MoeConfig
) -> KernelCode:
    """What is compiled for gate and up of that format and as many columns, in a configuration."""
    defines = {
        field: value for field, value in vars(config).items() if not field.startswith("down_")
    }
    defines["activation"] = _ACTIVATIONS.index(activation)
    return kernel_code("gate_up", name, columns, tokens, defines)


def down_code(name: str, columns: int, tokens: int, config: MoeConfig) -> KernelCode:
    """What is compiled for down of that format and as many columns, in a configuration."""
    defines = {
        field.removeprefix("down_"): value
        for field, value in vars(config).items()
        if field.startswith("down_")
    }
    return kernel_code("down", name, columns, tokens, defines)
