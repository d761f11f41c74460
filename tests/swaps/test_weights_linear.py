"""Matrices of vLLM's layers are read with the bits that vLLM's loaders put into them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spark_prof.kernels.formats import Fp8Blocks, Fp8Rows, Int4Groups, MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.layers import LinearLayer
from spark_prof.swaps.live_weights import LINEAR, parameter, read_layer, stored_as
from tests.rows import each_row

from . import vllm_layers
from .vllm_checkpoints import load_shards, random_weight, values

pytestmark = pytest.mark.usefixtures("vllm_world")

ROWS = {"q": 64, "k": 32, "v": 32}
KINDS: dict[str, type] = {"nvfp4": NvFp4, "mxfp4": MxFp4, "fp8": Fp8Rows, "plain": torch.Tensor}
BLOCKS = ("fp8 blocks", "compressed fp8 blocks")
INT4 = ("awq", "gptq", "compressed int4", "compressed int4 zeros")
READ = sorted(set(vllm_layers.QUANTIZATIONS) - {*BLOCKS, *INT4})


def loaded(module: Any) -> torch.Tensor:
    columns = vllm_layers.HIDDEN
    shards = {
        shard: random_weight(rows, columns, seed) for seed, (shard, rows) in enumerate(ROWS.items())
    }
    return load_shards(module, stored_as(module, LINEAR), shards)


@each_row("quantization", READ)
def test_shards_that_were_quantized_apart_keep_their_values(quantization: str) -> None:
    module = vllm_layers.qkv(quantization)
    exact = loaded(module)
    layer = read_layer("qkv_proj", module, "qkv")
    assert isinstance(layer, LinearLayer)
    assert (layer.name, layer.slot) == ("qkv_proj", "qkv")
    assert isinstance(layer.weight, KINDS[stored_as(module, LINEAR).format])
    torch.testing.assert_close(values(layer.weight), exact, rtol=1e-12, atol=0)
    # Codes are not copied.
    weight: Any = layer.weight
    codes = getattr(weight, "packed", getattr(weight, "values", weight))
    codes = weight if isinstance(weight, torch.Tensor) else codes
    assert codes.data_ptr() == parameter(module, stored_as(module, LINEAR).weight).data_ptr()


@pytest.mark.parametrize("quantization", ["modelopt nvfp4", "compressed nvfp4"])
def test_the_global_scale_is_the_way_round_that_vllm_takes_it(quantization: str) -> None:
    module = vllm_layers.qkv(quantization)
    row = stored_as(module, LINEAR)
    loaded(module)
    parameter(module, row.global_scale).fill_(3.0)  # one for all, as vLLM's kernels need it
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(1.0)
    layer: Any = read_layer("qkv_proj", module, "qkv")
    multiplier = layer.weight.global_scale.multiplier()
    module.quant_method.process_weights_after_loading(module)
    assert multiplier.unique().tolist() == pytest.approx([float(module.weight_global_scale)])


@pytest.mark.parametrize("quantization", ["bf16", "modelopt nvfp4", "modelopt fp8"])
def test_an_lm_head_has_the_rows_of_its_padding(quantization: str) -> None:
    module = vllm_layers.lm_head(quantization, vocabulary=100)
    row = stored_as(module, LINEAR)
    exact = load_shards(module, row, {None: random_weight(100, vllm_layers.HIDDEN, 1)})
    layer: Any = read_layer("lm_head", module, "lm_head")
    read = values(layer.weight)
    assert read.shape == (128, vllm_layers.HIDDEN)
    torch.testing.assert_close(read[:100], exact, rtol=1e-12, atol=0)


def test_a_checkpoint_of_fused_fp8_shards_has_one_scale() -> None:
    module = vllm_layers.qkv("fp8")
    module.weight.data.copy_(random_weight(128, vllm_layers.HIDDEN, 0).to(torch.float8_e4m3fn))
    module.weight_scale.data[0] = 0.5  # the others stay at vLLM's lowest number
    layer: Any = read_layer("qkv_proj", module, "qkv")
    assert layer.weight.scales.unique().tolist() == [0.5]


def refused(module: Any) -> str:
    with pytest.raises(KernelError) as raised:
        read_layer("qkv_proj", module, "qkv")
    return str(raised.value)


@each_row("quantization", BLOCKS)
def test_blocks_of_fp8_keep_their_values(quantization: str) -> None:
    module = vllm_layers.qkv(quantization, hidden=256, size=128)
    shards = {shard: random_weight(rows * 8, 256, rows) for shard, rows in ROWS.items()}
    shards |= {"v": random_weight(256, 256, 3)}
    exact = load_shards(module, stored_as(module, LINEAR), shards)
    layer: Any = read_layer("qkv_proj", module, "qkv")
    assert isinstance(layer.weight, Fp8Blocks)
    torch.testing.assert_close(values(layer.weight), exact, rtol=0, atol=0)
    module.weight_block_size = [32, 32]
    assert "32 x 32 blocks; those of 128 x 128 are read" in refused(module)


@each_row("quantization", INT4)
def test_groups_of_int4_keep_their_values(quantization: str) -> None:
    module = vllm_layers.qkv(quantization, hidden=256)
    shards = {shard: random_weight(rows, 256, rows) for shard, rows in ROWS.items()}
    exact = load_shards(module, stored_as(module, LINEAR), shards)
    layer: Any = read_layer("qkv_proj", module, "qkv")
    assert isinstance(layer.weight, Int4Groups)
    assert layer.weight.group == 128
    torch.testing.assert_close(values(layer.weight), exact, rtol=0, atol=0)


def test_int4_in_another_order_of_columns_is_refused() -> None:
    module = vllm_layers.qkv("gptq", hidden=256)
    module.quant_method.quant_config.desc_act = True
    assert "act-order" in refused(module)


@each_row("value", [0.0, -1.0, float("nan"), float("inf")])
@each_row("quantization", ["compressed nvfp4", "modelopt fp8 rows"])
def test_scales_that_nobody_loaded_are_refused(quantization: str, value: float) -> None:
    module = vllm_layers.qkv(quantization)
    loaded(module)
    row = stored_as(module, LINEAR)
    parameter(module, row.global_scale or row.scale)[-1] = value
    assert "above zero" in refused(module)


def test_weights_that_are_laid_out_anew_are_refused() -> None:
    module = vllm_layers.qkv("compressed nvfp4")
    loaded(module)
    module.quant_method.process_weights_after_loading(module)
    assert "weight_packed" in refused(module)


def test_weights_out_of_a_cache_are_refused() -> None:
    from vllm.model_executor.utils import weights_already_processed

    with weights_already_processed():
        assert "cache" in refused(vllm_layers.qkv("bf16"))


@pytest.mark.parametrize(("kind", "added"), [("RMSNorm", 0.0), ("GemmaRMSNorm", 1.0)])
def test_a_norm(kind: str, added: float) -> None:
    from vllm.model_executor.layers import layernorm

    module = getattr(layernorm, kind)(32, eps=1e-5)
    module.weight.data.normal_()
    layer: Any = read_layer("norm", module, "norm")
    assert layer.epsilon == 1e-5
    assert torch.equal(layer.weight.float(), module.weight.float() + added)


def test_norms_of_another_kind_are_refused() -> None:
    from vllm.model_executor.layers.layernorm import LayerNorm, RMSNorm

    with pytest.raises(KernelError, match="LayerNorm"):
        read_layer("norm", LayerNorm(32), "norm")
    with pytest.raises(KernelError, match="some of the features"):
        read_layer("norm", RMSNorm(32, var_hidden_size=16), "norm")
