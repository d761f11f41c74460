"""Times passes that end in quantized rows beside the separate kernels that they replace.

Those are vLLM's norm, activation or shuffle and a quantization: this project's, since vLLM has none
for FP4 on Hopper, and where vLLM has one its own too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from spark_prof.kernels.activation_quantize import activation_quantize
from spark_prof.kernels.activation_quantize import moved_bytes as activation_bytes
from spark_prof.kernels.bench.race import Call, Contestant, Output, Setting, race
from spark_prof.kernels.bench.results import OURS, Cell, cache_bytes
from spark_prof.kernels.bench.shapes import matches
from spark_prof.kernels.expand_quantize import expand_quantize
from spark_prof.kernels.expand_quantize import moved_bytes as expand_bytes
from spark_prof.kernels.formats import (
    GlobalScale,
    MxFp8,
    NvFp4,
    quantize_mxfp8,
    quantize_nvfp4,
    unswizzle_128x4,
)
from spark_prof.kernels.norm_quantize import moved_bytes as norm_bytes
from spark_prof.kernels.norm_quantize import norm_quantize
from spark_prof.kernels.quantize import quantize_rows
from spark_prof.kernels.quantized_rows import QuantizedRows, RowFormat
from spark_prof.kernels.tuning import Work

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
                rows, source, offsets[number], scale_offsets[number], row_format, global_scale=scale
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


PASS_CONTESTANTS = (OURS, SEPARATE, SEPARATE_VLLM)

_CALLS, _FEWEST_CALLS = 64, 2
_TOLERANCE = 0.1
"""Share of bytes that differ. Kernels that round elsewhere on their way to BF16 move a few codes in
a hundred over a midpoint; wrong scales, rows or halves change most of them."""


@dataclass(frozen=True)
class Pass:
    """One pass over rows.

    Attributes:
        name: what it does before it quantizes: norm, activation or expand.
        task: makes its inputs and contestants, of a number of calls and of tokens, the columns, the
            format and the device.
        bytes: that are moved at least, of a number of tokens, the columns and the format.
        experts: to which tokens are expanded, 1 for none.
    """

    name: str
    columns: int
    models: tuple[str, ...]
    task: Callable[[int, int, int, RowFormat, torch.device], PassTask]
    bytes: Callable[[int, int, RowFormat], int]
    experts: int = 1
    top_k: int = 1


def _expand(columns: int, models: tuple[str, ...], experts: int, top_k: int) -> Pass:
    return Pass(
        "expand",
        columns,
        models,
        partial(expand_task, experts=experts, top_k=top_k),
        lambda tokens, columns, form: expand_bytes(tokens, tokens * top_k, columns, form),
        experts,
        top_k,
    )


PASSES = (
    Pass("norm", 2048, ("Qwen3-30B-A3B", "Qwen3-Next-80B-A3B"), norm_task, norm_bytes),
    Pass("norm", 2880, ("gpt-oss-20b", "gpt-oss-120b"), norm_task, norm_bytes),
    Pass("norm", 4096, ("Llama-3.1-8B", "Qwen3-8B"), norm_task, norm_bytes),
    Pass("activation", 512, ("Qwen3-Next-80B-A3B",), activation_task, activation_bytes),
    Pass("activation", 12288, ("Qwen3-8B",), activation_task, activation_bytes),
    Pass("activation", 14336, ("Llama-3.1-8B",), activation_task, activation_bytes),
    _expand(2048, ("Qwen3-30B-A3B",), 128, 8),
    _expand(2880, ("gpt-oss-20b",), 32, 4),
)


def chosen_passes(models: Sequence[str] = ()) -> list[Pass]:
    """Those of models whose names hold one of these parts, all if there is none."""
    return [each for each in PASSES if any(matches(model, models) for model in each.models)]


def race_pass(
    work: Pass,
    row_format: RowFormat,
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.5,
    contestants: Sequence[str] = PASS_CONTESTANTS,
) -> Iterator[Cell]:
    """Times one pass with each number of tokens, as `race_dense` a weight."""
    calls = _CALLS if cache_bytes(device) else _FEWEST_CALLS
    for count in tokens:
        task = work.task(calls, count, work.columns, row_format, device)
        expected = [task.expected(number) for number in range(calls)]

        def error(outputs: Sequence[Output], expected: Sequence[NvFp4 | MxFp8] = expected) -> float:
            return _wrong_bytes(outputs, expected, compare_scales=work.experts == 1)

        entered = [
            Contestant(name, call) for name, call in task.contestants.items() if name in contestants
        ]
        setting = Setting(calls, task.before, error, _TOLERANCE, device)
        yield Cell(
            kind="fused",
            work=Work(work.name, row_format, 1, work.columns, count, work.experts, work.top_k),
            label=", ".join(work.models),
            weight_bytes=2 * work.columns if work.name == "norm" else 0,
            bytes=work.bytes(count, work.columns, row_format),
            is_lm_head=False,
            results=race(entered, setting, seconds),
        )


def _wrong_bytes(
    outputs: Sequence[Output], expected: Sequence[NvFp4 | MxFp8], compare_scales: bool
) -> float:
    """The share of bytes that differ in the worst call; scales of experts are not compared.

    Those lie apart, each expert's by themselves.
    """
    shares = []
    for (codes, scales), right in zip(outputs, expected, strict=True):
        shares.append(_differing(codes, right.packed if isinstance(right, NvFp4) else right.values))
        if compare_scales:
            rows = unswizzle_128x4(scales, *right.scales.shape)
            shares.append(_differing(rows, right.scales))
    return float(torch.stack(shares).max())


def _differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one.view(torch.uint8) != other.view(torch.uint8)).to(torch.float32).mean()
