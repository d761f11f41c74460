"""The cases that passes have to pass which quantize on the way, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.fused_work import FusedCase, FusedWork, Outputs, Pass, fused_work
from spark_prof.kernels.check.quantized import judge_quantized
from spark_prof.kernels.check.repeated import first_difference
from spark_prof.kernels.check.verdict import Judgement, same_bits
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import swizzle_128x4
from spark_prof.kernels.quantized_rows import ROW_FORMATS, QuantizedRows, RowFormat

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
