"""Operands that a kernel has to refuse with a KernelError, as any answer would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from spark_prof.kernels.check.verdict import Judgement
from spark_prof.kernels.errors import KernelError

Change = Callable[[torch.Tensor], torch.Tensor]

_ANY: Mapping[str, Change] = {
    "in float64": lambda operand: operand.to(torch.float64),
    "with a column less": lambda operand: operand[..., :-1].contiguous(),
    "with a dimension more": lambda operand: operand[None],
}
_ROWS: Mapping[str, Change] = {
    "of no tokens": lambda operand: operand[:0],
    "of 17 tokens": lambda operand: operand[:1].repeat(17, 1),
    "of one dimension": lambda operand: operand[0],
}


def refusals(
    made: Callable[[], Callable[..., object]], operands: Mapping[str, torch.Tensor], rows: str
) -> Iterator[tuple[str, Callable[[], Judgement]]]:
    """Each wrong operand in words, with what tries it.

    Of several operands each is put where the others are not. A kernel of one operand runs wherever
    that lies, on the CPU of a machine with a GPU too: only where no kernel runs is it refused.

    Args:
        made: makes what takes the operands by name.
        rows: which of them tells the number of tokens.
    """
    for name in operands:
        changes = {**_ANY, **_ROWS} if name == rows else dict(_ANY)
        if len(operands) > 1:
            changes["on another device"] = _elsewhere
        else:
            changes["where no kernel runs"] = lambda operand: operand.to("meta")
        for what, change in changes.items():
            yield f"{name} {what}", _attempt(made, dict(operands), name, change)


def _elsewhere(operand: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(operand, device="meta" if operand.is_cpu else "cpu")


def _attempt(
    made: Callable[[], Callable[..., object]],
    operands: dict[str, torch.Tensor],
    name: str,
    change: Change,
) -> Callable[[], Judgement]:
    def run() -> Judgement:
        compute = made()
        try:
            compute(**operands | {name: change(operands[name])})
        except KernelError:
            return Judgement(None, "")
        except Exception as error:
            return Judgement(None, f"{type(error).__name__} in place of KernelError: {error}")
        return Judgement(None, "not refused")

    return run
