"""Whether a result is within its bound or has the right bits, and the line that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.check.oracles import Expected

_INFINITY = 0x7F80

CHANGED = 0.25
"""Relative L2 error of a token's result that a kernel may have which changes the weights' bits.

MXFP4 is off by some 0.11; a scale that is wrong by a factor of two is off by 0.5 or more."""

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckVerdict:
    """What one case showed of one kernel."""

    kernel: str  # the candidate's name, such as `w4a16`
    case: str  # what was tried, in a few words, such as `nvfp4, 3 tokens, 48 x 2880`
    device: str  # `cpu`, where the kernel's source ran on the emulator, or `cuda`
    status: Status
    # The largest share of the allowed error that an element used, 1 being all of it, and 0 if all
    # are the exact results rounded once; None where bits must be equal, or where nothing was
    # computed.
    used: float | None = None
    detail: str = ""  # what went wrong, or why the case was skipped; empty if it passed


@dataclass(frozen=True)
class Judgement:
    """A result beside what was expected: as in `Verdict`, `detail` being empty if all is right."""

    used: float | None
    detail: str


Judge = Callable[[torch.Tensor, Expected], Judgement]


def judge(result: torch.Tensor, expected: Expected) -> Judgement:
    """Compares every element: finite ones by the bound; others must be no finite number either.

    Where the allowed error is infinite, float32 cannot hold the sum and nothing is asked. Of a
    result in bfloat16 every number is right that a number within the allowed error rounds to.
    """
    got = result.to(torch.float64)
    finite = expected.value.isfinite()
    low, high = _unrounded(result)
    off = torch.maximum(low - expected.value, expected.value - high).clamp(min=0.0)
    off = off.nan_to_num(torch.inf, torch.inf)
    used = torch.where(off == 0, 0.0, off / expected.error)
    used = torch.where(finite, used, torch.where(got.isfinite(), torch.inf, 0.0))
    used = torch.where(expected.error.isinf() & finite, 0.0, used)
    worst = float(used.max()) if used.numel() else 0.0
    if worst <= 1:
        return Judgement(worst, "")
    beyond = ~(used <= 1)
    wrong = int(beyond.sum())
    where = int(torch.where(beyond, off, -1.0).argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), used.shape))
    error = float(expected.error.flatten()[where])
    rounding = " and the rounding" if result.dtype == torch.bfloat16 else ""
    detail = (
        f"{wrong} of {used.numel()} elements wrong, worst at {at}: "
        f"{float(got.flatten()[where]):.6g}, expected "
        f"{float(expected.value.flatten()[where]):.6g} within {error:.3g}{rounding}"
    )
    return Judgement(worst, detail)


def judge_changed(result: torch.Tensor, expected: Expected) -> Judgement:
    """The relative L2 error of each token, against `CHANGED`; NaN and infinities as in `judge`."""
    got, exact = result.to(torch.float64), expected.value
    finite = exact.isfinite()
    wrong = int((got.isfinite() != finite).sum())
    if wrong:
        return Judgement(None, f"{wrong} elements are NaN or infinite, or should be")
    off = torch.where(finite, got - exact, 0.0).norm(dim=-1)
    size = torch.where(finite, exact, 0.0).norm(dim=-1)
    relative = torch.where(size > 0, off / size, torch.where(off > 0, torch.inf, 0.0))
    worst = float(relative.max())
    detail = "" if worst <= CHANGED else f"a token's result is {worst:.0%} off (relative L2)"
    return Judgement(worst / CHANGED, detail)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results are equal bit by bit, NaN and the sign of 0 included."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    a, b = (t.contiguous().view(torch.uint8) for t in (first, second))
    return bool(torch.equal(a, b))


def _unrounded(result: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Between which numbers lies what was rounded to a result, in float64; NaN for a NaN."""
    if result.dtype != torch.bfloat16:
        exact = result.to(torch.float64)
        return exact, exact
    bits = result.contiguous().view(torch.int16).to(torch.int32) & 0x7FFF
    toward_0, away = _midpoint(bits - 1), _midpoint(bits)
    toward_0 = torch.where(bits == 0, -away, toward_0)
    away = torch.where(bits == _INFINITY, torch.inf, away)
    positive = ~result.signbit()
    low, high = torch.where(positive, toward_0, -away), torch.where(positive, away, -toward_0)
    return low.where(~result.isnan(), torch.nan), high.where(~result.isnan(), torch.nan)


def _midpoint(bits: torch.Tensor) -> torch.Tensor:
    """Half way from a magnitude of bfloat16, by its bits, to the next one; 2^128 after the last."""
    here, after = (
        ((bits + step) << 16).view(torch.float32).to(torch.float64).nan_to_num(posinf=2.0**128)
        for step in (0, 1)
    )
    return (here + after) / 2
