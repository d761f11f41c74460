"""Figures do not depend on how many rows are looked at together, nor on how a table is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers import instants, invariants, lookup, step_accounting
from spark_prof.analyzers.attribution import order
from spark_prof.analyzers.roofline import nodes
from spark_prof.analyzers.summary import summary_of
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.datasets.prepared import prepare
from spark_prof.traces import bundle as bundles
from spark_prof.traces.bundle import Bundle

DATA = Path(__file__).parents[1] / "data"
RECORDINGS = (
    "h100-gpt-oss-20b-mxfp4-graphs",
    "architectures/deepseek-v3-mtp/default",
)


def few_at_a_time(patch: pytest.MonkeyPatch, rows: int) -> None:
    for module in (invariants, lookup, order, nodes, step_accounting):
        patch.setattr(module, "BLOCK", rows)
    patch.setattr(instants, "_BLOCK", rows)
    patch.setattr(bundles, "_LARGE", 1)
    patch.setattr(bundles, "ROWS", rows)


def figures(folder: Path) -> Any:
    drawn = json.loads(render_report(summary_of(Bundle(folder)).report, Layout("json")))
    return without_rounding(drawn)


def without_rounding(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: without_rounding(item) for name, item in value.items()}
    return [without_rounding(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDINGS)
def test_a_report_of_a_few_rows_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = figures(DATA / name)
    few_at_a_time(monkeypatch, 997)
    assert figures(DATA / name) == wanted


@pytest.mark.parametrize("name", RECORDINGS)
def test_kernels_of_the_explorer_of_a_few_rows_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = prepare(str(DATA / name)).kernels
    few_at_a_time(monkeypatch, 997)
    kernels = prepare(str(DATA / name)).kernels
    assert kernels.names == wanted.names
    for column in ("start_ns", "end_ns", "step", "layer", "component", "name", "launch"):
        assert getattr(kernels, column).tolist() == getattr(wanted, column).tolist(), column
    assert kernels.launches.astype(str).equals(wanted.launches.astype(str))
