"""Where a token's time goes, and how it changes with the batch."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.clients.client_comparison import ClientToken, beside_clients
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import (
    GAPS,
    HOST,
    LAUNCH_GAPS,
    AccountPart,
    StepAccount,
    StepSpread,
)
from spark_prof.analyzers.token_time import TokenTime
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Cell, Column, Section, table
from spark_prof.dashboards.sections.run_section import on_cpu
from spark_prof.dashboards.units import (
    MISSING,
    between,
    count,
    counted,
    difference,
    microseconds,
    nothing_as_missing,
    rate,
    share,
    shorten,
)

_MOST_BATCHES = 4
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
    if (
        time.decode_only_us is not None
        and time.token_us - time.decode_only_us >= _LEAST * time.token_us
    ):
        text += f"; {microseconds(time.decode_only_us)} when no prompt is read beside it"
    return f"{text}."


def at_batch(report: Report) -> str:
    """The batch size of a report's screen in words, where several were recorded; else empty."""
    headline = report.steps.headline_and_screen
    if headline is None or len(report.steps.batches) < 2:
        return ""
    return "" if headline.screen.batch is None else f" at batch {count(headline.screen.batch)}"


def by_batch(report: Report, most: int = _MOST_BATCHES) -> Section:
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
    batch_text = at_batch(report).strip()
    title = f"By batch size; what follows is {batch_text}" if batch_text else "By batch size"
    if headline and not batch_text:
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


_MOST_SIZES = 5
_MOST_CLIENTS = 6
_LONGEST_LABEL = 40
_MUCH_UNNAMED = 0.05
_MUCH_OVERLAP = 0.0005
BEYOND = {"uneven": "uneven steps", "unprofiled": "without profiling"}
"""What the parts of a token beyond its typical step are called."""


def step_parts(report: Report) -> Section:
    """Takes the typical step apart: a decode step, or where there is none one of another kind."""
    chosen = report.drawn_step or report.typical_steps[0]
    prefill = next(
        (one for one in report.typical_steps if one is not chosen and one.phase == "prefill"), None
    )
    factor, beyond = chosen.steps_per_token or 1.0, _beyond(chosen)
    spread = chosen.step if chosen.steps > 1 else None
    columns = (
        cells.Text("Component", lambda row: _name(row.name)),
        cells.Time(
            ("A step" if report.run.tells_steps else "In all")
            if chosen.token_us is None
            else "A token",
            lambda row: factor * row.us,
        ),
        cells.Share("Share", chosen.share),
        cells.Bar("", chosen.share),
        cells.Formatted("10 to 90 % of the steps", lambda row: spread and _range(row.spread)),
        cells.Time("A layer", "per_layer_us"),
        cells.SomeTime("Prefill step", lambda row: prefill and prefill.us(row.name), optional=True),
        cells.Time("99th percentile", lambda row: spread and row.spread.p99, optional=True),
        cells.Time(
            "Kernel time", lambda r: r.kernel_us if _overlaps(r, chosen) else None, optional=True
        ),
        cells.Time(
            "Exclusive", lambda r: r.exclusive_us if _overlaps(r, chosen) else None, optional=True
        ),
    )
    rows = sorted(chosen.parts, key=lambda row: (row.name in GAPS, -row.us))
    heading = f"Where the time of a {'token' if chosen.phase == 'decode' else 'step'} goes"
    if not report.run.tells_steps:
        heading = "Where the time of the recording goes"
        rows = [row for row in rows if row.name != HOST or row.us]
    total: tuple[Cell, ...] = (
        *("median step" if beyond else "total", microseconds(factor * chosen.step_us)),
        *(share(1.0), 0.0),
        *(_range(spread) if spread else MISSING, MISSING),
        microseconds(prefill.step_us if prefill else None),
        microseconds(spread.p99 if spread else None),
        *(MISSING, MISSING),
    )
    intro = _intro(report, chosen)
    below = [total, *((name, microseconds(us), *(MISSING,) * 8) for name, us in beyond)]
    return table("components", heading + at_batch(report), rows, columns, intro, below)


def _beyond(chosen: StepAccount) -> list[tuple[str, float]]:
    """What a token takes beyond the median step, and the token."""
    token = chosen.token
    if token is None or chosen.token_us is None:
        return []
    rows = [(BEYOND.get(name, name), us) for name, us in token.beyond.items()]
    return [*rows, ("a token", token.token_us)] if rows else []


def _range(spread: StepSpread) -> str:
    """The range from the 10th to the 90th percentile, in words."""
    return between(microseconds(spread.p10), microseconds(spread.p90))


