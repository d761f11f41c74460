"""What each fused pass has to do, and who does it: inputs, contestants and the right bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spark_prof.kernels.activation_quantize import activation_quantize
from spark_prof.kernels.bench.repeated import Call, Output
from spark_prof.kernels.bench.results import OURS
from spark_prof.kernels.expand_quantize import expand_quantize
from spark_prof.kernels.formats import (
    GlobalScale,
    MxFp8,
    NvFp4,
    quantize_mxfp8,
    quantize_nvfp4,
)
from spark_prof.kernels.norm_quantize import norm_quantize
from spark_prof.kernels.quantize import quantize_rows
from spark_prof.kernels.quantized_rows import QuantizedRows, RowFormat

SEPARATE = "vLLM, then quantized here"
SEPARATE_VLLM = "vLLM, then quantized by vLLM"

_EPSILON = 1e-6


@dataclass(frozen=True)
class PassTask:
    """One pass with one number of tokens.

    Attributes:
        contestants: each by its name; their outputs are codes and scales.
        before: writes the inputs of the call of a number.
        expected: the right codes and scales of the call of a number.
    """

    contestants: dict[str, Call]
    before: Callable[[int], None]
    expected: Callable[[int], NvFp4 | MxFp8]


def norm_task(
    calls: int, tokens: int, columns: int, row_format: RowFormat, device: torch.device
) -> PassTask:
    """RMSNorm of x and a residual; each call has a weight of its own."""
    x, residual = (_random((calls, tokens, columns), device, seed) for seed in (0, 1))
    weights = _random((calls, columns), device, 2) * 0.1 + 1
    written, kept = torch.empty_like(x), torch.empty_like(residual)
    scale = _scale(row_format, device)

    def before(number: int) -> None:
        written[number].copy_(x[number])
        kept[number].copy_(residual[number])

    def ours(number: int) -> Output:
        return _parts(
            norm_quantize(
                written[number],
                weights[number],
                _EPSILON,
                row_format,
                residual=kept[number],
                global_scale=scale,
            )
        )

    def normed(number: int) -> torch.Tensor:
        import vllm._custom_ops as ops

        ops.fused_add_rms_norm(written[number], kept[number], weights[number], _EPSILON)
        return written[number]

    def expected(number: int) -> NvFp4 | MxFp8:
        total = (x[number] + residual[number]).to(torch.float32)
        factor = torch.rsqrt(total.square().mean(-1, keepdim=True) + _EPSILON)
        return _quantized((total * factor * weights[number]).to(torch.bfloat16), row_format, scale)

    return PassTask(_with_separate(ours, normed, row_format, scale), before, expected)


def activation_task(
    calls: int, tokens: int, columns: int, row_format: RowFormat, device: torch.device
) -> PassTask:
    """SiLU(gate) * up."""
    gate_up = _random((calls, tokens, 2 * columns), device, 0)
    written = torch.empty_like(gate_up)
    scale = _scale(row_format, device)

    def before(number: int) -> None:
        written[number].copy_(gate_up[number])

    def ours(number: int) -> Output:
        return _parts(activation_quantize(written[number], row_format, global_scale=scale))

    def activated(number: int) -> torch.Tensor:
        import vllm._custom_ops  # noqa: F401 - loads its kernels

        out = written.new_empty((tokens, columns))
        torch.ops._C.silu_and_mul(out, written[number])
        return out

    def expected(number: int) -> NvFp4 | MxFp8:
        gate, up = gate_up[number].chunk(2, -1)
        silu = torch.nn.functional.silu(gate.to(torch.float32)).to(torch.bfloat16)
        return _quantized(silu * up, row_format, scale)

    return PassTask(_with_separate(ours, activated, row_format, scale), before, expected)


def expand_task(
    calls: int,
    tokens: int,
    columns: int,
    row_format: RowFormat,
    device: torch.device,
    experts: int,
    top_k: int,
) -> PassTask:
    """Tokens to rows sorted by expert; each call sends them to experts of its own."""
    x = _random((calls, tokens, columns), device, 0)
    written = torch.empty_like(x)
    scale = _scale(row_format, device)
    dice = torch.Generator(device).manual_seed(1)
    score = torch.rand((calls, tokens, experts), device=device, generator=dice)
    chosen = score.topk(top_k, -1).indices.flatten(1)
    order = chosen.argsort(stable=True, dim=-1)
    sources = (order // top_k).to(torch.int32).contiguous()
    counts = torch.nn.functional.one_hot(chosen, experts).sum(1)
    offsets, scale_offsets = (
        torch.nn.functional.pad(each.cumsum(-1), (1, 0)).to(torch.int32).contiguous()
        for each in (counts, -(-counts // 128) * 128)
    )
    in_order = torch.arange(tokens * top_k, dtype=torch.int32, device=device)

    def before(number: int) -> None:
        written[number].copy_(x[number])

    def quantized(rows: torch.Tensor, source: torch.Tensor, number: int) -> Output:
        return _parts(
            expand_quantize(
                rows,
                source,
                offsets[number],
                scale_offsets[number],
                row_format,
                global_scale=scale,
            )
        )

    def ours(number: int) -> Output:
        return quantized(written[number], sources[number], number)

    def separate(number: int) -> Output:
        import vllm._custom_ops as ops

        return quantized(ops.shuffle_rows(written[number], sources[number]), in_order, number)

    def expected(number: int) -> NvFp4 | MxFp8:
        return _quantized(x[number][sources[number].long()], row_format, scale)

    return PassTask({OURS: ours, SEPARATE: separate}, before, expected)


def _with_separate(
    ours: Call,
    first: Callable[[int], torch.Tensor],
    row_format: RowFormat,
    scale: GlobalScale | None,
) -> dict[str, Call]:
    def separate(number: int) -> Output:
        return _parts(quantize_rows(first(number), row_format, global_scale=scale))

    def separate_vllm(number: int) -> Output:
        import vllm._custom_ops as ops

        assert scale is not None
        codes, scales = ops.scaled_fp4_quant(first(number), scale.value)
        return codes, scales

    named = {OURS: ours, SEPARATE: separate}
    return named | {SEPARATE_VLLM: separate_vllm} if row_format == "nvfp4" else named


def _random(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    dice = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, dtype=torch.bfloat16, device=device, generator=dice)


def _scale(row_format: RowFormat, device: torch.device) -> GlobalScale | None:
    """That of values up to 6; MXFP8 has none."""
    value = torch.full((1,), 448.0, dtype=torch.float32, device=device)
    return GlobalScale(value, "divides") if row_format == "nvfp4" else None


def _quantized(
    rows: torch.Tensor, row_format: RowFormat, scale: GlobalScale | None
) -> NvFp4 | MxFp8:
    if row_format == "nvfp4":
        return quantize_nvfp4(rows, scale, "reciprocal")
    return quantize_mxfp8(rows, "ceil")


def _parts(rows: QuantizedRows) -> Output:
    return rows.codes, rows.scales
