"""The package's own kernels as swaps name them: `spark_prof`, `spark_prof!`, `mxfp4` and `fp8`.

All that is slow happens when a layer is built: packing, choosing a configuration for each number of
tokens, compiling. What a layer cannot have is a KernelError, whose line says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from spark_prof.kernels.attention import build as build_attention
from spark_prof.kernels.candidate import (
    AttentionLayer,
    NormedExpertsLayer,
    NormedLinearLayer,
    NormedMlpLayer,
)
from spark_prof.kernels.dense import LinearConfig, choose_linear, dense_code, linear
from spark_prof.kernels.dispatch import Config, DispatchChoice
from spark_prof.kernels.formats import TwoStacks
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import (
    MoeConfig,
    PackedExperts,
    choose_moe,
    down_code,
    gate_up_code,
    moe,
    pack_experts,
)
from spark_prof.kernels.normed_experts import make_router, normed_experts, router_code
from spark_prof.kernels.normed_linear import (
    choose_normed,
    insisted_config,
    norm_code,
    normed_linear,
)
from spark_prof.kernels.normed_mlp import codes_of, mlp_config, normed_mlp, pack_mlp
from spark_prof.kernels.operands import LARGEST_BATCH, architecture, multiprocessors
from spark_prof.kernels.pack import PackedLinear, pack_linear
from spark_prof.kernels.quantize_at_load import LoadFormat, quantize_linear
from spark_prof.kernels.routing import build as build_router
from spark_prof.kernels.routing import routed
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import prepare
from spark_prof.kernels.tuning import known_runs
from spark_prof.swaps.layers import (
    Bits,
    Builder,
    ExpertsLayer,
    Layer,
    LinearLayer,
    Replacement,
    RouterLayer,
)

_COUNTS = range(1, LARGEST_BATCH + 1)
_CHAINED = ("o", "lm_head")
"""Slots that run behind kernels of slot `layer`, and go by what was measured there."""


def build_kept(layer: Layer, insist: bool) -> Replacement:
    """The package's kernel, which computes with the checkpoint's own bits.

    `spark_prof!` insists: also for numbers of tokens at which nobody measured it to be faster.
    """
    with torch.no_grad():
        if isinstance(layer, LinearLayer):
            return _kept_linear(layer, insist)
        if isinstance(layer, ExpertsLayer):
            return _kept_experts(layer, insist)
        if isinstance(layer, RouterLayer):
            return _router(layer)
        if isinstance(layer, NormedLinearLayer):
            _measured(layer.norm.weight, insist)
            return _normed_linear(layer, pack_linear(layer.linear.weight), "kept", "")
        if isinstance(layer, AttentionLayer):
            _measured(layer.cos_sin, insist)
            attention = build_attention(layer)
            # Of steps that verify drafts no time was measured.
            return attention if insist else replace(attention, width=1)
        if isinstance(layer, NormedExpertsLayer):
            return _normed_experts(layer, insist)
        if isinstance(layer, NormedMlpLayer):
            return _normed_mlp(layer)
    raise KernelError("spark_prof has no kernel for a norm alone; give norm=FILE.py:FUNCTION")


def build_quantized(layer: Layer, kind: LoadFormat) -> Replacement:
    """A BF16 weight quantized here, and the package's kernel for what it became.

    It runs for every number of tokens up to 16: a layer whose results changed with the batch size
    more than it must would be worse than one that is a little slower.
    """
    if isinstance(layer, AttentionLayer | NormedExpertsLayer | NormedMlpLayer):
        return build_kept(layer, insist=True)  # of a decoder layer qkv alone is quantized
    matrix = layer.linear if isinstance(layer, NormedLinearLayer) else layer
    if not isinstance(matrix, LinearLayer):
        raise KernelError(f"{kind} is for the weight of one matrix, which this layer is not")
    if not isinstance(matrix.weight, torch.Tensor):
        raise KernelError("the weight of this layer is quantized already; give spark_prof")
    with torch.no_grad():
        quantized = quantize_linear(matrix.slot, matrix.weight.detach(), kind)
        packed = pack_linear(quantized.weight)
    if isinstance(layer, NormedLinearLayer):
        return _normed_linear(layer, packed, "changed", quantized.line)
    return quantized_matrix(packed, matrix.slot, quantized.line)


BUILDERS: Mapping[str, Builder] = {
    "spark_prof": partial(build_kept, insist=False),
    "spark_prof!": partial(build_kept, insist=True),
    "mxfp4": partial(build_quantized, kind="mxfp4"),
    "fp8": partial(build_quantized, kind="fp8"),
}
"""What each kernel name of a swap stands for."""


def _kept_linear(layer: LinearLayer, insist: bool) -> Replacement:
    return kept_matrix(pack_linear(layer.weight), layer.slot, insist)


def kept_matrix(packed: PackedLinear, slot: str, insist: bool) -> Replacement:
    """The kernel of a matrix of a slot whose weight is packed and has its bits."""
    configs = _chosen(partial(choose_linear, packed, chained=slot in _CHAINED), insist)
    line = f"{packed.format} {packed.rows} x {packed.columns}"
    return _linear(packed, configs, "kept", f"{line}, {_counts_in_words(configs)}")


def quantized_matrix(packed: PackedLinear, slot: str, line: str) -> Replacement:
    """The kernel of a matrix of a slot that was quantized here; the line says what that lost."""
    configs = {count: insisted_config(packed, count, chained=slot in _CHAINED) for count in _COUNTS}
    return _linear(packed, configs, "changed", line)


def _linear(
    packed: PackedLinear, configs: Mapping[int, LinearConfig], bits: Bits, line: str
) -> Replacement:
    form, columns = packed.format, packed.columns
    codes = [dense_code(form, columns, count, config) for count, config in configs.items()]
    prepare(codes, packed.weights.device)

    def run(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, packed, bias, None, configs[len(x)], dependent=True)

    memory = 0 if packed.format == "bf16" else packed.bytes  # read where vLLM has it
    return Replacement(
        run, LARGEST_BATCH, bits, memory, line, _fits(configs), parts=(packed, configs)
    )


def _measured(weight: torch.Tensor, insist: bool) -> None:
    """Refuses a GPU on whose architecture none of the package's kernels was ever measured."""
    arch = architecture(weight.device)
    if not insist and not any(run.architecture == arch for run in known_runs()):
        raise KernelError(f"nothing was measured on {arch}; spark_prof! runs it")


