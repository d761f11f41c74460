"""Whether a result is within its bound, and the line that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.check.bound import Expected

__all__ = ["Judgement", "Status", "Verdict", "judge", "same_bits"]

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Verdict:
    """What one case showed of one kernel.

    Attributes:
        kernel: a name of `runner.CHECKS`, such as `w4a16`.
        case: what was tried, in a few words, such as `nvfp4, 3 tokens, 48 x 2880`.
        device: `cpu`, where the kernel's source ran on the emulator, or `cuda`.
        status: a skipped case could not run here.
        used: the largest share of the allowed error that an element used, 1 being all of it; None
            where the result must be equal, or where nothing was computed.
        detail: what went wrong, or why the case was skipped; empty if it passed.
    """

    kernel: str
    case: str
    device: str
    status: Status
    used: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Judgement:
    """A result beside what was expected: as in `Verdict`, `detail` being empty if all is right."""

    used: float | None
    detail: str


def judge(result: torch.Tensor, expected: Expected) -> Judgement:
    """Compares every element: finite ones by the bound; others must be no finite number either.

    Where the allowed error is infinite, float32 cannot hold the sum and nothing is asked.
    """
    if tuple(result.shape) != tuple(expected.value.shape):
        return Judgement(None, f"shape {_shape(result)}, expected {_shape(expected.value)}")
    got = result.to(torch.float64)
    finite = expected.value.isfinite()
    off = (got - expected.value).abs().nan_to_num(torch.inf, torch.inf)
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
    detail = (
        f"{wrong} of {used.numel()} elements wrong, worst at {at}: "
        f"{float(got.flatten()[where]):.6g}, expected "
        f"{float(expected.value.flatten()[where]):.6g} within {error:.3g}"
    )
    return Judgement(worst, detail)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results are equal bit by bit, NaN and the sign of 0 included."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    a, b = (t.contiguous().view(torch.uint8) for t in (first, second))
    return bool(torch.equal(a, b))


def _shape(values: torch.Tensor) -> str:
    return " x ".join(str(n) for n in values.shape)
