"""What each kind of place is tried with, and a call's result held to another's, row by row.

Tokens are made up; arguments lie between bands of NaN; vLLM's own kernel computes what is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from spark_prof.kernels.check.inputs import BAND, memory_of, surrounded
from spark_prof.kernels.check.verdict import same_bits
from spark_prof.swaps.activation_rounding import largest_input, rounded_by
from spark_prof.swaps.build import SwapPoint
from spark_prof.swaps.guard import ReplacementError
from spark_prof.swaps.layer_dispatch import features_of_experts
from spark_prof.swaps.layer_parts import first_size

_FLOOR = 2.0**-6
"""Of the usual row's norm: what a row counts as at least, so that rows of zeros have one."""

_ELEMENT = 16
"""By how many bounds an element may be off, in root mean squares of its row: roundings are off by
some 0.005 of that, an element that is another's by 1."""

_AT_ONCE = 1 << 23
"""Elements that are compared at a time, which bounds the float64 copies."""

Rows = tuple[torch.Tensor, ...]
Bounds = tuple[float, float]  # `layer_bound` and `element_bound`


class Fenced:
    """Arguments between bands of NaN, to be filled anew for each call.

    What is written to them, or beside them, shows; what is read beside them becomes NaN. To call
    with are the rows, which have one for each token, and the fixed ones.
    """

    def __init__(self, like: Rows, count: int, fixed: tuple[torch.Tensor | None, ...]) -> None:
        self.rows: Rows = tuple(
            surrounded(tensor.new_zeros((count, tensor.shape[1]))) for tensor in like
        )
        self.arguments = (*self.rows, *fixed)
        self._fixed = [(tensor, tensor.clone()) for tensor in fixed if tensor is not None]
        self._before: list[torch.Tensor] = []

    def fill(self, rows: Rows) -> None:
        """Puts other values into the same memory."""
        for mine, values in zip(self.rows, rows, strict=True):
            mine.copy_(values)
        self._before = [memory_of(tensor).clone() for tensor in self.rows]

    def problem(self, results: Sequence[torch.Tensor]) -> str:
        """What a call did to its arguments since they were filled, empty if nothing."""
        for tensor, before in zip(self.rows, self._before, strict=True):
            now, band = memory_of(tensor), BAND * tensor.element_size()
            if not torch.equal(now[band:-band], before[band:-band]):
                return "it writes to its arguments"
            if not torch.equal(now, before):
                return "it writes beside its arguments"
        if not all(same_bits(tensor, before) for tensor, before in self._fixed):
            return "it writes to its arguments"
        arguments = (*self.rows, *(tensor for tensor, _ in self._fixed))
        addresses = {tensor.untyped_storage().data_ptr() for tensor in arguments}
        if any(tensor.untyped_storage().data_ptr() in addresses for tensor in results):
            return "its result lies in the memory of an argument"
        return ""


