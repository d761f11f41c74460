"""The cases that passes have to pass which quantize on the way, their work, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from spark_prof.kernels.activation_quantize import activation_quantize
from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.cases import special
from spark_prof.kernels.check.inputs import Layout, Tokens, make_activations, surrounded
from spark_prof.kernels.check.oracles import activation_oracle, expanded_oracle, norm_oracle
from spark_prof.kernels.check.verdict import Judgement, first_difference, judge_quantized, same_bits
from spark_prof.kernels.expand_quantize import expand_quantize, most_scale_rows
from spark_prof.kernels.formats import GlobalScale, swizzle_128x4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.norm_quantize import norm_quantize
from spark_prof.kernels.quantized_rows import ROW_FORMATS, QuantizedRows, RowFormat

Pass = Literal["norm", "norm with residual", "activation", "expand"]

_EPSILON = 1e-6
_EXPERT_OF_ROW = (0, 0, 0, 2, 2, 5)
"""Which expert has each sorted row: some have none; more rows are the last one's."""
_BAND = 512
_ODD = 0.7390851
"""With the scale that just fits, many values lie on midpoints, where a GPU may go either way."""


@dataclass(frozen=True)
class FusedCase:
    """What a pass does."""

    does: Pass
    format: RowFormat
    tokens: int
    columns: int
    x: Tokens = "plain"
    layout: Layout = "contiguous"
    scale: float = 1.0  # factor on the global scale, NVFP4 only

    @property
    def label(self) -> str:
        """For messages: `norm with residual to mxfp8, 3 x 2880`."""
        words = [f"{self.does} to {self.format}", f"{self.tokens} x {self.columns}"]
        words += special(activations=self.x, layout=self.layout)
        return ", ".join(words + [f"global scale x {self.scale:g}"] * (self.scale != 1))


@dataclass(frozen=True)
class FusedWork:
    """What a case computes."""

    run: Callable[[QuantizedRows], object]  # does it; what it changes in place it first sets back
    expected: Expected
    global_scale: GlobalScale | None  # NVFP4 only
    # Rows of codes that have a swizzled matrix of scales of their own, one behind the other: the
    # first and the number.
    groups: tuple[tuple[int, int], ...]
    scale_rows: int
    # What is changed in place, and what it must become; None if nothing is.
    changed: tuple[torch.Tensor, torch.Tensor] | None = None


