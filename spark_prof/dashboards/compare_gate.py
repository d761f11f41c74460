"""How a comparison writes its changes, and what became of each limit of `compare --fail-on`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from spark_prof.analyzers.comparing.comparison import Obstacle
from spark_prof.analyzers.comparing.noise import FEWEST_STEPS, Change
from spark_prof.analyzers.comparing.thresholds import ThresholdResult
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Column, Section, table
from spark_prof.dashboards.units import (
    MISSING,
    WrittenFigure,
    between,
    clean,
    count,
    counted,
    microseconds,
    rate,
    share,
    shorten,
)

_LONGEST_KERNEL = 60


def why_not(obstacle: Obstacle, names: tuple[str, str], phase: str) -> str:
    """Why steps of two sides are not comparable, in a clause."""
    (a, b), kind = names, obstacle.reason
    ours, theirs = obstacle.a, obstacle.b
    if kind == "models":
        return f"they are different models ({obstacle.what}: {ours} and {theirs})"
    if kind == "parallel":
        return (
            f"both ran eagerly, and a GPU of each does other work ({ours or 'unknown'} and "
            f"{theirs or 'unknown'})"
        )
    if kind == "windows":
        untold = [name for name, window in ((a, ours), (b, theirs)) if not window]
        return f"nothing tells the steps of {' and '.join(untold)}"
    if kind == "work":
        if not obstacle.what:
            return "nothing tells their steps, and no kernel ran on both"
        kernel = shorten(obstacle.what, _LONGEST_KERNEL)
        return f"their windows hold other work ({kernel} ran {ours} and {theirs} times a step)"
    if kind == "batch":
        return f"{a} decodes at batch {ours} and {b} at batch {theirs}"
    if kind == "contexts":
        return (
            f"contexts differ ({ours} and {theirs} tokens), and without attention, which reads "
            "them, no difference is shown"
        )
    if kind == "kernels":
        lacking = [name for name, kernel_count in ((a, ours), (b, theirs)) if not kernel_count]
        return f"both ran eagerly, and no kernel of {' and '.join(lacking)} was recorded"
    kinds = "" if phase == "unknown" else f"{phase} "
    where = ""
    if obstacle.what != "0":
        where = f"at batch {obstacle.what} " if phase == "decode" else f"of {obstacle.what} tokens "
    return (
        f"{where}{a} has {counted(int(ours), f'{kinds}step')} and {b} {int(theirs):,}, and each "
        f"recording needs {FEWEST_STEPS}"
    )


LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""What sides are called in JSON and in ids: the reference is a."""


class SideNames(NamedTuple):
    """What the two sides of a comparison are called."""

    a: str = "a"  # in text
    b: str = "b"
    letter: str = "b"  # of the second side in JSON and in ids


def numbers(*titles: str, optional: bool = False) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(title, "number", optional) for title in titles)


def shown_part(name: str) -> str:
    """The name of a part of a step, as it is shown."""
    return "launch gaps" if name == "launch_gaps" else name


def by_us(us: float) -> WrittenFigure:
    """A change with its sign: +12.3 us."""
    if not math.isfinite(us):
        return WrittenFigure(MISSING)
    figure = microseconds(us)
    return WrittenFigure(f"+{figure}", us, figure.unit) if us > 0 else figure


def by_share(change: Change, us: float | None = None) -> str:
    """A change as a share of side a's figure: +3.1 %."""
    ratio = change.share(change.us if us is None else us)
    return WrittenFigure(f"{100 * ratio:+.1f} %", ratio) if math.isfinite(ratio) else "new"


def span(change: Change) -> str:
    """The interval of a change: -1.2 to +3.4 us; a dash where it is not known."""
    if not math.isfinite(change.low) or not math.isfinite(change.high):
        return MISSING
    return between(by_us(change.low), by_us(change.high))


