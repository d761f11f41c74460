"""Arguments of a call that is watched, and its result held to another's, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.swaps.spec import LAYER_BOUNDS

_BAND = 1024
"""Elements before and behind an argument; a multiple of what any alignment asks for."""

_FLOOR = 2.0**-6
"""Of the usual row's norm: what a row counts as at least, so that rows of zeros have one."""

_ELEMENT = 16
"""By how many bounds an element may be off, in root mean squares of its row: roundings are off by
some 0.005 of that, an element that is another's by 1."""

_AT_ONCE = 1 << 23
"""Elements that are compared at a time, which bounds the float64 copies."""

Rows = tuple[torch.Tensor, ...]


class Fenced:
    """Arguments between bands of NaN, to be filled anew for each call.

    What is written to them, or beside them, shows; what is read beside them becomes NaN.

    Attributes:
        rows: the arguments that have a row for each token.
        arguments: these and the fixed ones, to call with.
    """

    def __init__(self, like: Rows, count: int, fixed: tuple[torch.Tensor | None, ...]) -> None:
        self._wholes = [
            torch.full(
                (count * each.shape[1] + 2 * _BAND,),
                torch.nan,
                dtype=each.dtype,
                device=each.device,
            )
            for each in like
        ]
        self.rows: Rows = tuple(
            whole[_BAND:-_BAND].view(count, each.shape[1])
            for whole, each in zip(self._wholes, like, strict=True)
        )
        self.arguments = (*self.rows, *fixed)
        self._fixed = [(each, each.clone()) for each in fixed if each is not None]
        self._before: list[torch.Tensor] = []

    def fill(self, rows: Rows) -> None:
        """Puts other values into the same memory."""
        for mine, given in zip(self.rows, rows, strict=True):
            mine.copy_(given)
        self._before = [whole.clone() for whole in self._wholes]

    def problem(self, results: Sequence[torch.Tensor]) -> str:
        """What a call did to its arguments since they were filled, empty if nothing."""
        for whole, before in zip(self._wholes, self._before, strict=True):
            if _same(whole, before):
                continue
            inside = _same(whole[_BAND:-_BAND], before[_BAND:-_BAND])
            return "it writes beside its arguments" if inside else "it writes to its arguments"
        if not all(_same(each, before) for each, before in self._fixed):
            return "it writes to its arguments"
        given = {each.untyped_storage().data_ptr() for each in self._wholes}
        given |= {each.untyped_storage().data_ptr() for each, _ in self._fixed}
        if any(each.untyped_storage().data_ptr() in given for each in results):
            return "its result lies in the memory of an argument"
        return ""


@dataclass(frozen=True)
class RowError:
    """The row of a call that is furthest from what it should be.

    Attributes:
        row: its number, from 0.
        relative: the L2 norm of its difference over that of the right row.
        worst: the largest difference of an element of any row.
        scale: the root mean square of the right rows.
        beyond: the row is further off than its bound, or one of its elements is.
    """

    row: int
    relative: float
    worst: float
    scale: float
    beyond: bool


def row_floors(expected: Sequence[torch.Tensor]) -> list[float]:
    """What norm the rows of each result count as at least."""
    floors = []
    for each in expected:
        norms = each[: max(1, _AT_ONCE // each.shape[1])].double().norm(dim=-1)
        norms = norms[norms.isfinite() & (norms > 0)]
        floors.append(_FLOOR * float(norms.median()) if norms.numel() else 0.0)
    return floors


def compare_rows(
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    floors: Sequence[float],
    bits: str,
) -> RowError:
    """The worst row of all results.

    Args:
        expected: what they should be; rows of it that are not finite are not asked for.
        floors: of `row_floors`.
        bits: a word of `LAYER_BOUNDS`.

    Raises:
        ValueError: a shape or a dtype differs, or a row is not finite that should be.
    """
    if len(got) != len(expected):
        raise ValueError(f"it returns {len(got)} results; vLLM's kernel returns {len(expected)}")
    worst: RowError | None = None
    for mine, right, floor in zip(got, expected, floors, strict=True):
        if mine.shape != right.shape or mine.dtype != right.dtype:
            raise ValueError(
                f"it returns {mine.dtype} {tuple(mine.shape)} where vLLM's kernel returns "
                f"{right.dtype} {tuple(right.shape)}"
            )
        step = max(1, _AT_ONCE // max(1, right.shape[1]))
        for first in range(0, len(right), step):
            part = slice(first, first + step)
            error = _compare(mine[part], right[part], floor, LAYER_BOUNDS[bits], first)
            if worst is None or (error.beyond, error.relative) > (worst.beyond, worst.relative):
                worst = error
    assert worst is not None
    return worst


def _compare(
    mine: torch.Tensor, right: torch.Tensor, floor: float, bound: float, first: int
) -> RowError:
    sound = right.isfinite().all(-1)
    broken = sound & ~mine.isfinite().all(-1)
    exact = torch.where(sound[:, None], right.double(), 0.0)
    off = torch.where(sound[:, None], mine.double() - exact, 0.0).nan_to_num()
    norms = exact.norm(dim=-1).clamp(min=floor)
    relative = off.norm(dim=-1) / torch.where(norms > 0, norms, 1.0)
    size = (norms / exact.shape[1] ** 0.5)[:, None] * _ELEMENT + exact.abs() * 4
    beyond = broken | (relative > bound) | (off.abs() > bound * size).any(-1)
    # Of rows that are beyond, the first: of a fault in all of them that is the same in all layers.
    score = torch.where(beyond, 1e300, relative)
    row = int(score.argmax())
    told = torch.stack([relative[row], off.abs().max(), exact.square().mean().sqrt()]).tolist()
    if bool(broken[row]):
        raise ValueError(
            f"it returns NaN or infinity where vLLM's kernel does not, in row {first + row}"
        )
    return RowError(first + row, told[0], told[1], told[2], bool(beyond[row]))


def fingerprint(module: torch.nn.Module) -> list[int]:
    """A number for the bytes of each parameter and buffer of a module."""
    found = []
    for tensor in (*module.parameters(), *module.buffers()):
        if (
            type(tensor) not in (torch.Tensor, torch.nn.Parameter)
            and not tensor.is_floating_point()
        ):
            continue
        storage = tensor.untyped_storage()
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        whole = raw.numel() // 8 * 8
        found.append(int(raw[:whole].view(torch.int64).sum()) + int(raw[whole:].sum()))
    return found


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))
