"""How many drafts are accepted, by their position, and what that makes of a step.

A position counts as accepted in a step where it and all before it are. From that alone follows
what a step gives at any number of drafts: one token, and one more for each accepted position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from spark_prof.ab.messages import RequestDrafts
from spark_prof.errors import CommandError

MOST_DRAFTS = 64
Prompts = tuple[str | tuple[int, ...], ...]
"""Texts or token ids."""
_FEWEST_REQUESTS = 2  # between which acceptance may differ


@dataclass(frozen=True)
class Acceptance:
    """What share of the steps drafts each position, and accepts it."""

    source: Literal["given", "requests", "recording", "server"]  # where it is from
    drafted: tuple[float, ...]  # by position; 1 where every step drafts it
    accepted: tuple[float, ...]  # by position, never rising
    steps: int = 0  # that were counted; 0 where the acceptance was given
    requests: tuple[RequestDrafts, ...] = ()  # none where only sums are known

    @property
    def is_sound(self) -> bool:
        """Whether it has shares, as many of both, and later positions are accepted no oftener."""
        rates = (*self.drafted, *self.accepted)
        falls = all(later <= before for before, later in pairwise(self.accepted))
        as_many = len(self.drafted) == len(self.accepted) <= MOST_DRAFTS
        return as_many and falls and all(0 <= rate <= 1 for rate in rates)

    @property
    def most(self) -> int:
        """The positions of which it is known."""
        return len(self.accepted)

    def tokens(self, drafts: int) -> float:
        """What a step gives each request at so many drafts."""
        return 1.0 + math.fsum(self.accepted[:drafts])

    def rates(self, most: int) -> tuple[float, ...]:
        """The acceptance of the first positions, each with all before it."""
        return (*self.accepted, *[0.0] * most)[:most]

    def width(self, drafts: int) -> float:
        """The drafts that a step verifies of each request, where a drafter may find fewer."""
        return math.fsum(self.drafted[:drafts])


@dataclass(frozen=True)
class TokensSpread:
    """The variance of an estimate, and its degrees of freedom; 0 of both where it is exact."""

    variance: float = 0.0
    free: int = 0


def given_acceptance(text: str) -> Acceptance:
    """Reads ``0.8,0.6,0.4``: the share of steps that accept position 1, 1 and 2, 1 to 3."""
    try:
        rates = tuple(float(word) for word in text.split(","))
    except ValueError:
        rates = (math.nan,)
    acceptance = Acceptance("given", (1.0,) * len(rates), rates)
    if not acceptance.is_sound:
        raise CommandError(
            f"--acceptance {text:.60}: give the share of steps that accept each position with all "
            "before it, from 0 to 1 and never rising, such as 0.8,0.6,0.4"
        )
    return acceptance


def counted_acceptance(
    requests: Sequence[RequestDrafts], source: Literal["requests", "recording"]
) -> Acceptance:
    """The acceptance over several requests; CommandError where none of them decoded with drafts."""
    decoded = tuple(request for request in requests if request.steps > 0)
    steps = sum(request.steps for request in decoded)
    most = min(max((len(request.drafted) for request in decoded), default=0), MOST_DRAFTS)
    drafted = _sums([request.drafted for request in decoded], most)
    accepted = _sums([request.accepted for request in decoded], most)
    if not steps or not any(drafted):
        raise CommandError("no step of these requests had drafts; give longer or other ones")
    return Acceptance(
        source,
        tuple(count / steps for count in drafted),
        tuple(count / steps for count in accepted),
        steps,
        decoded,
    )


def server_acceptance(steps: int, drafts: int, accepted: Sequence[int]) -> Acceptance:
    """The acceptance by a server's counters: steps with drafts, drafts, and accepted by position.

    How often each position was drafted a server does not tell; where fewer drafts were made than
    there are positions, the last ones are taken to be missing.
    """
    if steps < 1 or not accepted or drafts < 1:
        raise CommandError("the server has counted no drafts yet; ask it after some requests")
    rest = drafts / steps
    drafted = []
    for _ in accepted:
        drafted.append(min(max(rest, 0.0), 1.0))
        rest -= 1
    rates = tuple(min(count / steps, 1.0) for count in accepted)
    return Acceptance("server", tuple(drafted), rates, steps)


def tokens_spread(acceptance: Acceptance, drafts: int, other: int) -> TokensSpread:
    """How sure the ratio of a step's tokens at two numbers of drafts is, as its logarithm.

    Requests differ, and steps of one are alike: where several are known, they are what varies,
    else each step counts as a draw of its own.
    """
    if acceptance.source == "given" or drafts == other:
        return TokensSpread()
    tokens, other_tokens = acceptance.tokens(drafts), acceptance.tokens(other)
    requests = acceptance.requests
    if len(requests) >= _FEWEST_REQUESTS:
        steps = np.array([request.steps for request in requests], dtype=np.float64)
        ours = steps + [sum(request.accepted[:drafts]) for request in requests]
        theirs = steps + [sum(request.accepted[:other]) for request in requests]
        apart = (ours - tokens * steps) / tokens - (theirs - other_tokens * steps) / other_tokens
        count = len(requests)
        variance = count / (count - 1) * float((apart**2).sum()) / float(steps.sum()) ** 2
        return TokensSpread(variance, count - 1)
    # A step accepts exactly n drafts in a share of accepted[n - 1] - accepted[n].
    shares = -np.diff([1.0, *acceptance.accepted, 0.0])
    counts = np.arange(len(shares))
    apart = np.minimum(counts, drafts) / tokens - np.minimum(counts, other) / other_tokens
    mean = float((shares * apart).sum())
    variance = float((shares * (apart - mean) ** 2).sum()) / acceptance.steps
    return TokensSpread(variance, max(acceptance.steps - 1, 1))


def _sums(rows: Sequence[tuple[int, ...]], most: int) -> list[int]:
    return [sum(row[place] for row in rows if place < len(row)) for place in range(most)]
