"""The matrices and experts of a recorded run, their shapes and what was run for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.recorded_work import (
    RecordedRun,
    _call,
    _experts,
    _matrix,
    _Unknown,
    _WeightLocation,
    recorded_work,
)
from spark_prof.analyzers.roofline.launches import Launch
from spark_prof.analyzers.roofline.needs import ModelShape
from spark_prof.analyzers.roofline.weight_bytes import Weights
from spark_prof.datasets.opened import opened
from spark_prof.errors import CommandError
from spark_prof.kernels.bench.shapes import DenseShape, ExpertsShape
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"


def read(name: str) -> RecordedRun:
    with opened(str(DATA / name)) as bundle:
        return recorded_work(bundle)


GPT, QWEN = "h100-gpt-oss-20b-mxfp4-graphs", "h100-qwen3-30b-a3b-nvfp4-graphs"
SHAPES = {
    GPT: {
        ("bf16", 5120, 2880): 24,
        ("bf16", 2880, 4096): 24,
        ("bf16", 32, 2880): 24,
        ("bf16", 201088, 2880): 1,
        ExpertsShape("gpt", "mxfp4", 32, 4, 2880, 2880, "swiglu", True): 24,
    },
    QWEN: {
        ("nvfp4", 5120, 2048): 48,
        ("nvfp4", 2048, 4096): 48,
        ("bf16", 128, 2048): 48,
        ("bf16", 151936, 2048): 1,
        ExpertsShape("qwen", "nvfp4", 128, 8, 2048, 768, "silu", False): 48,
    },
}


@each_row("name", [GPT, QWEN])
def test_shapes_formats_and_tokens(name: str) -> None:
    found = read(name)
    of = {
        (each.format, each.shape.rows, each.shape.columns)
        if isinstance(each.shape, DenseShape)
        else each.shape: each.layers
        for each in found.work
    }
    assert of == SHAPES[name]
    # Two weights of one shape in a layer would be raced twice, were they two pieces of work.
    assert len(of) == len(found.work)
    assert found.tokens == (1,)
    assert (found.gpu, found.compute_capability) == ("NVIDIA H100 80GB HBM3", "9.0")


def test_what_ran_is_the_product_with_what_adds_its_parts_up() -> None:
    ran = {next(iter(each.slots)): each.recordings[1] for each in read(GPT).work}
    assert [len(ran[slot].kernels) for slot in ("qkv", "o", "router", "lm_head")] == [1, 2, 2, 1]
    assert "splitKreduce" in ran["router"].kernels[1]
    assert 5 < ran["router"].us < 7
    assert ran["lm_head"].proven
    assert not ran["qkv"].proven
    # 4 steps of 24 layers
    assert ran["o"].calls == 96


def test_experts_ran_all_from_the_logits_on() -> None:
    (experts,) = (each.recordings[1] for each in read(QWEN).work if "moe" in each.slots)
    assert "topkGating" in experts.kernels[0]
    assert "moe_sum" in experts.kernels[-1]
    assert not any("nvjet" in name for name in experts.kernels)
    assert sum("Marlin" in name for name in experts.kernels) == 2


@each_row("name", [GPT, QWEN])
def test_every_kernel_of_a_step_is_raced_or_told(name: str) -> None:
    found = read(name)
    raced = sum(len(each.recordings[1].kernels) * each.layers for each in found.work)
    left = sum(each.kernels for each in found.left_out)
    assert raced + left == pytest.approx(found.kernels, abs=0.5)
    whys = {each.component: each.why for each in found.left_out}
    assert whys["norm"] == "no matrix and no experts"
    assert whys["lm_head"] == "beside its products"


QKV = Weights("qkv", 0, "qkv_proj", 0, 128 * 64, "bfloat16", "model.layers.0.qkv_proj")
DOWN = replace(QKV, component="mlp", name="down_proj", path="model.layers.0.mlp.down_proj")


@each_row(
    ("weight", "hidden", "wanted"),
    [
        (QKV, 64, (128, 64)),
        (DOWN, 64, (64, 128)),
        (replace(QKV, component="o_proj"), 64, (64, 128)),
        (QKV, 0, "its shape is not known"),
        (QKV, 60, "its shape is not known"),
        (replace(QKV, dtype="int4"), 64, "no kernel is for int4"),
        (replace(QKV, component="mlp", path="a.shared_expert_gate"), 64, "shape is not known"),
    ],
)
def test_a_matrix(weight: Weights, hidden: int, wanted: Any) -> None:
    found = _matrix(weight, hidden, "m")
    if isinstance(wanted, str):
        assert isinstance(found, _Unknown)
        assert wanted in found.why
    else:
        shape = found[0]
        assert isinstance(shape, DenseShape)
        assert (shape.rows, shape.columns) == wanted


SIZES = ModelShape(hidden=64, experts=8, chosen=2)
CONFIG = {"moe_intermediate_size": 32, "hidden_act": "silu", "hidden_size": 64}


@each_row(
    ("changes", "more", "dtype", "elements", "why"),
    [
        ({}, {}, "nvfp4", 1.0, ""),
        ({}, {}, "nvfp4", 1.2, ""),
        ({}, {}, "bfloat16", 1.0, ""),
        ({}, {}, "nvfp4", 2 / 3, "other sizes"),
        ({}, {}, "nvfp4", 2.0, "other sizes"),
        ({}, {}, "fp8", 1.0, "no kernel is for experts in fp8"),
        ({"expert_ranks": 2}, {}, "nvfp4", 1.0, "shared out among ranks"),
        ({"chosen": 0}, {}, "nvfp4", 1.0, "does not tell"),
        ({}, {"hidden_act": "relu2"}, "nvfp4", 1.0, "neither SiLU"),
        ({}, {"moe_intermediate_size": None}, "nvfp4", 1.0, "does not tell"),
    ],
)
def test_experts(
    changes: dict[str, int], more: dict[str, object], dtype: str, elements: float, why: str
) -> None:
    own = replace(QKV, component="experts", dtype=dtype, elements=int(elements * 3 * 8 * 32 * 64))
    found = _experts([own], {"model_config": CONFIG | more}, replace(SIZES, **changes))
    if why:
        assert isinstance(found, _Unknown)
        assert why in found.why
    else:
        form: Any = "bf16" if dtype == "bfloat16" else dtype
        assert found == (ExpertsShape("model", form, 8, 2, 64, 32, "silu", False), form)


def test_products_that_are_more_than_the_weights_are_nobodys() -> None:
    def calls(*names: str, place: int = 0, products: int = 1) -> list[str]:
        launches = [Launch(name, "mlp", 0, 1) for name in names]
        return [each.name for each in _call(launches, _WeightLocation("mlp", 0, place, products))]

    gemm, adds = "nvjet_sm90_tst_64x8", "void cublasLt::splitKreduce_kernel<32>"
    assert calls(gemm, adds, "silu") == [gemm, adds]
    assert calls(gemm, "silu", "marlin::Marlin", place=1, products=2) == ["marlin::Marlin"]
    assert calls(gemm, gemm) == []
    assert calls("silu") == []


def test_a_run_without_small_decode_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_prof.analyzers.recorded_work._MOST_TOKENS", 0)
    with pytest.raises(CommandError, match="no decode step of 1 to 0 tokens"):
        read(GPT)


def test_a_run_whose_shapes_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_prof.analyzers.recorded_work.get_args", lambda _: ())
    monkeypatch.setattr("spark_prof.analyzers.recorded_work._MOST_PADDING", 0.5)
    with pytest.raises(CommandError, match=r"no layer whose shape is known \(.*no kernel is for"):
        read(GPT)
