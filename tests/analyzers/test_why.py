"""What tells two checkpoints or runs apart, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.ceilings.ceiling_rows import Question
from spark_prof.analyzers.why import answer_of, what_ifs
from spark_prof.analyzers.why_sides import (
    ComponentCost,
    WhySide,
    expected,
    side_of_checkpoint,
    side_of_recording,
)
from spark_prof.rules.gpus import find_gpu
from spark_prof.traces.checkpoint import read_checkpoint
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
GB10, H100 = find_gpu("gb10"), find_gpu("h100")


def test_a_checkpoint_reads_what_its_formats_take() -> None:
    assert GB10
    checkpoint = read_checkpoint(DATA / "models" / "qwen3-30b-a3b-nvfp4")
    side = side_of_checkpoint(checkpoint, "q", GB10, Question())
    head = side.part("lm_head")
    assert head is not None
    assert (head.format, head.bytes, head.computes_in) == ("bf16", 2 * 151936 * 2048, "bf16")
    experts = side.part("experts")
    assert experts is not None
    # 8 of 128 experts of 48 layers, three matrices of 2048 x 768 each, 9 bits a weight.
    assert experts.bytes == pytest.approx(48 * 8 * 3 * 2048 * 768 * 9 / 16, rel=0.001)
    assert side.bound_us == pytest.approx(side.bytes / GB10.bandwidth.value * 1e6)
    narrower = {row.title: row.bytes for row in what_ifs(checkpoint, GB10, Question())}
    everything = [narrower[f"{name}: layers, attention and lm_head"] for name in ("FP8", "NVFP4")]
    assert everything[1] < side.bytes < narrower["FP8: layers"]
    assert everything[1] / everything[0] == pytest.approx(9 / 16, rel=0.02)


@each_row(
    ("form", "gpu", "precision"),
    [
        ("nvfp4", "gb10", "fp4"),
        ("nvfp4", "h100", "bf16 (weights only)"),
        ("fp8", "h100", "fp8"),
        ("fp8", "a100", "bf16 (weights only)"),
        ("mxfp8", "h100", "bf16 (weights only)"),
        ("int4", "gb10", "bf16 (weights only)"),
        ("bf16", "gb10", "bf16"),
    ],
)
def test_in_which_precision_a_format_can_compute(form: str, gpu: str, precision: str) -> None:
    found = find_gpu(gpu)
    assert found
    assert expected(form, found) == precision


def test_two_runs_are_told_apart_by_their_kernels_where_they_ran_eagerly() -> None:
    assert H100
    nvfp4, awq = (
        side_of_recording(spark_prof.report(DATA / "code-h100" / name), name, H100)
        for name in ("dense-nvfp4", "dense-awq")
    )
    of_bytes, of_time = answer_of([nvfp4, awq], H100)
    assert "dense-nvfp4 reads 1 % more bytes a token than dense-awq" in of_bytes
    # Marlin is faster here than Machete; the gaps between their kernels are the host's.
    assert nvfp4.us is not None
    assert awq.us is not None
    assert nvfp4.us > awq.us
    assert nvfp4.kernels_us < awq.kernels_us
    assert of_time.startswith("dense-awq's kernels take")
    assert "Most of the kernels' part is dense-awq's mlp" in of_time
    assert "with them dense-nvfp4 4.83 ms (3.93 ms waiting), dense-awq 4.49 ms (3.52 ms" in of_time
    assert of_time.endswith("launches make that difference, kernels go the other way.")
    graphs = [replace(side, eager=False) for side in (nvfp4, awq)]
    of_graphs = list(answer_of(graphs, H100))[1]
    assert of_graphs.startswith("dense-nvfp4 takes 343.8 us longer a token (4.83 ms against 4.49")
    assert ": waiting for launches and the host +408.4 us, bytes +7.96 us, kernels" in of_graphs


def test_bytes_that_a_recording_does_not_tell_are_not_compared() -> None:
    assert H100
    name = "qwen3-30b-a3b-nvfp4"
    told = side_of_checkpoint(read_checkpoint(DATA / "models" / name), name, H100, Question())
    side = side_of_recording(spark_prof.report(DATA / "code-h100" / name), "run", H100)
    [same] = answer_of([told, side], H100)
    assert "read the same bytes" in same
    parts = [
        replace(part, bytes=0.0, bound_us=0.0) if part.component == "experts" else part
        for part in side.parts
    ]
    [untold] = answer_of([told, replace(side, parts=tuple(parts))], H100)
    assert untold.startswith("run does not tell which weights of experts a step reads: bytes are")


def test_a_recording_without_weights_is_not_said_to_read_none() -> None:
    """As a trace of PyTorch's profiler, which has the times alone."""
    assert H100
    bare = by_hand("bare", 5000.0, 1000.0, ComponentCost("mlp", "", 0.0, 0.0, 4000.0, "k", "bf16"))
    told = by_hand(
        "told", 4000.0, 500.0, ComponentCost("mlp", "", 1e9, 1000.0, 4000.0, "k", "bf16")
    )
    [alone] = answer_of([bare], H100)
    assert alone.startswith("bare does not tell which weights a step reads: its lower bound is")
    for sides in ([bare, told], [told, bare], [bare, replace(bare, us=6000.0)]):
        [beside] = answer_of(sides, H100)
        assert beside.startswith("bare does not tell which weights a step reads: bytes are not")


def by_hand(
    name: str, us: float, waits: float, *parts: ComponentCost, eager: bool = False
) -> WhySide:
    gap = ComponentCost("host", "", 0.0, 0.0, waits, "", "")
    return WhySide(name, True, (*parts, gap), us, eager)


def test_one_eager_side_makes_both_their_kernels() -> None:
    a = by_hand("a", 5000.0, 3000.0, ComponentCost("mlp", "bf16", 1e9, 1000.0, 2000.0, "k", "bf16"))
    b = by_hand("b", 4000.0, 1000.0, ComponentCost("mlp", "bf16", 1e9, 1000.0, 3000.0, "k", "bf16"))
    assert H100
    for sides in ((replace(a, eager=True), b), (a, replace(b, eager=True))):
        assert list(answer_of(sides, H100))[1].startswith("b's kernels take 1.00 ms longer")
    assert list(answer_of((a, b), H100))[1].startswith("a takes 1.00 ms longer")


def test_the_side_whose_kernels_fall_short_is_named() -> None:
    """The faster one reads half the bytes and gains less than they promise."""
    wide = by_hand(
        "wide", 5000.0, 0.0, ComponentCost("mlp", "bf16", 4e9, 4000.0, 5000.0, "w", "bf16")
    )
    narrow = by_hand(
        "narrow", 4500.0, 0.0, ComponentCost("mlp", "nvfp4", 1e9, 1000.0, 4500.0, "n", "fp4")
    )
    assert H100
    of_time = list(answer_of((wide, narrow), H100))[1]
    assert "wide takes 500.0 us longer" in of_time
    assert "Most of the kernels' part is narrow's mlp (n at 22 % of the bandwidth)" in of_time
