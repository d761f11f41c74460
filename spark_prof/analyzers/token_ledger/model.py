"""What a token ledger says, as plain data. Times are microseconds, shares are fractions of 1."""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH_GAPS = "launch_gaps"
"""Row of the time in which nothing ran between the first and the last kernel of a step."""
HOST = "host"
"""Row of the time in which nothing ran before the first kernel of a step or after its last."""


@dataclass(frozen=True)
class StepSpread:
    """One quantity over the steps of a ledger."""

    mean: float
    median: float
    p10: float
    p90: float
    p99: float


@dataclass(frozen=True)
class LedgerRow:
    """One part of a mean step.

    Attributes:
        name: a component, `memcpy` with all copies and memsets, or LAUNCH_GAPS or HOST.
        summed_us: how long its kernels ran in the step's window, overlaps counted in full.
        charged_us: its part of the window: an instant in which several kernels ran is split evenly
            among them. The charged times of all rows add up to the step.
        alone_us: how long it ran while nothing else did.
        share: `charged_us` over the step.
        ms_per_token: its part of the time per token of a sequence, in milliseconds; None where
            nothing tells how many tokens a step yields.
        layers: decoder layers in which it ran, 0 for none.
        per_layer_us: `charged_us` over `layers`; None without layers.
        spread: of `charged_us` over the steps.
    """

    name: str
    summed_us: float
    charged_us: float
    alone_us: float
    share: float
    ms_per_token: float | None
    layers: int
    per_layer_us: float | None
    spread: StepSpread


@dataclass(frozen=True)
class Ledger:
    """The mean step of one kind, taken apart.

    Attributes:
        phase: prefill, decode, mixed or unknown.
        batch_size: requests that decode in each of the steps; None for steps of any size.
        steps: how many there are.
        step: their length.
        ms_per_token: time per token of a sequence, in milliseconds: the step, or less where a step
            gives a sequence several tokens. None where nothing tells, and outside decode.
        overlap_us: what the summed times count more than once.
        rows: components in the order in which a decoder runs them, then the gaps.
    """

    phase: str
    batch_size: int | None
    steps: int
    step: StepSpread
    ms_per_token: float | None
    overlap_us: float
    rows: tuple[LedgerRow, ...]
