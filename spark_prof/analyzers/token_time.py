"""What an output token takes: the one account that every figure of a token's time stands on.

A sequence gets its next token when the step that it decodes in is over, whether that step reads
prompts as well or not. So a token takes the time of all steps that decode, each counted once for
every sequence that got tokens of it, over those tokens. A step lasts until the next one begins
while there is work, the host's time between them included; pauses between the pieces of a recording
are in none (`analyzers.windows`). First uses of kernels are in none either (`first_uses`). Where
some of the steps were only timed and not profiled, the time is theirs, batch size by batch size.
Its parts are of the profiled steps all the same, which alone tell parts: by how much those take
longer is a part too, below zero, and no other is made to fit.

Example: two sequences in steps of 10 ms, three of which accept 1 token each and one of which
accepts 3 each: 4 x 10 ms x 2 over 12 tokens, 6.67 ms a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.arrays import Floats, exact

DECODING = ("decode", "mixed")
"""Phases in which sequences that generate get tokens."""

SETTLING = 2
"""Steps at the begin of a stretch, profiled or timed, that still feel the switch."""

FEWEST_TIMED = 8
"""Fewer steps of a batch size that were only timed are no time of a token."""


@dataclass(frozen=True)
class TokenTime:
    """What a token takes at one batch size, or over all steps that decode; times in us."""

    batch: int | None  # requests that decode in each of its steps; None for any number
    steps: int  # profiled ones that decode, those that read prompts as well included
    mixed: int  # of them those that read prompts as well
    requests: float  # that decode in a step, on average
    token_us: float  # of a sequence: time over tokens, of the same steps
    # The same of decode steps, in which no prompt is read.
    decode_only_us: float | None = field(metadata={"json": "alone_us"})
    tokens_per_s_sequence: float  # that a sequence gets
    tokens_per_s: float  # of all sequences together while these steps run
    # The parts of `token_us`, of profiled steps; all but the first are differences of two times,
    # and below zero where the second is longer.
    typical_us: float  # what the median decode step takes
    uneven_us: float  # what the mean decode step takes beyond that
    prompts_us: float  # what steps that read prompts add to decode steps
    # A sequence's decode steps over its tokens: times in a decode step times this are times in a
    # token. None where no step only decodes.
    steps_per_token: float | None
    # The same as `token_us` of the steps that were profiled, where `token_us` stands on others.
    profiled_us: float | None = None
    timed_steps: int = 0  # steps that were only timed, on which it stands
    timed_share: float = 0.0  # share of its tokens whose batch size has enough of such steps

    @property
    def unprofiled_us(self) -> float:
        """The last part: what steps that were only timed take beyond profiled ones, mostly less."""
        return self.token_us - self.typical_us - self.uneven_us - self.prompts_us

    @property
    def beyond(self) -> dict[str, float]:
        """The parts beyond the median step that are any, by name."""
        parts = {"uneven": self.uneven_us, "prompts": self.prompts_us,
                 "unprofiled": self.unprofiled_us}  # fmt: skip
        return {name: us for name, us in parts.items() if us}

    @property
    def per_step(self) -> float | None:
        """As `steps_per_token`: the name under which files of older versions have it."""
        return self.steps_per_token


def given_tokens(steps: pd.DataFrame) -> tuple[Floats, Floats]:
    """How many decoding sequences got tokens of each step, and how many tokens those were.

    A prompt that a step reads to its end gives its request the first token, which is nobody's
    next one. Without the scheduler's record every decoding request is taken to get one.
    """
    decoding = steps["decode_requests"].to_numpy(np.float64)
    requests = steps["output_requests"].to_numpy(np.float64)
    tokens = steps["output_tokens"].to_numpy(np.float64)
    requests, tokens = (np.where(np.isnan(x), decoding, x) for x in (requests, tokens))
    first = np.zeros(len(steps))
    if "prefill_requests" in steps:
        first = np.clip(requests - decoding, 0, steps["prefill_requests"].to_numpy(np.float64))
    return requests - first, tokens - first


def tokens_per_sequence(steps: pd.DataFrame) -> Floats:
    """How many tokens each step gave a sequence that decodes, NaN where none got any."""
    sequences, tokens = given_tokens(steps)
    some = sequences > 0
    return np.where(some, tokens / np.where(some, sequences, 1.0), np.nan)


def that_count(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps without first uses of kernels."""
    return steps[~steps["first_use"].to_numpy(bool)] if "first_use" in steps else steps


