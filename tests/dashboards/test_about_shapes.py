"""The section and the JSON about launch shapes."""

from __future__ import annotations

import json
from dataclasses import replace

from spark_prof.analyzers.shapes.shape_rows import Occupancy, ShapeRow, Shapes, Tile
from spark_prof.dashboards import about_shapes, html, json_report, markdown, text
from spark_prof.dashboards.outline import outline

from .sample import HOSTILE_NAME, SAMPLES

FULL = SAMPLES["mixture_of_experts"]

EXPERTS = ShapeRow(
    name="_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1", component="experts", grid="48,1,1",
    block="256,1,1", registers=129, shared_bytes=68608, calls=1152, us=25_000.0, share=0.6,
    blocks=48, waves=48 / 132, busy=48 / 132, achieved=0.031, tokens=4.0, rows_used=1.0456,
    occupancy=Occupancy(1, 8, 0.125, ("registers",)), expected=True,
    tile=Tile("Triton matmul_ogs", 16, 256, 128, 16),
)  # fmt: skip
NORM = replace(
    EXPERTS, name="rms_norm", component="norm", grid="1,1,1", share=0.3, waves=None, busy=None,
    occupancy=None, achieved=None, tile=None, rows_used=None,
)  # fmt: skip
RARE = replace(NORM, name="rare", share=0.009)
SHAPES = Shapes(48, 132, (EXPERTS, NORM, RARE), ("A note.",))


def test_the_rows_say_how_kernels_fill_the_gpu() -> None:
    section = about_shapes.shapes(replace(FULL, shapes=SHAPES))
    assert section.rows == (
        ("60.0 %", "experts", "48x1x1", "0.36", "36.4 %", "12.5 %", "registers", "3.1 %",
         "16x256x128", "about 1.05 of 16", EXPERTS.name),
        ("30.0 %", "norm", "1x1x1", "-", "-", "-", "-", "-", "-", "-", "rms_norm"),
    )  # fmt: skip
    assert section.intro[0].startswith("Launches of decode steps on 132 multiprocessors.")
    assert "cost arithmetic, not memory traffic" in section.intro[1]
    assert section.intro[-1] == "A note."


def test_without_shapes_there_is_no_section() -> None:
    for report in (FULL, replace(FULL, shapes=Shapes(48, 132, (RARE,)))):
        assert about_shapes.shapes(report).rows == ()
        assert "shapes" not in [section.id for section in outline(report).sections]


def test_json_has_every_shape_with_what_follows_from_it() -> None:
    value = json.loads(json_report.render(replace(FULL, shapes=SHAPES)))["shapes"]
    assert value["multiprocessors"] == 132
    assert [row["name"] for row in value["rows"]] == [EXPERTS.name, "rms_norm", "rare"]
    first = value["rows"][0]
    assert first["occupancy"] == {
        "blocks": 1, "warps": 8, "share": 0.125, "limiters": ["registers"],
    }  # fmt: skip
    assert first["us_per_call"] == round(25_000 / 1152, 6)
    assert first["tile_waste"] == round(1 - 1.0456 / 16, 6)
    assert value["rows"][1]["tile_waste"] is None
    assert json.loads(json_report.render(FULL))["shapes"] is None


def test_a_hostile_name_stays_on_its_line() -> None:
    hostile = replace(EXPERTS, name=HOSTILE_NAME, grid=HOSTILE_NAME, component=HOSTILE_NAME)
    report = replace(FULL, shapes=Shapes(1, 132, (hostile,)))
    for cell in about_shapes.shapes(report).rows[0]:
        assert str(cell).isprintable()
    for renderer in (text, markdown, html):
        assert "\x1b" not in renderer.render(report)
