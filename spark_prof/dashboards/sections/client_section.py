"""Load generators: what their clients saw, and whether the engine's steps agree."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.clients.client_comparison import ClientComparison, ClientRow
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import (
    NEUTRAL,
    SHADES,
    Plot,
    add_bars,
    label,
    new_figure,
    set_time_axes,
)
from spark_prof.dashboards.section import Section, listed, table
from spark_prof.dashboards.units import counted, difference, figure, shorten

_MOST_RUNS = 50
_FEW_RUNS = 4
_MOST_SENTENCES = 12
_MOST_DRAWN = 24
_LONGEST_NAME = 44
_LONGEST_LABEL = 24
_LONGEST_PROSE = 1000

_QUANTITIES = {
    "output_token": ("TPOT", "a token"),
    "chunk": ("ITL", "a chunk"),
    "first_token": ("TTFT", "the first token"),
}
_BESIDE = (
    "Beside TPOT stands the engine's time per output token, beside ITL a step that decodes, beside "
    "TTFT the steps that read a prompt: what TTFT has beyond them is queueing, tokenizing and HTTP."
)


def agreement(report: Report) -> Section:
    """Puts what the clients saw beside what the engine's steps took."""
    rows = report.clients[:_MOST_RUNS]
    columns = (
        cells.Text("Run", lambda line: line[0] and name(line[0])),
        cells.Text("Of", lambda line: line[1] and _quantity(line[1]), missing="-"),
        cells.Time("Client", lambda line: line[1] and line[1].client),
        cells.Time("Engine", lambda line: line[1] and line[1].engine),
        cells.Formatted(
            "Client off by", lambda line: line[1] and difference(line[1].client, line[1].engine)
        ),
        cells.Time("Elsewhere", lambda line: line[1] and _elsewhere_us(line[1]), optional=True),
        cells.Text("Verdict", _verdict),
    )
    intro = _sentences(rows)
    if any(row.comparisons for row in rows):
        intro.append(_BESIDE)
    # A run stands beside the first quantity that was compared, and not beside its others.
    lines = [
        (None if place else row, comparison)
        for row in rows
        for place, comparison in enumerate(row.comparisons or (None,))
    ]
    return table("clients", "Does the client see the same?", lines, columns, intro)


def _verdict(line: tuple[ClientRow | None, ClientComparison | None]) -> str:
    row, comparison = line
    return "not compared" if comparison is None else row.verdict if row else ""


def _quantity(comparison: ClientComparison) -> str:
    return _QUANTITIES[comparison.quantity][0] + (
        ", median" if comparison.statistic == "median" else ""
    )


def _elsewhere_us(comparison: ClientComparison) -> float | None:
    return comparison.client - comparison.engine if comparison.client > comparison.engine else None


def runs(rows: Sequence[ClientRow]) -> Section:
    """Lists what the clients saw, run by run."""
    columns = (
        cells.Text("Tool", "tool"),
        cells.Text("Model", "model", longest=_LONGEST_NAME, optional=True),
        cells.Text("Run", "label", longest=_LONGEST_LABEL),
        cells.Count("At once", "concurrency"),
        cells.Count("Requests", "completed", optional=True),
        cells.SomeCount("Failed", "failed", optional=True),
        cells.Formatted("Tokens/s", lambda row: figure(row.output_throughput, ",.1f")),
        cells.Time("TTFT", "ttft.typical"),
        cells.Time("TPOT", "tpot.typical"),
        cells.Time("TPOT p99", "tpot.p99", optional=True),
        cells.Time("ITL", "itl.typical"),
        cells.Ratio("Tokens a chunk", "tokens_per_chunk", optional=True),
        cells.Time("Whole request", "e2e.typical", optional=True),
    )
    title = "What the clients saw"
    return table("client_runs", title, rows[:_MOST_RUNS], columns, _intro(rows))


def remarks(rows: Sequence[ClientRow], lost: Sequence[str]) -> Section:
    """Lists what the results do not tell and what to know of the runs, once each."""
    texts = dict.fromkeys([*lost, *(text for row in rows for text in row.sentences)])
    return listed("notes", "Caveats", texts)


def name(row: ClientRow) -> str:
    """What tells a run from the others."""
    at_once = f"{row.concurrency} at a time" if row.concurrency else ""
    return shorten(", ".join(filter(None, (row.tool, row.label, at_once))), _LONGEST_NAME)


def _sentences(rows: Sequence[ClientRow]) -> list[str]:
    """The sentences of each of a few runs; of many, those that are not about one of them."""
    if len(rows) <= _FEW_RUNS:
        texts = [f"{name(row)}: {' '.join(row.sentences)}" for row in rows]
    else:
        sentences_by_run = (row.sentences[1:] if row.comparisons else row.sentences for row in rows)
        texts = list(dict.fromkeys(text for sentences in sentences_by_run for text in sentences))
    return [shorten(text, _LONGEST_PROSE) for text in texts[:_MOST_SENTENCES]]


def _intro(rows: Sequence[ClientRow]) -> list[str]:
    """Says what the columns are, and which figures nobody gave."""
    intro = [
        "Means, or medians where a tool gives no mean. TPOT is per token after the first, ITL per "
        "chunk of the stream."
    ]
    derived: dict[str, set[str]] = {}
    for row in rows:
        latencies = {"TTFT": row.ttft, "TPOT": row.tpot, "ITL": row.itl, "E2E": row.e2e}
        for title, latency in latencies.items():
            if latency.derived:
                derived.setdefault(latency.derived, set()).add(title)
    intro += [f"Derived, {how}: {', '.join(sorted(titles))}." for how, titles in derived.items()]
    if len(rows) > _MOST_RUNS:
        intro.append(f"{counted(len(rows) - _MOST_RUNS, 'run')} more; JSON has them all.")
    return intro


def clients_beside_steps(rows: Sequence[ClientRow]) -> Plot:
    """Draws each compared time twice: as the client saw it, and as the steps have it."""
    pairs = [
        (f"{number}. {label(name(row))}: {_QUANTITIES.get(one.quantity, ('', 'other'))[1]}", one)
        for number, row in enumerate(rows, 1)
        for one in row.comparisons
    ][:_MOST_DRAWN]
    names = [text for text, _ in pairs]
    drawn = new_figure(
        "What clients waited, and what steps took", 120 + 40 * len(pairs), legended=True,
        barmode="group", margin={"r": 76},
    )  # fmt: skip
    for title, color in (("client", SHADES[0]), ("engine", NEUTRAL)):
        times = [getattr(one, title) for _, one in pairs]
        add_bars(drawn, names, times, color, hover=f"%{{y}}, {title}: %{{text}}", name=title)
    set_time_axes(drawn, max((max(one.client, one.engine) for _, one in pairs), default=1.0))
    return drawn
