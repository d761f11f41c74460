"""A decoder layer from attention to the next attention in one kernel, for up to four tokens.

It is an experiment beside the single kernels, which no swap takes: `cuda/layer.cu` says how it
works, `benchmarks/decoder_step.py --persistent` what it brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import Layer, LayerBetweenAttentions, Replacement
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import PackedExperts, pack_experts
from spark_prof.kernels.normed_experts import Router, make_router
from spark_prof.kernels.operands import check_operand, check_tokens, multiprocessors
from spark_prof.kernels.pack import FORMATS, STACK, PackedLinear, pack_linear
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch

LISTED = (
    {
        "names": ("layer-persistent",),
        "layer": "between attentions",
        "does": "from attention to the next: o, norm, router, experts, norm and qkv, an experiment",
        "formats": ("nvfp4", "mxfp4"),
        "shapes": "H up to 3072; N, K, H and I multiples of 16, experts of 8",
        "operation": "persistent_layer",
        "reference": "normed_experts_oracle",
        "bytes": "those of its parts",
        "tolerance": "as of its parts, each from what the one before has made",
        "check": "persistent",
        "tokens": (1, 4),
    },
)
"""For `registry.py`."""

MOST_TOKENS = 4


@dataclass(frozen=True)
class PersistentConfig:
    """How `layer.cu` is compiled and launched; which is best depends on the model and the GPU."""

    warps: int = 12
    min_blocks: int = 1  # blocks of a multiprocessor, all of which wait for each other
    # Units of 128 columns that a warp has in flight; 0 for as many as there are registers for.
    o_depth: int = 0
    up_depth: int = 4
    down_depth: int = 3
    qkv_depth: int = 0
    prefetch: int = 31  # what is asked for ahead to L2, as in layer.cu
    dependent: bool = True  # start while the kernel before runs; else a cooperative launch
    blocks: int = 0  # of the grid; 0 for as many as the GPU holds

    def depth_of(self, given: int, form: str) -> int:
        """The depth of a matrix: units of bfloat16 take the most registers."""
        return given or (3 if form == "bf16" else 4)


@dataclass(frozen=True, eq=False)
class PackedLayer:
    """A layer ready for `persistent_layer`, one launch at a time."""

    o: PackedLinear
    o_bias: torch.Tensor | None
    router: Router
    experts: PackedExperts
    norm: torch.Tensor  # float32 [H], of the next layer
    epsilon: float
    qkv: PackedLinear
    qkv_bias: torch.Tensor | None
    counter: torch.Tensor  # int32 [1], of the barrier; between launches its low bits are 0


def pack_layer(layer: LayerBetweenAttentions) -> PackedLayer:
    """Packs a layer's weights; those in bfloat16 are read where they are."""
    experts, following = layer.experts.experts, layer.following
    biases = experts.gate_up_bias, experts.down_bias
    packed = pack_experts(experts.gate_up, experts.down, *biases, experts.activation)
    o, qkv = pack_linear(layer.o.weight), pack_linear(following.linear.weight)
    router, hidden = make_router(layer.experts), packed.hidden
    device, choice = o.weights.device, router.choice
    forms = o.format, packed.gate_up.format, qkv.format
    known = {"bf16", "mxfp4", "nvfp4"}
    if not known.issuperset(forms) or forms[1] == "bf16":
        raise KernelError(f"o, experts and qkv in {', '.join(forms)}: they are BF16 or have 4 bits")
    if packed.activation.halves != 2 or choice.scoring != "softmax":
        raise KernelError("this kernel is for experts with a gate that a softmax chooses")
    if o.rows != hidden or qkv.columns != hidden or hidden % STACK or qkv.rows % STACK:
        raise KernelError(
            f"o {o.rows} x {o.columns}, experts of {hidden}, qkv {qkv.rows} x {qkv.columns}: they"
            f" do not fit, or their rows are no multiples of {STACK}"
        )
    if choice.experts % 8:
        raise KernelError(f"{choice.experts} experts: this kernel takes multiples of 8")
    for name, bias, rows in (("o", layer.o_bias, o.rows), ("qkv", layer.qkv_bias, qkv.rows)):
        if bias is not None:
            check_operand(f"{name}'s bias", bias, (rows,), device)
    norm = following.norm.weight.detach().to(device, torch.float32).contiguous()
    if norm.shape != (hidden,):
        raise KernelError(f"the next norm has the shape {tuple(norm.shape)}, not {(hidden,)}")
    return PackedLayer(
        o, layer.o_bias, router, packed, norm, following.norm.epsilon, qkv, layer.qkv_bias,
        torch.zeros(1, dtype=torch.int32, device=device),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Passed:
    """What a launch has written."""

    qkv: torch.Tensor  # bfloat16 [M, N]
    stream: torch.Tensor  # bfloat16 [M, H], the residual of the next layer
    o_parts: torch.Tensor  # float32 [2, M, H], whose sum is what o gave
    middle: torch.Tensor  # bfloat16 [M, H], that and the residual
    down_parts: torch.Tensor  # float32 [2, M, H], whose sum is what the experts gave


def persistent_layer(
    seen: torch.Tensor,
    residual: torch.Tensor,
    layer: PackedLayer,
    config: PersistentConfig = PersistentConfig(),
) -> Passed:
    """What a layer makes of attention's heads and the residual stream, up to the next qkv.

    Args:
        seen: bfloat16 [M, K], M from 1 to 4, rows at multiples of 16 bytes.
        residual: bfloat16 [M, H], contiguous.

    Raises:
        KernelError: an operand does not fit, or the GPU does not hold all blocks at once.
    """
    device, hidden = layer.o.weights.device, layer.experts.hidden
    tokens = check_tokens(seen, layer.o.columns, device)
    if tokens > MOST_TOKENS:
        raise KernelError(f"{tokens} tokens: this kernel takes up to {MOST_TOKENS}")
    check_operand("residual", residual, (tokens, hidden), device)
    if residual.data_ptr() % 16:
        raise KernelError("residual does not begin at a multiple of 16 bytes")
    router, experts, choice = layer.router, layer.experts, layer.router.choice
    new, active = seen.new_empty, min(tokens * choice.top_k, choice.experts)
    parts = new((2, 2, tokens, hidden), dtype=torch.float32)
    logits, between = new((tokens, choice.experts)), new((active, tokens, experts.intermediate))
    passed = Passed(
        new((tokens, layer.qkv.rows)), new((tokens, hidden)), parts[0], new((tokens, hidden)),
        parts[1],
    )  # fmt: skip
    launch(
        layer_code(layer, tokens, config),
        (config.blocks or config.min_blocks * multiprocessors(device), 1, 1),
        config.warps * 32,
        (
            seen, *layer.o.tensors, layer.o_bias, residual, router.norm, router.weight, router.bias,
            *experts.gate_up.tensors, experts.gate_up_bias, *experts.down.tensors,
            experts.down_bias, layer.norm, *layer.qkv.tensors, layer.qkv_bias, passed.o_parts,
            passed.middle, logits, between, passed.down_parts, passed.stream, passed.qkv,
            layer.counter, tokens, seen.stride(0) if tokens > 1 else 0, layer.qkv.rows,
            int(choice.renormalize), float(router.epsilon), float(layer.epsilon),
            float(choice.scale), float(experts.activation.alpha), float(experts.activation.limit),
        ),
        dependent=config.dependent,
        together=True,
    )  # fmt: skip
    return passed


def layer_code(layer: PackedLayer, tokens: int, config: PersistentConfig) -> KernelCode:
    """What is compiled for a layer and a number of tokens."""
    o, experts, qkv = layer.o, layer.experts, layer.qkv
    sizes = (experts.hidden, experts.intermediate, layer.router.choice.experts)
    forms = (o.format, experts.gate_up.format, qkv.format)
    top_k = layer.router.choice.top_k
    return _code(
        forms, o.columns, sizes, top_k, experts.activation.name == "swiglu", tokens, config
    )


def _code(
    forms: tuple[str, str, str],
    o_columns: int,
    sizes: tuple[int, int, int],  # H, I, experts
    top_k: int,
    swiglu: bool,
    tokens: int,
    config: PersistentConfig,
) -> KernelCode:
    defines = {
        "O_FORMAT": FORMATS[forms[0]], "EXPERT_FORMAT": FORMATS[forms[1]],
        "QKV_FORMAT": FORMATS[forms[2]], "O_COLUMNS": o_columns, "HIDDEN": sizes[0],
        "INNER": sizes[1], "EXPERTS": sizes[2], "CHOICES": top_k, "ACTIVATION": int(swiglu),
        "ROOM": 1 << (tokens - 1).bit_length(), "WARPS": config.warps,
        "MIN_BLOCKS": config.min_blocks, "O_DEPTH": config.depth_of(config.o_depth, forms[0]),
        "UP_DEPTH": config.up_depth, "DOWN_DEPTH": config.down_depth,
        "QKV_DEPTH": config.depth_of(config.qkv_depth, forms[2]), "PREFETCH": config.prefetch,
    }  # fmt: skip
    return KernelCode("layer.cu", "layer", tuple(defines.items()))


def build(layer: Layer) -> Replacement:
    """The kernel for a layer between attentions, with what its steps gave, for `check`."""
    assert isinstance(layer, LayerBetweenAttentions)
    packed = pack_layer(layer)

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        got = persistent_layer(x, residual, packed)
        o, made = (parts.sum(0).to(torch.bfloat16) for parts in (got.o_parts, got.down_parts))
        return got.qkv, got.stream, o, got.middle, made

    return Replacement(run, MOST_TOKENS, "kept")


def codes() -> Sequence[KernelCode]:
    """What is compiled for gpt-oss, as it is and with o and qkv in MXFP4, and for Qwen3-30B-A3B."""
    plain, packed = ("bf16", "mxfp4", "bf16"), ("mxfp4",) * 3
    return [
        _code(forms, 4096, sizes, top_k, forms[1] == "mxfp4", tokens, PersistentConfig())
        for forms, sizes, top_k in (
            (plain, (2880, 2880, 32), 4),
            (plain, (2880, 2880, 128), 4),
            (packed, (2880, 2880, 32), 4),
            (("nvfp4",) * 3, (2048, 768, 128), 8),
        )
        for tokens in (1, MOST_TOKENS)
    ]
