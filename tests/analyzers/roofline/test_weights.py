"""Weights of a live model's layers, and of a configuration where nobody looked into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.roofline.roofline_rows import RooflineRow
from spark_prof.analyzers.roofline.weight_bytes import (
    Weights,
    derived_weights,
    weights_of,
    weights_of_tensors,
)
from spark_prof.analyzers.summary import summarize
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.tables import TABLES
from tests.analyzers.roofline.recorded import FIRST, FLASH, GEMM, HEAD, SECOND, bundle

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


def rows_of(made: Bundle) -> dict[str, RooflineRow]:
    report = summarize(made)
    assert report.roofline is not None
    assert report.roofline.decode is not None
    return {row.name: row for row in report.roofline.decode.rows}


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
        rows = rows_of(pointing(bundle(tmp_path / name), tensors, pointers))
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
    rows = rows_of(pointing(bundle(tmp_path / "b"), tensors, pointers))
    assert rows[FIRST].streamed_bytes == pytest.approx((128 * size + 128 * 4096) * 8 / 128)
    assert rows[FIRST].what == "w2: 8 of 128 experts"
    assert rows[FIRST].basis == "the tensors that its arguments point to"
    assert rows[HEAD].streamed_bytes == 600 << 20
    assert (rows[SECOND].floor_us, rows[GEMM].floor_us) == (None, None)
    # The KV cache goes by the context, as it does without addresses.
    assert rows[FLASH].streamed_bytes == 101 * 2 * 4 * 128 * 2


def test_weights_are_told_in_their_format(tmp_path: Path) -> None:
    tensors = laid_out(
        tensor("weight", QKV, "qkv", 32 << 20, dtype="int32", format="nvfp4"),
        tensor("weight_scale", QKV, "qkv", 4 << 20, dtype="float8_e4m3fn", format="scale"),
        tensor("weight", "lm_head", "lm_head", 16 << 20, layer=-1, dtype="bfloat16"),
    )
    pointers = [argument(c, row["address"]) for c, row in zip((1, 1, 5), tensors, strict=True)]
    roofline = summarize(pointing(bundle(tmp_path / "b"), tensors, pointers)).roofline
    assert roofline is not None
    stored = {(row.component, row.dtype, row.quantized): row.bytes for row in roofline.weights}
    assert stored == {("qkv", "nvfp4", True): 36 << 20, ("lm_head", "bfloat16", False): 16 << 20}


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("method", "dtype", "parameters", "elements"),
    [
        # As captured on an H100: rows of the captures in tests/data.
        ("UnquantizedLinearMethod", "bfloat16", "weight:bfloat16:5120x2880 bias:bfloat16:5120",
         5120 * 2880),
        ("ModelOptNvFp4LinearMethod MarlinNvFp4LinearKernel", "int32",
         "weight:int32:128x10240 weight_scale:float8_e4m3fn:128x5120 alpha:float32:", 5120 * 2048),
        ("Fp8LinearMethod MarlinFP8ScaledMMLinearKernel", "int32", "weight:int32:128x10240",
         5120 * 1024),
        ("Fp8LinearMethod", "float8_e4m3fn",
         "weight:float8_e4m3fn:4096x4096 weight_scale_inv:float32:32x32", 4096 * 4096),
        ("GPTQMarlinLinearMethod", "int32",
         "qweight:int32:256x8192 scales:float16:32x4096 g_idx:int32:4096 qzeros:int32:1x2",
         256 * 8192 * 8),
        ("ModelOptNvFp4LinearMethod", "uint8", "weight:uint8:4096x2048", 4096 * 4096),
        ("X", "float4_e2m1fn_x2", "weight:float4_e2m1fn_x2:4096x2048", 4096 * 4096),
    ],
)  # fmt: skip
def test_elements_of_a_product(method: str, dtype: str, parameters: str, elements: int) -> None:
    row = {"path": "model.layers.0.self_attn.qkv_proj", "component": "qkv", "bytes": 5898256,
           "quant_method": method, "weight_dtype": dtype, "parameters": parameters}  # fmt: skip
    found = one(weights_of(layers(row), tied=False))
    assert found.elements == elements
    assert found.bytes == 5898256
    assert found.quantized is (dtype != "bfloat16")


def test_both_products_of_the_experts_are_told_apart() -> None:
    row = {
        "path": "model.layers.0.mlp.experts.routed_experts", "component": "experts",
        "quant_method": "GptOssMxfp4MoEMethod", "weight_dtype": "uint8", "bytes": 425615360,
        "parameters": "w13_bias:float32:32x5760 w2_bias:float32:32x2880 "
        "w13_weight.storage.data:uint8:32x5760x1440 w2_weight.storage.data:uint8:32x5760x720 "
        "quant_method.w13_precision_config.weight_scale.storage.data:uint8:32x2944x184 "
        "quant_method.w2_precision_config.weight_scale.storage.data:uint8:32x2944x96",
    }  # fmt: skip
    first, second = weights_of(layers(row), tied=False)
    assert (first.what, second.what) == ("w13", "w2")
    assert first.bytes + second.bytes == 425615360
    assert first.elements == 32 * 5760 * 2880
    assert second.elements == 32 * 2880 * 2880
    assert first.among_experts
    assert (first.order, second.order) == (0, 1)


def test_parts_that_a_decode_step_does_not_run_are_left_out() -> None:
    rows = [
        {"path": path, "component": component, "bytes": 100, "parameters": "weight:bfloat16:5x10"}
        for path, component in (
            ("visual.blocks.0.attn.qkv", "qkv"),
            ("mtp.layers.0.self_attn.qkv_proj", "qkv"),
            ("model.embed_tokens", "embedding"),
            ("model.layers.0.nothing", ""),
            ("model.layers.0.self_attn.o_proj", "o_proj"),
        )
    ]
    assert one(weights_of(layers(*rows), tied=False)).component == "o_proj"


def test_a_tied_head_is_the_embedding() -> None:
    row = {"path": "model.embed_tokens", "component": "embedding", "bytes": 2000, "layer": -1,
           "parameters": "weight:bfloat16:100x10"}  # fmt: skip
    head = one(weights_of(layers(row), tied=True))
    assert (head.component, head.layer, head.bytes, head.elements) == ("lm_head", -1, 2000, 1000)
    assert weights_of(layers(row), tied=False) == []
    own = row | {"path": "lm_head", "component": "lm_head"}
    assert one(weights_of(layers(row, own), tied=True)).what == "lm_head"


def test_the_gate_of_the_shared_expert_comes_after_it() -> None:
    names = ("shared_expert_gate", "shared_expert.gate_up_proj", "shared_expert.down_proj")
    rows = [
        {"path": f"model.layers.0.mlp.{name}", "component": "shared_experts", "bytes": 100,
         "parameters": "weight:bfloat16:5x10"}
        for name in names
    ]  # fmt: skip
    found = sorted(weights_of(layers(*rows), tied=False), key=lambda weights: weights.order)
    inside = ["gate_up_proj", "down_proj"]
    assert [weights.what for weights in found] == [*inside, "shared_expert_gate"]


def test_a_configuration_alone_gives_the_same_bytes() -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "vocab_size": 151936, "dtype": "bfloat16",
    }  # fmt: skip
    found = derived_weights(config, 1)
    sums: dict[str, int] = {}
    for weights in found:
        sums[weights.component] = sums.get(weights.component, 0) + weights.bytes
    assert sums["qkv"] == 2 * 2 * 5120 * 2048
    assert sums["o_proj"] == 2 * 2 * 4096 * 2048
    assert sums["experts"] == 2 * 2 * 128 * 3 * 768 * 2048
    assert sums["lm_head"] == 2 * 151936 * 2048
    # vLLM runs q, k and v as one product, and the experts as two.
    places = [(weights.component, weights.layer) for weights in found]
    assert places.count(("qkv", 0)) == 1
    assert places.count(("experts", 0)) == 2
    halves = derived_weights(config, 2)
    qkv = [weights.bytes for weights in halves if weights.component == "qkv"]
    assert sum(qkv) == sums["qkv"] // 2
    assert derived_weights({}, 1) == []


@pytest.mark.parametrize("shape", ["9" * 5000, "x".join(["99999999"] * 50), "1e9", "0x0", "²x3"])
def test_no_shape_breaks_the_sums(shape: str) -> None:
    row = {"path": "model.layers.0.self_attn.o_proj", "component": "o_proj", "bytes": 100,
           "parameters": f"weight:bfloat16:{shape}"}  # fmt: skip
    assert one(weights_of(layers(row), tied=False)).elements < 1 << 50