def _name(name: str) -> str:
    return name.replace("_", " ") if name == LAUNCH_GAPS else name


def _overlaps(row: AccountPart, chosen: StepAccount) -> bool:
    much = chosen.overlap_us > _MUCH_OVERLAP * chosen.step_us
    return much and row.kernel_us - row.exclusive_us > _MUCH_OVERLAP * row.kernel_us


def _intro(report: Report, chosen: StepAccount) -> tuple[str, ...]:
    kind = "" if chosen.phase == "unknown" else f"{chosen.phase} "
    unit = "operators" if on_cpu(report) else "kernels"
    if not report.run.tells_steps:
        return (
            f"From the first {unit[:-1]} to the last. Where {unit} overlap, each instant is split "
            "evenly among them, so that the parts add up.",
            f"In launch gaps nothing runs between the first and the last {unit[:-1]}, in host "
            "nothing before or after: whether for want of work or of launches nothing tells.",
            *unnamed(report, unit),
        )
    sentences = [
        f"The median of {counted(chosen.steps, f'{kind}step')}; its parts are means over the "
        f"middle half by length. Where {unit} overlap, each instant is split evenly among them, so "
        "that the parts add up to the step."
    ]
    token = chosen.token
    if token and token.steps_per_token and abs(token.steps_per_token - 1) > 0.005:
        sentences.append(
            f"A step of {microseconds(chosen.step_us)} gives a sequence "
            f"{1 / token.steps_per_token:.2f} tokens: the first column is a token's part of it."
        )
    if token and token.profiled_us is not None:
        sentences.append(
            f"The time of a token is that of {counted(token.timed_steps, 'step')} that were not "
            f"profiled ({microseconds(token.profiled_us)} with profiling); its parts are of "
            "profiled ones."
        )
    if chosen.overlap_us > _MUCH_OVERLAP * chosen.step_us:
        sentences.append(
            f"{microseconds(chosen.overlap_us)} of a step overlap: kernel time counts them in "
            "full, exclusive leaves them out."
        )
    cause = "the engine's own Python runs" if on_cpu(report) else "the GPU waits for the host"
    sentences.append(
        f"In launch gaps nothing runs between the first and the last {unit[:-1]} of a step, in "
        f"host nothing before or after: {cause}."
    )
    sentences += unnamed(report, unit)
    clients = beside_clients(report.typical_steps, report.clients)[:_MOST_CLIENTS]
    return (*sentences, *map(_client, clients))


def unnamed(report: Report, unit: str) -> tuple[str, ...]:
    """Says how much of the time has no component, where that is much."""
    unnamed_share = sum(row.share for row in report.components if row.name == "other")
    if unnamed_share <= _MUCH_UNNAMED:
        return ()
    return (
        f"{share(unnamed_share)} of the time has no component (other): neither a range nor a name "
        f"tells what these {unit} work for. See the notes at the end.",
    )


def _client(client: ClientToken) -> str:
    named = (shorten(name, _LONGEST_LABEL) for name in (client.tool, client.label))
    who = " ".join(filter(None, named))
    unit = "output token" if client.quantity == "output_token" else "chunk"
    size = "" if client.batch_size is None else f" of {counted(client.batch_size, 'request')}"
    return (
        f"{who}: {microseconds(client.client_us)} per {unit} ({client.statistic}), "
        f"{difference(client.client_us, client.ledger_us)} against the "
        f"{microseconds(client.ledger_us)} of a decode step{size}; "
        f"{microseconds(client.beyond_us)} lie outside it."
    )


def batch_sizes(report: Report) -> Section:
    """Sets decode steps of different batch sizes beside each other."""
    sized = [one for one in report.typical_steps if one.batch_size is not None]
    most = sorted(sized, key=lambda one: -one.steps)[:_MOST_SIZES]
    steps = sorted(most, key=lambda one: one.batch_size or 0)
    names = [part.name for part in report.typical_steps[0].parts] if steps else []
    rows = [(_name(name), *(nothing_as_missing(one.us(name)) for one in steps)) for name in names]
    if steps:
        rows.append(("step", *(microseconds(one.step_us) for one in steps)))
        rows.append(("steps", *(count(one.steps) for one in steps)))
    columns = (
        Column("Component"),
        *(Column(f"Batch {count(one.batch_size or 0)}", "number") for one in steps),
    )
    intro = ["Median decode step by the number of requests that decode in it."]
    if left := len(sized) - len(steps):
        intro.append(f"{counted(left, 'more size')} in JSON.")
    return Section("batch_sizes", "Decode steps by batch size", columns, tuple(rows), tuple(intro))
