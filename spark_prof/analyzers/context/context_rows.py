"""What a report says of the context's cost. Times are microseconds of a decode step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ContextMark:
    """One length of context."""

    context: int  # tokens that each request has
    us: float | None  # what these layers take there; None beyond the recorded contexts
    bound_us: float | None  # what their bytes take at least; None where no bandwidth is known


@dataclass(frozen=True)
class LayerKindCost:
    """Attention, its KV cache's write and its state, of all layers of one kind.

    Slopes are of 1,000 tokens more in each request; they are None where nothing tells them.
    """

    kind: str  # full, window, mla, sparse (MLA over chosen tokens), gdn or mamba
    layers: int  # that are of this kind
    window: int  # tokens that one reads at most, 0 for all
    shortest: float  # tokens of context of the steps that count, the fewest
    longest: float  # the most of them
    us: float  # the median, over the steps
    grows: bool  # whether its bytes grow over these contexts: no state's do, no full window's
    base_us: float | None = None  # of the line at no context
    slope_us: float | None = None  # of the line
    slope_low_us: float | None = None  # lower end of the slope's 95 % interval
    slope_high_us: float | None = None  # upper end of it
    off: float | None = None  # how far a tenth of the steps lies off the line at most, as share
    bytes_per_token: float = 0.0  # that a step reads more for one token more in each request
    bound_us: float | None = None  # slope of the bytes at the bandwidth; None where that is unknown
    marks: tuple[ContextMark, ...] = ()  # what it takes at some lengths of context
    why_not: str = ""  # why there is no slope: few, narrow, scatter; empty where there is one

    @property
    def of_bound(self) -> float | None:
        """Share of the slope that the bytes explain: 1 is as fast as memory is read."""
        if not self.slope_us or self.bound_us is None or self.slope_us <= 0 or not self.grows:
            return None
        return self.bound_us / self.slope_us


@dataclass(frozen=True)
class ContextSpeed:
    """What a step takes more at the longest recorded context than at the shortest."""

    shortest_us: float  # a step at the shortest context, by a line through the steps
    longest_us: float  # a step at the longest context, by the same line
    tokens: float  # that a sequence gets of a step
    bytes_us: float | None  # of the difference, what the bytes take; None without a bandwidth
    kernel_us: float | None  # what attention takes beyond its bytes, of the difference
    attention_us: float  # both of these together
    other_us: float  # the rest of the difference, outside of attention

    @property
    def shortest_tokens_per_s(self) -> float:
        """What a sequence gets at the shortest context."""
        return 1e6 * self.tokens / self.shortest_us

    @property
    def longest_tokens_per_s(self) -> float:
        """What a sequence gets at the longest context."""
        return 1e6 * self.tokens / self.longest_us


@dataclass(frozen=True)
class ContextCost:
    """Decode steps of one batch size against the tokens that their requests have."""

    batch: int  # requests that decode in each of the steps
    steps: int  # that count
    shortest: float  # tokens of context of a mean request, in the step with the fewest
    longest: float  # in the step with the most
    mean: float  # over the steps
    bandwidth: float | None  # bytes per second of the bound; None where unknown
    kinds: tuple[LayerKindCost, ...] = ()  # by kind of layer
    speed: ContextSpeed | None = None  # None where the steps do not tell it
    # Why nothing is told: few, narrow, layers (which layers ran attention is not known), model
    # (which kinds of layers it has is not known), times; empty where something is.
    why_not: str = ""
