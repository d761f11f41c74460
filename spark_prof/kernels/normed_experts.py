"""The norm of the residual stream, the router's matrix and the experts in three launches.

`cuda/router.cu` makes norm, logits, choice and plan; gate and up, and down, are those of `moe.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import Layer, NormedExpertsLayer, Replacement, RouterLayer
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import (
    MoeConfig,
    PackedExperts,
    after_routing,
    choose_moe,
    default_config,
    pack_experts,
)
from spark_prof.kernels.operands import LARGEST_BATCH, check_operand, check_tokens, multiprocessors
from spark_prof.kernels.routing import (
    MOST_CHOICES,
    Routing,
    check_choice,
    check_correction,
    unwritten,
)
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch

LISTED = (
    {
        "names": ("layer-experts",),
        "layer": "normed experts",
        "does": "RMS norm of x + residual, and the experts of its result by a router's matrix",
        "formats": ("nvfp4", "mxfp4", "fp8"),
        "shapes": "H up to 8192, H and I multiples of 16 (MXFP4: of 32), up to 512 experts",
        "operation": "normed_experts",
        "reference": "normed_experts_oracle",
        "bytes": "2 E H + D (3 H I w + 4 (2 I + H)) + 4 H + 4 M k I + 2 M 5 H",
        "tolerance": "as of dense layers, the errors of norm, logits and weights carried through",
        "check": "normed-experts",
    },
)
"""For `registry.py`."""

_WIDEST = 8192
"""A thread has eight columns, and a block 1024 threads at most."""
_BLOCKS = 64
"""For few tokens: enough to read the matrix at once, few enough to wait for. For many it is half of
them, as each of the blocks reads all activations."""


@dataclass(frozen=True, eq=False)
class Router:
    """A norm, a router's matrix and a choice, ready for `norm_and_route`."""

    norm: torch.Tensor  # float32 [H]
    epsilon: float
    weight: torch.Tensor  # bfloat16 [E, H], where the model has it
    bias: torch.Tensor | None  # bfloat16 [E]
    shared_gate: torch.Tensor | None  # bfloat16 [H]
    choice: RouterLayer
    logits: torch.Tensor  # room for 16 tokens' in float32
    finished: torch.Tensor  # int32 [1]: how many blocks are through, 0 between launches
    # Whether the choice goes by the logits in float32; vLLM rounds those of gpt-oss and Qwen3-MoE.
    float_logits: bool = False


def make_router(layer: NormedExpertsLayer) -> Router:
    """The router of a layer, with memory of its own for one launch at a time."""
    weight, choice = layer.gate.weight, layer.experts.router
    if not isinstance(weight, torch.Tensor):
        raise KernelError("the router's matrix must be bfloat16; it is quantized")
    weight, device = weight.detach(), weight.device
    experts, columns = choice.experts, layer.norm.weight.shape[-1]
    check_operand("the router's matrix", weight, (experts, columns), device)
    fits = layer.experts.gate_up.shape[0] - choice.always, layer.experts.gate_up.shape[-1]
    if tuple(weight.shape) != fits:
        raise KernelError(
            f"the router's matrix has the shape {tuple(weight.shape)}; for the experts it must have"
            f" {fits}"
        )
    if columns % 8 or columns > _WIDEST or weight.data_ptr() % 16:
        raise KernelError(
            f"the router's matrix has {columns} columns from address {weight.data_ptr():#x}: they"
            f" must be a multiple of 8, up to {_WIDEST}, and begin at a multiple of 16 bytes"
        )
    bias = None if layer.gate_bias is None else layer.gate_bias.detach()
    if bias is not None:
        check_operand("gate_bias", bias, (experts,), device)
    check_choice(experts, choice.top_k)
    if choice.top_k + choice.always > MOST_CHOICES:
        raise KernelError(
            f"a token takes {choice.top_k} experts, and {choice.always} that all take: "
            f"{MOST_CHOICES} can be taken"
        )
    shared_gate = None if layer.shared_gate is None else layer.shared_gate.detach()
    if shared_gate is not None:
        check_operand("the gate of the shared expert", shared_gate, (columns,), device)
        if not choice.always or shared_gate.data_ptr() % 16:
            raise KernelError(
                "a gate of shared experts goes with such experts, and begins at a multiple of 16"
                " bytes"
            )
    check_correction(choice.correction, experts, choice.scoring, device)
    norm = layer.norm.weight.detach().to(device, torch.float32).contiguous()
    logits = torch.empty(LARGEST_BATCH * (experts + 1), dtype=torch.float32, device=device)
    finished = torch.zeros(1, dtype=torch.int32, device=device)
    return Router(
        norm, layer.norm.epsilon, weight, bias, shared_gate, choice, logits, finished,
        layer.float_logits,
    )  # fmt: skip


