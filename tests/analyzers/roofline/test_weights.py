"""The weights of a model, and the roofline of whole recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_prof
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import Roofline, RooflinePhase, RooflineRow
from spark_prof.analyzers.roofline.weight_bytes import (
    Weights,
    derived_weights,
    weights_of,
    weights_of_tensors,
)
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.measured import MeasuredMachine, Measurement
from spark_prof.traces.tables import TABLES
from tests.analyzers.attribution.memory import tensor as row_of
from tests.analyzers.reported import reported
from tests.analyzers.roofline.recorded import (
    CONFIG,
    FIRST,
    FLASH,
    GEMM,
    GPU,
    HEAD,
    HEAD_BYTES,
    LAYERS,
    QKV_BYTES,
    SECOND,
    W2_BYTES,
    W13_BYTES,
    bundle,
)
from tests.rows import each_row
from tests.support import layer_row

QKV, EXPERTS = "model.layers.0.qkv_proj", "model.layers.0.mlp.experts"
BASE = 1 << 40


def tensor(name: str, module: str, component: str, size: int, **more: Any) -> dict[str, Any]:
    usual = {"kind": "weight", "type": "Linear", "layer": 0, "dtype": "uint8", "format": "",
             "address": 0}  # fmt: skip
    usual["shape"] = f"{size // (2 if more.get('dtype') == 'bfloat16' else 1)}x1"
    return usual | {"name": name, "module": module, "component": component, "bytes": size} | more


def laid_out(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The tensors one after the other, each at a multiple of 256 bytes."""
    address = BASE
    for row in rows:
        row["address"] = address
        address += (row["bytes"] + 255) // 256 * 256
    return list(rows)


def pointing(
    made: Bundle, tensors: Sequence[Mapping[str, Any]], arguments: Sequence[Mapping[str, Any]]
) -> Bundle:
    """The bundle with these tensors and addresses."""
    for table, rows in (("tensors", tensors), ("arguments", arguments)):
        name = table_file(table, 0)
        written = pa.Table.from_pylist([dict(row) for row in rows], schema=TABLES[table].schema)
        pq.write_table(written, made.path / name)
        made.meta = replace(made.meta, tables={**made.meta.tables, name: len(rows)})
    return made


def argument(correlation: int, address: int, **more: Any) -> dict[str, Any]:
    usual = {"node": 0, "argument": 0, "offset": 0, "size": 8}
    return usual | {"correlation": correlation, "address": address} | more


def test_only_what_names_owners_counts_as_read(tmp_path: Path) -> None:
    """What was left in a struct in one step, and not in the next, is no argument."""
    tensors = laid_out(
        tensor("weight", QKV, "qkv", 8 << 20, dtype="bfloat16"),
        tensor("weight", "lm_head", "lm_head", 600 << 20, layer=-1, dtype="bfloat16"),
    )
    first, head = (row["address"] for row in tensors)
    struct = {"offset": 64, "size": 288}
    always = [argument(n, head, argument=1) for n in (5, 105)]
    always += [argument(n, first, **struct) for n in (5, 105)]
    stale = [*always[:3], argument(105, 64, **struct)]
    for name, pointers, megabytes in (("always", always, 608), ("stale", stale, 600)):
        rows, *_ = decode(reported(pointing(bundle(tmp_path / name), tensors, pointers)))
        assert rows[HEAD].streamed_bytes == megabytes << 20, name


def test_the_floor_of_a_kernel_is_that_of_the_tensors_it_points_to(tmp_path: Path) -> None:
    size = 3 << 20
    tensors = laid_out(
        tensor("w2_weight", EXPERTS, "experts", 128 * size, shape="128x2048x384", format="nvfp4"),
        tensor("w2_weight_scale", EXPERTS, "experts", 128 * 4096, shape="128x4096", format="scale"),
        tensor("weight", "model.embed_tokens", "embedding", 1 << 30, layer=-1),
        tensor("weight", "lm_head", "lm_head", 600 << 20, layer=-1, dtype="bfloat16"),
    )
    # The kernel that comes first in launch order reads what order would give to the second, and
    # the product at the place of qkv reads nothing that is known. Only the first step is told.
    pointers = [argument(3, tensors[0]["address"]), argument(3, tensors[1]["address"]),
                argument(5, tensors[3]["address"]), argument(1, tensors[2]["address"])]  # fmt: skip
    rows, _, roofline = decode(reported(pointing(bundle(tmp_path / "b"), tensors, pointers)))
    assert rows[FIRST].streamed_bytes == pytest.approx((128 * size + 128 * 4096) * 8 / 128)
    assert rows[FIRST].what == "w2: 8 of 128 experts"
    assert rows[FIRST].basis == "the tensors that its arguments point to"
    assert rows[HEAD].streamed_bytes == 600 << 20
    assert (rows[SECOND].floor_us, rows[GEMM].floor_us) == (None, None)
    # The KV cache goes by the context, as it does without addresses.
    assert rows[FLASH].streamed_bytes == 101 * 2 * 4 * 128 * 2
    stored = {(row.component, row.dtype, row.quantized) for row in roofline.weights}
    assert stored == {("experts", "nvfp4", True), ("lm_head", "bfloat16", False)}


