"""The section and the JSON about launch shapes."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.shapes.model import Occupancy, ShapeRow, Shapes, Tile
from spark_prof.dashboards.sections import counter_section

from .sample import SAMPLES

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
    section = counter_section.shapes(replace(FULL, shapes=SHAPES))
    assert section.rows == (
        ("60.0 %", "experts", "48x1x1", "0.36", "36.4 %", "12.5 %", "registers", "3.1 %",
         "16x256x128", "about 1.05 of 16", EXPERTS.name),
        ("30.0 %", "norm", "1x1x1", "-", "-", "-", "-", "-", "-", "-", "rms_norm"),
    )  # fmt: skip
    assert section.intro[0].startswith("Launches of decode steps on 132 multiprocessors.")
    assert "cost arithmetic, not memory traffic" in section.intro[1]
    assert section.intro[-1] == "A note."
