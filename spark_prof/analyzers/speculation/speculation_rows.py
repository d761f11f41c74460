"""What a report says of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftPosition:
    """The drafts at one place of their row; a place counts as accepted with all before it."""

    position: int  # from 1
    proposed: int
    accepted: int
    low: float  # of the share that is accepted the 95 % interval, each verification for itself
    high: float

    @property
    def share(self) -> float:
        """How many of the drafts at this place are accepted, as a fraction."""
        return self.accepted / self.proposed if self.proposed else 0.0


@dataclass(frozen=True)
class DraftGroup:
    """The drafts of requests with so much context, or in steps of one batch size."""

    low: int  # tokens of context, or requests that decode
    high: int | None  # the last one that belongs to it; None for all above
    verified: int  # how often the drafts of a request were verified
    proposed: int
    accepted: int
    first: float  # share of the first drafts that is accepted
    step_us: float | None = None  # of a batch size: its mean decode step with drafts

    @property
    def accepted_each(self) -> float:
        """Accepted drafts of a verification."""
        return self.accepted / self.verified

    @property
    def proposed_each(self) -> float:
        """Proposed drafts of a verification."""
        return self.proposed / self.verified


@dataclass(frozen=True)
class DraftPart:
    """What a component of the drafter takes; none of it is in the model's rows."""

    component: str
    us: float  # of a mean decode step with drafts


@dataclass(frozen=True)
class DraftCost:
    """What decode steps take with drafts, and what they would take without; times in us."""

    steps: int  # decode steps that verify drafts
    plain_steps: int  # decode steps without any
    step_us: float  # the mean one with drafts, each counted for every sequence that it gives tokens
    width: float  # tokens that it computes for a sequence, the drafts among them
    requests: float  # that decode in it
    tokens_per_step: float  # that a sequence gets of it
    token_us: float  # of a sequence, over all of these steps
    # From the drafter's first kernel to its last in a step; where it has none what drafting takes
    # on the host. None where the recording does not tell.
    drafter_us: float | None = None
    drafter_by: str = ""  # kernels or host: what tells that time
    host_us: float | None = None  # of drafting on the host; None where it is not recorded
    parts: tuple[DraftPart, ...] = ()
    # A step without drafts takes no more than this: one with drafts without its drafting.
    plain_most_us: float | None = None
    # What it would take; None where nothing tells. `low` and `high` are one where it is one figure.
    plain_low_us: float | None = None
    plain_high_us: float | None = None
    plain_by: str = ""  # steps without drafts (`steps`), or those with them (`drafter`)
    why_unknown: str = ""  # of the time without drafts: cpu, wide, drafter
    outside_graphs: int = 0  # steps with drafts that ran outside of CUDA graphs, others inside
    outside_us: float = 0.0  # by how much the mean one of them takes longer than those inside

    @property
    def drafter_share(self) -> float | None:
        """The drafter's share of a step with drafts."""
        return None if self.drafter_us is None else self.drafter_us / self.step_us

    @property
    def break_even(self) -> float | None:
        """How many drafts a step must have accepted, or it is slower than one without drafts."""
        plain = self.plain_high_us if self.plain_high_us is not None else self.plain_most_us
        return None if not plain else max(self.step_us / plain - 1, 0.0)


@dataclass(frozen=True)
class Speculation:
    """Acceptance of all drafts that were recorded, and what they cost."""

    method: str  # as vLLM names it, such as mtp; empty where unknown
    most: int | None  # drafts that a step has for a request at most, as asked for
    requests: int  # that had drafts
    verified: int  # how often the drafts of a request were verified
    unknown: int  # how often nothing was taken of them, because the request had ended meanwhile
    proposed: int
    accepted: int
    positions: tuple[DraftPosition, ...] = ()
    contexts: tuple[DraftGroup, ...] = ()  # by tokens in the KV cache
    batches: tuple[DraftGroup, ...] = ()  # by requests that decode
    cost: DraftCost | None = None  # None where no decode step has drafts, or nothing has times

    @property
    def accepted_each(self) -> float:
        """Accepted drafts of a verification, as mean."""
        return self.accepted / self.verified if self.verified else 0.0

    @property
    def proposed_each(self) -> float:
        """Proposed drafts of a verification, as mean."""
        return self.proposed / self.verified if self.verified else 0.0