@each_row(
    ("row", "elements"),
    [
        (tensor("w", QKV, "qkv", 1000, format="mxfp4"), 2000),
        (tensor("w", QKV, "qkv", 1000, format="fp8"), 1000),
        (tensor("w", QKV, "qkv", 1000, dtype="bfloat16"), 500),
        (tensor("w", QKV, "qkv", 1000, format="scale"), 0),
        (tensor("bias", QKV, "qkv", 1000, shape="500"), 0),
        (tensor("w", "model.layers.0.q_norm", "norm", 1000), 0),
        (tensor("w", QKV, "qkv", 1000, shape="4xx"), 0),
        (tensor("w", QKV, "qkv", 1000, shape="x".join(["9" * 9] * 9)), 0),
    ],
)
def test_numbers_of_a_factor(row: dict[str, Any], elements: int) -> None:
    frame = pa.Table.from_pylist([row], schema=TABLES["tensors"].schema).to_pandas()
    (found,) = weights_of_tensors(frame, tied=False)
    assert (found.elements, found.bytes, found.path, found.tensor) == (
        elements, 1000, row["module"], 0,
    )  # fmt: skip


def test_memory_counts_once_and_a_view_as_what_it_holds() -> None:
    rows = [
        tensor("weight", "model.embed_tokens", "embedding", 1000, layer=-1, address=BASE),
        tensor("weight", "lm_head", "lm_head", 1000, layer=-1, address=BASE),
        tensor("weight", "model.layers.0.o_proj", "o_proj", 4096, address=BASE + 4096),
        tensor("weight", "model.layers.0.mla.o_proj", "attention", 4096, address=BASE + 4096),
        # Half of the rows of a matrix, as W_UV and W_UK_T of DeepSeek's kv_b_proj.
        tensor("W_UV", "model.layers.0.mla", "attention", 6144, dtype="bfloat16", shape="16x64x2",
               address=BASE + 16384),
    ]  # fmt: skip
    frame = pa.Table.from_pylist(rows, schema=TABLES["tensors"].schema).to_pandas()
    found = weights_of_tensors(frame, tied=False)
    assert [(w.component, w.bytes) for w in found] == [
        ("lm_head", 1000), ("o_proj", 4096), ("attention", 4096),
    ]  # fmt: skip


def test_a_tied_head_is_the_embedding_s_tensor() -> None:
    rows = [
        tensor("weight", "model.embed_tokens", "embedding", 1000, dtype="bfloat16"),
        tensor("weight", "model.visual.blocks.0.attn.qkv", "qkv", 1000),
        tensor("cache", QKV, "qkv", 1000, kind="buffer"),
    ]
    frame = pa.Table.from_pylist(rows, schema=TABLES["tensors"].schema).to_pandas()
    assert [w.component for w in weights_of_tensors(frame, tied=True)] == ["lm_head"]
    assert weights_of_tensors(frame, tied=False) == []


def layers(*rows: dict[str, object]) -> pd.DataFrame:
    usual = {"type": "Linear", "layer": 0, "quant_method": "", "kernel": "", "shape": "",
             "weight_dtype": "bfloat16", "bytes": 0, "parameters": ""}  # fmt: skip
    frame = pd.DataFrame([usual | row for row in rows], columns=TABLES["layers"].schema.names)
    return frame.astype({"bytes": "int64", "layer": "int32"})


def one(found: list[Weights]) -> Weights:
    (weights,) = found
    return weights