def span_of_share(change: Change) -> str:
    """The interval of a change as a share of side a's figure; empty where it is not known."""
    low, high = change.shares
    if not (math.isfinite(low) and math.isfinite(high)) or change.low == change.high:
        return ""
    return f"{100 * low:+.1f} to {100 * high:+.1f} %"


def verdict(change: Change) -> str:
    """What a change is: slower or faster beyond the scatter, else unclear; a dash if unknown."""
    if not math.isfinite(change.low):
        return MISSING
    if not change.sure:
        return "unclear"
    return "slower" if change.us > 0 else "faster"


def gate(checked: Sequence[tuple[ThresholdResult, SideNames]]) -> Section:
    """One row a limit and side, which has at least one."""
    several = len({names for _, names in checked}) > 1
    b = "Figure" if several else checked[0][1].b
    columns = (
        cells.Prose("Limit", lambda row: clean(row[0].expression.text)),
        cells.Text("Side", lambda row: row[1].b if several else ""),
        cells.Formatted(checked[0][1].a, lambda row: _value(row[0], row[0].reading.change.a)),
        cells.Formatted(b, lambda row: _value(row[0], row[0].reading.change.b)),
        cells.Formatted("Change", lambda row: _change(row[0])),
        cells.Text("95 %", lambda row: _interval(row[0]), optional=True),
        cells.Text("Gate", lambda row: row[0].outcome),
        cells.Prose("Why", lambda row: _why(row[0], row[1].a, row[1].b), optional=True),
    )
    intro = (
        "A limit fails where the whole interval lies beyond it, and passes where all of it lies "
        "within. Undecided: the recordings are too few, too short or too noisy to tell.",
    )
    return table("compare_gate", "Gate", checked, columns, intro)


def reason(checked: ThresholdResult, names: tuple[str, ...]) -> str:
    """What became of a limit in one line."""
    change = checked.reading.change
    limit = clean(checked.expression.text)
    if checked.expression.operator == "missing":
        return f"{checked.outcome}: {limit}: {clean(checked.why) or 'it is there'}"
    a, b, *_ = map(clean, names)
    figures = f"{_value(checked, change.a)} on {a}, {_value(checked, change.b)} on {b}"
    if checked.is_change and not checked.obstacle:
        noise = _interval(checked)
        figures += f", {_change(checked)}" + (f" (95 %: {noise})" if noise != MISSING else "")
    why = f"; {clean(why)}" if (why := _why(checked, a, b)) else ""
    return f"{checked.outcome}: {limit}: {figures}{why}"


def _why(checked: ThresholdResult, a: str, b: str) -> str:
    """Why a limit was not decided."""
    if checked.obstacle is None:
        return clean(checked.why)
    phase = checked.reading.phase.phase if checked.reading.phase else ""
    return clean(f"not comparable: {why_not(checked.obstacle, (a, b), phase)}")


def _value(checked: ThresholdResult, value: float) -> str:
    kind = checked.reading.kind
    if kind == "time":
        return microseconds(value)
    if kind == "rate":
        return f"{rate(value)} tokens/s"
    return share(value) if kind == "share" else count(round(value))


def _change(checked: ThresholdResult) -> str:
    if checked.obstacle:
        return MISSING
    change, kind = checked.reading.change, checked.reading.kind
    if kind == "share":
        return f"{100 * change.us:+.1f} points"
    if kind == "count":
        return f"{change.us:+,.0f}"
    if checked.relative or kind == "rate":
        return by_share(change)
    return by_us(change.us)


def _interval(checked: ThresholdResult) -> str:
    """The interval that was held against the limit, in the unit of the change."""
    change, kind = checked.reading.change, checked.reading.kind
    if checked.obstacle or not math.isfinite(change.low) or change.low == change.high:
        return MISSING
    if kind == "share":
        return f"{100 * change.low:+.1f} to {100 * change.high:+.1f} points"
    if checked.relative or kind == "rate":
        low, high = (f"{100 * bound:+.1f}" for bound in change.shares)
        return f"{low} to {high} %" if all(map(math.isfinite, change.shares)) else MISSING
    return span(change)
