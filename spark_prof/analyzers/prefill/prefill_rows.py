"""What a report says of steps that read prompts. Times are microseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptProduct:
    """The kernels of one component that multiply with its weights, in a mean prefill step."""

    component: str  # whose they are
    what: str  # the weights that they multiply with, such as w13, w2
    precision: str  # of the arithmetic; empty where unknown
    us: float  # of a step
    operations: float  # of a step, a multiply-add counted as two
    peak: float | None  # operations per second in that precision; None where unknown

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.us * 1e6 if self.us else 0.0

    @property
    def of_peak(self) -> float | None:
        """Share of the peak; None where that is not known."""
        return self.rate / self.peak if self.peak else None


@dataclass(frozen=True)
class PromptAttention:
    """Attention that sees the whole prompt, over steps that read one prompt or a chunk of it.

    Its time grows with the pairs of a token and one that it sees: half of the prompt's tokens
    squared. The line's figures are None where nothing tells them.
    """

    steps: int  # that read a single prompt and decode nothing
    shortest: int  # prompt tokens of a step, the fewest
    longest: int  # the most
    layers: int  # that see everything
    us: float  # the median of a step
    base_us: float | None = None  # of the line at no pairs
    pair_us: float | None = None  # for a million pairs more, by the line
    pair_low_us: float | None = None  # lower end of the 95 % interval of that
    pair_high_us: float | None = None  # upper end of it
    longest_us: float | None = None  # what grows with pairs, in the step with the most of them
    operations: float = 0.0  # for a million pairs, of all these layers
    precision: str = ""  # of the arithmetic; empty where unknown
    peak: float | None = None  # operations per second in that precision; None where unknown
    why_not: str = ""  # why there is no line: few, narrow, scatter, layers; empty where there is

    @property
    def of_peak(self) -> float | None:
        """Share of the peak that the pairs reach."""
        if not self.pair_us or self.pair_us <= 0 or not self.peak or not self.operations:
            return None
        return self.operations / self.pair_us * 1e6 / self.peak


@dataclass(frozen=True)
class ChunkCost:
    """Mixed steps with about as many prompt tokens, against decode steps of their batch sizes."""

    low: int  # prompt tokens of a step, the fewest
    high: int  # the most
    steps: int  # mixed ones that count
    decodes: float  # requests that decode in one, on average
    decode_us: float  # the decode steps that they are held against, as mean of their medians
    step_us: float  # the median mixed step
    extra_us: float  # by how much a mixed step is longer, in the median: each of its decodes waits
    token_us: float  # of that, for a prompt token, in the median


@dataclass(frozen=True)
class Prefill:
    """Everything about the reading of prompts."""

    steps: int  # that only read prompts
    mixed: int  # that read prompts and decode
    tokens: float  # prompt tokens of a mean step that only reads
    step_us: float | None  # its median; None where no step only reads, or nothing has times
    floor_us: float | None  # its lower bound by the roofline; None where unknown
    products: tuple[PromptProduct, ...] = ()  # the longest first; none where shapes are unknown
    attention: PromptAttention | None = None  # None where no step reads a single prompt
    chunks: tuple[ChunkCost, ...] = ()  # by prompt tokens; none without enough mixed steps
    alone_us: float | None = None  # for a prompt token, in steps that only read; None without any
    budget: int | None = None  # tokens of a batch at most (max_num_batched_tokens)