def token_times(
    steps: pd.DataFrame, timed: pd.DataFrame | None = None
) -> tuple[TokenTime | None, tuple[TokenTime, ...]]:
    """The time of a token over all steps, and at each batch size; None where no step decodes.

    Args:
        steps: the profiled ones, with `step_us`.
        timed: those that were only timed, with the same columns (`analyzers.timed_steps`).
    """
    steps = _decoding(steps)
    timed = _giving(_decoding(timed)) if timed is not None else steps[:0]
    times = []
    every = pd.concat([_giving(steps)["decode_requests"], timed["decode_requests"]])
    for size in sorted(set(every.tolist())):
        profiled, other = (rows[rows["decode_requests"] == size] for rows in (steps, timed))
        enough = (other["phase"].astype(str) == "decode").sum() >= FEWEST_TIMED
        if not len(_giving(profiled)) and not enough:
            continue
        if (time := _time(size, profiled, other if enough else other[:0])) is not None:
            times.append((time, float(given_tokens(pd.concat([profiled, other]))[1].sum())))
    whole = _time(None, steps, timed[:0])
    if whole is not None and any(time.timed_steps for time, _ in times):
        whole = _of_sizes(whole, times, _profiled(steps, beside_timed=True))
    return whole, tuple(time for time, _ in times)


def _decoding(steps: pd.DataFrame) -> pd.DataFrame:
    steps = that_count(steps)
    return steps[steps["phase"].astype(str).isin(DECODING).to_numpy()]


