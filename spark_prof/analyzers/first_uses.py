"""Which steps used a kernel for the first time, so that their time is the compiler's.

A kernel is compiled, tuned or loaded once for a shape: the first step of a shape takes many times
as long as all later ones like it. Steps are alike that decode for as many requests and tokens, or
that read about as many tokens of prompts (to a power of two). A step that comes back slow, or is
slow after fast ones, is none: that is a stall, or its work.

Of a shape that never came back nothing can tell that. Such a step is set aside where steps with no
less work are many times faster. One that decodes and reads a prompt is, too, where it is many times
as long as those that decode alone and the device worked for little of it. Both are told as likely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.step_accounting import Steps
from spark_prof.arrays import Flags, Floats

_FAR = 3.0  # times the later steps of its shape
_VERY_FAR = 5.0  # times what others, not quite alike, let expect
_FEW = 4  # mixed steps of about as many tokens: what these take may be what they always take
_IDLE = 0.8  # of a step in which the device did nothing of its own


@dataclass(frozen=True, eq=False)
class FirstUses:
    """The steps that count in no figure of a step's or a token's time, in the order of the rows."""

    first: Flags  # the first of a shape that later steps are many times faster at
    alone: Flags  # a shape of its own, and far beyond what others let expect

    @property
    def any(self) -> Flags:
        """Both."""
        return np.asarray(self.first | self.alone)


def first_uses(steps: pd.DataFrame, working_us: Floats | None = None) -> FirstUses:
    """Judges steps in order, with `step_us`.

    Args:
        working_us: how long kernels ran in each, without collectives, which wait for other ranks;
            None where that is not known.
    """
    count = len(steps)
    us = steps["step_us"].to_numpy(np.float64)
    phase = steps["phase"].astype(str).to_numpy()
    tokens = (steps["prefill_tokens"] + steps["decode_tokens"]).to_numpy(np.float64)
    tokens = np.maximum(tokens, 1.0)
    requests = steps["decode_requests"].to_numpy(np.int64)
    decode = phase == "decode"
    bucket = np.ceil(np.log2(tokens)).astype(np.int64)
    shape = pd.MultiIndex.from_arrays(
        [phase, np.where(decode, requests, -1), np.where(decode, tokens.astype(np.int64), bucket)]
    )
    codes = shape.factorize()[0]
    first, alone = np.zeros(count, bool), np.zeros(count, bool)
    has_phase = np.isin(phase, ("decode", "mixed", "prefill"))
    single = []  # steps of a shape that does not come back, or hardly
    for code in range(int(codes.max(initial=-1)) + 1):
        places = np.flatnonzero((codes == code) & has_phase)
        if not len(places):
            continue
        if len(places) == 1 or (phase[places[0]] == "mixed" and len(places) < _FEW):
            single += places.tolist()
        if len(places) == 1:
            continue
        lead, later = places[0], places[1:]
        # More work takes at most as many times as long.
        expected = us[later] * np.maximum(tokens[lead] / tokens[later], 1.0)
        first[lead] = us[lead] > _FAR * max(float(np.median(expected)), float(expected[0]))
    for place in (place for place in single if not first[place]):
        mixed = phase[place] == "mixed"
        alone[place] = _beyond(
            place, us, tokens, decode, has_phase & ~first, working_us if mixed else None
        )
    return FirstUses(first, alone)


def _beyond(
    place: int,
    us: Floats,
    tokens: Floats,
    decode: Flags,
    has_phase: Flags,
    working_us: Floats | None,
) -> bool:
    """Whether a step without any like it is far beyond what the others let expect."""
    comparable = has_phase & (decode == decode[place])
    comparable[place] = False
    # Nothing with as much work or more, or in proportion to it, takes nearly as long.
    least = us[comparable] * np.maximum(tokens[place] / tokens[comparable], 1.0)
    if len(least) and us[place] > _VERY_FAR * float(np.median(least)):
        return True
    if working_us is None or not (has_phase & decode).any():
        return False
    usual = float(np.median(us[has_phase & decode]))
    idle = 1 - min(working_us[place] / us[place], 1.0) if us[place] else 0.0
    return bool(idle >= _IDLE and us[place] > _VERY_FAR * usual)


def told_first_uses(steps: Steps) -> Iterator[str]:
    """One line on the steps that use a kernel for the first time."""
    uses = steps.first_use_steps
    if not uses:
        return
    kinds = ", ".join(f"{count} {phase}" for phase, count in Counter(u.phase for u in uses).items())
    low, high = (f"{of(u.us for u in uses) / 1e3:,.0f}" for of in (min, max))
    span = low if low == high else f"{low} to {high}"
    unsure = sum(not use.certain for use in uses)
    why = "the first use of a kernel compiles it, and later steps like them are fast"
    if unsure == len(uses):
        why = "likely the first use of a kernel, which compiles it; no other step is like them"
    elif unsure:
        why += f" ({unsure} have none like them: likely)"
    yield f"{len(uses):,} of {steps.count:,} steps count in no time ({kinds}; {span} ms): {why}."
