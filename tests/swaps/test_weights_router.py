"""Routers of vLLM's layers are read so that the project's kernel chooses as they do."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.routing import route
from spark_prof.swaps.layers import RouterLayer
from spark_prof.swaps.live_weights import read_layer
from tests.emulator.compiler import compiler
from tests.rows import each_row

pytestmark = pytest.mark.usefixtures("vllm_world")

_ROUTERS = "vllm.model_executor.layers.fused_moe.router."
MODULES = {
    "FusedTopKRouter": "fused_topk_router",
    "FusedTopKBiasRouter": "fused_topk_bias_router",
    "GroupedTopKRouter": "grouped_topk_router",
    "CPURouter": "cpu_router",
    "CustomRoutingRouter": "custom_routing_router",
}
SIZES = {"top_k": 3, "global_num_experts": 12}


def router(kind: str, **given: Any) -> Any:
    return getattr(importlib.import_module(_ROUTERS + MODULES[kind]), kind)(**(SIZES | given))


def read(made: Any, **runner: Any) -> RouterLayer:
    layer = read_layer("experts", SimpleNamespace(router=made, **runner), "router")
    assert isinstance(layer, RouterLayer)
    return layer


def correction() -> torch.Tensor:
    return torch.linspace(-1, 1, 12, dtype=torch.float32)


ONE_GROUP = {"use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1}


@each_row(
    "given",
    [
        {"renormalize": True},
        {"renormalize": False},
        ONE_GROUP | {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5},
        ONE_GROUP | {"scoring_func": "sigmoid", "e_score_correction_bias": correction()},
        ONE_GROUP | {"routed_scaling_factor": 1.5, "renormalize": False},
        # Without groups this router leaves the factor to others, and so must the kernel.
        {"routed_scaling_factor": 2.5},
    ],
)
def test_the_kernel_chooses_as_vllm_does(given: dict[str, Any]) -> None:
    if compiler() is None:
        pytest.skip("no C++ compiler: kernels do not run on the CPU")
    made = router("CPURouter", **given)
    layer = read(made)
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float32)
    weights, experts = made._compute_routing(torch.zeros(5, 8), logits, None)
    ours = route(
        logits, layer.top_k, layer.renormalize, layer.scoring, layer.correction, layer.scale
    )
    order, our_order = experts.argsort(-1), ours.experts.argsort(-1)
    assert torch.equal(experts.gather(1, order).int(), ours.experts.gather(1, our_order))
    torch.testing.assert_close(
        ours.weights.gather(1, our_order), weights.gather(1, order).float(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("kind", "groups"),
    [("FusedTopKBiasRouter", {}), ("GroupedTopKRouter", {"num_expert_group": 1, "topk_group": 1})],
)
def test_routers_with_a_correction_and_a_factor(kind: str, groups: dict[str, int]) -> None:
    bias = torch.nn.Parameter(correction().bfloat16(), requires_grad=False)
    given = {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5}
    layer = read(router(kind, e_score_correction_bias=bias, **given, **groups))
    assert layer.scale == 2.5
    assert layer.correction is not None
    assert layer.correction.dtype == torch.float32
    assert torch.equal(layer.correction, bias.float())


@each_row(
    ("kind", "given", "reason"),
    [
        ("GroupedTopKRouter", {"num_expert_group": 4, "topk_group": 2}, "among 4 groups"),
        ("FusedTopKBiasRouter", {"e_score_correction_bias": correction(),
                                 "scoring_func": "softmax"}, "corrects a softmax"),
        ("FusedTopKBiasRouter", {"e_score_correction_bias": correction(),
                                 "num_fused_shared_experts": 1}, "shared experts"),
        ("FusedTopKBiasRouter", {"hash_indices_table": torch.ones(4, 3)}, "hash of the token"),
        ("FusedTopKRouter", {"scoring_func": "sqrtsoftplus"}, "neither softmax nor"),
        ("FusedTopKRouter", {"eplb_state": object()}, "EPLB"),
        ("CPURouter", {"custom_routing_function": max}, "function of the model's own"),
        ("CustomRoutingRouter", {"custom_routing_function": max}, "CustomRoutingRouter"),
    ],
)  # fmt: skip
def test_what_the_kernel_does_not_know_is_refused(
    kind: str, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(KernelError, match=reason):
        read(router(kind, **given))


def test_logits_with_another_gate_s_are_refused() -> None:
    with pytest.raises(KernelError, match="shared expert's gate"):
        read(router("FusedTopKRouter"), _fse_fuse_gate=True)
