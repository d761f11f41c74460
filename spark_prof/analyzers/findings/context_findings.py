"""Rules about attention that takes longer for more context than its bytes do."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.context.context_rows import ContextCost, LayerKindCost
from spark_prof.analyzers.findings.rule import Observation, rule
from spark_prof.analyzers.model import Report

_FAR = 0.6  # share of the slope that is bytes below which it is far above them
_MATTERS = 0.04  # of a step at the longest context
_NAMES = {"full": "full attention", "window": "a sliding window", "mla": "MLA",
          "sparse": "sparse attention", "gdn": "a state", "mamba": "a state"}  # fmt: skip


@rule("context-slope", "steps",
      "by its interval, attention's time grows with context so that bytes are under 60 % of that, "
      "or grows where its bytes do not, 4 % of a step at the longest recorded context")  # fmt: skip
def _slope(report: Report) -> Iterator[Observation]:
    cost = report.context
    if cost is None or cost.speed is None or cost.bandwidth is None:
        return
    for kind in cost.kinds:
        if kind.slope_low_us is None or kind.slope_us is None or kind.bound_us is None:
            continue
        bound_us = kind.bound_us if kind.grows else 0.0
        if kind.slope_low_us <= 0 or bound_us >= _FAR * kind.slope_low_us:
            continue
        span = (kind.longest - kind.shortest) / 1e3
        above_us = (kind.slope_us - bound_us) * span
        if above_us < _MATTERS * cost.speed.longest_us:
            continue
        yield Observation(
            _gain(report, cost, kind, kind.slope_us - bound_us),
            f"Layers with {_NAMES.get(kind.kind, kind.kind)} take {kind.slope_us:,.2f} us more of "
            f"a decode step for 1,000 tokens of context, their bytes {bound_us:,.2f} us: between "
            f"{kind.shortest:,.0f} and {kind.longest:,.0f} tokens that is {above_us:,.1f} us "
            "beyond the bytes.",
            "Try another attention backend (--attention-backend), and compare at that context.",
            (f"The slope's 95 % interval is {kind.slope_low_us:,.2f} to {kind.slope_high_us:,.2f} "
             f"us; the bound is {kind.bytes_per_token:,.0f} bytes a token at "
             f"{cost.bandwidth / 1e9:,.0f} GB/s.",),
            components=("attention",),
            subject=kind.kind,
        )  # fmt: skip


def _gain(report: Report, cost: ContextCost, kind: LayerKindCost, slope_us: float) -> float | None:
    """In ms of a token, at the mean recorded context; None where a token is of other steps."""
    headline = report.steps.headline_and_screen
    if headline is None or headline.screen.batch != cost.batch or cost.speed is None:
        return None
    return slope_us * min(cost.mean, kind.longest) / 1e3 / cost.speed.tokens / 1e3
