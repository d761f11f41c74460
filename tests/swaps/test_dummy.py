"""Dummy weights are random, sane, and the same each time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spark_prof.swaps.dummy import fill_codes, fill_dummy
from spark_prof.swaps.live_weights import EXPERTS, read_layer, stored_as
from tests.rows import each_row

from . import vllm_layers
from .vllm_checkpoints import values
from .vllm_layers import HIDDEN, INNER

pytestmark = pytest.mark.usefixtures("vllm_world")

LINEAR = sorted(vllm_layers.QUANTIZATIONS)
WITH_EXPERTS = (
    *("bf16", "modelopt nvfp4", "compressed nvfp4", "compressed mxfp4", "mxfp4"),
    *("fp8", "fp8 blocks", "compressed fp8"),
)
OPENAI = {"activation": "swigluoai", "has_bias": True}
TOLERANCE = {"mxfp4": 0.5}  # its scales are powers of two


def model(**modules: Any) -> torch.nn.Module:
    made = torch.nn.Module()
    for name, module in modules.items():
        made.add_module(name, module)
    return made


def bits(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach().contiguous().flatten().view(torch.uint8).clone()
        for name, tensor in module.named_parameters()
    }


@each_row("quantization", LINEAR)
def test_a_matrix_keeps_the_size_of_what_goes_through(quantization: str) -> None:
    size = 128 if "blocks" in quantization else 16
    module = vllm_layers.qkv(quantization, hidden=512, size=size)
    fill_dummy(model(qkv_proj=module))
    layer: Any = read_layer("qkv_proj", module, "qkv")
    x = torch.randn(8, 512, dtype=torch.float64)
    y = x @ values(layer.weight).T
    wanted = TOLERANCE.get("mxfp4" if "mxfp4" in quantization else "", 0.1)
    assert float(y.square().mean().sqrt()) == pytest.approx(1.0, rel=wanted)
    assert 0 < float(module.bias.float().std()) < 0.2
    for name in ("input_scale", "input_global_scale"):
        if hasattr(module, name):
            assert (getattr(module, name) > 0).all()


@pytest.mark.parametrize("quantization", ["modelopt fp8", "modelopt nvfp4"])
def test_static_scales_leave_room_for_the_product_of_gate_and_up(quantization: str) -> None:
    qkv, down = vllm_layers.qkv(quantization), vllm_layers.qkv(quantization)
    fill_dummy(model(qkv_proj=qkv, down_proj=down))
    largest = 448 * (6 if "nvfp4" in quantization else 1)
    room = {
        name: float(m.input_scale.max()) * largest for name, m in (("qkv", qkv), ("down", down))
    }
    gate, up = torch.randn(2, 1 << 20, generator=torch.Generator().manual_seed(1))
    normed, hidden = gate.abs().max(), (torch.nn.functional.silu(gate) * up).abs().max()
    assert float(normed) < room["qkv"] < 2 * float(normed)
    assert room["qkv"] < float(hidden) < room["down"] < 4 * float(hidden)


@each_row("quantization", WITH_EXPERTS)
def test_experts_keep_the_size_of_what_goes_through(quantization: str) -> None:
    runner = vllm_layers.experts(quantization, hidden_size=256, intermediate_size=128)
    fill_dummy(model(experts=runner))
    layer: Any = read_layer("experts", runner, "moe")
    wanted = TOLERANCE.get("mxfp4" if "mxfp4" in quantization else "", 0.1)
    for weight, fan_in in ((layer.gate_up, 256), (layer.down, 128)):
        spread = float(values(weight).square().mean().sqrt()) * fan_in**0.5
        assert spread == pytest.approx(1.0, rel=wanted)
        assert not torch.equal(values(weight)[0], values(weight)[1])


@pytest.mark.parametrize("quantization", ["gpt-oss", "mxfp4"])
def test_padding_is_zero_as_in_a_checkpoint(quantization: str) -> None:
    given = OPENAI if quantization == "gpt-oss" else {}
    runner = vllm_layers.experts(quantization, **given)
    fill_dummy(model(experts=runner))
    module = runner.routed_experts
    assert stored_as(module, EXPERTS).format == "mxfp4"
    inner = module.w2_weight.shape[2] * 2
    assert module.w2_weight.shape[1] > HIDDEN
    assert inner > INNER
    assert not module.w13_weight[:, :, HIDDEN // 2 :].any()
    assert not module.w2_weight[:, HIDDEN:].any()
    assert not module.w2_weight[:, :, INNER // 2 :].any()
    halves = module.w13_weight.unflatten(1, (-1, 2) if given else (2, -1))
    rows = halves[:, INNER:] if given else halves[:, :, INNER:]
    assert not rows.any()
    assert module.w13_weight[:, : 2 * INNER if given else INNER, : HIDDEN // 2].any()
    if given:
        assert not module.w13_bias[:, 2 * INNER :].any()
        assert not module.w2_bias[:, HIDDEN:].any()


def test_logits_and_routers_have_a_spread_and_embeddings_are_of_size_one() -> None:
    from vllm.model_executor.layers.linear import ReplicatedLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    embedding = VocabParallelEmbedding(256, HIDDEN)
    head = vllm_layers.lm_head("bf16", 256)
    gate = ReplicatedLinear(HIDDEN, 64, bias=False, quant_config=None, prefix="mlp.gate")
    mlp = model(gate=gate)
    fill_dummy(model(embed_tokens=embedding, lm_head=head, mlp=mlp))
    x = torch.randn(64, HIDDEN, dtype=torch.float64)
    spreads = [float((x @ m.weight.double().T).std()) for m in (head, gate)]
    assert spreads == pytest.approx([4.0, 2.0], rel=0.2)
    assert float(embedding.weight.double().std()) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("tied", ["weights", "module"])
def test_tied_embeddings_are_those_of_logits(tied: str) -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    embedding = VocabParallelEmbedding(256, HIDDEN)
    modules = {"embed_tokens": embedding}
    if tied == "weights":
        head = vllm_layers.lm_head("bf16", 256)
        modules["lm_head"] = head.tie_weights(embedding)
    fill_dummy(model(**modules))
    assert float(embedding.weight.double().std() * HIDDEN**0.5) == pytest.approx(4.0, rel=0.1)


def test_norms_are_about_one() -> None:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm

    modules = {"a": RMSNorm(512), "b": GemmaRMSNorm(512), "c": LayerNorm(512)}
    fill_dummy(model(**modules))
    means = [float(module.weight.detach().float().mean()) for module in modules.values()]
    assert means == pytest.approx([1.0, 0.0, 1.0], abs=0.03)
    assert all(
        0.05 < float(module.weight.detach().float().std()) < 0.2 for module in modules.values()
    )


@each_row("quantization", ["modelopt nvfp4", "compressed mxfp4", "fp8", "bf16"])
def test_numbers_go_by_name_and_seed(quantization: str) -> None:
    def filled(seed: int, *order: str) -> dict[str, torch.Tensor]:
        made = model(**{name: vllm_layers.qkv(quantization) for name in order})
        fill_dummy(made, seed)
        return bits(made)

    once, again, other = filled(0, "q", "k"), filled(0, "k", "q"), filled(1, "q", "k")
    assert all(torch.equal(once[name], again[name]) for name in once)
    weight = next(name for name in once if name.startswith("q.weight"))
    assert not torch.equal(once[weight], other[weight])
    assert not torch.equal(once[weight], once["k" + weight[1:]])


def test_ranks_have_the_same_router_and_matrices_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.model_executor.layers.linear import ReplicatedLinear

    def filled(rank: int) -> dict[str, torch.Tensor]:
        monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_rank", lambda: rank)
        gate = ReplicatedLinear(HIDDEN, 8, bias=False, prefix="mlp.gate")
        runner = vllm_layers.experts("compressed nvfp4")
        runner.routed_experts.moe_config.moe_parallel_config.tp_size = 2
        made = model(gate=gate, qkv_proj=vllm_layers.qkv("bf16"), experts=runner)
        gate.tp_size = made.qkv_proj.tp_size = 2
        fill_dummy(made)
        return bits(made)

    first, second = filled(0), filled(1)
    same = {name for name in first if torch.equal(first[name], second[name])}
    assert "gate.weight" in same
    assert "qkv_proj.weight" not in same
    assert "experts.routed_experts.w13_weight_packed" not in same


def test_what_is_not_known_stays_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    module = vllm_layers.qkv("bf16")
    module.weight.data.fill_(0.5)

    class GPTQ:
        pass

    module.quant_method = GPTQ()
    fill_dummy(model(q=module, k=vllm_layers.qkv("bf16")))
    assert (module.weight == 0.5).all()
    assert [record.message for record in caplog.records if "GPTQ" in record.message]


@each_row("count", [1, 7, 8, 9, 4096])
def test_all_bytes_are_filled(count: int) -> None:
    packed = torch.zeros(count * 64, dtype=torch.uint8)[: count * 63 + 1]
    fill_codes(packed, torch.Generator().manual_seed(5))
    seen = packed.long().bincount(minlength=256)
    assert seen.max() <= 8 + 4 * count * 64 / 256
    assert packed[-64:].any()
