"""What attention of new tokens gives, in float64, and how far a right kernel may lie from it.

The arithmetic that is allowed: q and k are normed and rotated in float32 and rounded to bfloat16
once; products of them are exact and summed in float32; a softmax in float32 by powers of two, in
parts that are scaled to a common largest score; its weights rounded to bfloat16 before they
multiply the values, but not for their sum; the sum of these exact products in float32, divided and
rounded to bfloat16 once.
"""

from __future__ import annotations

import torch

from spark_prof.kernels.candidate import AttentionLayer, NormLayer
from spark_prof.kernels.check.oracles import Expected, exact, rounded

_ADDITION = 2.0**-23
_STEPS_BESIDE = 64
"""Roundings besides those of sums: of scales, roots, exponentials and quotients."""
_WEIGHT_ROUNDING = 2.0**-8 * (1 + 2.0**-6)
_SMALLEST = 2.0**-126


def attention_oracle(
    layer: AttentionLayer,
    qkv: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
) -> tuple[Expected, Expected, Expected]:
    """The result [M, H D], and the new keys and values [M, G, D] as they are stored.

    Of `lengths` and `blocks` there is one for each token, or for as many that follow on each other.

    The cache is as before the call. Of padding, where a length is 0 or a slot -1, the result is 0.
    """
    heads, kv_heads, size = layer.heads, layer.kv_heads, layer.size
    parts = [count * size for count in (heads, kv_heads, kv_heads)]
    q, k, v = (part.unflatten(1, (-1, size)) for part in qkv.split(parts, dim=1))
    queries = rounded(_rotated(_normed(q, layer.q_norm), layer, positions))
    k_scale, v_scale = layer.fp8_scales or (1.0, 1.0)
    new_keys = rounded(_rotated(_normed(k, layer.k_norm), layer, positions))
    new_values = exact(v)
    if layer.fp8_scales:
        new_keys, new_values = _coded(new_keys, k_scale), _coded(new_values, v_scale)
    value = torch.zeros((len(qkv), heads, size), dtype=torch.float64, device=qkv.device)
    error = torch.zeros_like(value)
    page, width = keys.shape[1], len(qkv) // len(lengths)
    for number, slot in enumerate(slots.tolist()):
        request, before = divmod(number, width)
        length = int(lengths[request]) - (width - 1 - before)
        if length <= 0 or slot < 0:
            continue
        first = max(0, length - layer.window) if layer.window else 0
        tokens = torch.arange(first, max(first, length - 1 - before), device=qkv.device)
        at = blocks[request, tokens // page].long(), tokens % page
        new = slice(number - min(before, length - 1 - first), number + 1)
        visible_keys = k_scale * torch.cat([stored(keys[at]), new_keys.value[new]])
        visible_error = torch.zeros_like(visible_keys)
        visible_error[len(tokens) :] = k_scale * new_keys.error[new]
        of_values = v_scale * torch.cat([stored(values[at]), new_values.value[new]])
        shared = heads // kv_heads
        for head in range(kv_heads):
            heads_of_group = slice(head * shared, (head + 1) * shared)
            got = _attended(
                Expected(
                    queries.value[number, heads_of_group], queries.error[number, heads_of_group]
                ),
                Expected(visible_keys[:, head], visible_error[:, head]),
                of_values[:, head],
                layer,
                None
                if layer.sinks is None
                else layer.sinks[heads_of_group].to(torch.float64)[:, None],
            )
            value[number, heads_of_group], error[number, heads_of_group] = got.value, got.error
    return Expected(value.flatten(1), error.flatten(1)), new_keys, new_values


def stored(cache: torch.Tensor) -> torch.Tensor:
    """What a cache holds, of bytes the values of E4M3 codes."""
    values = cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache
    return values.to(torch.float64)


def coded(values: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3 codes; beyond the largest that one."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    return values.clamp(-largest, largest).to(torch.float32).to(torch.float8_e4m3fn)


def _coded(x: Expected, scale: float) -> Expected:
    """All codes that a number over a scale, divided in float32, may become."""
    value = x.value / scale
    off = x.error / scale + value.abs() * _ADDITION
    near, low, high = (
        coded(numbers).to(torch.float64) for numbers in (value, value - off, value + off)
    )
    return Expected(near, torch.maximum(high - near, near - low))


def _normed(x: torch.Tensor, norm: NormLayer | None) -> Expected:
    """Heads [M, n, D], each normed by itself; not rounded before they are rotated."""
    if norm is None:
        return exact(x)
    values = x.to(torch.float64)
    inverse = (values.square().mean(-1, keepdim=True) + norm.epsilon).rsqrt()
    value = values * inverse * norm.weight.to(torch.float64)
    return Expected(value, value.abs() * (x.shape[-1] / 2 + _STEPS_BESIDE) * _ADDITION)


def _rotated(x: Expected, layer: AttentionLayer, positions: torch.Tensor) -> Expected:
    """Heads [M, n, D] after the rotation by their tokens' positions."""
    pairs = layer.cos_sin.shape[1] // 2
    table = layer.cos_sin[positions].to(torch.float64)[:, None]
    cosine, sine = table[..., :pairs], table[..., pairs:]
    features = torch.arange(2 * pairs, device=positions.device)
    low, high = (
        features.chunk(2) if layer.halves else (features[0::2], features[1::2])
    )  # those that are rotated with each other
    value, error = x.value.clone(), x.error.clone()
    for one, other, sign in ((low, high, -1), (high, low, 1)):
        straight, crossed = x.value[..., one] * cosine, x.value[..., other] * sine
        value[..., one] = straight + sign * crossed
        brought = x.error[..., one] * cosine.abs() + x.error[..., other] * sine.abs()
        error[..., one] = brought + 2 * _ADDITION * (straight.abs() + crossed.abs())
    return Expected(value, error)


def _attended(
    query: Expected,  # [heads, D]
    keys: Expected,  # [n, D]
    values: torch.Tensor,  # [n, D]
    layer: AttentionLayer,
    sink: torch.Tensor | None,  # [heads, 1]
) -> Expected:
    """What the heads that share their keys see, [heads, D]."""
    count, k = len(values), keys.value.T
    score = layer.scale * (query.value @ k)  # [heads, n]
    size = query.value.abs() @ k.abs()
    brought = query.error @ (k.abs() + keys.error.T) + query.value.abs() @ keys.error.T
    off = abs(layer.scale) * (brought + (layer.size + _STEPS_BESIDE) * _ADDITION * (size + brought))
    largest, reach = score.amax(1, keepdim=True), score.abs().amax(1, keepdim=True)
    # Exponents are differences of float32 numbers; each new largest score is one more exponential.
    reach = reach if sink is None else reach + sink.abs()
    beside = (2 * reach + count / 16 + _STEPS_BESIDE) * 2 * _ADDITION
    beside = beside + off.amax(1, keepdim=True)
    relative = torch.expm1(off + beside)
    weight = torch.exp(score - largest)
    total = weight.sum(1, keepdim=True)
    total_off = (weight * relative).sum(1, keepdim=True) + count * (_ADDITION * total + _SMALLEST)
    if sink is not None:
        part = torch.exp(sink - largest)
        total, total_off = total + part, total_off + part * torch.expm1(beside)
    value = weight @ values / total
    rounded_off = weight * ((1 + relative) * (1 + _WEIGHT_ROUNDING + count * _ADDITION) - 1)
    sums_off = (rounded_off + _SMALLEST) @ values.abs()
    # N' / D' is off from N / D by no more than (|N' - N| + |N / D| |D' - D|) / D'.
    least = total - total_off
    error = (sums_off + value.abs() * total_off) / least
    error = error + _STEPS_BESIDE * _ADDITION * value.abs() + _SMALLEST
    return Expected(value, torch.where(least > 0, error, torch.inf))
