"""What holds of every recording in tests/data, each of which is read once for all of it."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import step_weights
from spark_prof.analyzers.summary import ReportWithRows, summarize, summary_of
from spark_prof.analyzers.views.layer_cells import step_cells
from spark_prof.analyzers.views.waterfall import whole
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.render import RENDERERS, Layout, render_report
from spark_prof.dashboards.render.limits import bounded
from spark_prof.dashboards.section import DocumentBounds
from spark_prof.dashboards.sections import roofline_section
from spark_prof.dashboards.short_report import short_report
from spark_prof.datasets.opened import ceilings_for, opened
from spark_prof.datasets.prepared import prepare
from spark_prof.errors import CommandError
from spark_prof.tune.engine_traits import recorded_facts
from spark_prof.vocabulary import BASES, COMPONENTS, COPIES
from tests.analyzers.agreeing import contradictions, other_figures, screen_contradictions
from tests.analyzers.findings.test_ranking import overclaimed
from tests.analyzers.findings.test_verify import right
from tests.golden.corpus import RECORDINGS
from tests.tune.test_candidates import check_candidates

MOST_LINES = 70
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


DATA = Path(__file__).parent / "data"
FOREIGN = Path(__file__).parents[2] / "shared" / "traces"
QUICK = {*RECORDINGS[::3], "code-h100/dense-fp8-token", "code-h100/gpt-oss-20b-mxfp4"}
EXPLAINED = {
    ("architectures/deepseek-v2/eager", "layers-alike"): "The router of layer 2 copies to the host "
    "in the first decode step of each batch, that of layer 3 does not.",
}
"""Why a check fails in a recording; one that is not here is a defect."""


def recordings() -> list[Any]:
    """Everything in tests/data that a report can be made of, by its path there."""
    bundles = [meta.parent for meta in DATA.rglob("meta.json")]
    traces = [path for folder in ("kineto", "proton") for path in (DATA / folder).iterdir()]
    names = sorted(str(path.relative_to(DATA)) for path in (*bundles, *traces))
    return [pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK)) for x in names]


@pytest.mark.parametrize("name", recordings())
def test_what_holds_of_any_recording(name: str) -> None:
    """The quick tests look at some whose reports are stored, and at two more."""
    with opened(str(DATA / name)) as source:
        facts = recorded_facts(source) if (DATA / name).is_dir() else None
        for rank in source.ranks:
            found = summary_of(source, rank, measured=ceilings_for(source, rank))
            report = whole(found.report)
            agrees(name, rank, report)
            assert overclaimed(report, report.findings) == []
            assert report.audit is None or report.audit.known_issues == ()
            right(report.findings, report.run.model)
            fits_one_screen(name, report)
            roofline = report.roofline
            if roofline and roofline.decode and roofline.decode.kernels_us:
                adds_up(name, found)
            if facts and rank == min(source.ranks):
                cells_add_up(str(DATA / name))
                for sizes in ((), (3, 32), (64,)):
                    check_candidates(report, replace(facts, batch_sizes=sizes))


def agrees(name: str, rank: int, report: Report) -> None:
    """Fails where a check does without a reason, or two figures of a report do not agree."""
    failed = {row.id: row.text for row in report.invariants if row.ok is False}
    assert {(name, id_) for id_ in failed} <= EXPLAINED.keys(), failed
    assert len(failed) < len(report.invariants)
    assert not contradictions(json.loads(RENDERERS["json"](report)), rank)
    assert not screen_contradictions(report)
    assert not other_figures(report)


@pytest.mark.slow
@pytest.mark.skipif(not FOREIGN.is_dir(), reason="no traces of others")
def test_the_traces_of_others_agree() -> None:
    for pattern in ("kineto/*", "kineto/odd/*", "cases/*.json", "nsys/*", "nsys_csv*/*",
                    "nsys_stats*/*", "ncu_*"):  # fmt: skip
        for path in sorted(FOREIGN.glob(pattern)):
            # Some, such as sums of API calls, are no source of a report.
            with suppress(CommandError), opened(str(path)) as source:
                for rank in source.ranks:
                    measured = ceilings_for(source, rank)
                    agrees(path.name, rank, summarize(source, rank, measured=measured))


def cells_add_up(source: str) -> None:
    """Fails where the cells of layers and components are not the report's rows."""
    prepared = prepare(source)
    cells = step_cells(prepared.kernels, prepared.steps)
    sums = {
        (layer if layer >= 0 else None, COMPONENTS[component]): ns
        for layer, component, ns in zip(
            cells.layer.tolist(), cells.component.tolist(), cells.ns.sum(axis=1), strict=True
        )
    }  # fmt: skip
    # What a drafter does outside the layers has rows of its own in the report.
    rows: Counter[tuple[int | None, str]] = Counter()
    for row in prepared.report.layers:
        rows[row.layer, row.component] += round(row.us * 1e3)
    assert sums == rows


def fits_one_screen(name: str, report: Report) -> None:
    """Fails where the short report is too long, repeats a command or names no real section."""
    for width in (80, 100):
        drawn = render_report(report, Layout("text", width))
        assert drawn.count("\n") <= MOST_LINES, (name, width)
        assert not re.search(r"(\.\.\.|…)$", drawn, re.M), (name, width)
    for words in (shlex.split(found.command) for found in report.findings):
        if "--section" in words:
            bounded(
                outline(report), DocumentBounds(sections=(words[words.index("--section") + 1],))
            )
    shown = [s for s in short_report(report).sections if s.id.startswith("findings-")]
    commands = [section.rows for section in shown if section.rows]
    assert len(shown) <= 3
    assert len(set(commands)) == len(commands), name


def adds_up(name: str, found: ReportWithRows) -> bool:
    """Whether a row has a role; fails where rows, or cells of the table, are not all there is."""
    assert found.report.roofline
    phase = found.report.roofline.decode
    assert phase
    decode = found.steps[(found.steps["phase"] == "decode").to_numpy()]
    if len(found.report.steps.batches) > 1 and (size := found.report.steps.screen_batch):
        decode = decode[decode["decode_requests"] == size]  # a screen is of one batch size
    weights = step_weights(decode["phase"], decode if found.timed else None)
    weight = dict(zip(decode.index, weights, strict=True))
    ran = found.kernels
    ran = ran[ran["step"].isin(decode.index) & ~ran["kind"].isin(COPIES)]
    us = (ran["end_ns"] - ran["start_ns"]) / 1e3 * ran["step"].map(weight)
    assert phase.kernels_us == pytest.approx(us.sum()), name
    keys = ["component", "role", "name"]
    weakest = ran.assign(us=us, basis=ran["basis"].astype(str).map(BASES.index).astype(int))
    groups = weakest.groupby(keys, observed=True).agg(us=("us", "sum"), basis=("basis", "max"))
    for row in phase.rows:
        assert row.us * row.calls == pytest.approx(groups.loc[row.place, "us"]), (name, row.place)
        assert BASES.index(row.owner_basis) == groups.loc[row.place, "basis"], (name, row.place)
        # One role for all layers.
        assert not any(part.isdigit() for part in row.role.split(".")), (name, row.role)
    section = roofline_section.kernels(found.report)
    if not phase.rows:
        # What began in an earlier step is no call of these.
        return not section.rows
    assert {len(row) for row in section.rows} == {len(section.columns)}
    cells = [str(row[1]).split() for row in section.rows]
    shown = sum(float(value.replace(",", "")) * UNITS[unit] for value, unit in cells)
    # Each cell has three digits at least.
    assert shown == pytest.approx(phase.kernels_us, rel=0.005), name
    return any(row.role for row in phase.rows)
