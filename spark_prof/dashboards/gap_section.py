"""A measured gap between two sides: in a sentence or two, and part by part."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.measured_gap import BEYOND, BYTES, KERNELS, OUTSIDE, WAITS, Gap, GapPart
from spark_prof.analyzers.why import Why
from spark_prof.analyzers.why_sides import WhySide
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.units import microseconds, share

_WORDS = {
    BYTES: "bytes",
    KERNELS: "kernels beyond their bytes",
    BEYOND: "kernels, launches and the rest",
    WAITS: "waits for launches and the host",
    OUTSIDE: "outside the recorded step",
}
_WITHOUT_BYTES = {KERNELS: "kernels", BEYOND: "all of it"}
_LEAST = 0.005  # of a token's time: sides that are less apart are alike


def gap_sentences(why: Why) -> Iterator[str]:
    """What the measured rates say: how near each is to its bound, and what the gap consists of."""
    sides = {side.name: side for side in why.sides}
    rated = [side for side in why.sides if side.rate]
    if rated:
        yield "Measured: " + "; ".join(map(_of_bound, rated)) + "."
    for gap in why.gaps:
        yield from _of_gap(gap, sides, why.experts_hit)


def _of_bound(side: WhySide) -> str:
    assert side.rate is not None
    rate = f"{side.name} {side.rate.tokens_per_s:,.1f} tokens/s"
    if side.bound_us and side.rate.step_us >= side.bound_us:
        of_bound = side.bound_us / side.rate.step_us
        return f"{rate}, {share(of_bound)} of {side.rate.tokens_per_s / of_bound:,.1f} at most"
    return rate


def _of_gap(gap: Gap, sides: dict[str, WhySide], experts_hit: bool) -> Iterator[str]:
    if gap.too_fast:
        shared = "its tokens hit fewer experts than is assumed, or " if experts_hit else ""
        for name in gap.too_fast:
            side = sides[name]
            assert side.rate is not None
            yield (
                f"{name} takes {microseconds(side.rate.step_us)} a step, less than its lower bound "
                f"of {microseconds(side.bound_us)}: {shared}it was measured with another GPU, "
                "batch or number of GPUs, with weights quantized at loading, or with speculative "
                "decoding. Its gap is not split."
            )
        return
    if gap.us < _LEAST * gap.slow_us:
        yield f"{gap.slow} and {gap.fast} take the same time a token."
        return
    parts = ", ".join(
        f"{_words(gap, part)} {_signed(part.us)}{_share(part)}"
        for part in sorted(gap.parts, key=lambda part: -part.us)
    )
    yield f"A token of {gap.slow} takes {microseconds(gap.us)} longer than of {gap.fast}: {parts}."
    slow = sides[gap.slow]
    if gap.bytes_known and slow.rate:
        by_bytes = slow.rate.tokens_per_s * slow.rate.step_us / gap.bytes_us
        yield (
            f"If {gap.slow} lost as much beyond its bytes as {gap.fast} does, it would run at "
            f"{by_bytes:,.1f} tokens/s."
        )


def _words(gap: Gap, part: GapPart) -> str:
    return (_WORDS if gap.bytes_known else _WORDS | _WITHOUT_BYTES)[part.kind]


def _signed(us: float) -> str:
    return f"{'-' if us < 0 else '+'}{microseconds(abs(us))}"


def _share(part: GapPart) -> str:
    """The share of the gap in parentheses; empty for a part that is none of it."""
    return f" ({share(part.share)})" if part.share is not None and 0 <= part.share <= 1 else ""


def gap_table(gap: Gap, sides: dict[str, WhySide], number: int) -> Section:
    """The parts of both sides' time, which add up to what was measured."""
    whole = GapPart("", gap.slow_us, gap.fast_us, 1.0)
    columns = (
        cells.Text("", lambda part: _words(gap, part) if part.kind else "a token, as measured"),
        cells.Time(gap.slow, "slow_us"),
        cells.Time(gap.fast, "fast_us"),
        cells.Formatted("Difference", lambda part: _signed(part.us)),
        cells.Share("Of the gap", "share"),
    )
    rates = [rate for name in (gap.slow, gap.fast) if (rate := sides[name].rate)]
    intro = [f"By {' and '.join(dict.fromkeys(rate.basis for rate in rates))}."]
    if any(part.kind == BEYOND for part in gap.parts):
        intro.append(
            "Recordings of both would tell kernels from launches, and both from the server."
        )
    rows = (*gap.parts, whole) if gap.parts else ()
    name = "gaps" if number == 1 else f"gaps-{number}"
    return table(name, f"The measured gap: {gap.slow}, {gap.fast}", rows, columns, intro)
