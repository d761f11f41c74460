"""The roofline of whole recordings: small ones made by hand, and those of real models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.roofline.roofline_rows import Roofline, RooflineRow
from spark_prof.analyzers.summary import summarize
from spark_prof.traces.measured import Measured, Measurement
from tests.analyzers.roofline.recorded import (
    CONFIG,
    FIRST,
    FLASH,
    GEMM,
    GPU,
    HEAD,
    HEAD_BYTES,
    QKV_BYTES,
    SECOND,
    W2_BYTES,
    W13_BYTES,
    bundle,
)

DATA = Path(__file__).parents[2] / "data"


def of(roofline: Roofline | None) -> dict[str, RooflineRow]:
    assert roofline is not None
    assert roofline.decode is not None
    return {row.name: row for row in roofline.decode.rows}


def test_each_kernel_has_the_bytes_of_its_weights(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b"))
    rows = of(report.roofline)
    assert rows[GEMM].streamed_bytes == QKV_BYTES
    assert rows[HEAD].streamed_bytes == HEAD_BYTES
    assert rows[FIRST].streamed_bytes == pytest.approx(W13_BYTES * 8 / 128)
    assert rows[SECOND].streamed_bytes == pytest.approx(W2_BYTES * 8 / 128)
    assert rows[FLASH].streamed_bytes == 101 * 2 * 4 * 128 * 2
    assert rows[FIRST].what == "w13: 8 of 128 experts"
    for row in rows.values():
        assert row.needed_bytes is not None
        assert row.floor_us is not None
        assert row.bandwidth == pytest.approx(row.needed_bytes / row.us * 1e6)
        assert row.floor_us == pytest.approx(row.needed_bytes / 3.03e12 * 1e6)
        assert row.left_us == pytest.approx(max(row.us - row.floor_us, 0))
    assert rows[HEAD].limiter == "memory"
    # 200 KB take less than the shortest kernel does.
    assert rows[FLASH].limiter == "latency"


def test_sums_of_a_step(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b"))
    assert report.roofline is not None
    phase = report.roofline.decode
    assert phase is not None
    assert phase.floor_us == pytest.approx(sum(row.floor_us or 0 for row in phase.rows))
    assert phase.kernels_us == pytest.approx(231.0)
    assert phase.placed_us == pytest.approx(231.0)
    assert phase.step_us is not None
    assert phase.of_floor == pytest.approx(phase.floor_us / phase.step_us)
    streamed = {(row.component, row.dtype): row for row in report.roofline.weights}
    assert streamed["lm_head", "bfloat16"].bytes == HEAD_BYTES
    assert not streamed["qkv", "bfloat16"].quantized
    assert streamed["experts", "uint8"].quantized
    assert streamed["experts", "uint8"].part == "8 of 128 experts"
    rest = phase.streamed_bytes - sum(row.bytes for row in report.roofline.weights)
    assert rest == pytest.approx(101 * 2 * 4 * 128 * 2)
    assert report.roofline.notes == ()
    assert phase.notes == ()


def test_batches_read_the_experts_of_one_token_at_least_and_say_so(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", tokens=(4, 4, 4)))
    row = of(report.roofline)[FIRST]
    assert row.streamed_bytes == pytest.approx(W13_BYTES * 8 / 128)
    assert row.what == "w13: at least 8 of 128 experts"
    assert row.expected
    assert report.roofline is not None
    assert report.roofline.decode is not None
    assert any("all choose the same" in note for note in report.roofline.decode.notes)


def test_a_long_prompt_is_limited_by_arithmetic(tmp_path: Path) -> None:
    us = (100.0, 900.0, 900.0, 900.0, 410.0)
    report = summarize(bundle(tmp_path / "b", us, tokens=(4096,), phase="prefill"))
    assert report.roofline is not None
    (phase,) = report.roofline.phases
    assert phase.phase == "prefill"
    rows = {row.name: row for row in phase.rows}
    assert rows[GEMM].limiter == "arithmetic"
    assert rows[GEMM].floor_us == pytest.approx(2 * 4096 * 5120 * 2048 / 989.4e12 * 1e6)
    # Only the last token of the prompt is sampled.
    assert rows[HEAD].limiter == "memory"


def test_measured_ceilings_go_before_those_of_the_data_sheet(tmp_path: Path) -> None:
    recorded = bundle(tmp_path / "b", us=(40.0, 40.0, 40.0, 40.0, 900.0))
    measured = Measured(
        str(GPU["name"]), "2026", (Measurement("read", 1e12, "B/s", 1e12, 1e12, 5, "x"),)
    )
    row = of(summarize(recorded, measured=measured).roofline)[HEAD]
    assert row.floor_us == pytest.approx((row.needed_bytes or 0) / 1e6)
    assert row.of_data_sheet == pytest.approx((row.bandwidth or 0) / 3.35e12)
    other = summarize(recorded, measured=replace(measured, device="another"))
    assert other.roofline == summarize(recorded).roofline


def test_an_unknown_gpu_has_rates_and_no_floors(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", gpu={"name": "Fancy 9000"}))
    row = of(report.roofline)[HEAD]
    assert row.bandwidth is not None
    assert (row.floor_us, row.limiter, row.left_us, row.of_reached) == (None, None, None, None)
    assert report.roofline is not None
    assert any("doctor --measure" in note for note in report.roofline.notes)


def test_without_the_live_model_sizes_come_from_its_configuration(tmp_path: Path) -> None:
    config = CONFIG | {"vocab_size": 151936, "moe_intermediate_size": 768, "dtype": "bfloat16"}
    report = summarize(bundle(tmp_path / "b", layers=(), model_config=config))
    rows = of(report.roofline)
    assert rows[GEMM].streamed_bytes == QKV_BYTES
    assert rows[HEAD].streamed_bytes == HEAD_BYTES
    assert report.roofline is not None
    assert any("not seen" in note for note in report.roofline.notes)


def test_without_any_size_that_is_what_is_said(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", layers=(), model_config={}))
    rows = of(report.roofline)
    assert {row.needed_bytes for row in rows.values()} == {None}
    assert {row.floor_us for row in rows.values()} == {None}
    assert report.roofline is not None
    assert report.roofline.notes == (
        "Nothing tells the sizes of the weights: their kernels have no lower bound.",
    )


def test_weights_without_a_kernel_count_in_the_sum(tmp_path: Path) -> None:
    from tests.analyzers.roofline.recorded import LAYERS
    from tests.support import layer_row

    lonely = layer_row("model.layers.0.o_proj", 0, "o_proj", bytes=10 << 20,
                       parameters="weight:bfloat16:2048x2560")  # fmt: skip
    before = summarize(bundle(tmp_path / "a")).roofline
    after = summarize(bundle(tmp_path / "b", layers=(*LAYERS, lonely))).roofline
    assert before is not None
    assert after is not None
    assert before.decode is not None
    assert after.decode is not None
    assert after.decode.streamed_bytes == before.decode.streamed_bytes + (10 << 20)
    assert after.decode.floor_us is not None
    assert after.decode.floor_us > (before.decode.floor_us or 0)
    assert any("o_proj" in note for note in after.decode.notes)


@pytest.mark.parametrize(
    ("capture", "floor_ms"),
    [
        # Weights alone at 3.0 TB/s, by hand from the models' shapes: 1.24 and 0.73 ms.
        ("h100-gpt-oss-20b-mxfp4-graphs", 1.24),
        ("h100-gpt-oss-20b-mxfp4-eager", 1.24),
        ("h100-qwen3-30b-a3b-nvfp4-graphs", 0.73),
    ],
)
def test_floors_of_real_models(capture: str, floor_ms: float) -> None:
    report = spark_prof.report(DATA / capture)
    assert report.roofline is not None
    phase = report.roofline.decode
    assert phase is not None
    assert (phase.floor_us or 0) / 1e3 == pytest.approx(floor_ms, rel=0.03)
    weights = sum(row.bytes for row in report.roofline.weights)
    assert weights == pytest.approx(phase.streamed_bytes, rel=0.01)
    # No kernel is faster than a reader, and every product has its weights.
    assert all((row.of_reached or 0) < 1 for row in phase.rows)
    products = {"qkv", "o_proj", "experts", "router", "lm_head"}
    unplaced = {floor.component for floor in phase.unplaced}
    assert products <= unplaced | {row.component for row in phase.rows if row.streamed_bytes}
    # In a compiled model only the order of its kernels tells which of them are the dense products.
    assert {"qkv", "o_proj"} <= unplaced if "graphs" in capture else not unplaced
    assert phase.known_us > 0.75 * phase.kernels_us
