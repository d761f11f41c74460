"""What a tune may try: one side of an A/B each, and what it does not try with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One thing to try."""

    words: str  # a side as `spark-prof ab --b` takes it; its id
    # kernels, backends, compilation, fusion passes, KV cache, scheduler, speculation, environment
    source: str
    condition: str  # one line: when it applies
    finding: str  # id of the finding that it answers; empty for none
    expected_ms: float | None  # per token at most, by the finding; None where unknown
    # Quantizing at load, KV dtype: needs --allow-requantize or --allow-kv-dtype.
    changes_model: bool = False


@dataclass(frozen=True)
class LeftOut:
    """One thing that is not tried."""

    words: str
    source: str
    why: str  # one line


@dataclass(frozen=True)
class CandidateTable:
    """What would be tried and what would not."""

    candidates: tuple[Candidate, ...]  # cheapest and most promising first
    left_out: tuple[LeftOut, ...]
