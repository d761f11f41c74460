"""Every figure that stands twice in a report is the same figure, in all recordings."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.outline import outline
from spark_prof.datasets.opened import opened
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
SOURCES = sorted(
    {meta.parent for meta in DATA.rglob("meta.json")} | {*DATA.glob("kineto/*.json.gz")}
)


@each_row("source", SOURCES)
def test_what_stands_twice_is_one_figure(source: Path) -> None:
    with opened(str(source)) as bundle:
        report = summarize(bundle)
    if not report.tokens:
        pytest.skip("a source of sums has no steps")
    pairs = dict(figures(report))
    different = {name: pair for name, pair in pairs.items() if pair[0] != pytest.approx(pair[1])}
    assert not different
    assert {name: pair for name, pair in shown(report).items() if len(pair) > 1} == {}


def figures(report: Report) -> list[tuple[str, tuple[float, float]]]:
    """Names of figures, each with what two parts of the report say of it."""
    ledger, waterfall = report.tokens[0], waterfall_of(report)
    parts = {part.kind: part.us * ledger.step_us / waterfall.us for part in waterfall.parts}
    found = [
        ("step and its parts", (ledger.step_us, sum(row.charged_us for row in ledger.rows))),
        ("step in the waterfall", (waterfall.us, sum(part.us for part in waterfall.parts))),
        ("launch gaps", (ledger.us(LAUNCH_GAPS), parts["launch_gaps"])),
        ("host", (ledger.us(HOST), parts["host"])),
        ("copies", (ledger.us("memcpy"), parts["copies"])),
        ("rest", (0.0, parts["rest"])),
    ]
    steps, roofline = report.steps, report.roofline
    if ledger.phase == "decode":
        assert steps.decode_us is not None
        found += [("median step", (ledger.step_us, steps.decode_us.median))]
        found += [
            (f"{row.name} a step", (row.decode_us_per_step, ledger.us(row.name)))
            for row in report.components
        ]
    if steps.tpot_us:
        found += [("token", (waterfall.us, steps.tpot_us.median))]
        found += [("token in ms", (1e3 * (ledger.ms_per_token or 0), steps.tpot_us.median))]
    phase = roofline.decode if roofline and ledger.phase == "decode" else None
    if phase and phase.step_us:
        found += [("step of the roofline", (phase.step_us, ledger.step_us))]
        if waterfall.floor_us is not None and phase.floor_us is not None:
            found += [("lower bound", (phase.floor_us, parts["floor"]))]
    for books in report.books[1:]:
        own = sum(getattr(row, f"{books.phase}_us") for row in report.components)
        found += [(f"kernel time of {books.phase} steps", (books.kernels_us, own))]
    if report.books:
        for name in ("step_us", "kernels_us", "union_us", "copies_us", "gap_us"):
            whole, *phases = (getattr(books, name) for books in report.books)
            found += [(f"{name} of all steps", (whole, sum(phases)))]
    for sized in report.tokens:
        if sized.batch_size is not None:
            total = sum(row.charged_us for row in sized.rows)
            found += [(f"batch {sized.batch_size}", (sized.step_us, total))]
    return found


def shown(report: Report) -> dict[str, set[object]]:
    """What is written in each row that two tables have, by its name."""
    cells: dict[str, set[object]] = defaultdict(set)
    same = {"measured": "total", "memcpy": "copies"}
    for section in outline(report).sections:
        if section.id not in ("waterfall", "components"):
            continue
        for row in section.rows:
            name = same.get(str(row[0]), str(row[0]))
            if name in ("launch gaps", "host", "total", "copies"):
                cells[name].add(row[1])
    return cells