def test_parts_that_a_decode_step_does_not_run_are_left_out() -> None:
    paths = {"visual.blocks.0.attn.qkv": "qkv", "mtp.layers.0.self_attn.qkv_proj": "qkv",
             "model.embed_tokens": "embedding", "model.layers.0.nothing": "",
             "model.layers.0.self_attn.o_proj": "o_proj"}  # fmt: skip
    rows = [
        {"path": path, "component": component, "bytes": 100, "parameters": "weight:bfloat16:5x10"}
        for path, component in paths.items()
    ]
    assert one(weights_of(layers(*rows), tied=False, config={})).component == "o_proj"


def test_a_tied_head_is_the_embedding() -> None:
    row = {"path": "model.embed_tokens", "component": "embedding", "bytes": 2000, "layer": -1,
           "parameters": "weight:bfloat16:100x10"}  # fmt: skip
    head = one(weights_of(layers(row), tied=True, config={}))
    assert (head.component, head.layer, head.bytes, head.elements) == ("lm_head", -1, 2000, 1000)
    assert weights_of(layers(row), tied=False, config={}) == []
    own = row | {"path": "lm_head", "component": "lm_head"}
    assert one(weights_of(layers(row, own), tied=True, config={})).name == "lm_head"


def test_the_gate_of_the_shared_expert_comes_after_it() -> None:
    names = ("shared_expert_gate", "shared_expert.gate_up_proj", "shared_expert.down_proj")
    rows = [
        {"path": f"model.layers.0.mlp.{name}", "component": "shared_experts", "bytes": 100,
         "parameters": "weight:bfloat16:5x10"}
        for name in names
    ]  # fmt: skip
    found = sorted(
        weights_of(layers(*rows), tied=False, config={}), key=lambda weights: weights.order
    )
    inside = ["gate_up_proj", "down_proj"]
    assert [weights.name for weights in found] == [*inside, "shared_expert_gate"]


def test_a_configuration_alone_gives_the_same_bytes() -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "vocab_size": 151936, "dtype": "bfloat16",
    }  # fmt: skip
    found = derived_weights(config, 1)
    sums: Counter[str] = Counter()
    for weights in found:
        sums[weights.component] += weights.bytes
    assert sums["qkv"] == 2 * 2 * 5120 * 2048
    assert sums["o_proj"] == 2 * 2 * 4096 * 2048
    assert sums["experts"] == 2 * 2 * 128 * 3 * 768 * 2048
    assert sums["lm_head"] == 2 * 151936 * 2048
    # vLLM runs q, k and v as one product, and the experts as two.
    places = [(weights.component, weights.layer) for weights in found]
    assert (places.count(("qkv", 0)), places.count(("experts", 0))) == (1, 2)
    halves = [w.bytes for w in derived_weights(config, 2) if w.component == "qkv"]
    assert sum(halves) == sums["qkv"] // 2
    assert derived_weights({}, 1) == []


@each_row("shape", ["9" * 5000, "x".join(["99999999"] * 50), "1e9", "0x0", "²x3"])
def test_no_shape_breaks_the_sums(shape: str) -> None:
    row = {"path": "model.layers.0.self_attn.o_proj", "component": "o_proj", "bytes": 100,
           "parameters": f"weight:bfloat16:{shape}"}  # fmt: skip
    assert one(weights_of(layers(row), tied=False, config={})).elements < 1 << 50


DATA = Path(__file__).parents[2] / "data"


def decode(report: Report) -> tuple[dict[str, RooflineRow], RooflinePhase, Roofline]:
    """The rows of decode steps, what holds them, and what holds that."""
    assert report.roofline is not None
    phase = report.roofline.decode
    assert phase is not None
    return {row.name: row for row in phase.rows}, phase, report.roofline


def test_each_kernel_has_the_bytes_of_its_weights(tmp_path: Path) -> None:
    rows, phase, roofline = decode(reported(bundle(tmp_path / "b")))
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
    # And the step has the sums of them.
    assert phase.floor_us == pytest.approx(sum(row.floor_us or 0 for row in phase.rows))
    assert phase.kernels_us == pytest.approx(231.0)
    assert phase.placed_us == pytest.approx(231.0)
    assert phase.step_us is not None
    assert phase.of_floor == pytest.approx(phase.floor_us / phase.step_us)
    streamed = {(row.component, row.dtype): row for row in roofline.weights}
    assert streamed["lm_head", "bfloat16"].bytes == HEAD_BYTES
    assert not streamed["qkv", "bfloat16"].quantized
    assert streamed["experts", "uint8"].quantized
    assert streamed["experts", "uint8"].part == "8 of 128 experts"
    rest = phase.streamed_bytes - sum(row.bytes for row in roofline.weights)
    assert rest == pytest.approx(101 * 2 * 4 * 128 * 2)
    assert roofline.notes == phase.notes == ()


