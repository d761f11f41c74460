"""Milliseconds per token of what happens in decode steps."""

from __future__ import annotations

from spark_prof.analyzers.model import Report


def ms_per_token(report: Report, decode_us: float) -> float | None:
    """What that much time of all decode steps is in each token of a sequence.

    A step gives each sequence one token, with speculative decoding more: the same ratio as between
    the median step and the median time per output token.

    Args:
        report: whose steps count.
        decode_us: time in all its decode steps together, in microseconds.

    Returns:
        None where no step decodes or nothing is known about their tokens.
    """
    steps = report.steps
    if not steps.decode or steps.decode_us is None or steps.tpot_us is None:
        return None
    if not steps.decode_us.median:
        return None
    return decode_us / steps.decode / 1e3 * (steps.tpot_us.median / steps.decode_us.median)
