"""Every key that the JSON has under `shapes` is on its page, and its worked figures are right."""

from __future__ import annotations

from dataclasses import fields

import pytest

import spark_prof
from spark_prof.analyzers.shapes.grid_occupancy import occupancy_of
from spark_prof.analyzers.shapes.shape_rows import Occupancy, ShapeRow, Shapes, Tile
from spark_prof.rules.gpus import SM_LIMITS
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "shapes.md"
CAPTURE = ROOT / "tests" / "data" / "h100-gpt-oss-20b-mxfp4-graphs"


def test_every_json_key_of_the_shapes_is_on_their_page() -> None:
    [table] = tables(PAGE, "JSON")
    rows = {f"rows[].{field.name}" for field in fields(ShapeRow)}
    occupancy = {f"rows[].occupancy.{field.name}" for field in fields(Occupancy)}
    tile = {f"rows[].tile.{field.name}" for field in fields(Tile)}
    expected = {field.name for field in fields(Shapes)} | rows | occupancy | tile
    expected |= {"rows[].us_per_call", "rows[].tile_waste"}
    lists = {"rows", "notes", "rows[].occupancy.limiters"}
    expected = expected - lists | {"notes[]", "rows[].occupancy.limiters[]"}
    assert {row[0].strip("`") for row in table} == expected


@pytest.mark.parametrize(("capability", "share"), [("9.0", "18.8 %"), ("12.1", "25.0 %")])
def test_the_worked_example_of_occupancy(capability: str, share: str) -> None:
    found = occupancy_of(SM_LIMITS[capability], 384, 168, 0)
    assert found is not None
    assert (found.blocks, found.warps) == (1, 12)
    assert f"{100 * found.share:.1f} %" == share
    assert share in PAGE.read_text(encoding="utf-8")


def test_the_blocks_of_the_recording() -> None:
    if not CAPTURE.exists():
        pytest.skip(f"{CAPTURE} is not there")
    report = spark_prof.report(CAPTURE)
    assert report.shapes is not None
    assert report.roofline is not None
    reached = {
        (row.name, row.component): row.of_reached
        for phase in report.roofline.phases
        if phase.phase == "decode"
        for row in phase.rows
    }
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    products = [r for r in report.shapes.rows if "ogs_NNT" in r.name or r.component == "lm_head"]
    for row in products[:3]:
        share = reached[row.name, row.component]
        assert share is not None
        assert f"{row.blocks} " in page
        assert f"at {share:.0%}".replace("%", " %") in page