def test_measured_ceilings_go_before_those_of_the_data_sheet(tmp_path: Path) -> None:
    recorded = bundle(tmp_path / "b", us=(40.0, 40.0, 40.0, 40.0, 900.0))
    measured = MeasuredMachine(
        str(GPU["name"]), "2026", (Measurement("read", 1e12, "B/s", 1e12, 1e12, 5, "x"),)
    )
    row = decode(reported(recorded, measured=measured))[0][HEAD]
    assert row.floor_us == pytest.approx((row.needed_bytes or 0) / 1e6)
    assert row.of_data_sheet == pytest.approx((row.bandwidth or 0) / 3.35e12)
    other = reported(recorded, measured=replace(measured, device="another"))
    assert other.roofline == reported(recorded).roofline


def test_without_the_live_model_sizes_come_from_its_configuration(tmp_path: Path) -> None:
    config = CONFIG | {"vocab_size": 151936, "moe_intermediate_size": 768, "dtype": "bfloat16"}
    report = reported(bundle(tmp_path / "b", layers=(), model_config=config))
    rows, _, roofline = decode(report)
    assert rows[GEMM].streamed_bytes == QKV_BYTES
    assert rows[HEAD].streamed_bytes == HEAD_BYTES
    assert any("not seen" in note for note in roofline.notes)
    rows, _, roofline = decode(reported(bundle(tmp_path / "nothing", layers=(), model_config={})))
    assert {(row.needed_bytes, row.floor_us) for row in rows.values()} == {(None, None)}
    assert any("Nothing tells the sizes" in note for note in roofline.notes)


def test_weights_without_a_kernel_count_in_the_sum(tmp_path: Path) -> None:
    lonely = layer_row("model.layers.0.o_proj", 0, "o_proj", bytes=10 << 20,
                       parameters="weight:bfloat16:2048x2560")  # fmt: skip
    _, before, _ = decode(reported(bundle(tmp_path / "a")))
    _, after, _ = decode(reported(bundle(tmp_path / "b", layers=(*LAYERS, lonely))))
    assert after.streamed_bytes == before.streamed_bytes + (10 << 20)
    assert (after.floor_us or 0) > (before.floor_us or 0)
    assert any("o_proj" in note for note in after.notes)


@each_row(
    ("capture", "floor_ms"),
    [
        # Weights alone at 3.0 TB/s, by hand from the models' shapes: 1.24 and 0.73 ms.
        ("h100-gpt-oss-20b-mxfp4-graphs", 1.24),
        ("h100-gpt-oss-20b-mxfp4-eager", 1.24),
        ("h100-qwen3-30b-a3b-nvfp4-graphs", 0.73),
    ],
)
def test_floors_of_real_models(capture: str, floor_ms: float) -> None:
    _, phase, roofline = decode(spark_prof.report(DATA / capture))
    assert (phase.floor_us or 0) / 1e3 == pytest.approx(floor_ms, rel=0.03)
    weights = sum(row.bytes for row in roofline.weights)
    assert weights == pytest.approx(phase.streamed_bytes, rel=0.01)
    # No kernel is faster than a reader.
    assert all((row.of_reached or 0) < 1 for row in phase.rows)
    assert phase.known_us > 0.75 * phase.kernels_us


def test_a_drafters_own_weights_are_none_of_the_models() -> None:
    """EAGLE with a head of its own, or a quantized copy; what it shares is the model's."""
    drafter = [
        row_of("drafter.lm_head", 4 << 20, 1000, shape="100x5", dtype="uint8", format="nvfp4"),
        row_of("drafter.model.layers.0.mlp.down_proj", 5 << 20),
        row_of("drafter.model.embed_tokens", 6 << 20),
    ]
    shared = row_of("drafter.model.layers.0.shared_head.head", 1 << 20)
    rows = pd.DataFrame([row_of("lm_head", 1 << 20), *drafter, shared])
    model = weights_of_tensors(rows, tied=False)
    own = weights_of_tensors(rows, tied=False, drafter=True)
    assert [(w.component, w.path) for w in model] == [("lm_head", "lm_head")]
    assert [(w.component, w.dtype, w.tensor) for w in own] == [
        ("lm_head", "nvfp4", 1), ("mlp", "bf16", 2),
    ]  # fmt: skip