def _giving(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that give a sequence its next token."""
    return steps[given_tokens(steps)[0] > 0]


def _only_decode(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[(steps["phase"].astype(str) == "decode").to_numpy()]


def _mean(steps: pd.DataFrame) -> float | None:
    """Time over tokens, in us."""
    sequences, tokens = given_tokens(steps)
    token_count = float(tokens.sum())
    us = float((steps["step_us"].to_numpy(np.float64) * sequences).sum())
    return exact(us / token_count) if token_count else None


_Profiled = tuple[float, dict[str, Any]]
"""What a token takes in profiled steps, and its parts by their names in `TokenTime`."""


def _profiled(steps: pd.DataFrame, *, beside_timed: bool) -> _Profiled | None:
    """None where no profiled step only decodes."""
    decode = _only_decode(steps)
    factor, decode_only = _steps_per_token(decode), _mean(decode)
    if not factor or decode_only is None:
        return None
    typical = exact(factor * float(decode["step_us"].median()))
    # Beside steps that were only timed the switches between the two are left out.
    counted = _settled(_giving(steps)) if beside_timed else steps
    us, settled = _mean(counted), _mean(_only_decode(counted))
    us = decode_only if us is None else us
    decode_only = decode_only if settled is None else settled
    parts = {"uneven_us": decode_only - typical, "prompts_us": us - decode_only}
    return us, {"typical_us": typical, **parts}


def _time(batch: int | None, steps: pd.DataFrame, timed: pd.DataFrame) -> TokenTime | None:
    profiled, giving = _profiled(steps, beside_timed=len(timed) > 0), _giving(steps)
    counted = timed if len(timed) else giving
    us, decode_only = _mean(counted), _mean(_only_decode(counted))
    if us is None or np.isnan(us):
        return None
    typical = decode_only or 0.0
    parts = {"typical_us": typical, "uneven_us": 0.0, "prompts_us": us - typical}
    tokens, took = given_tokens(counted)[1], counted["step_us"].to_numpy(np.float64)
    return TokenTime(
        batch=batch,
        steps=len(giving),
        mixed=len(giving) - len(_only_decode(giving)),
        requests=float(counted["decode_requests"].mean()),
        token_us=us,
        decode_only_us=decode_only,
        tokens_per_s_sequence=1e6 / us if us else 0.0,
        tokens_per_s=1e6 * float(tokens.sum()) / float(took.sum()) if took.sum() else 0.0,
        **(profiled[1] if profiled else parts),
        steps_per_token=_steps_per_token(_only_decode(steps if profiled else counted)),
        profiled_us=profiled[0] if profiled and len(timed) else None,
        timed_steps=len(timed),
        timed_share=1.0 if len(timed) else 0.0,
    )


def _settled(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps without the first two and the last one of each stretch, if enough are left."""
    number = pd.Series(steps.index.to_numpy(np.int64))
    stretch = (number.diff() != 1).cumsum()
    place = stretch.groupby(stretch).cumcount()
    last = place == stretch.groupby(stretch).transform("size") - 1
    inner = steps[((place >= SETTLING) & ~last).to_numpy()]
    return inner if len(inner) >= FEWEST_TIMED else steps


def _steps_per_token(decode: pd.DataFrame) -> float | None:
    """1, or less where a step gives a sequence several tokens."""
    sequences, tokens = given_tokens(decode)
    return float(sequences.sum() / tokens.sum()) if tokens.sum() else None


def _of_sizes(
    whole: TokenTime, sizes: Iterable[tuple[TokenTime, float]], profiled: _Profiled | None
) -> TokenTime:
    """The time over all steps from those of its sizes, each with how many tokens it has."""
    sizes = list(sizes)
    tokens = sum(count for _, count in sizes)
    us = exact(sum(time.token_us * count for time, count in sizes) / tokens)
    decode_only = [
        (time.decode_only_us, count) for time, count in sizes if time.decode_only_us is not None
    ]
    took = sum(count / time.tokens_per_s for time, count in sizes if time.tokens_per_s)
    changed = replace(
        whole,
        token_us=us,
        decode_only_us=exact(sum(us * n for us, n in decode_only) / sum(n for _, n in decode_only))
        if decode_only
        else None,
        tokens_per_s_sequence=1e6 / us if us else 0.0,
        tokens_per_s=tokens / took if took else 0.0,
        timed_steps=sum(time.timed_steps for time, _ in sizes),
        timed_share=sum(count for time, count in sizes if time.timed_steps) / tokens,
    )
    return replace(changed, profiled_us=profiled[0], **profiled[1]) if profiled else changed


_FEW_STEPS = 8
_MUCH_MIXED = 0.02
_MANY_MIXED = 0.1
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Headline:
    """Which of the times a report's first sentence has, and which batch size its screen is of."""

    time: TokenTime
    screen: TokenTime  # the batch size with most of the time, or all of them where each has little


def headline_of(whole: TokenTime | None, sizes: tuple[TokenTime, ...]) -> Headline | None:
    """The time that is told first.

    One figure is one batch size's, the one with most of the time. Where steps read prompts beside
    it, as under load, sizes change all the time and a client meets them all: then it is that of all
    steps that decode.
    """
    if whole is None:
        return None
    if len(sizes) == 1 and sizes[0].steps:
        return Headline(sizes[0], sizes[0])
    enough = [time for time in sizes if time.steps - time.mixed >= _FEW_STEPS]
    most = max(enough, key=lambda t: t.token_us * t.steps, default=None)
    if most is None:
        return Headline(whole, whole)
    loaded = whole.prompts_us >= _MUCH_MIXED * whole.token_us
    loaded |= whole.mixed >= _MANY_MIXED * whole.steps
    # Of hardly more than one size there is nothing to keep apart.
    loaded |= bool(whole.mixed) and most.steps >= _NEARLY_ALL * whole.steps
    return Headline(whole if loaded else most, most)
