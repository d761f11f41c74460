"""Sections about what is compared: the recordings, in what their set-ups differ, the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import attrgetter, or_
from statistics import fmean

from spark_prof.analyzers.comparing.model import Comparison, Side
from spark_prof.dashboards.compare_words import LETTERS
from spark_prof.dashboards.formats import MISSING, clean, count, microseconds, rate, share, shorten
from spark_prof.dashboards.section import Column, Section

_LONGEST = 160


def compared(found: Sequence[Comparison]) -> Section:
    """One row a recording: what it is, and its figures."""
    columns = (
        Column(""),
        Column("Source", "prose"),
        Column("Model", "prose"),
        Column("GPU", optional=True),
        Column("Steps", "number"),
        Column("Per token", "number"),
        Column("Tokens/s", "number", optional=True),
    )
    sides = (found[0].sides[0], *(each.sides[1] for each in found))
    rows = tuple(
        _side(letter if len(side) == 1 else f"{letter}, {number}", recording)
        for letter, side in zip(LETTERS, sides, strict=False)
        for number, recording in enumerate(side, start=1)
    )
    return Section(
        "compare_sides", "What is compared", columns, rows, ("a is what the others are held to.",)
    )


def setup(found: Comparison, b: str = "b") -> Section:
    """In what the set-ups differ."""
    columns = (Column(""), Column("Setting", "prose"), Column("a", "prose"), Column(b, "prose"))
    rows = tuple(
        (each.group, clean(each.name), _short(each.a), _short(each.b)) for each in found.setup
    )
    intro = ("What both recordings tell and tell differently; what one does not tell is a dash.",)
    return Section(_id("setup", b), "What differs in the set-up", columns, rows, intro)


def others(found: Comparison, b: str = "b") -> Section:
    """Figures of the recordings as a whole: coverage, conversions, clocks."""
    columns = (Column("Figure"), Column("a", "number"), Column(b, "number"))
    rows = [
        (f"kernel time with a known {what}", *_mean_share(found, f"coverage.{what}"))
        for what in ("layer", "component", "engine")
    ]
    rows += [
        ("of the kernel time for format conversions", *_mean_share(found, "conversions.share")),
        ("clock after the last step", _clock(found.a), _clock(found.b)),
    ]
    kept = tuple(row for row in rows if row[1:] != (MISSING, MISSING))
    return Section(_id("others", b), "Coverage, conversions, clocks", columns, kept)


def findings(found: Comparison, b: str = "b") -> Section:
    """The findings that only one side has."""
    sides = (("a", *found.sides), (b, *found.sides[::-1]))
    rows = []
    for letter, side, other in sides:
        # Each id as often as the recording of the side has it that has it most.
        known = reduce(or_, (Counter(f.id for f in each.report.findings) for each in other))
        listed: set[str] = set()
        for recording in side:
            left = known.copy()
            for each in recording.report.findings:
                if left[each.id] or each.id in listed:
                    left[each.id] -= 1
                    continue
                cost = microseconds(1e3 * each.ms_per_token) if each.ms_per_token else MISSING
                rows.append((f"only {letter}", cost, clean(each.text), clean(each.id)))
            listed |= {each.id for each in recording.report.findings}
    columns = (
        Column("Side"),
        Column("Per token", "number"),
        Column("Finding", "prose"),
        Column("Id", optional=True),
    )
    return Section(_id("findings", b), "Findings of one side only", columns, tuple(rows))


def notes(found: Comparison, b: str = "b") -> Section:
    """What to know before believing the figures."""
    rows = tuple((clean(note),) for note in found.notes)
    return Section(_id("notes", b), "Before believing these figures", (Column(""),), rows)


def _id(what: str, b: str) -> str:
    return f"compare_{what}" + (f"_{b}" if b != "b" else "")


def _mean_share(found: Comparison, path: str) -> tuple[str, str]:
    """A share of both sides' reports, the mean of their recordings."""
    get = attrgetter(path)
    a, b = (share(fmean(get(each.report) for each in side)) for side in found.sides)
    return a, b


def _clock(side: Side) -> str:
    clocks = side.report.gpu.clocks
    return f"{clocks.sm_mhz:,} MHz" if clocks else MISSING


def _side(letter: str, side: Side) -> tuple[str, ...]:
    report = side.report
    tpot = report.steps.tpot_us
    known = tpot is not None and tpot.median > 0
    return (
        letter,
        _short(side.source),
        _short(report.run.model),
        clean(report.gpu.name),
        count(report.steps.count),
        microseconds(tpot.median) if tpot and known else MISSING,
        rate(1e6 / tpot.median) if tpot and known else MISSING,
    )


def _short(text: str) -> str:
    return shorten(clean(text), _LONGEST) or MISSING