class Outputs:
    """Codes and scales to write to, all bytes of and around them having one value before."""

    def __init__(self, case: FusedCase, work: FusedWork, fill: int, device: str) -> None:
        layout = ROW_FORMATS[case.format]
        rows = work.expected.value.shape[0]
        wide = -(-case.columns // layout.block // 4) * 4
        shapes = ((rows, case.columns // layout.codes_per_byte), (work.scale_rows, wide))
        sizes = [-(-height * width // 16) * 16 for height, width in shapes]
        begins = (_BAND, 2 * _BAND + sizes[0])
        self._fill = fill
        self._whole = torch.full((3 * _BAND + sum(sizes),), fill, dtype=torch.uint8, device=device)
        flat = [
            self._whole[begin : begin + height * width]
            for begin, (height, width) in zip(begins, shapes, strict=True)
        ]
        used = sum(-(-count // 128) * 128 for _, count in work.groups) * wide
        self._parts = flat[0], flat[1][:used]
        codes, scales = (part.view(shape) for part, shape in zip(flat, shapes, strict=True))
        self.rows = QuantizedRows(
            case.format, codes.view(layout.codes), scales.view(layout.scales), True
        )

    def written(self) -> torch.Tensor:
        """The bytes of all codes and scales, without rows that no scale belongs to."""
        return torch.cat(self._parts)

    def problem(self) -> str:
        """How much was written beside the result; empty if nothing was."""
        beside = self._whole.clone()
        for part in self._parts:
            begin = part.data_ptr() - self._whole.data_ptr()
            beside[begin : begin + part.numel()] = self._fill
        wrong = int((beside != self._fill).sum())
        return f"{wrong} bytes written outside of the result" if wrong else ""


def fused_work(case: FusedCase, device: str) -> FusedWork:
    """The inputs of a case and what they should become."""
    doubled = 2 if case.does == "activation" else 1
    columns = doubled * case.columns
    x = surrounded(make_activations(case.x, case.tokens, columns, 2, device, case.layout))
    if case.does == "activation":
        expected = activation_oracle(x)
        scale = _global_scale(case, expected)
        return FusedWork(
            lambda out: activation_quantize(x, case.format, global_scale=scale, out=out),
            expected, scale, ((0, case.tokens),), -(-case.tokens // 128) * 128,
        )  # fmt: skip
    if case.does == "expand":
        return _expand(case, x, device)
    return _norm(case, x, device)


def _norm(case: FusedCase, x: torch.Tensor, device: str) -> FusedWork:
    weight = make_activations("with a common offset", 1, case.columns, 3, device)[0]
    before = None
    if case.does == "norm with residual":
        before = make_activations("plain", case.tokens, case.columns, 4, device)
    expected = norm_oracle(x, weight, _EPSILON, before)
    scale = _global_scale(case, expected)
    residual = None if before is None else surrounded(before)

    def run(out: QuantizedRows) -> None:
        if residual is not None and before is not None:
            residual.copy_(before)
        norm_quantize(
            x, weight, _EPSILON, case.format, residual=residual, global_scale=scale, out=out
        )

    changed = None
    if residual is not None and before is not None:
        changed = residual, (x.float() + before.float()).to(torch.bfloat16)
    groups = ((0, case.tokens),)
    return FusedWork(run, expected, scale, groups, -(-case.tokens // 128) * 128, changed)


def _expand(case: FusedCase, x: torch.Tensor, device: str) -> FusedWork:
    count = 2 * case.tokens
    expert = (*_EXPERT_OF_ROW, *(_EXPERT_OF_ROW[-1],) * count)[:count]
    experts = _EXPERT_OF_ROW[-1] + 2
    sizes = [expert.count(number) for number in range(experts)]
    padded = [-(-size // 128) * 128 for size in sizes]
    offsets, scale_offsets = (
        torch.tensor([0, *values], device=device).cumsum(0).to(torch.int32)
        for values in (sizes, padded)
    )
    # The last row belongs to no token.
    tokens = torch.arange(count, device=device) * 5 % case.tokens
    tokens[-1] = -1
    token_of_row = tokens.to(torch.int32)
    expected = expanded_oracle(x, token_of_row)
    scale = _global_scale(case, expected)
    groups = tuple((sum(sizes[:number]), size) for number, size in enumerate(sizes) if size)

    def run(out: QuantizedRows) -> None:
        expand_quantize(
            x, token_of_row, offsets, scale_offsets, case.format, global_scale=scale, out=out
        )

    return FusedWork(run, expected, scale, groups, most_scale_rows(count, experts))


def _global_scale(case: FusedCase, expected: Expected) -> GlobalScale | None:
    if case.format != "nvfp4":
        return None
    amax = expected.value.nan_to_num(0.0, 0.0, 0.0).abs().amax()
    fitting = GlobalScale.of_amax(amax.float())
    return GlobalScale(fitting.value * (_ODD * case.scale), fitting.convention)


Run = Callable[[], Judgement]

_TOKENS = {"cpu": (1, 2, 3, 8, 16, 130), "cuda": (*range(1, 17), 130, 300, 4096)}


def fused_cases(passes: Sequence[Pass], device: str) -> Iterator[tuple[str, Run]]:
    """The cases of passes, in both formats, in words and with what runs each.

    Args:
        device: `cpu`, where fewer numbers of tokens are tried, or `cuda`.
    """
    for does in passes:
        for kind in ROW_FORMATS:
            for case in _cases(does, kind, _TOKENS[device]):
                yield case.label, partial(run_fused_case, case, device)


def run_fused_case(case: FusedCase, device: str) -> Judgement:
    """Runs a case: its bits as expected, all of them written, nothing else, and again the same."""
    work = fused_work(case, device)
    zeros, ones = (Outputs(case, work, fill, device) for fill in (0x00, 0xFF))
    try:
        work.run(zeros.rows)
    except KernelError as error:
        return Judgement(None, f"refused: {error}")
    work.run(ones.rows)
    beside = zeros.problem() or ones.problem()
    if beside:
        return Judgement(None, beside)
    first, second = zeros.written(), ones.written()
    if not same_bits(first, second):
        return Judgement(None, f"{int((first != second).sum())} bytes not written, or not again")
    # What bits a NaN has is left open.
    if work.changed and not same_bits(*(part.nan_to_num(0.0) for part in work.changed)):
        return Judgement(None, "the residual is not x + residual")
    wrong = _first_wrong(case, work, zeros.rows)
    if wrong:
        return Judgement(None, wrong)

    def compute(to: torch.Tensor) -> None:
        work.run(zeros.rows)
        to.view(torch.uint8).copy_(zeros.written())

    # As bfloat16, of which there is a NaN to poison with.
    once, twice = (part.view(torch.bfloat16) for part in (first, second))
    return Judgement(None, first_difference(compute, once, twice))


def _cases(does: Pass, kind: RowFormat, tokens: Sequence[int]) -> Iterator[FusedCase]:
    """Each of these numbers of tokens, columns of models, and each edge."""
    for count in tokens:
        yield FusedCase(does, kind, count, (2880, 1856, 2048)[count % 3])
    yield FusedCase(does, kind, 7, 96)
    for x in ("NaN and infinity", "zeros", "with a common offset"):
        yield FusedCase(does, kind, 3, 352, x)
    yield FusedCase(does, kind, 3, 352, layout="rows apart")
    if kind == "nvfp4":
        for scale in (2.0**-12, 2.0**6):
            yield FusedCase(does, kind, 3, 352, scale=scale)


def _first_wrong(case: FusedCase, work: FusedWork, rows: QuantizedRows) -> str:
    """Compares group by group, each having its own matrix of swizzled scales."""
    begin = 0
    for first, count in work.groups:
        tall = -(-count // 128) * 128
        part = slice(first, first + count)
        scales = rows.scales[begin : begin + tall]
        begin += tall
        group = QuantizedRows(case.format, rows.codes[part], scales, True)
        got = group.unpadded(work.global_scale)
        if not same_bits(swizzle_128x4(got.scales), scales):
            return "the padding of the scales is not 0"
        expected = Expected(work.expected.value[part], work.expected.error[part])
        judgement = judge_quantized(got, expected, work.global_scale)
        if judgement.detail:
            return judgement.detail
    return ""
