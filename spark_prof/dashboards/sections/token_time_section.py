"""What an output token takes: the first sentence of a report, and the table of batch sizes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.token_time import TokenTime
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.units import count, counted, microseconds, rate

_MOST_SIZES = 4
_LEAST = 0.01  # of a token's time: what steps that read prompts add is told from there on
_WHOLE = 0.995  # share of the tokens that is as good as all of them


def sentence(report: Report, where: str = "") -> str:
    """How long an output token takes, at which batch size; empty where nothing tells.

    Args:
        where: words behind the time, such as " on this processor".
    """
    headline = report.steps.headline_and_screen
    if headline is None or not headline.time.token_us:
        return ""
    time = headline.time
    text = f"An output token takes {microseconds(time.token_us)}{_sizes(time, report)}{where}"
    if time.profiled_us is not None:
        text += f" (profiled: {microseconds(time.profiled_us)}{_only_profiled(time)})"
    text += f", {rate(time.tokens_per_s_sequence)} tokens/s a sequence"
    if time.batch != 1 and time.requests > 1:
        text += f", {rate(time.tokens_per_s)} together"
    if time.alone_us is not None and time.token_us - time.alone_us >= _LEAST * time.token_us:
        text += f"; {microseconds(time.alone_us)} when nothing is read beside it"
    return f"{text}."


def at_batch(report: Report) -> str:
    """Of which batch size a report's screen is, where several were recorded; else empty."""
    headline = report.steps.headline_and_screen
    if headline is None or len(report.steps.batches) < 2:
        return ""
    return "" if headline.screen.batch is None else f" at batch {count(headline.screen.batch)}"


def by_batch(report: Report, most: int = _MOST_SIZES) -> Section:
    """The time of a token at each batch size, those with the most time; empty for a single one."""
    times = report.steps.batches if len(report.steps.batches) > 1 else ()
    largest = sorted(times, key=_time, reverse=True)[:most]
    columns = (
        cells.Count("Batch", "batch"),
        cells.Time("A token", "token_us"),
        cells.Rate("Tokens/s a sequence", "tokens_per_s_sequence"),
        cells.Rate("Tokens/s together", "tokens_per_s"),
        cells.Count("Steps", lambda time: time.steps + time.timed_steps),
    )
    headline = report.steps.headline_and_screen
    what = at_batch(report).strip()
    title = f"By batch size; what follows is {what}" if what else "By batch size"
    if headline and not what:
        title = "By batch size; each has few steps, what follows is of all of them"
    if left := len(times) - len(largest):
        title += f" ({counted(left, 'more size')} in JSON)"
    return table("batches", title, sorted(largest, key=lambda t: t.batch or 0), columns)


def _time(time: TokenTime) -> float:
    return time.token_us * (time.steps + time.timed_steps)


def _sizes(time: TokenTime, report: Report) -> str:
    if time.batch is not None:
        return f" at batch {count(time.batch)}"
    sizes: Sequence[int] = [
        batch_time.batch for batch_time in report.steps.batches if batch_time.batch is not None
    ]
    if len(sizes) < 2:
        return ""
    span = f"{count(min(sizes))} to {count(max(sizes))}"
    return f" while {span} requests decode ({time.requests:,.1f} on average)"


def _only_profiled(time: TokenTime) -> str:
    if time.timed_share >= _WHOLE:
        return ""
    return f"; {100 * (1 - time.timed_share):.0f} % of the tokens are of sizes only profiled"