def _normed_linear(
    layer: NormedLinearLayer, packed: PackedLinear, bits: Bits, line: str
) -> Replacement:
    form, columns = packed.format, packed.columns
    # Of other formats what was measured had rounds that are not as even.
    processors = multiprocessors(packed.weights.device) if form.startswith("fp8") else 0
    fused = {count: choose_normed(packed, count, processors) for count in _COUNTS}
    configs = {count: config or insisted_config(packed, count) for count, config in fused.items()}
    norm = replace(layer.norm, weight=layer.norm.weight.detach().to(torch.float32, copy=True))
    codes = [
        dense_code(form, columns, count, config, norm=fused[count] is not None)
        for count, config in configs.items()
    ]
    prepare([*codes, norm_code(columns)], packed.weights.device)

    def run(
        x: torch.Tensor, residual: torch.Tensor | None, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return normed_linear(x, residual, norm, packed, bias, configs[len(x)], dependent=True)

    in_place = form == "bf16" and not layer.is_copy
    memory = norm.weight.nbytes + (0 if in_place else packed.bytes)
    line = line or f"norm and {form} {packed.rows} x {columns}, 1 to {LARGEST_BATCH} tokens"
    return Replacement(run, LARGEST_BATCH, bits, memory, line, parts=(packed, configs))


def _normed_mlp(layer: NormedMlpLayer) -> Replacement:
    mlp = pack_mlp(layer)
    configs = {count: mlp_config(mlp, count) for count in _COUNTS}
    prepare(codes_of(mlp, configs), mlp.down.weights.device)

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        return normed_mlp(x, residual, mlp, configs[len(x)], dependent=True)

    memory = mlp.norm.weight.nbytes
    memory += sum(part.bytes for part in (mlp.gate_up, mlp.down) if part.format != "bf16")
    line = f"norm and {mlp.gate_up.format} mlp of {mlp.down.columns} within"
    line += f", 1 to {LARGEST_BATCH} tokens"
    return Replacement(run, LARGEST_BATCH, "kept", memory, line, parts=(mlp, configs))


def _kept_experts(layer: ExpertsLayer, insist: bool) -> Replacement:
    return kept_experts(_packed_experts(layer), layer.router, insist)


def kept_experts(packed: PackedExperts, router: RouterLayer, insist: bool) -> Replacement:
    """The kernels of packed experts, from the router's logits on."""
    configs, codes = _configured(packed, router, insist)
    device = packed.down.weights.device
    _try_routing(router, device)
    prepare(codes, device)

    def run(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return moe(x, logits, packed, router, None, configs[len(x)])

    return _experts(run, packed, configs, 0)


def _normed_experts(layer: NormedExpertsLayer, insist: bool) -> Replacement:
    router = make_router(layer)
    packed = _packed_experts(layer.experts)
    configs, codes = _configured(packed, layer.experts.router, insist, chained=True)
    how = router.float_logits, router.shared_gate is not None
    codes += [router_code(packed.hidden, count, router.choice, *how) for count in configs]
    prepare(codes, packed.down.weights.device)

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        return normed_experts(x, residual, router, packed, configs[len(x)])

    memory = router.norm.nbytes + router.logits.nbytes
    memory += router.weight.nbytes if layer.gate_is_copy else 0
    built = _experts(run, packed, configs, memory)
    return replace(built, parts=(packed, router.choice, configs))


def _packed_experts(layer: ExpertsLayer) -> PackedExperts:
    gate_up, down = layer.gate_up, layer.down
    if isinstance(gate_up, torch.Tensor | TwoStacks) and not layer.stays:
        raise KernelError(
            "vLLM lays the BF16 experts of this layer out anew, for which a second copy would be"
            " needed; give --moe-backend triton"
        )
    # Copies: vLLM goes on to lay its own out anew.
    gate_up_bias = None if layer.gate_up_bias is None else layer.gate_up_bias.clone()
    down_bias = None if layer.down_bias is None else layer.down_bias.clone()
    return pack_experts(gate_up, down, gate_up_bias, down_bias, layer.activation)


def _configured(
    packed: PackedExperts, router: RouterLayer, insist: bool, *, chained: bool = False
) -> tuple[dict[int, MoeConfig], list[KernelCode]]:
    """A configuration of experts for each number of tokens, and what has to be compiled."""
    choose = partial(choose_moe, packed, router.top_k, always=router.always, chained=chained)
    configs = _chosen(choose, insist)
    form, activation = packed.gate_up.format, packed.activation.name
    codes = [
        code
        for count, config in configs.items()
        for code in (
            gate_up_code(form, packed.hidden, activation, count, config),
            down_code(form, packed.intermediate, count, config),
        )
    ]
    return configs, codes


def _experts(
    run: Callable[..., Any],
    packed: PackedExperts,
    configs: Mapping[int, MoeConfig],
    extra_bytes: int,
) -> Replacement:
    """Experts that hold `extra_bytes` beside their packed weights."""
    size = f"{packed.count} experts, {packed.gate_up.rows} x {packed.hidden}"
    line = f"{packed.gate_up.format} {size}, {_counts_in_words(configs)}"
    biases = (packed.gate_up_bias, packed.down_bias)
    parts = packed.gate_up, packed.down
    in_place = packed.gate_up.format == "bf16"  # but for what lies apart, which is a copy
    memory = extra_bytes + sum(part.scales.nbytes if in_place else part.bytes for part in parts)
    memory += sum(bias.nbytes for bias in biases if bias is not None)
    return Replacement(run, LARGEST_BATCH, "kept", memory, line, _fits(configs))


def _router(layer: RouterLayer) -> Replacement:
    here = "cuda" if torch.cuda.is_available() else "cpu"
    _try_routing(layer, torch.device(here) if layer.correction is None else layer.correction.device)
    line = f"{layer.top_k} of {layer.experts} experts, 1 to {LARGEST_BATCH} tokens"
    return replace(build_router(layer), line=line)


def _try_routing(router: RouterLayer, device: torch.device) -> None:
    """Routes one token: compiles the kernel, for logits of both dtypes, or says what it cannot."""
    for dtype in (torch.bfloat16, torch.float32):
        routed(torch.zeros((1, router.experts), dtype=dtype, device=device), router)


def _fits(configs: Mapping[int, object]) -> Callable[[int], bool] | None:
    return None if len(configs) == LARGEST_BATCH else lambda tokens: tokens in configs


def _chosen(choose: Callable[..., DispatchChoice[Config]], insist: bool) -> dict[int, Config]:
    """The configurations for the numbers of tokens for which the kernel is chosen."""
    chosen = {count: choose(count, insist=insist) for count in _COUNTS}
    configs = {
        count: choice.config for count, choice in chosen.items() if choice.config is not None
    }
    if not configs:
        way_out = "" if insist else "; spark_prof! runs it where nobody measured it"
        raise KernelError(f"not chosen for any number of tokens: {chosen[1].why}{way_out}")
    return configs


def _counts_in_words(configs: Mapping[int, object]) -> str:
    """For which numbers of tokens: `1 to 8 and 10 tokens`."""
    runs: list[list[int]] = []
    for count in sorted(configs):
        if runs and runs[-1][-1] == count - 1:
            runs[-1].append(count)
        else:
            runs.append([count])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{' and '.join(parts)} tokens"
