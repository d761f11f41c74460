"""Times passes that end in quantized rows beside the separate kernels that they replace.

Those are vLLM's norm, activation or shuffle and a quantization: this project's, since vLLM has none
for FP4 on Hopper, and where vLLM has one its own too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from spark_prof.kernels.activation_quantize import activation_quantize
from spark_prof.kernels.bench.race import Call, Contestant, Output, Setting, race
from spark_prof.kernels.bench.results import OURS, Cell, cache_bytes
from spark_prof.kernels.bench.shapes import matches
from spark_prof.kernels.expand_quantize import expand_quantize
from spark_prof.kernels.formats import (
    GlobalScale,
    MxFp8,
    NvFp4,
    quantize_mxfp8,
    quantize_nvfp4,
    unswizzle_128x4,
)
from spark_prof.kernels.norm_quantize import norm_quantize
from spark_prof.kernels.quantize import quantize_rows
from spark_prof.kernels.quantized_rows import QuantizedRows, RowFormat
from spark_prof.kernels.registry import KERNELS
from spark_prof.kernels.tuning import Work

SEPARATE = "vLLM, then quantized here"
SEPARATE_VLLM = "vLLM, then quantized by vLLM"

_EPSILON = 1e-6


@dataclass(frozen=True)
class PassTask:
    """One pass with one number of tokens."""

    contestants: dict[str, Call]  # each by its name; their outputs are codes and scales
    before: Callable[[int], None]  # writes the inputs of the call of a number
    expected: Callable[[int], NvFp4 | MxFp8]  # the right codes and scales of the call of a number


@dataclass(frozen=True)
class _Target:
    """What rows are quantized to, with the global scale of values up to 6; MXFP8 has none."""

    format: RowFormat
    device: torch.device

    @cached_property
    def scale(self) -> GlobalScale | None:
        """Made once: a call must not be timed with it."""
        value = torch.full((1,), 448.0, dtype=torch.float32, device=self.device)
        return GlobalScale(value, "divides") if self.format == "nvfp4" else None

    def task(
        self,
        copied: Sequence[tuple[torch.Tensor, torch.Tensor]],
        ours: Callable[[int], QuantizedRows],
        first: Callable[[int], torch.Tensor] | None,
        right: Callable[[int], torch.Tensor],
    ) -> PassTask:
        """The task of a pass.

        Args:
            copied: inputs of all calls, and where each call's are written.
            first: vLLM's kernel before it is quantized, which then is done here and by vLLM.
            right: what has to be quantized.
        """
        scale = self.scale

        def before(number: int) -> None:
            for source, written in copied:
                written[number].copy_(source[number])

        def expected(number: int) -> NvFp4 | MxFp8:
            if self.format == "nvfp4":
                return quantize_nvfp4(right(number), scale, "reciprocal")
            return quantize_mxfp8(right(number), "ceil")

        contestants = {OURS: _of_parts(ours)}
        if first is not None:
            contestants |= self._separate(first, scale)
        return PassTask(contestants, before, expected)

    def _separate(
        self, first: Callable[[int], torch.Tensor], scale: GlobalScale | None
    ) -> dict[str, Call]:
        def by_vllm(number: int) -> Output:
            import vllm._custom_ops as ops

            assert scale is not None
            codes, scales = ops.scaled_fp4_quant(first(number), scale.value)
            return codes, scales

        named = {
            SEPARATE: _of_parts(
                lambda number: quantize_rows(first(number), self.format, global_scale=scale)
            )
        }
        return named | {SEPARATE_VLLM: by_vllm} if self.format == "nvfp4" else named


def _norm_task(work: Pass, calls: int, tokens: int, to: _Target) -> PassTask:
    """RMSNorm of x and a residual; each call has a weight of its own."""
    columns, device = work.columns, to.device
    x, residual = (_random((calls, tokens, columns), device, seed) for seed in (0, 1))
    weights = _random((calls, columns), device, 2) * 0.1 + 1
    written, kept = torch.empty_like(x), torch.empty_like(residual)

    def ours(number: int) -> QuantizedRows:
        rows, before = written[number], kept[number]
        return norm_quantize(
            rows, weights[number], _EPSILON, to.format, residual=before, global_scale=to.scale
        )

    def normed(number: int) -> torch.Tensor:
        import vllm._custom_ops as ops

        ops.fused_add_rms_norm(written[number], kept[number], weights[number], _EPSILON)
        return written[number]

    def right(number: int) -> torch.Tensor:
        total = (x[number] + residual[number]).to(torch.float32)
        factor = torch.rsqrt(total.square().mean(-1, keepdim=True) + _EPSILON)
        return (total * factor * weights[number]).to(torch.bfloat16)

    return to.task([(x, written), (residual, kept)], ours, normed, right)


def _activation_task(work: Pass, calls: int, tokens: int, to: _Target) -> PassTask:
    """SiLU(gate) * up."""
    gate_up = _random((calls, tokens, 2 * work.columns), to.device, 0)
    written = torch.empty_like(gate_up)

    def ours(number: int) -> QuantizedRows:
        return activation_quantize(written[number], to.format, global_scale=to.scale)

    def activated(number: int) -> torch.Tensor:
        import vllm._custom_ops  # noqa: F401 - loads its kernels

        out = written.new_empty((tokens, work.columns))
        torch.ops._C.silu_and_mul(out, written[number])
        return out

    def right(number: int) -> torch.Tensor:
        gate, up = gate_up[number].chunk(2, -1)
        silu = torch.nn.functional.silu(gate.to(torch.float32)).to(torch.bfloat16)
        return silu * up

    return to.task([(gate_up, written)], ours, activated, right)


def _expand_task(work: Pass, calls: int, tokens: int, to: _Target) -> PassTask:
    """Tokens to rows sorted by expert; each call sends them to experts of its own."""
    device, experts, top_k = to.device, work.experts, work.top_k
    x = _random((calls, tokens, work.columns), device, 0)
    written = torch.empty_like(x)
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

    def quantized(rows: torch.Tensor, source: torch.Tensor, number: int) -> QuantizedRows:
        where = offsets[number], scale_offsets[number]
        return expand_quantize(rows, source, *where, to.format, global_scale=to.scale)

    def ours(number: int) -> QuantizedRows:
        return quantized(written[number], sources[number], number)

    def separate(number: int) -> QuantizedRows:
        import vllm._custom_ops as ops

        return quantized(ops.shuffle_rows(written[number], sources[number]), in_order, number)

    def right(number: int) -> torch.Tensor:
        return x[number][sources[number].long()]

    task = to.task([(x, written)], ours, None, right)
    return replace(task, contestants=task.contestants | {SEPARATE: _of_parts(separate)})


def _of_parts(call: Callable[[int], QuantizedRows]) -> Call:
    def parts(number: int) -> Output:
        rows = call(number)
        return rows.codes, rows.scales

    return parts


def _random(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    dice = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, dtype=torch.bfloat16, device=device, generator=dice)


PASS_CONTESTANTS = (OURS, SEPARATE, SEPARATE_VLLM)

_CALLS, _FEWEST_CALLS = 64, 2
_TOLERANCE = 0.1
"""Share of bytes that differ. Kernels that round elsewhere on their way to BF16 move a few codes in
a hundred over a midpoint; wrong scales, rows or halves change most of them."""


@dataclass(frozen=True)
class Pass:
    """One pass over rows."""

    name: str  # what it does before it quantizes: norm, activation or expand
    columns: int  # of the quantized rows
    models: tuple[str, ...]
    experts: int = 1  # to which tokens are expanded, 1 for none
    top_k: int = 1


PASSES = (
    Pass("norm", 2048, ("Qwen3-30B-A3B", "Qwen3-Next-80B-A3B")),
    Pass("norm", 2880, ("gpt-oss-20b", "gpt-oss-120b")),
    Pass("norm", 4096, ("Llama-3.1-8B", "Qwen3-8B")),
    Pass("activation", 512, ("Qwen3-Next-80B-A3B",)),
    Pass("activation", 12288, ("Qwen3-8B",)),
    Pass("activation", 14336, ("Llama-3.1-8B",)),
    Pass("expand", 2048, ("Qwen3-30B-A3B",), 128, 8),
    Pass("expand", 2880, ("gpt-oss-20b",), 32, 4),
)

_TASKS = {"norm": _norm_task, "activation": _activation_task, "expand": _expand_task}
_BYTES = {kernel.check: kernel.bytes.of for kernel in KERNELS}


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
        task = _TASKS[work.name](work, calls, count, _Target(row_format, device))
        expected = [task.expected(number) for number in range(calls)]

        def error(outputs: Sequence[Output], expected: Sequence[NvFp4 | MxFp8] = expected) -> float:
            return _wrong_bytes(outputs, expected, compare_scales=work.experts == 1)

        entered = [
            Contestant(name, call) for name, call in task.contestants.items() if name in contestants
        ]
        setting = Setting(calls, task.before, error, _TOLERANCE, device)
        timed = Work(work.name, row_format, 1, work.columns, count, work.experts, work.top_k)
        yield Cell(
            kind="fused",
            work=timed,
            label=", ".join(work.models),
            weight_bytes=2 * work.columns if work.name == "norm" else 0,
            bytes=_BYTES[f"{work.name}_quantize"](timed),
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
