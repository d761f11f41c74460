"""Sections about how much faster side b is: its gain run by run, and side a against itself."""

from __future__ import annotations

from collections import Counter

from spark_prof.ab.outcome import chosen_run, detectable_in, effect_of, host_behind, outcome_of
from spark_prof.ab.power import CAPTURES_APART
from spark_prof.ab.result import AARun, Result, Run
from spark_prof.ab.statistics import Estimate, Interval, why_unknown
from spark_prof.dashboards.ab_answer import interval, step_time, what_ran
from spark_prof.dashboards.formats import MISSING, clean, count, counted, figure, share
from spark_prof.dashboards.section import Column, Section


def gains(result: Result) -> Section:
    """One row a batch size or prompt's length."""
    columns = (
        Column("Steps"),
        Column("a", "number"),
        Column("b", "number"),
        Column("Gain", "number"),
        Column("95 %"),
        Column("Detectable", "number"),
        Column("b is"),
        Column("Saved", "number", optional=True),
        Column("95 %", optional=True),
        Column("Starts" if result.mode == "two engines" else "Quads", "number", optional=True),
    )
    failed = outcome_of(result) == "gate failed"
    rows = tuple(_row(result, run) for run in result.runs)
    chosen = chosen_run(result)
    intro = (
        "The gate failed: none of these times counts." if failed else "",
        "Time of a step, which gives each request of the batch one token, or computes the prompts. "
        "Gain: a's time over b's.",
        *(_detectable(result, run) for run in result.runs),
        *_behind(result),
        f"Intervals: {clean(chosen.estimate.method)}." if chosen and chosen.estimate.method else "",
    )
    return Section("ab_gains", "Gain", columns, rows, tuple(filter(None, intro)))


def itself(result: Result) -> Section:
    """Side a compared with itself."""
    columns = (
        Column("Steps"),
        Column("Gain", "number"),
        Column("95 %"),
        Column("Quads", "number", optional=True),
        Column("Verdict", "prose"),
    )
    rows = tuple(
        (
            f"batch {run.requests}{_again(run)}",
            _factor(run.test.estimate.gain),
            interval(run.test.estimate.gain),
            count(run.test.estimate.quads),
            clean(run.test.line or run.test.estimate.missing),
        )
        for run in result.aa
    )
    intro = ["The same measurement with nothing to find: 1 has to lie in the interval."]
    if any(run.captured_again for run in result.aa):
        intro.append(
            "Captured again: CUDA graphs of the same kernels elsewhere in memory. A steady "
            "difference there is no fault; no effect below it, or below "
            f"{share(CAPTURES_APART)}, is claimed."
        )
    return Section("ab_itself", "Side a against itself", columns, rows, tuple(intro))


def left_out(result: Result) -> Section:
    """Quads that do not count, and runs without a gain."""
    columns = (Column("Steps"), Column("Not counted"), Column("Why", "prose"))
    runs = [
        (f"a against a, batch {run.requests}{_again(run)}", run.test.estimate) for run in result.aa
    ]
    runs += [(what_ran(run), run.estimate) for run in result.runs]
    rows = tuple(row for name, estimate in runs for row in _left_out(name, estimate))
    return Section("ab_left_out", "Not counted", columns, rows)


def _behind(result: Result) -> list[str]:
    """A sentence for each run in which the device waited for the host."""
    found = []
    for run in result.runs:
        ahead = {"a": run.ahead_a, "b": run.ahead_b}
        sides = [
            f"side {side} (ahead in {share(ahead[side])} of the steps)" for side in host_behind(run)
        ]
        if sides:
            found.append(
                f"At {what_ran(run)} the host was behind on {' and '.join(sides)}: the device "
                "waited for it, and a faster host would show another gain."
            )
    return found


def _detectable(result: Result, run: Run) -> str:
    """A sentence for a run that has a gain."""
    if run.estimate.gain is None:
        return ""
    where = "" if run is chosen_run(result) else f" at {what_ran(run)}"
    found = detectable_in(run, result.aa)
    if found is None:
        return f"Minimum detectable effect{where}: not known ({clean(why_unknown(run.estimate))})."
    if where:
        return ""
    return (
        f"Minimum detectable effect: {share(found)} (80 % power): of runs like this one, four in "
        "five find a gain of that size."
    )


def _row(result: Result, run: Run) -> tuple[str, ...]:
    found = run.estimate
    smallest = detectable_in(run, result.aa)
    unknown = MISSING if found.gain is None else "not known"
    return (
        what_ran(run),
        step_time(found.a_us),
        step_time(found.b_us),
        _factor(found.gain),
        interval(found.gain),
        unknown if smallest is None else figure(100 * smallest, ".2f", " %"),
        "not counted" if outcome_of(result) == "gate failed" else effect_of(run, result.aa),
        step_time(found.saved_us.value if found.saved_us else None),
        _span(found.saved_us),
        count(found.quads),
    )


def _again(run: AARun) -> str:
    return ", captured again" if run.captured_again else ""


def _factor(gain: Interval | None) -> str:
    return figure(gain.value if gain else None, ".4f", " x")


def _span(found: Interval | None) -> str:
    if found is None:
        return MISSING
    low, high = step_time(found.low), step_time(found.high)
    unit, other = (text.rpartition(" ")[2] for text in (low, high))
    return f"{low.rpartition(' ')[0]} to {high}" if unit == other else f"{low} to {high}"


def _left_out(name: str, estimate: Estimate) -> list[tuple[str, str, str]]:
    reasons = Counter(clean(dropped.why) for dropped in estimate.dropped)
    rows = [(name, counted(number, "quad"), why) for why, number in reasons.most_common()]
    if estimate.missing:
        rows.append((name, "no gain", clean(estimate.missing)))
    total = len(estimate.dropped) + estimate.quads
    if len(reasons) > 1:
        rows.insert(0, (name, f"{share(len(estimate.dropped) / total)} of the quads", ""))
    return rows