def build(layer: Layer) -> Replacement:
    """The kernels for a norm, a router and experts, as the registry's candidates have it."""
    assert isinstance(layer, NormedExpertsLayer)
    experts = layer.experts
    assert not isinstance(experts.gate_up, torch.Tensor), "this kernel is for fewer bits"
    assert not isinstance(experts.down, torch.Tensor), "as gate_up"
    biases = experts.gate_up_bias, experts.down_bias
    packed = pack_experts(experts.gate_up, experts.down, *biases, experts.activation)
    router = make_router(layer)

    def run(
        x: torch.Tensor, residual: torch.Tensor | None, config: MoeConfig | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if config is None:
            choice = router.choice
            config = choose_moe(
                packed, choice.top_k, max(1, len(x)), always=choice.always, insist=True
            ).config
        return normed_experts(x, residual, router, packed, config)

    return Replacement(run, LARGEST_BATCH, "kept", router.norm.nbytes + router.logits.nbytes)


def normed_experts(
    x: torch.Tensor,  # bfloat16 [M, H], M from 1 to 16, rows at multiples of 16 bytes
    residual: torch.Tensor | None,  # the same
    router: Router,
    experts: PackedExperts,
    config: MoeConfig | None = None,  # of gate and up, and down; by default `default_config`'s
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the experts make of the norm of x + residual, and that sum, both bfloat16 [M, H]."""
    normed, stream, routing = norm_and_route(x, residual, router)
    if config is None:
        form = experts.gate_up.format
        config = default_config(experts.hidden, len(x), multiprocessors(x.device), form)
    return after_routing(normed, routing, experts, torch.empty_like(normed), config), stream


def norm_and_route(
    x: torch.Tensor,  # as of `normed_experts`
    residual: torch.Tensor | None,
    router: Router,
) -> tuple[torch.Tensor, torch.Tensor, Routing]:
    """The norm of x + residual, the sum itself, both bfloat16 [M, H], and which experts to take."""
    count, columns = router.weight.shape
    device = router.weight.device
    tokens = check_tokens(x, columns, device)
    if residual is not None:
        check_operand("residual", residual, (tokens, columns), device, rows_apart=True)
    choice = router.choice
    stream, normed = x.new_empty((tokens, columns)), x.new_empty((tokens, columns))
    routing = unwritten(tokens, choice.top_k + choice.always, device)
    gated = router.shared_gate is not None
    code = router_code(columns, tokens, choice, router.float_logits, gated)
    constants = dict(code.defines)
    launch(
        code,
        (-(-(count + gated) // constants["EACH"]), 1, 1),
        constants["THREADS"],
        (
            x,
            residual,
            router.norm,
            router.weight,
            router.bias,
            router.shared_gate,
            choice.correction,
            stream,
            normed,
            routing.experts,
            routing.weights,
            routing.plan,
            router.logits,
            router.finished,
            tokens,
            x.stride(0) if tokens > 1 else 0,
            residual.stride(0) if residual is not None and tokens > 1 else 0,
            float(router.epsilon),
            int(choice.renormalize),
            float(choice.scale),
        ),
        dependent=True,
    )
    return normed, stream, routing


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical models, and what holds the most registers."""
    router_codes = []
    for experts, top_k, hidden in ((32, 4, 2880), (128, 4, 2880), (128, 8, 2048), (512, 10, 2048)):
        choice = RouterLayer("", experts, top_k, True, "softmax", None, 1.0)
        router_codes += [router_code(hidden, tokens, choice) for tokens in (1, 2, LARGEST_BATCH)]
    corrected = RouterLayer("", 256, 8, True, "sigmoid", None, 1.0)
    return [
        *router_codes,
        *(router_code(7168, tokens, corrected, True) for tokens in (1, LARGEST_BATCH)),
    ]


def router_code(
    columns: int, tokens: int, choice: RouterLayer, float_logits: bool = False, gated: bool = False
) -> KernelCode:
    """What is compiled for a router of as many columns."""
    blocks = _BLOCKS if tokens <= 2 else _BLOCKS // 2
    experts_of_block = next(
        experts_of_block
        for experts_of_block in (1, 2, 4)
        if experts_of_block == 4 or experts_of_block * blocks >= choice.experts + gated
    )
    # A thread for eight columns, for an expert's place in the plan, and for each logit.
    experts = choice.experts + choice.always
    threads = -(-max(columns // 8, experts, LARGEST_BATCH * experts_of_block) // 32) * 32
    # Of threads that many there are few registers for each.
    most = 4 if threads <= 384 else 2 if threads <= 512 else 1
    together = min(1 << (tokens - 1).bit_length(), most)
    defines = (
        ("COLUMNS", columns),
        ("EXPERTS", choice.experts),
        ("CHOICES", choice.top_k + choice.always),
        ("FLOAT_LOGITS", int(float_logits)),
        ("SIGMOID", int(choice.scoring == "sigmoid")),
        ("EACH", experts_of_block),
        ("TOGETHER", together),
        ("THREADS", threads),
        *((("ALWAYS", choice.always), ("GATED", int(gated))) if choice.always else ()),
    )
    return KernelCode("router.cu", "norm_route", defines)
