"""The sections and the JSON about floors, streamed weights and measured ceilings."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.roofline.roofline_rows import (
    Bandwidth,
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
    StreamedWeights,
)
from spark_prof.dashboards.sections import roofline_section

from .sample import SAMPLES

FULL = SAMPLES["mixture_of_experts"]

SLOW = RooflineRow(
    name="slow", component="experts", calls=24.0, us=21.78, needed_bytes=17_811_000.0,
    streamed_bytes=17_765_000.0, operations=1.3e8, what="w2: 4 of 32 experts",
    basis="the products in launch order", expected=False, bandwidth=818e9, of_data_sheet=0.244,
    of_reached=0.27, floor_us=5.878, limiter="memory", left_us=381.6, left_ms_per_token=0.3816,
    read_bytes=20e6, read_by="PM sampling", amplification=1.126, role="mlp.experts.w2",
    owner_basis="weight",
)  # fmt: skip
AT_FLOOR = replace(SLOW, name="at floor", us=6.0, left_us=2.9, limiter="memory")
UNKNOWN = replace(
    SLOW, name="unknown", needed_bytes=None, bandwidth=None, of_data_sheet=None, of_reached=None,
    floor_us=None, limiter=None, left_us=None, left_ms_per_token=None, read_bytes=None, what="",
    amplification=None,
)  # fmt: skip
PHASE = RooflinePhase(
    phase="decode", steps=48, tokens=1.0, step_us=4288.5, kernels_us=3023.6, placed_us=2579.6,
    floor_us=1230.1, needed_bytes=3.73e9, streamed_bytes=3.72e9, operations=7.3e9,
    rows=(SLOW, AT_FLOOR, UNKNOWN), notes=("A note of the phase.",),
)  # fmt: skip
ROOFLINE = Roofline(
    ceilings=Ceilings(
        "NVIDIA H100 80GB HBM3", Bandwidth(3.35e12, "a data sheet"), Bandwidth(3.03e12, "a reader"),
        (("bf16", 989.4e12),), "a data sheet", "SM clock 1980 MHz", 1.1,
    ),
    phases=(PHASE,),
    weights=(
        StreamedWeights("experts", "uint8", True, 1.277e9, 0.343, "4 of 32 experts"),
        StreamedWeights("lm_head", "bfloat16", False, 1.158e9, 0.311, ""),
        StreamedWeights("norm", "bfloat16", False, 282_240.0, 7.6e-05, ""),
    ),
    notes=("A note.",),
)  # fmt: skip


def test_the_floors_of_a_step_stand_beside_what_it_takes() -> None:
    section = roofline_section.floors(replace(FULL, roofline=ROOFLINE))
    assert section.rows == (
        (
            "decode",
            "1",
            "3.720 GB",
            "7.30 Gop",
            "1.23 ms",
            "3.02 ms",
            "4.29 ms",
            "28.7 %",
            "85.3 %",
        ),
    )
    assert "Reader: 3,030 GB/s, a reader." in section.intro
    assert "When it was measured: SM clock 1980 MHz." in section.intro
    assert section.intro[-2:] == ("A note.", "A note of the phase.")


def test_where_no_need_is_known_the_reason_stands() -> None:
    phase = replace(PHASE, rows=(UNKNOWN,), floor_us=None, needed_bytes=0.0, streamed_bytes=0.0)
    bare = replace(ROOFLINE, phases=(phase,), weights=())
    section = roofline_section.floors(replace(FULL, roofline=bare))
    assert section.rows == (("A note.",),)
    assert roofline_section.streamed(replace(FULL, roofline=bare)).rows == ()
