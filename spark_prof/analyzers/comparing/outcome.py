"""What a comparison comes to: which side is faster by what, or why that is not told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_prof.analyzers.comparing.comparison import Comparison, Obstacle, PhaseComparison
from spark_prof.analyzers.comparing.kernel_sums import kernels_of, scaled
from spark_prof.analyzers.comparing.noise import Change

Verdict = Literal["slower", "faster", "no difference shown", "not comparable"]
Basis = Literal["step", "token", "kernels", "kernels by token"]

_AS_MANY = 0.01  # tokens a step that differ by a smaller share are as many


@dataclass(frozen=True)
class Outcome:
    """The answer of a comparison, of the second side.

    `outcome_of(comparison).verdict` is "slower" where 0 lies below the 95 % interval of `change`.
    """

    verdict: Verdict
    phase: str  # whose steps it is about: decode, prefill or unknown
    basis: Basis  # of what the change is
    change: Change | None  # None where the sides are not comparable
    obstacle: Obstacle | None  # why they are not


def outcome_of(comparison: Comparison) -> Outcome:
    """The answer: of decode steps, of others only where those are not comparable."""
    phase = next((phase for phase in comparison.phases if not phase.obstacle), comparison.phases[0])
    basis = basis_of(comparison, phase)
    if phase.obstacle:
        return Outcome("not comparable", phase.phase, basis, None, phase.obstacle)
    change = change_of(phase, basis)
    verdict: Verdict = "no difference shown"
    if change.sure:
        verdict = "slower" if change.us > 0 else "faster"
    return Outcome(verdict, phase.phase, basis, change, None)


def basis_of(comparison: Comparison, phase: PhaseComparison) -> Basis:
    """Of what a change is told: a step, its kernels where both sides ran eagerly, or a token."""
    if all(comparison.eager):
        return "kernels by token" if by_token(phase) else "kernels"
    return "token" if by_token(phase) else "step"


def by_token(phase: PhaseComparison) -> bool:
    """Whether steps of the sides give a sequence other numbers of tokens, as with speculation."""
    a, b = phase.step_tokens
    return phase.token is not None and abs(b - a) > _AS_MANY * max(a, b)


def change_of(phase: PhaseComparison, basis: Basis) -> Change:
    """The change that a basis means."""
    if basis == "kernels":
        return kernels_of(phase)
    if basis == "kernels by token":
        a, b = phase.step_tokens
        return scaled(kernels_of(phase), 1 / a, 1 / b)
    return phase.token if basis == "token" and phase.token else phase.like
