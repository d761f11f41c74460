"""The token ledger: where a token's time goes, and how it changes with the batch."""

from __future__ import annotations

from spark_prof.analyzers.clients.client_rows import ClientToken, beside_clients
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import GAPS, LAUNCH_GAPS, Ledger, LedgerRow, StepSpread
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
    share,
    shorten,
)

_MOST_SIZES = 5
_MOST_CLIENTS = 6
_LONGEST_LABEL = 40
_MUCH_UNNAMED = 0.05
_MUCH_OVERLAP = 0.0005


def ledger(report: Report) -> Section:
    """Takes the typical step apart: a decode step, or where there is none one of another kind."""
    chosen = report.tokens[0]
    prefill = next((one for one in report.tokens[1:] if one.phase == "prefill"), None)
    beside = {row.name: row.charged_us for row in prefill.rows} if prefill else {}
    factor = _per_token(chosen)
    several = chosen.steps > 1
    columns = (
        cells.Text("Component", lambda row: _name(row.name)),
        cells.Time(
            "A step" if chosen.ms_per_token is None else "A token",
            lambda row: factor * row.charged_us,
        ),
        cells.Share("Share", "share"),
        cells.Bar("", "share"),
        cells.Written(
            "10 to 90 % of the steps", lambda row: _range(row.spread) if several else None
        ),
        cells.Time("A layer", "per_layer_us"),
        cells.SomeTime("Prefill step", lambda row: beside.get(row.name), optional=True),
        cells.Time(
            "99th percentile", lambda row: row.spread.p99 if several else None, optional=True
        ),
        cells.Time(
            "Kernel time", lambda r: r.summed_us if _overlaps(r, chosen) else None, optional=True
        ),
        cells.Time(
            "Exclusive", lambda r: r.alone_us if _overlaps(r, chosen) else None, optional=True
        ),
    )
    rows = sorted(chosen.rows, key=lambda row: (row.name in GAPS, -row.charged_us))
    heading = f"Where the time of a {'token' if chosen.phase == 'decode' else 'step'} goes"
    total: tuple[Cell, ...] = (
        *("total", microseconds(factor * chosen.step_us), share(1.0), 0.0),
        *(_range(chosen.step) if several else MISSING, MISSING),
        microseconds(prefill.step_us if prefill else None),
        microseconds(chosen.step.p99 if several else None),
        *(MISSING, MISSING),
    )
    intro = _intro(report, chosen, factor)
    return table("components", heading, rows, columns, intro, (total,))


def _range(spread: StepSpread) -> str:
    """From the 10th to the 90th percentile."""
    return between(microseconds(spread.p10), microseconds(spread.p90))


def _name(name: str) -> str:
    return name.replace("_", " ") if name == LAUNCH_GAPS else name


def _overlaps(row: LedgerRow, chosen: Ledger) -> bool:
    much = chosen.overlap_us > _MUCH_OVERLAP * chosen.step_us
    return much and row.summed_us - row.alone_us > _MUCH_OVERLAP * row.summed_us


def _per_token(chosen: Ledger) -> float:
    """A token's part of a step: less than all of it where a step gives a sequence several."""
    if chosen.ms_per_token is None or not chosen.step_us:
        return 1.0
    return 1e3 * chosen.ms_per_token / chosen.step_us


def _intro(report: Report, chosen: Ledger, factor: float) -> tuple[str, ...]:
    kind = "" if chosen.phase == "unknown" else f"{chosen.phase} "
    unit = "operators" if on_cpu(report) else "kernels"
    sentences = [
        f"The median of {counted(chosen.steps, f'{kind}step')}; its parts are means over the "
        f"middle half by length. Where {unit} overlap, each instant is split evenly among them, so "
        "that the parts add up to the step."
    ]
    if chosen.ms_per_token is not None and abs(factor - 1) > 0.005:
        sentences.append(
            f"A step of {microseconds(chosen.step_us)} gives a sequence "
            f"{1 / factor:.2f} tokens: the first column is a token's part of it."
        )
    if chosen.overlap_us > _MUCH_OVERLAP * chosen.step_us:
        sentences.append(
            f"{microseconds(chosen.overlap_us)} of a step overlap: kernel time counts them in "
            "full, exclusive leaves them out."
        )
    what = "the engine's own Python runs" if on_cpu(report) else "the GPU waits for the host"
    sentences.append(
        f"In launch gaps nothing runs between the first and the last {unit[:-1]} of a step, in "
        f"host nothing before or after: {what}."
    )
    sentences += unnamed(report, unit)
    clients = beside_clients(report.tokens, report.clients)[:_MOST_CLIENTS]
    return (*sentences, *map(_client, clients))


def unnamed(report: Report, unit: str) -> tuple[str, ...]:
    """Says how much of the time has no component, where that is much."""
    found = sum(row.share for row in report.components if row.name == "other")
    if found <= _MUCH_UNNAMED:
        return ()
    return (
        f"{share(found)} of the time has no component (other): these {unit} carry no range "
        "and their names do not tell. See the notes at the end.",
    )


def _client(found: ClientToken) -> str:
    named = (shorten(name, _LONGEST_LABEL) for name in (found.tool, found.label))
    who = " ".join(filter(None, named))
    what = "output token" if found.quantity == "output_token" else "chunk"
    size = "" if found.batch_size is None else f" of {counted(found.batch_size, 'request')}"
    return (
        f"{who}: {microseconds(found.client_us)} per {what} ({found.statistic}), "
        f"{difference(found.client_us, found.ledger_us)} against the "
        f"{microseconds(found.ledger_us)} of a decode step{size}; "
        f"{microseconds(found.beyond_us)} lie outside it."
    )


def batch_sizes(report: Report) -> Section:
    """Sets decode steps of different batch sizes beside each other."""
    sized = [one for one in report.tokens if one.batch_size is not None]
    most = sorted(sized, key=lambda one: -one.steps)[:_MOST_SIZES]
    shown = sorted(most, key=lambda one: one.batch_size or 0)
    times = [{row.name: row.charged_us for row in one.rows} for one in shown]
    names = [row.name for row in report.tokens[0].rows] if shown else []
    rows = [
        (_name(name), *(nothing_as_missing(own.get(name, 0.0)) for own in times)) for name in names
    ]
    if shown:
        rows.append(("step", *(microseconds(one.step_us) for one in shown)))
        rows.append(("steps", *(count(one.steps) for one in shown)))
    columns = (
        Column("Component"),
        *(Column(f"Batch {count(one.batch_size or 0)}", "number") for one in shown),
    )
    intro = ["Median decode step by the number of requests that decode in it."]
    if left := len(sized) - len(shown):
        intro.append(f"{counted(left, 'more size')} in JSON.")
    return Section("batch_sizes", "Decode steps by batch size", columns, tuple(rows), tuple(intro))
