"""Whole layers of experts against the models' own code in transformers, run in float64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import Activation, RouterLayer
from spark_prof.kernels.check.inputs import make_activations, make_weight
from spark_prof.kernels.formats import MxFp4, NvFp4, deinterleave_gate_up, deinterleave_rows
from spark_prof.kernels.moe import PackedExperts, moe, pack_experts
from tests.rows import each_row

EXPERTS, TOP_K, HIDDEN, INNER, TOKENS = 8, 3, 192, 96, 5
ROUNDINGS = 2.0**-8
"""Of the L2 norm: half of it comes of rounding hidden activations, and half of the result's."""


def filled(module: torch.nn.Module, **values: torch.Tensor) -> torch.nn.Module:
    """The module in float64 with these parameters."""
    module = module.double()
    for name, value in values.items():
        module.get_parameter(name).data.copy_(value.double().cpu())
    return module


def assert_same(
    router: torch.nn.Module,
    theirs: torch.nn.Module,
    packed: PackedExperts,
    device: str,
    renormalize: bool = True,
) -> None:
    """The kernels' result for some tokens is that of a model's own router and experts."""
    x = make_activations("plain", TOKENS, HIDDEN, 5, device)
    filled(router, weight=make_activations("plain", EXPERTS, HIDDEN, 6, device) / 8)
    given = x.double().cpu()
    with torch.no_grad():
        logits, scores, chosen = router(given)
        expected = theirs(given, chosen, scores)
    ours = RouterLayer("", EXPERTS, TOP_K, renormalize, "softmax", None, 1.0)
    result = moe(x, logits.float().to(device), packed, ours)
    off = (result.double().cpu() - expected).norm() / expected.norm()
    assert 0 < off < ROUNDINGS


def test_gpt_oss(device: str) -> None:
    """From the checkpoint's interleaved rows on."""
    models = pytest.importorskip("transformers.models.gpt_oss", reason="no transformers")
    config = models.GptOssConfig(
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
    )
    gate_up = make_weight("mxfp4", "plain", (EXPERTS, 2 * INNER, HIDDEN), 1, device)
    down = make_weight("mxfp4", "plain", (EXPERTS, HIDDEN, INNER), 2, device)
    assert isinstance(gate_up, MxFp4)
    assert isinstance(down, MxFp4)
    gate_up_bias = make_activations("plain", EXPERTS, 2 * INNER, 3, device)
    down_bias = make_activations("plain", EXPERTS, HIDDEN, 4, device)
    modeling = models.modeling_gpt_oss
    experts = filled(
        modeling.GptOssExperts(config),
        gate_up_proj=gate_up.decode().transpose(1, 2),
        down_proj=down.decode().transpose(1, 2),
        gate_up_proj_bias=gate_up_bias,
        down_proj_bias=down_bias,
    )
    router = modeling.GptOssTopKRouter(config)

    packed = pack_experts(
        deinterleave_gate_up(gate_up),
        down,
        deinterleave_rows(gate_up_bias),
        down_bias,
        Activation("swiglu"),
    )
    assert_same(router, experts, packed, device)


@each_row("renormalize", [False, True])
def test_qwen3(renormalize: bool, device: str) -> None:
    models = pytest.importorskip("transformers.models.qwen3_moe", reason="no transformers")
    config = models.Qwen3MoeConfig(
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        hidden_size=HIDDEN,
        moe_intermediate_size=INNER,
        norm_topk_prob=renormalize,
    )
    gate_up = make_weight("nvfp4", "plain", (EXPERTS, 2 * INNER, HIDDEN), 1, device)
    down = make_weight("nvfp4", "plain", (EXPERTS, HIDDEN, INNER), 2, device)
    assert isinstance(gate_up, NvFp4)
    assert isinstance(down, NvFp4)
    modeling = models.modeling_qwen3_moe
    experts = filled(
        modeling.Qwen3MoeExperts(config), gate_up_proj=gate_up.decode(), down_proj=down.decode()
    )
    router = modeling.Qwen3MoeTopKRouter(config)

    packed = pack_experts(gate_up, down, None, None, Activation("silu"))
    assert_same(router, experts, packed, device, renormalize)
