"""Gives a model without a checkpoint weights with which its logits mean something.

vLLM's own dummy weights are numbers within 1e-3, and it leaves packed codes and their scales as
they happen to be: every logit is about zero, or NaN. With the weights of this module activations
keep their size from layer to layer, tokens choose different experts and logits have a spread, so
that a kernel that computes something else gives other tokens.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator
from typing import Any

import torch

from spark_prof.kernels.formats import E2M1_VALUES, e4m3_decode
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.rules.components import component_of
from spark_prof.swaps.live_weights import (
    EXPERTS,
    LINEAR,
    Extent,
    StoredAs,
    extent_of,
    parameter,
    scales_of,
    stored_as,
)

_E2M1_RMS = math.sqrt(sum(value * value for value in E2M1_VALUES) / len(E2M1_VALUES))
_E4M3_SCALES = (0x68, 0x78)  # 64 to 240, as block scales of real checkpoints are
_E8M0_SCALES = 2  # neighbouring exponents that a tensor's scales have
_E8M0_RMS = math.sqrt((1 + 0.25) / 2)  # of two of them, the upper one being 1
_FP8_STEP = 448 / 4  # an FP8 weight's standard deviation, of its scale
_INT4_RMS = math.sqrt(sum((code - 8) ** 2 for code in range(16)) / 16)
_INT4_ZEROS = 0x88888888 - (1 << 32)  # eight of the middle, as an int32
_CHUNK = 1 << 22  # values that are made at a time where they cannot be made in place


def fill_codes(packed: torch.Tensor, numbers: torch.Generator) -> None:
    """Bytes of two E2M1 codes, each code as likely as the others."""
    if not packed.is_contiguous():
        packed.random_(0, 256, generator=numbers)
        return
    # Eight bytes at a time: a random number costs the same for one.
    flat = packed.view(-1)
    whole = flat.numel() // 8 * 8
    flat[:whole].view(torch.int64).random_(-(2**63), None, generator=numbers)
    flat[whole:].random_(0, 256, generator=numbers)


def _fill_nvfp4_scales(scales: torch.Tensor, numbers: torch.Generator) -> float:
    """E4M3 scales of blocks of codes; returns the standard deviation of code * scale."""
    low, high = _E4M3_SCALES
    scales.view(torch.uint8).random_(low, high, generator=numbers)
    codes = torch.arange(low, high, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return _E2M1_RMS * float(e4m3_decode(codes).square().mean().sqrt())


def _fill_mxfp4_scales(scales: torch.Tensor, spread: float, numbers: torch.Generator) -> None:
    """E8M0 scales with which codes have nearly that standard deviation: within a factor 1.5."""
    upper = 127 + round(math.log2(spread / (_E2M1_RMS * _E8M0_RMS)))
    scales.random_(upper + 1 - _E8M0_SCALES, upper + 1, generator=numbers)


def _fill_fp8(values: torch.Tensor, numbers: torch.Generator) -> float:
    """Normally distributed E4M3 values; returns their standard deviation."""
    flat = values.view(-1)
    buffer = torch.empty(min(_CHUNK, flat.numel()), dtype=torch.float32, device=flat.device)
    for part in flat.split(_CHUNK):
        some = buffer[: part.numel()]
        some.normal_(0, _FP8_STEP, generator=numbers).clamp_(-448, 448)
        part.copy_(some)
    return _FP8_STEP


logger = logging.getLogger("spark_prof")

_LOGITS = 4.0  # standard deviation of the logits of a token
_ROUTER = 2.0  # of the logits of a router
_BIAS = 0.05
_NORM = 0.1  # around 1
_ACTIVATION = 8.0  # the largest that static scales of activations leave room for
_GATED_ACTIVATION = 32.0  # the same before down, whose input is a product of two
_CACHE_SCALES = ("q_scale", "k_scale", "v_scale", "prob_scale")


def fill_dummy(model: Any, seed: int = 0) -> None:
    """Writes random weights over all that a model has, before they are laid out for kernels.

    Each parameter has its numbers by its name, so that they do not depend on the order of the
    model's modules; where ranks share a matrix, each has its own. What belongs to no layer that
    is known, as the state of an SSM, keeps vLLM's dummy values. Only for a model that vLLM loaded
    with ``load_format=dummy``, never for any other.
    """
    tied = _logit_weights(model)
    unknown = set()
    with torch.no_grad():
        for name, module in model.named_modules():
            try:
                _fill_module(name, module, seed, tied)
            except KernelError as error:
                unknown.add(str(error))
    for reason in sorted(unknown):
        logger.warning("dummy weights stay what vLLM made them: %s", reason)


def _fill_module(name: str, module: Any, seed: int, tied: set[int]) -> None:
    kinds = _kinds(module)
    if "RoutedExperts" in kinds:
        _fill_experts(name, module, seed)
    elif "LinearBase" in kinds or "VocabParallelEmbedding" in kinds:
        _fill_linear(name, module, seed, tied)
    elif "Norm" in kinds[0]:
        _fill_norm(name, module, seed)
    for key in _CACHE_SCALES:
        if isinstance(getattr(module, key, None), torch.nn.Parameter):
            getattr(module, key).fill_(1.0)


def _fill_norm(name: str, module: Any, seed: int) -> None:
    weight, bias = (getattr(module, key, None) for key in ("weight", "bias"))
    if isinstance(weight, torch.Tensor) and weight.is_floating_point():
        mean = 0.0 if "GemmaRMSNorm" in _kinds(module) else 1.0
        weight.normal_(mean, _NORM, generator=_start(module, weight, f"{name}.weight", seed))
    if isinstance(bias, torch.Tensor):
        bias.zero_()


def _fill_linear(name: str, module: Any, seed: int, tied: set[int]) -> None:
    stored = stored_as(module, LINEAR)
    weight = parameter(module, stored.weight)
    # Where ranks share the columns of a matrix, what is summed up is of all of them.
    fan_in = getattr(module, "input_size", None) or module.embedding_dim
    spread = _gain(name, module, weight, tied) * fan_in**-0.5
    _fill_matrix(name, module, stored, "", spread, seed)
    bias = getattr(module, "bias", None)
    if isinstance(bias, torch.Tensor):
        bias.normal_(0, _BIAS, generator=_start(module, bias, f"{name}.bias", seed))


def _gain(name: str, module: Any, weight: torch.Tensor, tied: set[int]) -> float:
    """What a matrix multiplies the standard deviation of its input with."""
    if weight.data_ptr() in tied:
        return _LOGITS
    if "VocabParallelEmbedding" in _kinds(module):
        return math.sqrt(module.embedding_dim)  # nothing is summed up: each value is about 1
    router = component_of(name, type(module).__name__) == "router"
    return _ROUTER if router else 1.0


def _fill_experts(name: str, module: Any, seed: int) -> None:
    stored = stored_as(module, EXPERTS)
    extent = extent_of(module, stored)
    fans = {"w13": extent.hidden, "w2": module.moe_config.intermediate_size}
    for half, fan_in in fans.items():
        _fill_matrix(name, module, stored, f"{half}_", fan_in**-0.5, seed)
        bias = getattr(module, f"{half}_bias", None)
        if bias is not None:
            bias.normal_(0, _BIAS, generator=_start(module, bias, f"{name}.{half}_bias", seed))
            if half == "w2" and _rank(module):  # it counts once: the first rank has it
                bias.zero_()
        # A checkpoint leaves zeros in the padding, and kernels count on it.
        for tensor in (parameter(module, f"{half}_{stored.weight}"), bias):
            for padding in _padding(tensor, half, extent):
                padding.zero_()


def _padding(tensor: torch.Tensor | None, half: str, extent: Extent) -> Iterator[torch.Tensor]:
    """The parts of weights [E, N, K] or biases [E, N] that no expert has."""
    if tensor is None:
        return
    inner = extent.hidden if half == "w13" else extent.intermediate
    if half == "w2":
        yield tensor[:, extent.hidden :]
    elif extent.turns or extent.halves == 1:
        yield tensor[:, extent.halves * extent.intermediate :]
    else:
        for part in tensor.chunk(2, dim=1):
            yield part[:, extent.intermediate :]
    if tensor.ndim == 3:
        yield tensor[:, :, inner // 2 if tensor.dtype == torch.uint8 else inner :]


def _fill_matrix(
    name: str, module: Any, stored: StoredAs, prefix: str, spread: float, seed: int
) -> None:
    """Writes a weight and its scales, so that its values have a standard deviation of `spread`."""
    weight = parameter(module, prefix + stored.weight)
    numbers = _start(module, weight, f"{name}.{prefix}{stored.weight}", seed)
    if stored.format == "plain":
        weight.normal_(0, spread, generator=numbers)
        return
    scale = scales_of(module, stored, prefix)
    if stored.format == "fp8":
        scale.fill_(spread / _fill_fp8(weight, numbers))
    else:
        fill_codes(weight, numbers)
    if stored.format == "int4":
        scale.fill_(spread / _INT4_RMS)
        zeros = getattr(module, prefix + stored.zeros, None)
        if isinstance(zeros, torch.Tensor):
            zeros.fill_(_INT4_ZEROS)
    if stored.format == "mxfp4":
        _fill_mxfp4_scales(scale, spread, numbers)
    largest = 448.0
    if stored.format == "nvfp4":
        above = spread / _fill_nvfp4_scales(scale, numbers)
        divides = stored.convention == "divides"
        parameter(module, prefix + stored.global_scale).fill_(1 / above if divides else above)
        largest *= 6
    if isinstance(getattr(module, prefix + stored.input_scale, None), torch.Tensor):
        behind_gate = prefix == "w2_" or name.endswith("down_proj")
        step = (_GATED_ACTIVATION if behind_gate else _ACTIVATION) / largest
        divides = stored.convention == "divides"
        parameter(module, prefix + stored.input_scale).fill_(1 / step if divides else step)


def _start(module: Any, tensor: torch.Tensor, name: str, seed: int) -> torch.Generator:
    text = f"{seed}/{_rank(module)}/{name}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator(tensor.device).manual_seed(int.from_bytes(digest) >> 1)


def _rank(module: Any) -> int:
    """Which of the ranks that share a module's matrix; 0 where each has all of it."""
    shared = getattr(getattr(module, "moe_config", module), "tp_size", 1) > 1
    if not shared or "ReplicatedLinear" in _kinds(module):
        return 0
    from vllm.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _logit_weights(model: Any) -> set[int]:
    """Where the weights are that logits come from; embeddings may be tied to them."""
    heads: set[int] = set()
    embeddings: set[int] = set()
    for module in model.modules():
        kinds = _kinds(module)
        if "VocabParallelEmbedding" not in kinds:
            continue
        addresses = heads if "ParallelLMHead" in kinds else embeddings
        addresses |= {tensor.data_ptr() for tensor in module.parameters(recurse=False)}
    return heads or embeddings


def _kinds(module: Any) -> list[str]:
    """The names of a module's class and of those that it comes from, its own first."""
    return [kind.__name__ for kind in type(module).__mro__]