def row_floors(expected: Sequence[torch.Tensor]) -> list[float]:
    """The least norm that the error of a row is held against, of each result."""
    floors = []
    for result in expected:
        norms = result[: max(1, _AT_ONCE // result.shape[1])].double().norm(dim=-1)
        norms = norms[norms.isfinite() & (norms > 0)]
        floors.append(_FLOOR * float(norms.median()) if norms.numel() else 0.0)
    return floors


def compare_rows(
    got: Sequence[torch.Tensor],
    # What they should be; rows of it that are not finite are not asked for.
    expected: Sequence[torch.Tensor],
    floors: Sequence[float],
    bounds: Bounds,  # the largest errors that are allowed
    tokens: str,  # the call in words
) -> ReplacementError:
    """The error of the worst row of all results; ValueError where they are not comparable."""
    if len(got) != len(expected):
        raise ValueError(f"it returns {len(got)} results; vLLM's kernel returns {len(expected)}")
    errors = []
    for mine, right, floor in zip(got, expected, floors, strict=True):
        if mine.shape != right.shape or mine.dtype != right.dtype:
            raise ValueError(
                f"it returns {mine.dtype} {tuple(mine.shape)} where vLLM's kernel returns "
                f"{right.dtype} {tuple(right.shape)}"
            )
        step = max(1, _AT_ONCE // max(1, right.shape[1]))
        for first in range(0, len(right), step):
            part = slice(first, first + step)
            errors.append(_compare(mine[part], right[part], floor, bounds, first))
    beyond, relative, row = max(errors, key=lambda error: error[:2])
    return ReplacementError(relative, row, tokens, beyond)


def _compare(
    mine: torch.Tensor, right: torch.Tensor, floor: float, bounds: Bounds, first: int
) -> tuple[bool, float, int]:
    """Whether a row is beyond its bound; the error of the worst one, and its number."""
    sound = right.isfinite().all(-1)
    broken = sound & ~mine.isfinite().all(-1)
    exact = torch.where(sound[:, None], right.double(), 0.0)
    off = torch.where(sound[:, None], mine.double() - exact, 0.0).nan_to_num()
    norms = exact.norm(dim=-1).clamp(min=floor)
    relative = off.norm(dim=-1) / torch.where(norms > 0, norms, 1.0)
    size = (norms / exact.shape[1] ** 0.5)[:, None] * _ELEMENT + exact.abs() * 4
    beyond = broken | (relative > bounds[0]) | (off.abs() > bounds[1] * size).any(-1)
    # Of rows that are beyond, the first: of a fault in all of them that is the same in all layers.
    score = torch.where(beyond, 1e300, relative)
    row = int(score.argmax())
    if bool(broken[row]):
        raise ValueError(
            f"it returns NaN or infinity where vLLM's kernel does not, in row {first + row}"
        )
    return bool(beyond[row]), float(relative[row]), first + row


def fingerprint(module: torch.nn.Module) -> list[int]:
    """A number for the bytes of each parameter and buffer of a module."""
    numbers = []
    for tensor in (*module.parameters(), *module.buffers()):
        if (
            type(tensor) not in (torch.Tensor, torch.nn.Parameter)
            and not tensor.is_floating_point()
        ):
            continue
        raw = memory_of(tensor)
        whole = raw.numel() // 8 * 8
        numbers.append(int(raw[:whole].view(torch.int64).sum()) + int(raw[whole:].sum()))
    return numbers


PLAIN = "plain tokens"
"""All different, of unit size as behind a norm; those of experts take all experts in turn."""
MIXED = "large and repeated tokens between others"
ZEROS = "tokens of zeros"
LARGE = "large tokens"
SAME_TOKEN = "the same token in every row"
_ONE_WEIGHT = "one weight of 1, the others 0"
_SPREAD = "experts far apart in their logits"

_FACTOR = 64.0

_NOT_TAKEN = -8.0
"""About the logits of the experts that a token shall not take; those that it takes have 1 to 1.5,
so near to each other that each has a say, under a softmax and as sigmoids."""


@dataclass(frozen=True)
class TrialWork:
    """The inputs and the reference that the replacement of one place is tried with."""

    shape: tuple[Any, ...]  # tells places of the same work from others
    # Of a kind of tokens that many: the arguments with a row for each.
    rows: Callable[[int, str], Rows]
    fixed: tuple[torch.Tensor | None, ...]  # the arguments behind them, the same in each call
    stock: Callable[..., Any]  # what vLLM's kernel makes of all arguments
    kinds: tuple[str, ...] = (ZEROS, LARGE, SAME_TOKEN)  # of tokens, besides `PLAIN` and `MIXED`
    # What a call returned, as matrices with a row for each token.
    results: Callable[[Any], list[torch.Tensor]] = lambda value: _tensors(value)
    needed: int = 1  # plain tokens after which every expert has had one


def works_of(point: SwapPoint) -> tuple[TrialWork, ...]:
    """How a place is tried, in each form in which it is called.

    What vLLM's kernel is, the module says when it is asked: on trial its own method, and what
    chooses between that and a replacement once one is swapped in.
    """
    module = point.module
    device = next(module.parameters()).device
    dtype = _activation_dtype(module, torch.get_default_dtype())
    if point.kind in ("experts", "choice"):
        return (_work_of_experts(point, device, dtype),)
    if point.kind == "norm":
        width = int(module.weight.shape[0])
        rows = partial(made_tokens, width, dtype, device)

        def both(count: int, kind: str) -> Rows:
            return (*rows(count, kind), *rows(count, kind, seed=1))

        # vLLM's norms may write to what they are given.
        return (
            TrialWork((width,), rows, (None,), lambda x, _: module._forward_method(x.clone())),
            TrialWork(
                (width, "residual"),
                both,
                (),
                lambda x, residual: module._forward_method(x.clone(), residual.clone()),
            ),
        )
    columns = first_size(module, "input_size_per_partition", "embedding_dim", "input_size")
    largest = largest_input(module, rounded_by(point))
    bias = None if getattr(module, "skip_bias_add", False) else getattr(module, "bias", None)
    return (
        TrialWork(
            (columns, *next(module.parameters()).shape, bias is None),
            partial(made_tokens, columns, dtype, device, largest=largest),
            (bias.detach() if isinstance(bias, torch.Tensor) else None,),
            lambda x, bias: module.quant_method.apply(module, x, bias),
        ),
    )


def _work_of_experts(point: SwapPoint, device: torch.device, dtype: torch.dtype) -> TrialWork:
    runner = point.module
    config = runner.moe_config
    features, experts = features_of_experts(runner), int(config.num_experts)
    top_k = int(config.experts_per_token)
    kind_of_logits = getattr(config, "router_logits_dtype", None) or dtype
    logits = partial(_logits, experts, top_k, kind_of_logits, device)
    needed = -(-experts // top_k)
    if point.kind == "choice":
        return TrialWork(
            (features, experts),
            lambda count, kind: (logits(count, kind),),
            (),
            lambda *arguments: _own_choice(runner, *arguments),
            (SAME_TOKEN, _ONE_WEIGHT, _SPREAD),
            lambda value: _dense_choice(value, experts),
            needed,
        )
    largest = largest_input(runner.routed_experts, rounded_by(point))
    tokens = partial(made_tokens, features, dtype, device, largest=largest)
    return TrialWork(
        (features, experts),
        lambda count, kind: (*tokens(count, kind), logits(count, kind)),
        (),
        lambda *arguments: _own_experts(runner, *arguments),
        (ZEROS, LARGE, SAME_TOKEN, _ONE_WEIGHT, _SPREAD),
        needed=needed,
    )


def made_tokens(
    columns: int, dtype: torch.dtype, device: torch.device, count: int, kind: str, seed: int = 0,
    *, largest: float = math.inf,
) -> Rows:  # fmt: skip
    """That many tokens of a kind, [count, columns], scaled down to what is the largest value."""
    generator = torch.Generator(device).manual_seed(1000 * seed + len(kind))
    value = torch.randn((count, columns), generator=generator, device=device)
    if kind == MIXED:
        value[6::8] *= _FACTOR
        value[7::8] = value[0::8][: len(value[7::8])]
    elif kind == LARGE:
        value *= _FACTOR
    elif kind == SAME_TOKEN:
        value[:] = value[0].clone()
    elif kind == ZEROS:
        value[:] = 0.0
    value *= (largest / value.abs().amax(-1, keepdim=True)).clamp(max=1)
    return (value.to(dtype),)


def _logits(
    experts: int, top_k: int, dtype: torch.dtype, device: torch.device, count: int, kind: str
) -> torch.Tensor:
    """Logits [count, experts] of which no two that decide are equal."""
    generator = torch.Generator(device).manual_seed(len(kind))
    if kind == _SPREAD:
        # Bit patterns of bfloat16 from 2^-4 to 8, and the same negative: all are different.
        half = -(-experts // 2)
        bits = torch.linspace(0x3D80, 0x4100, half).round().to(torch.int16)
        levels = bits.view(torch.bfloat16)
        levels = torch.cat([levels, -levels])[:experts].to(device)
        order = torch.rand((count, experts), generator=generator, device=device).argsort(-1)
        return levels[order].to(dtype)
    value = torch.randn((count, experts), generator=generator, device=device) + _NOT_TAKEN
    # Each token is made to take the next experts: in the end all have been taken.
    first = torch.arange(count, device=device)[:, None]
    next_experts = (first * top_k + torch.arange(top_k, device=device)) % experts
    near = 1 + 0.5 * torch.rand(next_experts.shape, generator=generator, device=device)
    value = value.scatter(1, next_experts, near)
    if kind == _ONE_WEIGHT:
        value = value.scatter_add(1, next_experts[:, :1], torch.full_like(near[:, :1], 30.0))
    elif kind == SAME_TOKEN:
        value[:] = value[0].clone()
    return value.to(dtype)


def _activation_dtype(module: Any, default: torch.dtype) -> torch.dtype:
    """What the model computes in, which a quantized layer's weights do not tell."""
    value = getattr(module, "params_dtype", None)
    if value is None:
        value = getattr(getattr(module, "moe_config", None), "in_dtype", None)
    if value is None and hasattr(module, "weight") and module.weight.is_floating_point():
        value = module.weight.dtype
    return value if isinstance(value, torch.dtype) else default


def _own_experts(runner: Any, x: torch.Tensor, logits: torch.Tensor) -> Any:
    """What vLLM's experts return for these tokens, cut to their features."""
    experts, width = runner.routed_experts, x.shape[-1]
    ensure = getattr(experts, "_ensure_moe_quant_config_init", None)
    if ensure is not None:
        ensure()
    padded = torch.nn.functional.pad(x, (0, int(runner.moe_config.hidden_dim) - width))
    if experts.quant_method.is_monolithic:
        return experts.forward_monolithic(x=padded, router_logits=logits)[:, :width]
    weights, chosen = _select(runner, padded, logits)
    return experts.forward_modular(x=padded, topk_weights=weights, topk_ids=chosen)[:, :width]


def _own_choice(runner: Any, logits: torch.Tensor) -> Any:
    states = logits.new_zeros(logits.shape[0], int(runner.moe_config.hidden_dim))
    weights, experts = _select(runner, states, logits)
    return weights.to(torch.float32), experts.to(torch.int32)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _dense_choice(value: Any, experts: int) -> list[torch.Tensor]:
    """Weights and experts of tokens as one matrix of a weight for each expert, in any order."""
    weights, chosen = value
    if weights.dtype != torch.float32 or chosen.dtype != torch.int32:
        raise ValueError(
            f"it returns {weights.dtype} and {chosen.dtype}; a choice is float32 and int32"
        )
    if weights.ndim != 2 or weights.shape != chosen.shape:
        raise ValueError(f"it returns {tuple(weights.shape)} weights of {tuple(chosen.shape)}")
    if bool(((chosen < 0) | (chosen >= experts)).any()):
        raise ValueError(f"it returns experts that there are not; there are {experts}")
    dense = weights.new_zeros((len(weights), experts))
    return [dense.scatter_add(1, chosen.long(), weights)]


def _select(runner: Any, states: torch.Tensor, logits: torch.Tensor) -> Any:
    return runner.router.select_experts(
        hidden_states=states,
        router_logits=logits,
        topk_indices_dtype=runner.routed_experts.quant_method.topk_indices_dtype,
    )
