"""What drafted tokens bring: the line of the first screen, tables of acceptance and cost."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.speculation.speculation_rows import DraftCost, DraftGroup, Speculation
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, listed, table
from spark_prof.dashboards.sections.token_section import at_batch
from spark_prof.dashboards.units import between, count, counted, microseconds, share, shorten

_UNKNOWN = {
    "drafter": "what drafting takes is not recorded",
    "cpu": "a processor computes longer for more tokens",
    "wide": "with so many tokens a step computes longer than it reads weights",
}
"""Why nothing tells what a step without drafts would take."""
_ESTIMATED = {
    "steps": "the mean of {plain} that had no drafts, at the same batch sizes, without the "
    "drafting in them",
    "drafter": "steps with drafts without their drafting, as they read the same weights",
}
_LONGEST = 40  # characters of a method's name
_SAME = 0.005  # of a time: no further apart they are the same figure
_MORE_EXPERTS = "; the lower figure also without the experts that only drafts may need"


def line(report: Report) -> str:
    """How many drafts are accepted, and what a token takes with and without; empty without any."""
    speculation = report.speculation
    if speculation is None or not speculation.verified:
        return ""
    text = f"{_accepted(speculation)} drafts accepted"
    if speculation.cost is not None:
        token_us, headline = speculation.cost.token_us, report.steps.headline
        same = headline is not None and abs(token_us - headline.token_us) < _SAME * token_us
        where = "" if same else f" in decode steps{at_batch(report)}"
        text += f"; a token takes {microseconds(token_us)}{where}"
        text += _without(speculation.cost)
    return f"{text}."


def sections(report: Report) -> tuple[Section, ...]:
    """All there is about drafts; `--section speculation` shows it."""
    speculation = report.speculation
    if speculation is None:
        return ()
    return (
        listed(
            "speculation", f"Speculation{_method(speculation)}", _sentences(speculation, report)
        ),
        _positions(speculation),
        _groups(
            "speculation-contexts", "Drafts by context", "Tokens in the cache", speculation.contexts
        ),
        _groups("speculation-batches", "Drafts by batch size", "Batch", speculation.batches),
        _drafter(speculation, report),
    )


def _sentences(speculation: Speculation, report: Report) -> Iterator[str]:
    yield line(report)
    yield (
        f"{counted(speculation.accepted, 'draft')} of {count(speculation.proposed)} accepted, in "
        f"{counted(speculation.verified, 'verification')} of "
        f"{counted(speculation.requests, 'request')}."
    )
    if speculation.unknown:
        yield (
            f"Nothing was taken of {counted(speculation.unknown, 'more verification')}: the "
            "request had ended meanwhile."
        )
    if (cost := speculation.cost) is None:
        return
    yield (
        f"A decode step with drafts takes {microseconds(cost.step_us)}{at_batch(report)}: it "
        f"computes {cost.width:.1f} tokens of a sequence and gives it {cost.tokens_per_step:.2f} "
        f"({counted(cost.steps, 'step')}, {count(cost.plain_steps)} without drafts)."
    )
    if cost.drafter_us is not None and cost.drafter_share is not None:
        where = "from the drafter's first kernel to its last"
        where = "on the host" if cost.drafter_by == "host" else where
        yield (
            f"Drafting takes {microseconds(cost.drafter_us)} of it, {share(cost.drafter_share)}, "
            f"{where}."
        )
    if cost.host_us is not None and cost.drafter_by != "host":
        yield f"The call that drafts takes {microseconds(cost.host_us)} on the host."
    yield _basis(cost)
    if cost.break_even is not None:
        bound = "" if cost.plain_high_us is not None else ", or more"
        yield (
            f"A step with drafts pays from {cost.break_even:.2f} accepted drafts on{bound}; "
            f"{cost.tokens_per_step - 1:.2f} are."
        )
    if cost.outside_graphs:
        yield (
            f"{counted(cost.outside_graphs, 'step')} with drafts ran outside of CUDA graphs, and "
            f"took {microseconds(cost.outside_us)} longer than those inside."
        )


def _basis(cost: DraftCost) -> str:
    """What the time without drafts stands on, or why there is none."""
    if cost.plain_by:
        template = _ESTIMATED.get(cost.plain_by)
        how = (
            template.format(plain=counted(cost.plain_steps, "step")) if template else cost.plain_by
        )
        remark = _MORE_EXPERTS if cost.plain_low_us != cost.plain_high_us else ""
        return f"Without drafts: estimated from {how}{remark}."
    why = _UNKNOWN.get(cost.why_unknown, cost.why_unknown)
    if cost.plain_most_us is None:
        return f"What a token would take without drafts is not known: {why}."
    return (
        f"Without drafts a token takes at most {microseconds(cost.plain_most_us)}, a step with "
        f"drafts without its drafting; how much less is not known: {why}."
    )


def _without(cost: DraftCost) -> str:
    """The end of the line: what a token takes without drafts."""
    low, high = cost.plain_low_us, cost.plain_high_us
    if low is not None and high is not None:
        figures = (microseconds(low), microseconds(high))
        time = figures[0] if low == high else between(*figures)
        return f"; without drafts about {time} (estimated)"
    if cost.plain_most_us is not None:
        return f"; without drafts at most {microseconds(cost.plain_most_us)} (estimated)"
    return ""


def _accepted(speculation: Speculation) -> str:
    """Such as `2.1 of 3`."""
    figures = (speculation.accepted_each, speculation.proposed_each)
    return " of ".join(f"{mean:.1f}".removesuffix(".0") for mean in figures)


def _method(speculation: Speculation) -> str:
    limit = (
        "" if speculation.most is None else f", at most {counted(speculation.most, 'draft')} a step"
    )
    return f" ({shorten(speculation.method, _LONGEST)}{limit})" if speculation.method else ""


def _positions(speculation: Speculation) -> Section:
    columns = (
        cells.Count("Position", "position"),
        cells.Count("Proposed", "proposed"),
        cells.Count("Accepted", "accepted"),
        cells.Share("Share", "share"),
        cells.Bar("", "share"),
        cells.Share("At least", "low"),
        cells.Share("At most", "high"),
    )
    intro = (
        "A draft is accepted with all before it. At least and at most: 95 % interval, as if "
        "verifications did not depend on each other.",
    )
    title = "Drafts by position"
    return table("speculation-positions", title, speculation.positions, columns, intro)


def _groups(name: str, title: str, column: str, groups: tuple[DraftGroup, ...]) -> Section:
    columns = (
        cells.Formatted(column, _span),
        cells.Count("Verifications", "verified"),
        cells.Count("Proposed", "proposed"),
        cells.Count("Accepted", "accepted"),
        cells.Ratio("Proposed each", "proposed_each"),
        cells.Ratio("Accepted each", "accepted_each"),
        cells.Share("First accepted", "first"),
        cells.SomeTime("A decode step", "step_us"),
    )
    return table(name, title, groups, columns)


def _span(group: DraftGroup) -> str:
    if group.high is None:
        return f"{count(group.low)} and more"
    return count(group.low) if group.low == group.high else f"{count(group.low)}-{group.high:,}"


def _drafter(speculation: Speculation, report: Report) -> Section:
    """What the drafter's own kernels take, by component."""
    cost = speculation.cost
    parts = () if cost is None else cost.parts
    whole = 0.0 if cost is None else cost.step_us
    columns = (
        cells.Text("Part", lambda part: f"drafter.{part.component}"),
        cells.Time("A step", "us"),
        cells.Share("Share", lambda part: part.us / whole if whole else None),
        cells.Bar("", lambda part: part.us / whole if whole else 0.0),
    )
    title = f"The drafter's kernels in a decode step with drafts{at_batch(report)}"
    return table("speculation-drafter", title, parts, columns)
